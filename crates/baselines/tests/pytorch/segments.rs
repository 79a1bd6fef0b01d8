//! `caching` and `expandable` against PyTorch: the segments of real jobs, and the rules that those jobs did not
//! need.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{DeviceError, DevicePtr};
use millpond::{Context, Error, Stream};
use millpond_baselines::{Allocator, Caching, CachingOptions};

use super::events::{self, Event};

const MIB: u64 = 1 << 20;

/// An allocator on a simulated device of its own.
struct Rig {
    device: Arc<SimDevice>,
    allocator: Caching,
    streams: Vec<Stream>,
}

impl Rig {
    fn new(capacity: u64, options: &str) -> Self {
        let device = SimDevice::new(SimOptions::default().capacity(capacity)).unwrap();
        let context = Context::new(device.clone());
        let allocator = Caching::with_options(&context, options.parse().unwrap()).unwrap();
        let streams = (0..8).map(|_| context.create_stream().unwrap()).collect();
        Self { device, allocator, streams }
    }

    fn try_alloc(&self, bytes: u64) -> Result<DevicePtr, Error> {
        self.allocator.allocate(bytes, &self.streams[0])
    }

    fn alloc(&self, bytes: u64) -> DevicePtr {
        self.try_alloc(bytes).unwrap()
    }

    fn free(&self, ptr: DevicePtr) {
        self.free_on(ptr, 0);
    }

    fn free_on(&self, ptr: DevicePtr, stream: usize) {
        // SAFETY: the tests free blocks of their own, and give them no work.
        unsafe { self.allocator.free(ptr, &self.streams[stream]) }.unwrap();
    }

    fn reserved(&self) -> u64 {
        self.allocator.usage().reserved.current
    }
}

/// Replays a trace, and compares each segment with PyTorch's when it is due. Returns how many there were.
fn compare_segments(trace: &str) -> usize {
    let rig = Rig::new(140 << 30, "");
    // A segment that was there before the recording.
    rig.free(rig.alloc(1));
    let mut blocks = Vec::new();
    let (mut due, mut count) = (0, 0);
    for event in events::read(trace) {
        match event {
            Event::Segment { bytes } => due = bytes,
            Event::Free { block } => {
                let (ptr, stream): (DevicePtr, usize) = blocks[block];
                rig.free_on(ptr, stream);
            }
            Event::Alloc { block, stream, bytes } => {
                let before = rig.reserved();
                let ptr = rig.allocator.allocate(bytes, &rig.streams[stream]).unwrap();
                assert_eq!(rig.reserved() - before, due, "allocation {block} of {bytes} bytes");
                assert_eq!(block, blocks.len());
                blocks.push((ptr, stream));
                count += usize::from(due > 0);
                due = 0;
            }
        }
    }
    assert_eq!(rig.allocator.usage().calls.alloc, count as u64 + 1);
    count
}

#[test]
fn a_replayed_gnn_allocates_the_segments_that_pytorch_allocated() {
    assert_eq!(compare_segments(events::GNN), 21);
}

#[test]
fn a_pipeline_of_six_streams_allocates_the_segments_of_pytorch() {
    assert_eq!(compare_segments(events::PIPELINE), 95);
}

#[test]
fn oversize_blocks_are_given_back_before_everything_else() {
    let rig = Rig::new(200 * MIB, "max_split_size_mb:40");
    let [small, large] = [MIB, 100 * MIB].map(|bytes| rig.alloc(bytes));
    let [other, own] = [30 * MIB, 30 * MIB].map(|bytes| rig.alloc(bytes));
    [small, large, other].into_iter().for_each(|ptr| rig.free(ptr));
    assert_eq!(rig.reserved(), 162 * MIB);
    _ = rig.alloc(80 * MIB);
    assert_eq!(rig.reserved(), 142 * MIB, "the block of 100 MiB went, the other caches stayed");
    rig.free(own);
}

