//! The driver's own allocators: plain and in stream order.

use std::thread;
use std::time::Duration;

use millpond::device::{DeviceError, DevicePtr, StreamHandle};

use super::harness::*;
use super::pages::{assert_returned, free_bytes};

pub(crate) fn segments_are_aligned_and_hold_their_bytes(h: &dyn Harness) {
    let stream = h.device().create_stream().unwrap();
    let sizes = [1, 512, 4097, 3 << 20];
    let segments: Vec<_> = sizes.iter().map(|&bytes| h.device().alloc_segment(bytes).unwrap()).collect();
    for (index, (&at, &bytes)) in segments.iter().zip(&sizes).enumerate() {
        assert!(at.raw().is_multiple_of(512), "{at}");
        fill(h, at, index as u8 + 1, bytes, stream);
    }
    for (index, (&at, &bytes)) in segments.iter().zip(&sizes).enumerate() {
        expect_bytes(h, at, &vec![index as u8 + 1; bytes as usize], stream);
        free(h, at);
    }
}

pub(crate) fn segments_and_free_memory_add_up(h: &dyn Harness) {
    if !h.counts_alone() {
        return;
    }
    let before = free_bytes(h);
    let bytes = 32 << 20;
    let segments: Vec<_> = (0..3).map(|_| h.device().alloc_segment(bytes).unwrap()).collect();
    assert!(before - free_bytes(h) >= 3 * bytes);
    segments.into_iter().for_each(|at| free(h, at));
    assert_returned(h, before, free_bytes(h));
}

pub(crate) fn a_segment_larger_than_the_device_is_out_of_memory(h: &dyn Harness) {
    let before = free_bytes(h);
    let too_much = 2 * h.device().properties().total_memory;
    assert!(matches!(h.device().alloc_segment(too_much), Err(DeviceError::OutOfMemory { .. })));
    assert_returned(h, before, free_bytes(h));
}

pub(crate) fn freeing_a_segment_waits_for_all_work(h: &dyn Harness) {
    let stream = h.device().create_stream().unwrap();
    let at = h.device().alloc_segment(2 << 20).unwrap();
    let hold = h.hold(stream);
    if !h.waits() {
        // SAFETY: the call is refused, and frees nothing.
        unsafe { h.device().free_segment(at) }.unwrap_err();
        hold();
        return free(h, at);
    }
    thread::scope(|scope| {
        let freeing = scope.spawn(|| free(h, at));
        thread::sleep(Duration::from_millis(50));
        assert!(!freeing.is_finished());
        hold();
    });
}

pub(crate) fn async_blocks_hold_their_bytes(h: &dyn Harness) {
    if !has_driver_pool(h) {
        return;
    }
    let stream = h.device().create_stream().unwrap();
    let sizes = [1, 512, 4097, 3 << 20];
    let blocks: Vec<_> = sizes.iter().map(|&bytes| alloc(h, bytes, stream)).collect();
    for (index, (&at, &bytes)) in blocks.iter().zip(&sizes).enumerate() {
        assert!(at.raw().is_multiple_of(256), "{at}");
        fill(h, at, index as u8 + 1, bytes, stream);
    }
    for (index, (&at, &bytes)) in blocks.iter().zip(&sizes).enumerate() {
        expect_bytes(h, at, &vec![index as u8 + 1; bytes as usize], stream);
        free_async(h, at, stream);
    }
    h.device().synchronize().unwrap();
    assert_eq!(h.device().async_usage().unwrap().used, 0);
}

pub(crate) fn a_block_freed_on_a_stream_is_reused_there(h: &dyn Harness) {
    if !has_driver_pool(h) {
        return;
    }
    let stream = h.device().create_stream().unwrap();
    let first = alloc(h, 1 << 20, stream);
    let hold = h.hold(stream);
    fill(h, first, 1, 1 << 20, stream);
    free_async(h, first, stream);
    let second = alloc(h, 1 << 20, stream);
    assert_eq!(first, second, "while the work before the free is pending");
    fill(h, second, 2, 1 << 20, stream);
    hold();
    expect_bytes(h, second, &[2; 64], stream);
    free_async(h, second, stream);
}

/// A driver may give it, and make the other stream wait; the models do not.
pub(crate) fn a_pending_block_is_not_given_to_another_stream(h: &dyn Harness) {
    if !h.is_exact() || !has_driver_pool(h) {
        return;
    }
    let (stream, other) = (h.device().create_stream().unwrap(), h.device().create_stream().unwrap());
    let first = alloc(h, 20 << 20, stream);
    let hold = h.hold(stream);
    free_async(h, first, stream);
    let second = alloc(h, 20 << 20, other);
    assert_ne!(first, second);
    hold();
    h.device().synchronize_stream(stream).unwrap();
    assert_eq!(alloc(h, 20 << 20, other), first, "now that the work is complete");
}

pub(crate) fn the_drivers_pool_keeps_what_it_has(h: &dyn Harness) {
    if !has_driver_pool(h) {
        return;
    }
    let stream = h.device().create_stream().unwrap();
    let bytes = 40 << 20;
    let at = alloc(h, bytes, stream);
    let full = h.device().async_usage().unwrap();
    assert!(full.used >= bytes && full.reserved >= full.used, "{full:?}");
    free_async(h, at, stream);
    h.device().synchronize().unwrap();
    let empty = h.device().async_usage().unwrap();
    assert_eq!((empty.used, empty.reserved), (0, full.reserved));
    assert_eq!((empty.used_high, empty.reserved_high), (full.used, full.reserved));
    let again = alloc(h, bytes, stream);
    assert_eq!(h.device().async_usage().unwrap().reserved, full.reserved);
    free_async(h, again, stream);
}

pub(crate) fn too_large_an_async_block_is_out_of_memory(h: &dyn Harness) {
    if !has_driver_pool(h) {
        return;
    }
    let stream = h.device().create_stream().unwrap();
    let before = h.device().async_usage().unwrap();
    let too_much = 2 * h.device().properties().total_memory;
    assert!(matches!(h.device().alloc_async(too_much, stream), Err(DeviceError::OutOfMemory { .. })));
    // The high-water mark may tell of the attempt; nothing else does.
    let after = h.device().async_usage().unwrap();
    assert_eq!((after.used, after.reserved), (before.used, before.reserved));
}

pub(crate) fn without_a_pool_of_its_own_the_driver_says_so(h: &dyn Harness) {
    if has_driver_pool(h) {
        return;
    }
    let stream = h.device().create_stream().unwrap();
    assert!(matches!(h.device().alloc_async(512, stream), Err(DeviceError::Unsupported { .. })));
}

fn alloc(h: &dyn Harness, bytes: u64, stream: StreamHandle) -> DevicePtr {
    h.device().alloc_async(bytes, stream).unwrap()
}

fn free_async(h: &dyn Harness, at: DevicePtr, stream: StreamHandle) {
    // SAFETY: the tests free blocks of theirs once, after their work in stream order.
    unsafe { h.device().free_async(at, stream) }.unwrap();
}

fn free(h: &dyn Harness, at: DevicePtr) {
    // SAFETY: the tests free segments of theirs once.
    unsafe { h.device().free_segment(at) }.unwrap();
}
