//! Wrong arguments, which devices with exact records refuse; then nothing has changed.
//!
//! On a GPU they are undefined or the driver's matter, so nothing is tried there.

use millpond::device::{DeviceError, DevicePtr, DeviceResult, EventHandle, PageHandle, StreamHandle};

use super::harness::*;

fn refused<T: std::fmt::Debug>(result: DeviceResult<T>) {
    assert!(matches!(result, Err(DeviceError::Invalid { .. })), "{result:?}");
}

fn unmap_wrongly(h: &dyn Harness, at: DevicePtr, bytes: u64) {
    // SAFETY: a device with exact records refuses what is wrong, which is what is tested.
    refused(unsafe { h.device().unmap(at, bytes) });
}

fn unreserve_wrongly(h: &dyn Harness, at: DevicePtr, bytes: u64) {
    // SAFETY: as in `unmap_wrongly`.
    refused(unsafe { h.device().unreserve(at, bytes) });
}

fn release_wrongly(h: &dyn Harness, page: PageHandle) {
    // SAFETY: as in `unmap_wrongly`.
    refused(unsafe { h.device().release_page(page) });
}

fn applies(h: &dyn Harness) -> bool {
    h.is_exact() && has_pages(h)
}

pub(crate) fn sizes_that_are_no_multiple_of_the_granularity_are_refused(h: &dyn Harness) {
    if !applies(h) {
        return;
    }
    let g = granularity(h);
    for bytes in [0, 1, g - 1, g + 512] {
        refused(h.device().reserve(bytes));
        refused(h.device().create_page(bytes));
    }
}

pub(crate) fn a_range_is_given_back_only_whole_and_empty(h: &dyn Harness) {
    if !applies(h) {
        return;
    }
    let g = granularity(h);
    let at = h.device().reserve(4 * g).unwrap();
    unreserve_wrongly(h, at, 2 * g);
    unreserve_wrongly(h, at.offset(g), 3 * g);
    let page = map_new_page(h, at.offset(g), g);
    unreserve_wrongly(h, at, 4 * g);
    unmap(h, at.offset(g), g);
    release_page(h, page);
    // SAFETY: nothing is mapped any more.
    unsafe { h.device().unreserve(at, 4 * g) }.unwrap();
    unreserve_wrongly(h, at, 4 * g);
}

pub(crate) fn pages_are_mapped_whole_and_aligned_in_empty_reserved_space(h: &dyn Harness) {
    if !applies(h) {
        return;
    }
    let g = granularity(h);
    let at = h.device().reserve(4 * g).unwrap();
    let page = h.device().create_page(2 * g).unwrap();
    refused(h.device().map(at, g, page));
    refused(h.device().map(at.offset(512), 2 * g, page));
    refused(h.device().map(at.offset(3 * g), 2 * g, page));
    refused(h.device().map(DevicePtr::new(g), 2 * g, page));
    h.device().map(at.offset(g), 2 * g, page).unwrap();
    for slot in 0..3 {
        refused(h.device().map(at.offset(slot * g), 2 * g, page));
    }
    // SAFETY: no work was given.
    unsafe { h.device().unmap(at.offset(g), 2 * g) }.unwrap();
    h.device().map(at, 2 * g, page).unwrap();
    h.device().map(at.offset(2 * g), 2 * g, page).unwrap();
}

pub(crate) fn a_released_page_is_no_page(h: &dyn Harness) {
    if !applies(h) {
        return;
    }
    let g = granularity(h);
    let at = h.device().reserve(2 * g).unwrap();
    let page = map_new_page(h, at, g);
    release_page(h, page);
    refused(h.device().map(at.offset(g), g, page));
    release_wrongly(h, page);
    unmap(h, at, g);
    release_wrongly(h, page);
    let successor = h.device().create_page(g).unwrap();
    refused(h.device().map(at, g, page));
    h.device().map(at, g, successor).unwrap();
}

pub(crate) fn access_is_set_on_whole_mappings_only(h: &dyn Harness) {
    if !applies(h) {
        return;
    }
    let g = granularity(h);
    let at = h.device().reserve(4 * g).unwrap();
    let page = h.device().create_page(2 * g).unwrap();
    refused(h.device().set_access(at, g));
    h.device().map(at, 2 * g, page).unwrap();
    refused(h.device().set_access(at, g));
    refused(h.device().set_access(at.offset(g), g));
    refused(h.device().set_access(at, 3 * g));
    refused(h.device().set_access(at, 0));
    h.device().set_access(at, 2 * g).unwrap();
}

