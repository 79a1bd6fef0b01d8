//! Pinned memory of the host, beside the device's own. Each test takes both from the device under test.

use millpond::device::{Device, DevicePtr, MemoryKind};

use super::harness::*;

/// The pinned memory of the device; of pinned memory, that itself.
fn pinned(h: &dyn Harness) -> std::sync::Arc<dyn Device> {
    h.raw().pinned(None).unwrap()
}

const BYTES: u64 = 3 << 20;

pub(crate) fn its_properties_say_what_it_is(h: &dyn Harness) {
    let (device, pinned) = (h.raw().properties().clone(), pinned(h));
    let of = pinned.properties();
    assert_eq!((of.memory, of.kind, of.ordinal), (MemoryKind::Pinned, device.kind, device.ordinal));
    assert_eq!((of.host_access, of.memory_pools), (h.keeps_bytes(), false));
    assert_eq!(device.host_access, h.keeps_bytes() && device.memory != MemoryKind::Device, "as a GPU's");
    let info = pinned.memory_info().unwrap();
    assert!(0 < info.free && info.free <= info.total && info.total == of.total_memory, "{info:?}");
    assert!(of.granularity.is_power_of_two());
}

pub(crate) fn its_streams_and_events_are_the_devices(h: &dyn Harness) {
    let (device, pinned) = (h.device(), pinned(h));
    let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
    let hold = h.hold(stream);
    // SAFETY: both are of the device, and stay until the end.
    unsafe {
        assert_eq!(pinned.stream_id(stream), device.stream_id(stream));
        pinned.record_event(event, stream).unwrap();
        assert_eq!((pinned.query_event(event), pinned.stream_is_idle(stream)), (Ok(false), Ok(false)));
        hold();
        pinned.synchronize_stream(stream).unwrap();
        assert_eq!((device.query_event(event), device.stream_is_idle(stream)), (Ok(true), Ok(true)));
        pinned.destroy_event(event).unwrap();
        pinned.destroy_stream(stream).unwrap();
    }
}

/// Work on a held stream: nobody waits for a copy between the two.
pub(crate) fn bytes_go_from_one_memory_to_the_other_and_back(h: &dyn Harness) {
    let (device, pinned) = (h.device(), pinned(h));
    let stream = device.create_stream().unwrap();
    let on_device = device.alloc_segment(BYTES).unwrap();
    let on_host = [(); 2].map(|()| pinned.alloc_segment(BYTES).unwrap());
    let hold = h.hold(stream);
    fill(h, on_host[0], 1, BYTES, stream);
    copy(h, on_device, on_host[0], BYTES, stream);
    fill(h, on_host[0], 2, BYTES, stream);
    copy(h, on_host[1], on_device, BYTES, stream);
    hold();
    expect_bytes(h, on_device, &vec![1; BYTES as usize], stream);
    expect_bytes(h, on_host[0], &vec![2; BYTES as usize], stream);
    expect_bytes(h, on_host[1], &vec![1; BYTES as usize], stream);
    // SAFETY: all work is complete, and nothing is used again.
    unsafe {
        on_host.into_iter().for_each(|at| pinned.free_segment(at).unwrap());
        device.free_segment(on_device).unwrap();
        device.destroy_stream(stream).unwrap();
    }
}

pub(crate) fn the_cpu_reads_and_writes_its_bytes_in_place(h: &dyn Harness) {
    let (device, pinned) = (h.device(), pinned(h));
    if !pinned.properties().host_access {
        return;
    }
    let stream = device.create_stream().unwrap();
    let segment = pinned.alloc_segment(BYTES).unwrap();
    in_place(h, segment, stream);
    // SAFETY: all work is complete, and it is not used again.
    unsafe { pinned.free_segment(segment) }.unwrap();
    if pinned.properties().virtual_memory {
        let g = pinned.properties().granularity;
        let at = pinned.reserve(2 * g).unwrap();
        // SAFETY: range and page are the test's, and all work is complete when they go.
        unsafe {
            let page = pinned.create_page(2 * g).unwrap();
            pinned.map(at, 2 * g, page).unwrap();
            pinned.set_access(at, 2 * g).unwrap();
            in_place(h, at, stream);
            pinned.unmap(at, 2 * g).unwrap();
            pinned.release_page(page).unwrap();
            pinned.unreserve(at, 2 * g).unwrap();
        }
    }
}

fn in_place(h: &dyn Harness, at: DevicePtr, stream: millpond::device::StreamHandle) {
    fill(h, at, 7, BYTES, stream);
    h.device().synchronize_stream(stream).unwrap();
    let bytes = std::ptr::with_exposed_provenance_mut::<u8>(at.raw() as usize);
    // SAFETY: the memory is the test's, and all work on it is complete.
    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes, BYTES as usize) };
    assert!(bytes.iter().all(|byte| *byte == 7));
    bytes.fill(8);
    expect_bytes(h, at, &vec![8; BYTES as usize], stream);
}

pub(crate) fn memory_of_the_two_never_overlaps(h: &dyn Harness) {
    let (device, pinned) = (h.device(), pinned(h));
    let mut starts: Vec<_> = (0..8)
        .map(|of| {
            if of % 2 == 0 { device.alloc_segment(BYTES) } else { pinned.alloc_segment(BYTES) }.unwrap()
        })
        .collect();
    let segments = starts.clone();
    starts.sort();
    assert!(starts.windows(2).all(|pair| pair[0].offset(BYTES) <= pair[1]), "{starts:?}");
    for (of, at) in segments.into_iter().enumerate() {
        // SAFETY: nothing uses them.
        unsafe { if of % 2 == 0 { device.free_segment(at) } else { pinned.free_segment(at) } }.unwrap();
    }
}
