//! Managed memory, beside the device's own. Each test takes both from the device under test.

use std::sync::Arc;

use millpond::device::{Advice, Device, DeviceError, DevicePtr, MemoryKind, Place, Residency, StreamHandle};

use super::harness::*;

const BYTES: u64 = 3 << 20;
const PLACES: [Place; 2] = [Place::Device, Place::Host];

/// Managed memory of the device, and a segment of it.
struct Bench<'a> {
    h: &'a dyn Harness,
    managed: Arc<dyn Device>,
    at: DevicePtr,
    stream: StreamHandle,
}

impl<'a> Bench<'a> {
    fn new(h: &'a dyn Harness) -> Self {
        let managed = h.raw().managed().unwrap();
        let at = managed.alloc_segment(BYTES).unwrap();
        Self { h, managed, at, stream: h.device().create_stream().unwrap() }
    }

    fn prefetch(&self, to: Place) {
        // SAFETY: the segment stays until the end, and the stream is in no capture.
        unsafe { self.managed.prefetch(self.at, BYTES, to, self.stream) }.unwrap();
    }

    fn advise(&self, advice: Advice) {
        self.managed.advise(self.at, BYTES, advice).unwrap();
    }

    fn residency(&self) -> Residency {
        self.managed.residency(self.at, BYTES).unwrap()
    }

    fn synchronize(&self) {
        self.h.device().synchronize_stream(self.stream).unwrap();
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing is used again.
        unsafe {
            self.managed.free_segment(self.at).unwrap();
            self.managed.destroy_stream(self.stream).unwrap();
        }
    }
}

pub(crate) fn its_properties_say_what_it_is(h: &dyn Harness) {
    let (device, managed) = (h.raw().properties().clone(), h.raw().managed().unwrap());
    let of = managed.properties();
    assert_eq!((of.memory, of.kind, of.ordinal), (MemoryKind::Managed, device.kind, device.ordinal));
    assert_eq!((of.host_access, of.virtual_memory, of.memory_pools), (h.keeps_bytes(), false, false));
    let info = managed.memory_info().unwrap();
    assert!(0 < info.free && info.free <= info.total, "{info:?}");
    assert!(matches!(managed.reserve(of.granularity), Err(DeviceError::Unsupported { .. })));
    assert!(matches!(managed.create_page(of.granularity), Err(DeviceError::Unsupported { .. })));
}

pub(crate) fn bytes_stay_whatever_moves(h: &dyn Harness) {
    let bench = Bench::new(h);
    for (value, place) in [1_u8, 2, 3, 4].into_iter().zip(PLACES.into_iter().cycle()) {
        bench.advise(Advice::ReadMostly(value > 2));
        bench.advise(Advice::AccessedBy(place, true));
        fill(h, bench.at, value, BYTES, bench.stream);
        bench.prefetch(place);
        expect_bytes(h, bench.at, &vec![value; BYTES as usize], bench.stream);
    }
}

pub(crate) fn a_prefetch_comes_in_stream_order(h: &dyn Harness) {
    let bench = Bench::new(h);
    let hold = h.hold(bench.stream);
    fill(h, bench.at, 1, BYTES, bench.stream);
    bench.prefetch(Place::Device);
    assert!(!h.device().stream_is_idle(bench.stream).unwrap(), "the host does not wait");
    hold();
    expect_bytes(h, bench.at, &vec![1; BYTES as usize], bench.stream);
}

pub(crate) fn what_was_said_is_answered(h: &dyn Harness) {
    let bench = Bench::new(h);
    for place in PLACES {
        bench.prefetch(place);
        bench.synchronize();
        assert_eq!(bench.residency().last_prefetch, Some(place));
        bench.advise(Advice::PreferredLocation(Some(place)));
        assert_eq!(bench.residency().preferred, Some(place));
    }
    for is in [true, false] {
        bench.advise(Advice::ReadMostly(is));
        assert_eq!(bench.residency().read_mostly, is);
    }
    // Of a part of it nothing is said of the whole.
    bench.managed.advise(bench.at, 2 << 20, Advice::ReadMostly(true)).unwrap();
    assert!(!bench.residency().read_mostly);
    assert!(bench.managed.residency(bench.at, 2 << 20).unwrap().read_mostly);
    bench.managed.advise(bench.at, 0, Advice::ReadMostly(true)).unwrap();
}

pub(crate) fn advice_holds_until_it_is_taken_back(h: &dyn Harness) {
    let bench = Bench::new(h);
    let given = [
        Advice::ReadMostly(true),
        Advice::PreferredLocation(Some(Place::Host)),
        Advice::AccessedBy(Place::Device, true),
    ];
    let back = [
        Advice::ReadMostly(false),
        Advice::PreferredLocation(None),
        Advice::AccessedBy(Place::Device, false),
        Advice::AccessedBy(Place::Host, false),
    ];
    given.into_iter().for_each(|advice| bench.advise(advice));
    let said = bench.residency();
    assert_eq!((said.read_mostly, said.preferred), (true, Some(Place::Host)));
    back.into_iter().for_each(|advice| bench.advise(advice));
    assert_eq!(bench.residency(), Residency::default());
}

pub(crate) fn new_memory_has_no_advice(h: &dyn Harness) {
    for _ in 0..2 {
        let bench = Bench::new(h);
        assert_eq!(bench.residency(), Residency::default());
        bench.prefetch(Place::Host);
        bench.advise(Advice::ReadMostly(true));
        bench.synchronize();
    }
}

pub(crate) fn other_memory_does_not_move(h: &dyn Harness) {
    let device = h.device();
    let properties = device.properties();
    if properties.memory == MemoryKind::Managed || properties.pageable_access {
        return;
    }
    let (stream, segment) = (device.create_stream().unwrap(), device.alloc_segment(BYTES).unwrap());
    // SAFETY: the segment stays until the calls are refused.
    let prefetched = unsafe { h.raw().prefetch(segment, BYTES, Place::Host, stream) };
    prefetched.unwrap_err();
    h.raw().advise(segment, BYTES, Advice::ReadMostly(true)).unwrap_err();
    h.raw().residency(segment, BYTES).unwrap_err();
    // SAFETY: nothing is used again.
    unsafe {
        device.free_segment(segment).unwrap();
        device.destroy_stream(stream).unwrap();
    }
}
