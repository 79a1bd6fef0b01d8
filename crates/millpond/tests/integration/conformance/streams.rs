//! Streams: order, concurrency, identity.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;

use millpond::device::StreamHandle;

use super::harness::*;

pub(crate) fn work_on_one_stream_runs_in_order(h: &dyn Harness) {
    let stream = h.device().create_stream().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hold = h.hold(stream);
    let mut launched = false;
    for number in 0..50 {
        let seen = Arc::clone(&seen);
        launched = h.launch(stream, Box::new(move || seen.lock().unwrap().push(number)));
    }
    assert!(seen.lock().unwrap().is_empty());
    hold();
    h.device().synchronize_stream(stream).unwrap();
    let expected: Vec<_> = if launched { (0..50).collect() } else { Vec::new() };
    assert_eq!(*seen.lock().unwrap(), expected);
}

pub(crate) fn streams_run_at_the_same_time(h: &dyn Harness) {
    let device = h.device();
    let (held, free) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let memory = device.alloc_segment(4096).unwrap();
    let hold = h.hold(held);
    fill(h, memory, 5, 4096, free);
    device.synchronize_stream(free).unwrap();
    assert!(device.stream_is_idle(free).unwrap());
    assert!(!device.stream_is_idle(held).unwrap());
    expect_bytes(h, memory, &[5; 4096], free);
    hold();
}

pub(crate) fn a_stream_is_idle_when_its_work_is_complete(h: &dyn Harness) {
    let stream = h.device().create_stream().unwrap();
    assert!(h.device().stream_is_idle(stream).unwrap());
    let hold = h.hold(stream);
    assert!(!h.device().stream_is_idle(stream).unwrap());
    hold();
    h.device().synchronize_stream(stream).unwrap();
    assert!(h.device().stream_is_idle(stream).unwrap());
}

/// Handles are given again, at least by the devices that do so on purpose.
pub(crate) fn identities_are_never_given_again(h: &dyn Harness) {
    let (mut handles, mut identities) = (HashSet::new(), HashSet::new());
    for _ in 0..50 {
        let stream = h.device().create_stream().unwrap();
        handles.insert(stream);
        assert!(identities.insert(h.device().stream_id(stream).unwrap()));
        // SAFETY: the stream is not used again.
        unsafe { h.device().destroy_stream(stream) }.unwrap();
    }
    assert!(!h.is_exact() || handles.len() < 50, "no handle was given again");
}

pub(crate) fn a_destroyed_streams_work_still_runs(h: &dyn Harness) {
    let device = h.device();
    let (doomed, other) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let memory = device.alloc_segment(4096).unwrap();
    let event = device.create_event().unwrap();
    let hold = h.hold(doomed);
    fill(h, memory, 3, 4096, doomed);
    device.record_event(event, doomed).unwrap();
    // SAFETY: the stream is not used again.
    unsafe { device.destroy_stream(doomed) }.unwrap();
    assert!(!device.query_event(event).unwrap());
    let successor = device.create_stream().unwrap();
    assert!(device.stream_is_idle(successor).unwrap(), "it may have the handle, but not the work");
    device.wait_event(other, event).unwrap();
    hold();
    expect_bytes(h, memory, &[3; 4096], other);
}

pub(crate) fn the_device_waits_for_destroyed_streams_too(h: &dyn Harness) {
    let stream = h.device().create_stream().unwrap();
    let event = h.device().create_event().unwrap();
    let hold = h.hold(stream);
    h.device().record_event(event, stream).unwrap();
    // SAFETY: the stream is not used again.
    unsafe { h.device().destroy_stream(stream) }.unwrap();
    if !h.waits() {
        h.device().synchronize().unwrap_err();
    }
    hold();
    h.device().synchronize().unwrap();
    assert!(h.device().query_event(event).unwrap());
}

pub(crate) fn default_streams_have_identities_of_their_own(h: &dyn Harness) {
    let created = h.device().create_stream().unwrap();
    let streams = [created, StreamHandle::LEGACY, StreamHandle::PER_THREAD];
    let first: HashSet<_> = streams.iter().map(|&stream| h.device().stream_id(stream).unwrap()).collect();
    let again: HashSet<_> = streams.iter().map(|&stream| h.device().stream_id(stream).unwrap()).collect();
    assert_eq!(first.len(), 3);
    assert_eq!(first, again);
}

pub(crate) fn every_thread_has_a_default_stream_of_its_own(h: &dyn Harness) {
    let own = || h.device().stream_id(StreamHandle::PER_THREAD).unwrap();
    let legacy = || h.device().stream_id(StreamHandle::LEGACY).unwrap();
    let (other_own, other_legacy) = thread::scope(|scope| scope.spawn(|| (own(), legacy())).join()).unwrap();
    assert_ne!(own(), other_own);
    assert_eq!(legacy(), other_legacy);
}

pub(crate) fn the_default_streams_take_work(h: &dyn Harness) {
    let memory = h.device().alloc_segment(4096).unwrap();
    for (stream, value) in [(StreamHandle::LEGACY, 1), (StreamHandle::PER_THREAD, 2)] {
        fill(h, memory, value, 4096, stream);
        expect_bytes(h, memory, &[value; 4096], stream);
        assert!(h.device().stream_is_idle(stream).unwrap());
    }
}

pub(crate) fn synchronize_waits_for_every_stream(h: &dyn Harness) {
    let streams: Vec<_> = (0..4).map(|_| h.device().create_stream().unwrap()).collect();
    let memory = h.device().alloc_segment(4 << 20).unwrap();
    for (index, &stream) in streams.iter().enumerate() {
        fill(h, memory.offset((index as u64) << 20), index as u8, 1 << 20, stream);
    }
    h.device().synchronize().unwrap();
    for (index, &stream) in streams.iter().enumerate() {
        assert!(h.device().stream_is_idle(stream).unwrap());
        expect_bytes(h, memory.offset((index as u64) << 20), &[index as u8; 64], stream);
    }
}
