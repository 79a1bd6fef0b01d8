//! What every allocator must do. Each function is a test of the suite in `../shared.rs`.

use std::collections::BTreeMap;

use millpond::device::DevicePtr;
use millpond::{Error, Stream};
use millpond_baselines::{Driver, StreamOrdered};

use super::rig::{Rig, error_of};

const MIB: u64 = 1 << 20;

/// Numbers without a pattern, the same in every run (Knuth's MMIX generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// A size whose logarithm is even over 1 B to 4 MiB.
    fn size(&mut self) -> u64 {
        let largest = 1 << (1 + self.below(22));
        1 + self.below(largest)
    }
}

/// Live blocks as the test knows them.
#[derive(Default)]
struct Model {
    live: BTreeMap<DevicePtr, (u64, usize)>,
    requested: u64,
    requested_high: u64,
}

impl Model {
    fn add(&mut self, ptr: DevicePtr, bytes: u64, stream: usize) {
        assert_eq!(ptr.raw() % 256, 0, "blocks are aligned");
        if let Some((before, (size, _))) = self.live.range(..=ptr).next_back() {
            assert!(before.offset(*size) <= ptr, "{ptr} lies in the live block at {before}");
        }
        if let Some((after, _)) = self.live.range(ptr..).next() {
            assert!(ptr.offset(bytes) <= *after, "{ptr} reaches into the live block at {after}");
        }
        self.live.insert(ptr, (bytes, stream));
        self.requested += bytes;
        self.requested_high = self.requested_high.max(self.requested);
    }

    fn remove_any(&mut self, numbers: &mut Numbers) -> (DevicePtr, usize) {
        let at = numbers.below(self.live.len() as u64) as usize;
        let (&ptr, &(bytes, stream)) = self.live.iter().nth(at).unwrap();
        self.live.remove(&ptr);
        self.requested -= bytes;
        (ptr, stream)
    }
}

pub(crate) fn live_blocks_never_overlap_and_the_counters_equal_a_recount(rig: Rig) {
    let streams = [rig.stream(), rig.stream()];
    let (mut numbers, mut model) = (Numbers(7), Model::default());
    for _ in 0..1500 {
        if model.live.len() < 40 && (model.live.is_empty() || numbers.below(5) < 3) {
            let (bytes, stream) = (numbers.size(), numbers.below(2) as usize);
            model.add(rig.allocate(bytes, &streams[stream]), bytes, stream);
        } else {
            let (ptr, allocated_on) = model.remove_any(&mut numbers);
            let freed_on = numbers.below(2) as usize;
            if freed_on != allocated_on {
                streams[freed_on].wait_for(&streams[allocated_on]).unwrap();
            }
            rig.free(ptr, &streams[freed_on]);
        }
        let usage = rig.allocator.usage();
        assert_eq!((usage.requested.current, usage.requested.high), (model.requested, model.requested_high));
        assert!(usage.reserved.current >= usage.requested.current);
        assert!(usage.reserved.high >= usage.reserved.current);
    }
    model.live.keys().for_each(|&ptr| rig.free(ptr, &streams[0]));
    assert_eq!(rig.allocator.usage().requested.current, 0);
}

pub(crate) fn freed_memory_is_used_again(rig: Rig) {
    let stream = rig.stream();
    for _ in 0..200 {
        let blocks = [MIB, 5 * MIB, 3000].map(|bytes| rig.allocate(bytes, &stream));
        blocks.into_iter().for_each(|ptr| rig.free(ptr, &stream));
        stream.synchronize().unwrap();
    }
    let usage = rig.allocator.usage();
    assert!(usage.reserved.high <= 64 * MIB, "{usage:?}");
    assert_eq!(usage.requested.high, 6 * MIB + 3000);
}

/// Writes late to a block on one stream and frees it there, then allocates and writes on another.
pub(crate) fn what_a_busy_stream_freed_is_not_handed_to_another_unordered(rig: Rig) {
    let (a, b) = (rig.stream(), rig.stream());
    for _ in 0..4 {
        let first = rig.allocate(MIB, &a);
        rig.write_late(first, 0xaa, MIB, &a);
        let late = a.record().unwrap();
        rig.free(first, &a);
        let second = rig.allocate(MIB, &b);
        rig.write(second, 0xbb, MIB, &b);
        assert_ordered_if_overlapping(&late, first, second, &b);
        assert!(rig.holds(second, 0xbb, MIB, &b), "the late write landed in the new block");
        rig.free(second, &b);
    }
}

/// As above, but the late write is on a stream that the free is told of by `record_use` only.
pub(crate) fn a_free_waits_for_recorded_uses(rig: Rig) {
    let (a, b) = (rig.stream(), rig.stream());
    for _ in 0..4 {
        let first = rig.allocate(MIB, &a);
        b.wait_for(&a).unwrap();
        rig.allocator.record_use(first, &b).unwrap();
        rig.write_late(first, 0xaa, MIB, &b);
        let late = b.record().unwrap();
        rig.free(first, &a);
        let second = rig.allocate(MIB, &a);
        rig.write(second, 0xbb, MIB, &a);
        assert_ordered_if_overlapping(&late, first, second, &a);
        assert!(rig.holds(second, 0xbb, MIB, &a), "the late write landed in the new block");
        rig.free(second, &a);
    }
}

