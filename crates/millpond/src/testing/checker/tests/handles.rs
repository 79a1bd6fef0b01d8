//! Streams, events and pages that are gone; blocks whose free was refused.

use super::*;

#[test]
fn a_destroyed_event_is_dead() {
    let bench = Bench::new();
    let stream = bench.checker.create_stream().unwrap();
    let event = bench.checker.create_event().unwrap();
    // SAFETY: the device below never sees the event again, which is what is tested.
    unsafe { bench.checker.destroy_event(event) }.unwrap();
    bench.checker.record_event(event, stream).unwrap_err();
    bench.breaks(Rule::DeadHandle);
}

#[test]
fn a_destroyed_stream_is_dead() {
    let bench = Bench::new();
    let stream = bench.checker.create_stream().unwrap();
    // SAFETY: as for the event above.
    unsafe { bench.checker.destroy_stream(stream) }.unwrap();
    bench.checker.stream_is_idle(stream).unwrap_err();
    bench.breaks(Rule::DeadHandle);
}

#[test]
fn a_released_page_is_dead() {
    let bench = Bench::new();
    let page = bench.checker.create_page(PAGE).unwrap();
    // SAFETY: as for the event above.
    unsafe { bench.checker.release_page(page) }.unwrap();
    bench.checker.map(bench.at(0, 0), PAGE, page).unwrap_err();
    bench.breaks(Rule::DeadHandle);
}

#[test]
fn a_call_that_the_device_finds_invalid_is_reported() {
    let bench = Bench::new();
    bench.checker.create_page(PAGE + 1).unwrap_err();
    bench.breaks(Rule::Refused);
}

#[test]
fn memory_that_is_short_is_nobodys_fault() {
    let bench = Bench::new();
    bench.checker.create_page(1 << 40).unwrap_err();
    bench.passes();
}

#[test]
fn a_stream_with_a_recycled_handle_is_another_stream() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let (old, _hold) = bench.held_stream();
    let block = bench.checker.allocated(bench.at(0, 0), 512, old);
    bench.free(block, old);
    // SAFETY: the handle names another stream from here on.
    unsafe { bench.checker.destroy_stream(old) }.unwrap();
    let new = bench.checker.create_stream().unwrap();
    assert_eq!(old, new, "the simulated device recycles handles");
    bench.checker.allocated(bench.at(0, 0), 512, new);
    bench.breaks(Rule::Order);
}

#[test]
fn waiting_for_the_device_covers_destroyed_streams() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let old = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 512, old);
    bench.free(block, old);
    // SAFETY: the handle is not used again.
    unsafe { bench.checker.destroy_stream(old) }.unwrap();
    bench.checker.synchronize().unwrap();
    bench.checker.allocated(bench.at(0, 0), 512, StreamHandle::LEGACY);
    bench.passes();
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let _hold = bench.sim.hold(StreamHandle::PER_THREAD).unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 512, StreamHandle::PER_THREAD);
    bench.free(block, StreamHandle::PER_THREAD);
    bench.checker.allocated(bench.at(0, 0), 256, StreamHandle::PER_THREAD);
    bench.passes();
    std::thread::scope(|scope| {
        scope.spawn(|| bench.checker.allocated(bench.at(0, 256), 256, StreamHandle::PER_THREAD));
    });
    bench.breaks(Rule::Order);
}

#[test]
fn a_thread_waits_for_its_own_default_stream_only() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let stream = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 512, StreamHandle::PER_THREAD);
    bench.free(block, StreamHandle::PER_THREAD);
    std::thread::scope(|scope| {
        scope.spawn(|| bench.checker.synchronize_stream(StreamHandle::PER_THREAD).unwrap());
        scope.spawn(|| assert!(bench.checker.stream_is_idle(StreamHandle::PER_THREAD).unwrap()));
    });
    bench.checker.allocated(bench.at(0, 0), 512, stream);
    bench.breaks(Rule::Order);
}

#[test]
fn the_null_handle_is_the_legacy_stream() {
    let bench = Bench::new();
    bench.new_page_at(0);
    // SAFETY: every device knows the null stream.
    let null = unsafe { StreamHandle::from_raw(0) };
    let block = bench.checker.allocated(bench.at(0, 0), 512, null);
    bench.free(block, StreamHandle::LEGACY);
    bench.checker.allocated(bench.at(0, 0), 512, null);
    bench.passes();
}

#[test]
fn a_block_whose_free_was_refused_is_live_as_before() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let stream = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 512, stream);
    let freeing = bench.checker.freed(block, stream);
    bench.checker.free_refused(freeing);
    bench.checker.used(block, stream);
    bench.passes();
    bench.checker.allocated(bench.at(0, 0), 512, stream);
    let report = bench.checker.verify().unwrap_err();
    assert!(report.breaks(Rule::Overlap), "{report}");
}
