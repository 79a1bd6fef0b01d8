//! Events: what they stand for, and who waits for them.

use millpond::device::{EventHandle, StreamHandle};

use super::harness::*;

pub(crate) fn an_event_never_recorded_is_complete(h: &dyn Harness) {
    let (event, stream) = event_and_stream(h);
    assert!(h.device().query_event(event).unwrap());
    h.device().synchronize_event(event).unwrap();
    h.device().wait_event(stream, event).unwrap();
    h.device().synchronize_stream(stream).unwrap();
    destroy(h, event);
}

pub(crate) fn an_event_is_complete_when_the_work_before_it_is(h: &dyn Harness) {
    let (event, stream) = event_and_stream(h);
    let hold = h.hold(stream);
    h.device().record_event(event, stream).unwrap();
    assert!(!h.device().query_event(event).unwrap());
    hold();
    h.device().synchronize_event(event).unwrap();
    assert!(h.device().query_event(event).unwrap());
    destroy(h, event);
}

pub(crate) fn later_work_does_not_delay_an_event(h: &dyn Harness) {
    let (event, stream) = event_and_stream(h);
    h.device().record_event(event, stream).unwrap();
    let hold = h.hold(stream);
    h.device().synchronize_event(event).unwrap();
    assert!(h.device().query_event(event).unwrap());
    assert!(!h.device().stream_is_idle(stream).unwrap());
    hold();
}

pub(crate) fn recording_again_replaces_what_an_event_stands_for(h: &dyn Harness) {
    let (event, held) = event_and_stream(h);
    let idle = h.device().create_stream().unwrap();
    let hold = h.hold(held);
    h.device().record_event(event, held).unwrap();
    h.device().record_event(event, idle).unwrap();
    h.device().synchronize_event(event).unwrap();
    assert!(h.device().query_event(event).unwrap());
    h.device().record_event(event, held).unwrap();
    assert!(!h.device().query_event(event).unwrap());
    hold();
}

pub(crate) fn a_wait_is_for_what_the_event_stood_for(h: &dyn Harness) {
    let (event, held) = event_and_stream(h);
    let (waiting, idle) = (h.device().create_stream().unwrap(), h.device().create_stream().unwrap());
    let hold = h.hold(held);
    h.device().record_event(event, held).unwrap();
    h.device().wait_event(waiting, event).unwrap();
    h.device().record_event(event, idle).unwrap();
    h.device().synchronize_event(event).unwrap();
    assert!(!h.device().stream_is_idle(waiting).unwrap());
    hold();
    h.device().synchronize_stream(waiting).unwrap();
    assert!(h.device().stream_is_idle(held).unwrap());
}

pub(crate) fn a_complete_event_delays_nobody(h: &dyn Harness) {
    let (event, stream) = event_and_stream(h);
    let other = h.device().create_stream().unwrap();
    h.device().record_event(event, stream).unwrap();
    h.device().synchronize_event(event).unwrap();
    let hold = h.hold(stream);
    h.device().wait_event(other, event).unwrap();
    h.device().synchronize_stream(other).unwrap();
    hold();
}

pub(crate) fn an_event_destroyed_while_pending_still_holds_back_who_waits(h: &dyn Harness) {
    let (event, held) = event_and_stream(h);
    let waiting = h.device().create_stream().unwrap();
    let memory = h.device().alloc_segment(4096).unwrap();
    let hold = h.hold(held);
    fill(h, memory, 1, 4096, held);
    h.device().record_event(event, held).unwrap();
    h.device().wait_event(waiting, event).unwrap();
    destroy(h, event);
    fill(h, memory, 2, 64, waiting);
    assert!(!h.device().stream_is_idle(waiting).unwrap());
    hold();
    expect_bytes(h, memory, &[2; 64], waiting);
    expect_bytes(h, memory.offset(64), &[1; 4032], waiting);
}

pub(crate) fn a_wait_follows_through_a_chain_of_streams(h: &dyn Harness) {
    let (event, first) = event_and_stream(h);
    let streams: Vec<_> = (0..4).map(|_| h.device().create_stream().unwrap()).collect();
    let hold = h.hold(first);
    let mut before = first;
    for &stream in &streams {
        h.device().record_event(event, before).unwrap();
        h.device().wait_event(stream, event).unwrap();
        before = stream;
    }
    assert!(streams.iter().all(|&stream| !h.device().stream_is_idle(stream).unwrap()));
    hold();
    h.device().synchronize_stream(before).unwrap();
    assert!(streams.iter().all(|&stream| h.device().stream_is_idle(stream).unwrap()));
    assert!(h.device().stream_is_idle(first).unwrap());
}

pub(crate) fn a_stream_may_wait_for_its_own_event(h: &dyn Harness) {
    let (event, stream) = event_and_stream(h);
    let hold = h.hold(stream);
    h.device().record_event(event, stream).unwrap();
    h.device().wait_event(stream, event).unwrap();
    hold();
    h.device().synchronize_stream(stream).unwrap();
}

pub(crate) fn synchronizing_an_event_waits_for_its_work_only(h: &dyn Harness) {
    let (event, stream) = event_and_stream(h);
    let other = h.device().create_stream().unwrap();
    let hold = h.hold(other);
    h.device().record_event(event, stream).unwrap();
    h.device().synchronize_event(event).unwrap();
    assert!(!h.device().stream_is_idle(other).unwrap());
    hold();
}

fn event_and_stream(h: &dyn Harness) -> (EventHandle, StreamHandle) {
    (h.device().create_event().unwrap(), h.device().create_stream().unwrap())
}

fn destroy(h: &dyn Harness, event: EventHandle) {
    // SAFETY: the tests do not use an event that they destroyed.
    unsafe { h.device().destroy_event(event) }.unwrap();
}