/// If both blocks are the same memory, work on `stream` comes after `late`.
fn assert_ordered_if_overlapping(
    late: &millpond::Event,
    first: DevicePtr,
    second: DevicePtr,
    stream: &Stream,
) {
    stream.synchronize().unwrap();
    if first.raw().abs_diff(second.raw()) < MIB {
        assert!(late.query().unwrap(), "{second} was handed out while {first} was in use");
    }
}

pub(crate) fn running_out_of_memory_is_an_error_and_recovers_after_frees(rig: Rig) {
    let stream = rig.stream();
    for bytes in [8 * MIB, 12 * MIB] {
        let blocks = rig.fill(bytes, &stream);
        assert!(blocks.len() as u64 * bytes >= 256 * MIB, "only {} blocks", blocks.len());
        assert_eq!(rig.allocator.usage().requested.current, blocks.len() as u64 * bytes);
        blocks.into_iter().for_each(|ptr| rig.free(ptr, &stream));
        stream.synchronize().unwrap();
    }
}

pub(crate) fn misuse_is_a_typed_error_and_changes_nothing(rig: Rig) {
    let stream = rig.stream();
    let ptr = rig.allocate(4096, &stream);
    let before = rig.allocator.usage();
    let (inside, foreign) = (ptr.offset(256), DevicePtr::new(0x1000));
    let interior = |error| matches!(error, Error::InteriorPointer { offset: 256, .. });
    assert!(interior(error_of(rig.try_free(inside, &stream))));
    assert!(interior(error_of(rig.allocator.record_use(inside, &stream))));
    let unknown = |error| matches!(error, Error::ForeignPointer { .. });
    assert!(unknown(error_of(rig.try_free(foreign, &stream))));
    assert!(unknown(error_of(rig.allocator.record_use(foreign, &stream))));
    assert_eq!(rig.allocator.usage(), before);
    rig.free(ptr, &stream);
    let after = rig.allocator.usage();
    assert!(matches!(error_of(rig.try_free(ptr, &stream)), Error::DoubleFree { .. }));
    assert_eq!(rig.allocator.usage(), after);
}

pub(crate) fn a_size_that_no_device_has_is_an_error(rig: Rig) {
    let stream = rig.stream();
    for bytes in [u64::MAX, u64::MAX / 2, 1 << 50] {
        error_of(rig.allocator.allocate(bytes, &stream));
    }
    assert_eq!(rig.allocator.usage().requested.high, 0);
}

pub(crate) fn zero_bytes_are_the_null_pointer(rig: Rig) {
    let stream = rig.stream();
    assert_eq!(rig.allocate(0, &stream), DevicePtr::NULL);
    rig.free(DevicePtr::NULL, &stream);
    assert_eq!(rig.allocator.usage().requested.high, 0);
}

pub(crate) fn threads_with_streams_of_their_own_lose_nothing(rig: Rig) {
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (rig, stream) = (&rig, rig.stream());
            scope.spawn(move || {
                let mut numbers = Numbers(seed);
                for _ in 0..100 {
                    let blocks = [(); 3].map(|()| rig.allocate(numbers.size(), &stream));
                    blocks.into_iter().for_each(|ptr| rig.free(ptr, &stream));
                }
            });
        }
    });
    rig.context.synchronize().unwrap();
    assert_eq!(rig.allocator.usage().requested.current, 0);
}

/// The driver's own pool belongs to the device, and keeps what it has.
pub(crate) fn what_is_free_goes_back_on_trim_and_at_the_end(rig: Rig) {
    let keeps = rig.allocator.name() == StreamOrdered::NAME;
    let free_bytes = |rig: &Rig| rig.context.memory_info().unwrap().free;
    let (before, stream) = (free_bytes(&rig), rig.stream());
    let pair = || [MIB, 3 * MIB].map(|bytes| rig.allocate(bytes, &stream)).map(|ptr| rig.free(ptr, &stream));
    pair();
    stream.synchronize().unwrap();
    rig.allocator.trim().unwrap();
    if !keeps {
        assert_eq!(rig.allocator.usage().reserved.current, 0);
        assert_eq!(free_bytes(&rig), before);
    }
    pair();
    let Rig { context, allocator, .. } = rig;
    drop(allocator);
    drop(stream);
    assert!(keeps || context.memory_info().unwrap().free == before);
}

pub(crate) fn device_calls_are_counted(rig: Rig) {
    let stream = rig.stream();
    for _ in 0..10 {
        let ptr = rig.allocate(MIB, &stream);
        rig.free(ptr, &stream);
        stream.synchronize().unwrap();
    }
    let (calls, name) = (rig.allocator.usage().calls, rig.allocator.name());
    if [Driver::NAME, StreamOrdered::NAME].contains(&name) {
        assert_eq!((calls.alloc, calls.free), (10, 10));
    } else {
        assert!((1..10).contains(&calls.memory()), "{name} made {} calls", calls.memory());
    }
}
