//! Prefetches of managed memory, and advice on it.

use super::*;
use crate::device::{Advice, DeviceError, Place};

const BLOCK: u64 = 8192;

/// A segment of managed memory, with room for a few blocks.
struct Managed {
    bench: Bench,
    device: Arc<dyn Device>,
    at: DevicePtr,
    stream: StreamHandle,
    other: StreamHandle,
}

impl Managed {
    fn new() -> Self {
        let bench = Bench::new();
        let device = bench.checker.managed().unwrap();
        let at = device.alloc_segment(16 * BLOCK).unwrap();
        let (stream, other) =
            (bench.checker.create_stream().unwrap(), bench.checker.create_stream().unwrap());
        Self { bench, device, at, stream, other }
    }

    fn block(&self, number: u64) -> BlockId {
        self.bench.checker.allocated(self.at.offset(number * BLOCK), BLOCK, self.stream)
    }

    fn prefetch(&self, number: u64, stream: StreamHandle) {
        // SAFETY: the simulated device checks streams and ranges.
        unsafe { self.device.prefetch(self.at.offset(number * BLOCK), BLOCK, Place::Host, stream) }.unwrap();
    }

    fn advise(&self, number: u64, blocks: u64, advice: Advice) {
        self.device.advise(self.at.offset(number * BLOCK), blocks * BLOCK, advice).unwrap();
    }
}

#[test]
fn a_live_block_is_prefetched_and_advised_on_at_any_time() {
    let managed = Managed::new();
    let (first, _second) = (managed.block(0), managed.block(1));
    managed.prefetch(0, managed.stream);
    managed.prefetch(0, managed.other);
    managed.bench.checker.use_recorded(first, managed.other);
    managed.advise(0, 1, Advice::ReadMostly(true));
    managed.device.residency(managed.at, BLOCK).unwrap();
    managed.advise(0, 1, Advice::ReadMostly(false));
    managed.bench.free(first, managed.stream);
    // Of the allocator's own memory, too.
    managed.prefetch(3, managed.other);
    managed.bench.passes();
}

#[test]
fn a_prefetch_after_the_free_is_reported() {
    let managed = Managed::new();
    let block = managed.block(0);
    managed.bench.free(block, managed.stream);
    managed.prefetch(0, managed.stream);
    managed.bench.breaks(Rule::Program);
}

#[test]
fn a_free_without_order_after_a_prefetch_is_reported() {
    let managed = Managed::new();
    let block = managed.block(0);
    managed.prefetch(0, managed.other);
    managed.bench.free(block, managed.stream);
    managed.bench.breaks(Rule::Program);
}

#[test]
fn a_prefetch_on_a_stream_that_is_gone_is_reported() {
    let managed = Managed::new();
    managed.block(0);
    // SAFETY: the handle is used again, which is seen.
    unsafe {
        managed.bench.checker.destroy_stream(managed.other).unwrap();
        managed.device.prefetch(managed.at, BLOCK, Place::Host, managed.other).unwrap_err();
    }
    managed.bench.breaks(Rule::DeadHandle);
}

#[test]
fn a_prefetch_of_other_memory_is_reported() {
    let managed = Managed::new();
    let segment = managed.bench.checker.alloc_segment(BLOCK).unwrap();
    // SAFETY: the simulated device refuses it.
    let done = unsafe { managed.device.prefetch(segment, BLOCK, Place::Host, managed.stream) };
    assert!(matches!(done, Err(DeviceError::Invalid { .. })), "{done:?}");
    managed.bench.breaks(Rule::Refused);
}

#[test]
fn advice_that_reaches_a_neighbour_is_reported() {
    let managed = Managed::new();
    let _blocks = [0, 1].map(|number| managed.block(number));
    managed.advise(0, 2, Advice::ReadMostly(true));
    managed.bench.breaks(Rule::Program);
}

#[test]
fn advice_that_is_left_to_the_next_owner_is_reported() {
    let managed = Managed::new();
    let block = managed.block(0);
    managed.advise(0, 1, Advice::AccessedBy(Place::Host, true));
    managed.bench.free(block, managed.stream);
    managed.block(0);
    managed.bench.breaks(Rule::Advice);
}

#[test]
fn advice_goes_with_its_segment() {
    let managed = Managed::new();
    let block = managed.block(0);
    managed.advise(0, 1, Advice::ReadMostly(true));
    managed.bench.free(block, managed.stream);
    // SAFETY: nothing is live in it, and nothing runs.
    unsafe { managed.device.free_segment(managed.at) }.unwrap();
    assert_eq!(managed.device.alloc_segment(16 * BLOCK), Ok(managed.at), "the address comes again");
    managed.block(0);
    managed.bench.passes();
}