pub(crate) fn a_mapping_is_removed_only_whole_and_once(h: &dyn Harness) {
    if !applies(h) {
        return;
    }
    let g = granularity(h);
    let at = h.device().reserve(4 * g).unwrap();
    let page = map_new_page(h, at, 2 * g);
    unmap_wrongly(h, at, g);
    unmap_wrongly(h, at.offset(g), g);
    unmap_wrongly(h, at, 4 * g);
    unmap(h, at, 2 * g);
    unmap_wrongly(h, at, 2 * g);
    release_page(h, page);
}

pub(crate) fn memory_without_access_is_not_touched(h: &dyn Harness) {
    if !applies(h) {
        return;
    }
    let g = granularity(h);
    let at = h.device().reserve(4 * g).unwrap();
    let page = h.device().create_page(g).unwrap();
    let fill_wrongly = |at, bytes| {
        // SAFETY: as in `unmap_wrongly`.
        refused(unsafe { h.device().memset(at, 0, bytes, StreamHandle::LEGACY) });
    };
    fill_wrongly(at, 1);
    h.device().map(at, g, page).unwrap();
    fill_wrongly(at, 1);
    h.device().set_access(at, g).unwrap();
    fill(h, at.offset(g - 1), 0, 1, StreamHandle::LEGACY);
    fill_wrongly(at.offset(g - 1), 2);
    map_page(h, at.offset(2 * g), g, page);
    fill_wrongly(at, 3 * g);
    unmap(h, at, g);
    fill_wrongly(at, 1);
}

pub(crate) fn segments_and_async_blocks_are_freed_once_as_made(h: &dyn Harness) {
    if !h.is_exact() || !has_driver_pool(h) {
        return;
    }
    let stream = h.device().create_stream().unwrap();
    let segment = h.device().alloc_segment(1 << 20).unwrap();
    let block = h.device().alloc_async(1 << 20, stream).unwrap();
    // SAFETY: as in `unmap_wrongly`, and each is freed once as it must be.
    unsafe {
        refused(h.device().free_segment(segment.offset(512)));
        refused(h.device().free_segment(block));
        refused(h.device().free_async(segment, stream));
        h.device().free_segment(segment).unwrap();
        h.device().free_async(block, stream).unwrap();
        refused(h.device().free_segment(segment));
        refused(h.device().free_async(block, stream));
    }
    refused(h.device().alloc_segment(0));
}

pub(crate) fn destroyed_streams_and_events_are_refused(h: &dyn Harness) {
    if !h.is_exact() {
        return;
    }
    let device = h.device();
    let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
    // SAFETY: as in `unmap_wrongly`.
    unsafe {
        device.destroy_stream(stream).unwrap();
        device.destroy_event(event).unwrap();
        refused(device.destroy_stream(stream));
        refused(device.destroy_event(event));
    }
    refused(device.stream_id(stream));
    refused(device.stream_is_idle(stream));
    refused(device.synchronize_stream(stream));
    refused(device.query_event(event));
    refused(device.synchronize_event(event));
    refused(device.wait_event(StreamHandle::LEGACY, event));
    refused(device.record_event(event, StreamHandle::LEGACY));
    let successor = device.create_event().unwrap();
    assert_ne!(event, successor, "a stale handle must not name a new event");
    refused(device.query_event(event));
    // SAFETY: the number is checked like any other.
    refused(device.query_event(unsafe { EventHandle::from_raw(12_345) }));
}

pub(crate) fn default_streams_cannot_be_destroyed(h: &dyn Harness) {
    if !h.is_exact() {
        return;
    }
    for stream in [StreamHandle::LEGACY, StreamHandle::PER_THREAD] {
        h.device().stream_id(stream).unwrap();
        // SAFETY: as in `unmap_wrongly`.
        refused(unsafe { h.device().destroy_stream(stream) });
    }
}

pub(crate) fn overlapping_copies_are_refused(h: &dyn Harness) {
    if !h.is_exact() {
        return;
    }
    let at = h.device().alloc_segment(4096).unwrap();
    // SAFETY: as in `unmap_wrongly`.
    unsafe {
        refused(h.device().copy(at, at.offset(512), 1024, StreamHandle::LEGACY));
        refused(h.device().copy(at, at, 512, StreamHandle::LEGACY));
    }
    copy(h, at, at.offset(512), 512, StreamHandle::LEGACY);
}
