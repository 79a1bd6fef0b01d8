//! Addresses and the pages behind them.

use super::*;
use crate::device::DeviceError;
use crate::device::sim::Call;

fn injected() -> DeviceError {
    DeviceError::Driver { call: "test", code: 1, name: "INJECTED".to_owned(), text: String::new() }
}

#[test]
fn two_live_blocks_on_one_address_are_reported() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let stream = bench.checker.create_stream().unwrap();
    bench.checker.allocated(bench.at(0, 0), 1024, stream);
    bench.checker.allocated(bench.at(0, 512), 1024, stream);
    let report = bench.checker.verify().unwrap_err();
    assert!(report.breaks(Rule::Overlap), "{report}");
}

#[test]
fn live_blocks_on_two_mappings_of_a_page_are_reported() {
    let bench = Bench::new();
    let page = bench.new_page_at(0);
    bench.map(1, page);
    let stream = bench.checker.create_stream().unwrap();
    bench.checker.allocated(bench.at(0, 0), 1024, stream);
    bench.checker.allocated(bench.at(1, 1024), 1024, stream);
    bench.passes();
    bench.checker.allocated(bench.at(1, 512), 512, stream);
    bench.breaks(Rule::Overlap);
}

#[test]
fn only_remapping_out_of_stream_order_is_reported() {
    let bench = Bench::new();
    let page = bench.new_page_at(0);
    let (first, _hold) = bench.held_stream();
    let second = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), PAGE, first);
    bench.free(block, first);
    bench.map(3, page);
    let block = bench.checker.allocated(bench.at(3, 0), PAGE / 2, first);
    bench.free(block, first);
    bench.passes();
    bench.checker.allocated(bench.at(3, PAGE / 2), PAGE / 2, second);
    bench.breaks(Rule::Order);
}

#[test]
fn a_block_over_several_pages_is_followed_on_each() {
    let bench = Bench::new();
    for at in 0..3 {
        bench.new_page_at(at);
    }
    let (first, _hold) = bench.held_stream();
    let second = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 512), 3 * PAGE - 1024, first);
    bench.free(block, first);
    bench.checker.allocated(bench.at(0, 0), 512, second);
    bench.checker.allocated(bench.at(2, PAGE - 512), 512, second);
    bench.passes();
    bench.checker.allocated(bench.at(2, PAGE - 1024), 512, second);
    bench.breaks(Rule::Order);
}

#[test]
fn a_block_without_memory_is_reported() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let stream = bench.checker.create_stream().unwrap();
    bench.checker.allocated(bench.at(0, PAGE - 512), 1024, stream);
    bench.breaks(Rule::NotMapped);
}

#[test]
fn a_block_without_access_is_reported() {
    let bench = Bench::new();
    let page = bench.checker.create_page(PAGE).unwrap();
    bench.checker.map(bench.at(0, 0), PAGE, page).unwrap();
    let stream = bench.checker.create_stream().unwrap();
    bench.checker.allocated(bench.at(0, 0), 512, stream);
    bench.breaks(Rule::NotMapped);
}

#[test]
fn a_page_changed_under_a_live_block_is_reported() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let stream = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 512, stream);
    bench.checker.synchronize().unwrap();
    bench.unmap(0);
    bench.new_page_at(0);
    bench.checker.used(block, stream);
    let report = bench.checker.verify().unwrap_err();
    assert!(report.breaks(Rule::UnmapUnderBlock), "{report}");
    assert!(report.breaks(Rule::Moved), "{report}");
}

#[test]
fn an_unmap_under_pending_work_is_reported() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let (stream, _hold) = bench.held_stream();
    let block = bench.checker.allocated(bench.at(0, 0), 512, stream);
    bench.free(block, stream);
    bench.unmap(0);
    bench.breaks(Rule::UnmapUnderWork);
}

#[test]
fn an_awaited_event_does_not_excuse_an_unmap() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let (first, _hold) = bench.held_stream();
    let second = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 512, first);
    bench.free(block, first);
    bench.order(first, second);
    bench.unmap(0);
    bench.breaks(Rule::UnmapUnderWork);
}

