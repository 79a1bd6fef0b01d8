//! Bytes that pass from one block to another.

use super::*;

/// A page with a freed block on a held stream, and another stream that wants the bytes.
fn freed_block() -> (Bench, StreamHandle, StreamHandle, Hold) {
    let bench = Bench::new();
    bench.new_page_at(0);
    let (first, hold) = bench.held_stream();
    let second = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 4096, first);
    bench.checker.used(block, first);
    bench.free(block, first);
    bench.passes();
    (bench, first, second, hold)
}

#[test]
fn bytes_taken_by_another_stream_without_order_are_reported() {
    let (bench, _, second, _hold) = freed_block();
    bench.checker.allocated(bench.at(0, 512), 512, second);
    bench.breaks(Rule::Order);
}

#[test]
fn bytes_taken_by_the_same_stream_are_fine() {
    let (bench, first, _, _hold) = freed_block();
    bench.checker.allocated(bench.at(0, 512), 512, first);
    bench.passes();
}

#[test]
fn bytes_beside_the_freed_block_are_fine() {
    let (bench, _, second, _hold) = freed_block();
    bench.checker.allocated(bench.at(0, 4096), 512, second);
    bench.passes();
}

#[test]
fn bytes_taken_after_an_event_are_fine() {
    let (bench, first, second, _hold) = freed_block();
    bench.order(first, second);
    bench.checker.allocated(bench.at(0, 0), 4096, second);
    bench.passes();
}

#[test]
fn order_passes_through_a_third_stream() {
    let (bench, first, second, _hold) = freed_block();
    let between = bench.checker.create_stream().unwrap();
    bench.order(first, between);
    bench.order(between, second);
    bench.checker.allocated(bench.at(0, 0), 4096, second);
    bench.passes();
}

#[test]
fn an_event_recorded_before_the_free_does_not_order_it() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let (first, _hold) = bench.held_stream();
    let second = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 4096, first);
    bench.order(first, second);
    bench.free(block, first);
    bench.checker.allocated(bench.at(0, 0), 4096, second);
    bench.breaks(Rule::Order);
}

#[test]
fn a_wait_stands_for_the_event_as_it_was_then() {
    let (bench, first, second, _hold) = freed_block();
    let event = bench.checker.create_event().unwrap();
    bench.checker.wait_event(second, event).unwrap();
    bench.checker.record_event(event, first).unwrap();
    bench.checker.allocated(bench.at(0, 0), 4096, second);
    bench.breaks(Rule::Order);
}

#[test]
fn an_event_recorded_anew_elsewhere_stands_for_that_only() {
    let (bench, first, second, _hold) = freed_block();
    let event = bench.checker.create_event().unwrap();
    bench.checker.record_event(event, first).unwrap();
    bench.checker.record_event(event, second).unwrap();
    let third = bench.checker.create_stream().unwrap();
    bench.checker.wait_event(third, event).unwrap();
    bench.checker.allocated(bench.at(0, 0), 4096, third);
    bench.breaks(Rule::Order);
}

#[test]
fn an_event_seen_pending_teaches_nothing() {
    let (bench, first, second, _hold) = freed_block();
    let event = bench.checker.create_event().unwrap();
    bench.checker.record_event(event, first).unwrap();
    assert!(!bench.checker.query_event(event).unwrap());
    assert!(!bench.checker.stream_is_idle(first).unwrap());
    bench.checker.allocated(bench.at(0, 0), 4096, second);
    bench.breaks(Rule::Order);
}

#[test]
fn an_event_seen_complete_orders_all_later_work() {
    let (bench, first, second, hold) = freed_block();
    let event = bench.checker.create_event().unwrap();
    bench.checker.record_event(event, first).unwrap();
    bench.sim.release(hold);
    bench.sim.advance_to(std::time::Duration::from_secs(1));
    assert!(bench.checker.query_event(event).unwrap());
    bench.checker.allocated(bench.at(0, 0), 4096, second);
    bench.passes();
}