#[test]
fn old_unused_segments_are_collected_above_the_threshold() {
    let options = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5";
    let rig = Rig::new(1 << 30, options);
    let [old, young, other, _] = [100, 98, 20, 60].map(|mebibytes| rig.alloc(mebibytes * MIB));
    rig.free(old);
    // A search that another block serves makes the unused one older.
    rig.free(other);
    assert_eq!(rig.alloc(20 * MIB), other);
    rig.free(young);
    assert_eq!(rig.reserved(), 278 * MIB);
    _ = rig.alloc(102 * MIB);
    assert_eq!(rig.reserved(), 280 * MIB, "the older one went, which is enough");
    assert_eq!(rig.alloc(98 * MIB), young);
}

#[test]
fn a_memory_fraction_is_a_limit() {
    let rig = Rig::new(1 << 30, "per_process_memory_fraction:0.25");
    _ = rig.alloc(200 * MIB);
    let error = rig.try_alloc(100 * MIB).unwrap_err();
    let Error::Device(DeviceError::OutOfMemory { call, .. }) = error else { panic!("{error}") };
    assert_eq!(call, "per_process_memory_fraction");
}

#[test]
fn a_block_comes_back_once_its_other_stream_passed_it() {
    for options in ["", "expandable_segments:True"] {
        let rig = Rig::new(1 << 30, options);
        let ptr = rig.alloc(30 * MIB);
        rig.device.launch(rig.streams[1].handle(), Duration::from_secs(1)).unwrap();
        rig.allocator.record_use(ptr, &rig.streams[1]).unwrap();
        rig.free(ptr);
        assert_ne!(rig.alloc(30 * MIB), ptr, "the other stream is not past it");
        rig.device.advance_to(Duration::from_secs(2));
        assert_eq!(rig.alloc(30 * MIB), ptr);
    }
}

#[test]
fn expandable_segments_merge_what_separate_ones_could_not() {
    let rig = Rig::new(1 << 30, "expandable_segments:True");
    let blocks = [40 * MIB, 40 * MIB, 40 * MIB].map(|bytes| rig.alloc(bytes));
    assert_eq!(blocks[2], blocks[0].offset(80 * MIB));
    blocks.into_iter().for_each(|ptr| rig.free(ptr));
    assert_eq!(rig.alloc(120 * MIB), blocks[0]);
    assert_eq!(rig.reserved(), 120 * MIB);
}

#[test]
fn the_end_of_an_expandable_segment_is_used_last() {
    let rig = Rig::new(1 << 30, "expandable_segments:True");
    let [hole, _, end] = [60 * MIB, 20 * MIB, 40 * MIB].map(|bytes| rig.alloc(bytes));
    [hole, end].into_iter().for_each(|ptr| rig.free(ptr));
    assert_eq!(rig.alloc(40 * MIB), hole, "the end fits better, but can grow");
}

#[test]
fn expandable_pages_go_back_under_shortage_and_holes_fill_first() {
    let rig = Rig::new(200 * MIB, "expandable_segments:True");
    let [first, last] = [120 * MIB, 60 * MIB].map(|bytes| rig.alloc(bytes));
    rig.free(first);
    let other = rig.allocator.allocate(100 * MIB, &rig.streams[1]).unwrap();
    assert_eq!(rig.reserved(), 160 * MIB, "120 MiB were unmapped, 100 MiB mapped for the other stream");
    assert_eq!(rig.alloc(40 * MIB), first, "the hole is the lowest place");
    rig.free_on(other, 1);
    rig.free(last);
}

#[test]
fn expandable_segments_need_a_device_that_maps_pages() {
    let device = SimDevice::new(SimOptions::default().virtual_memory(false)).unwrap();
    let error = Caching::with_options(&Context::new(device), CachingOptions::expandable()).unwrap_err();
    assert_eq!(error.to_string(), "simulated does not support virtual memory");
}