#[test]
fn an_unmap_is_fine_once_its_work_is_complete() {
    let bench = Bench::new();
    let page = bench.new_page_at(0);
    let (stream, hold) = bench.held_stream();
    let block = bench.checker.allocated(bench.at(0, 0), 512, stream);
    bench.free(block, stream);
    bench.map(1, page);
    bench.sim.release(hold);
    bench.checker.synchronize_stream(stream).unwrap();
    bench.checker.allocated(bench.at(1, 0), 512, stream);
    bench.unmap(0);
    bench.passes();
}

#[test]
fn mapping_over_a_mapping_is_reported_and_refused() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let page = bench.checker.create_page(PAGE).unwrap();
    bench.checker.map(bench.at(0, 0), PAGE, page).unwrap_err();
    bench.breaks(Rule::DeadHandle);
}

#[test]
fn a_segment_freed_under_a_live_block_is_reported() {
    let bench = Bench::new();
    let segment = bench.checker.alloc_segment(4096).unwrap();
    bench.checker.allocated(segment, 512, StreamHandle::LEGACY);
    // SAFETY: a simulated device has no bytes.
    unsafe { bench.checker.free_segment(segment) }.unwrap();
    bench.breaks(Rule::UnmapUnderBlock);
}

#[test]
fn freeing_a_segment_waits_for_all_work_before_it() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let first = bench.checker.create_stream().unwrap();
    let second = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 512, first);
    bench.free(block, first);
    let segment = bench.checker.alloc_segment(4096).unwrap();
    // SAFETY: a simulated device has no bytes.
    unsafe { bench.checker.free_segment(segment) }.unwrap();
    bench.checker.allocated(bench.at(0, 0), 512, second);
    bench.passes();
}

#[test]
fn everything_that_is_left_is_named() {
    let bench = Bench::new();
    bench.new_page_at(0);
    bench.checker.create_event().unwrap();
    let stream = bench.checker.create_stream().unwrap();
    _ = bench.checker.alloc_segment(4096).unwrap();
    bench.checker.allocated(bench.at(0, 0), 512, stream);
    bench.passes();
    let report = bench.checker.verify_nothing_left().unwrap_err();
    let text: Vec<_> = report.violations.iter().map(|violation| violation.text.as_str()).collect();
    for what in ["mapping of", "segment of", "page 0x", "reserved bytes", "stream 0x", "event 0x", "is live"]
    {
        assert_eq!(text.iter().filter(|text| text.contains(what)).count(), 1, "{what}: {report}");
    }
    assert_eq!(text.len(), 7, "{report}");
}

#[test]
fn nothing_is_left_once_everything_was_given_back() {
    let bench = Bench::new();
    let page = bench.new_page_at(0);
    bench.unmap(0);
    // SAFETY: neither is used again.
    unsafe {
        bench.checker.release_page(page).unwrap();
        bench.checker.unreserve(bench.range, 4 * PAGE).unwrap();
    }
    bench.checker.verify_nothing_left().unwrap();
}

#[test]
fn what_the_device_refused_to_take_back_is_no_leak() {
    let bench = Bench::new();
    let page = bench.new_page_at(0);
    let event = bench.checker.create_event().unwrap();
    bench.sim.fail_next(Call::Unmap, 1, injected());
    bench.sim.fail_next(Call::DestroyEvent, 1, injected());
    // SAFETY: neither is used again.
    unsafe {
        bench.checker.unmap(bench.at(0, 0), PAGE).unwrap_err();
        bench.checker.destroy_event(event).unwrap_err();
        bench.checker.release_page(page).unwrap();
    }
    bench.checker.verify_nothing_left().unwrap();
}

#[test]
fn a_call_that_failed_changed_nothing() {
    let bench = Bench::new();
    let page = bench.checker.create_page(PAGE).unwrap();
    bench.sim.fail_next(Call::Map, 1, injected());
    bench.checker.map(bench.at(0, 0), PAGE, page).unwrap_err();
    bench.map(0, page);
    bench.passes();
}