#[test]
fn each_way_of_waiting_orders_all_later_work() {
    let ways: [fn(&Checker, StreamHandle); 4] = [
        |checker, stream| checker.synchronize_stream(stream).unwrap(),
        |checker, _| checker.synchronize().unwrap(),
        |checker, stream| {
            let event = checker.create_event().unwrap();
            checker.record_event(event, stream).unwrap();
            checker.synchronize_event(event).unwrap();
        },
        |checker, stream| assert!(checker.stream_is_idle(stream).unwrap()),
    ];
    for wait in ways {
        let (bench, first, second, hold) = freed_block();
        bench.sim.release(hold);
        bench.sim.advance_to(std::time::Duration::from_secs(1));
        wait(&bench.checker, first);
        bench.checker.allocated(bench.at(0, 0), 4096, second);
        bench.passes();
    }
}

#[test]
fn waiting_for_another_stream_teaches_nothing() {
    let (bench, _, second, _hold) = freed_block();
    bench.checker.synchronize_stream(second).unwrap();
    bench.checker.allocated(bench.at(0, 0), 4096, second);
    bench.breaks(Rule::Order);
}

#[test]
fn a_wait_that_fails_teaches_nothing() {
    let (bench, first, second, _hold) = freed_block();
    bench.checker.synchronize_stream(first).unwrap_err();
    bench.checker.allocated(bench.at(0, 0), 4096, second);
    bench.breaks(Rule::Order);
}

#[test]
fn what_a_later_block_left_over_is_still_guarded() {
    let (bench, first, second, _hold) = freed_block();
    let middle = bench.checker.allocated(bench.at(0, 1024), 1024, first);
    bench.free(middle, first);
    bench.checker.allocated(bench.at(0, 3072), 512, second);
    bench.breaks(Rule::Order);
}

#[test]
fn uses_on_other_streams_must_precede_the_next_block() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let (side, _hold) = bench.held_stream();
    let main = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 4096, main);
    bench.order(main, side);
    bench.checker.use_recorded(block, side);
    bench.checker.used(block, side);
    bench.free(block, main);
    bench.passes();
    bench.checker.allocated(bench.at(0, 0), 4096, main);
    bench.breaks(Rule::Order);
}

#[test]
fn a_free_under_unordered_work_is_the_programs_fault() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let (side, _hold) = bench.held_stream();
    let main = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 4096, main);
    bench.order(main, side);
    bench.checker.used(block, side);
    bench.free(block, main);
    bench.breaks(Rule::Program);
}

#[test]
fn work_on_a_freed_block_is_the_programs_fault() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let stream = bench.checker.create_stream().unwrap();
    let block = bench.checker.allocated(bench.at(0, 0), 4096, stream);
    bench.free(block, stream);
    bench.checker.used(block, stream);
    bench.breaks(Rule::Program);
}

#[test]
fn a_fill_of_free_memory_counts_as_work() {
    let (bench, _, second, _hold) = freed_block();
    // SAFETY: a simulated device touches no bytes.
    unsafe { bench.checker.memset(bench.at(0, 0), 0, 512, second) }.unwrap();
    bench.breaks(Rule::Order);
}

#[test]
fn a_block_must_come_after_the_fill_of_its_bytes() {
    let (bench, first, second, _hold) = freed_block();
    // SAFETY: a simulated device touches no bytes.
    unsafe { bench.checker.memset(bench.at(0, 0), 0, 512, first) }.unwrap();
    bench.passes();
    bench.checker.allocated(bench.at(0, 0), 512, second);
    bench.breaks(Rule::Order);
}

#[test]
fn a_copy_beyond_a_block_is_the_programs_fault() {
    let bench = Bench::new();
    bench.new_page_at(0);
    let stream = bench.checker.create_stream().unwrap();
    bench.checker.allocated(bench.at(0, 0), 512, stream);
    let bytes = [0; 513];
    // SAFETY: the bytes are readable, and a simulated device writes none.
    unsafe { bench.checker.copy_from_host(bench.at(0, 0), bytes.as_ptr(), 513, stream) }.unwrap();
    bench.breaks(Rule::Program);
}
