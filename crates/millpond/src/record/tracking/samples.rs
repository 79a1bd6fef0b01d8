//! The sampled blocks that are live, and those that were freed last.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::super::clock::Moment;
use crate::device::DevicePtr;
use crate::system::lock::Mutex;

/// What is known of a sampled block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) ptr: DevicePtr,
    pub(super) bytes: u64,
    /// Taken after the pool had the block.
    pub(super) allocated: Moment,
    /// The stream's identity.
    pub(super) stream: u64,
    pub(super) tag: u32,
    pub(super) site: u32,
}

/// Sampled blocks that are kept after their free: with their allocations, the last thousand events.
const MOST_FREED: usize = 1000;

/// Counts of sampled blocks by address: a free of another block finds 0 here, and takes no lock.
const COUNTS: usize = 1 << 12;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Samples {
    counts: Box<[AtomicU32; COUNTS]>,
    held: Mutex<Held>,
}

/// All that is known at one moment.
#[derive(Debug, Default, Clone)]
pub(super) struct Held {
    pub(super) live: FxHashMap<DevicePtr, Sample>,
    /// The oldest first, with the time of their free.
    pub(super) freed: VecDeque<(Sample, Moment)>,
}

impl Held {
    fn note_freed(&mut self, sample: Sample, freed: Moment) {
        if self.freed.len() == MOST_FREED {
            self.freed.pop_front();
        }
        self.freed.push_back((sample, freed));
    }
}

impl Samples {
    pub(super) fn new() -> Self {
        Self { counts: Box::new([const { AtomicU32::new(0) }; COUNTS]), held: Mutex::default() }
    }

    fn count(&self, ptr: DevicePtr) -> &AtomicU32 {
        // Fibonacci hashing. Blocks start at multiples of 256 bytes at least.
        let hash = (ptr.raw() >> 8).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.counts[(hash >> (u64::BITS - COUNTS.ilog2())) as usize]
    }

    /// Whether the live block at this address may be a sample.
    #[inline]
    pub(super) fn may_have(&self, ptr: DevicePtr) -> bool {
        // Relaxed: its allocation counted it before the program had the block to free.
        self.count(ptr).load(Ordering::Relaxed) > 0
    }

    pub(super) fn add(&self, sample: Sample) {
        let mut held = self.held.lock();
        match held.live.insert(sample.ptr, sample) {
            // The thread that freed it has not said so yet, and then finds a later block.
            Some(before) => held.note_freed(before, sample.allocated),
            // Relaxed: written under the lock.
            None => _ = self.count(sample.ptr).fetch_add(1, Ordering::Relaxed),
        }
    }

    /// A block was freed. `before` was taken when nobody else could have it: a sample that is later is another block's.
    pub(super) fn remove(&self, ptr: DevicePtr, before: Moment) {
        let mut held = self.held.lock();
        if held.live.get(&ptr).is_some_and(|sample| sample.allocated <= before)
            && let Some(sample) = held.live.remove(&ptr)
        {
            held.note_freed(sample, before);
            // Relaxed: as in `add`.
            self.count(ptr).fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn clear(&self) {
        let mut held = self.held.lock();
        *held = Held::default();
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    pub(super) fn held(&self) -> Held {
        self.held.lock().clone()
    }

    /// As [`held`](Self::held); `None` where another thread keeps the lock for too long.
    pub(super) fn held_within(&self, time: Duration) -> Option<Held> {
        Some(self.held.try_lock_for(time)?.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(address: u64) -> Sample {
        Sample {
            ptr: DevicePtr::new(address),
            bytes: 1,
            allocated: Moment::now(),
            stream: 0,
            tag: 0,
            site: 0,
        }
    }

    #[test]
    fn a_late_free_leaves_the_next_block_of_its_address() {
        let samples = Samples::new();
        let first = sample(512);
        samples.add(first);
        let before = Moment::now();
        // Another thread has the address already.
        samples.add(sample(512));
        samples.remove(first.ptr, before);
        let held = samples.held();
        assert_eq!((held.live.len(), held.freed.len()), (1, 1));
        assert!(samples.may_have(first.ptr));
        samples.remove(first.ptr, Moment::now());
        assert!(samples.held().live.is_empty() && !samples.may_have(first.ptr));
    }

    #[test]
    fn only_the_last_freed_blocks_are_kept() {
        let samples = Samples::new();
        for number in 1..=MOST_FREED as u64 + 7 {
            samples.add(sample(512 * number));
            samples.remove(DevicePtr::new(512 * number), Moment::now());
        }
        let held = samples.held();
        assert_eq!(held.freed.len(), MOST_FREED);
        assert_eq!(held.freed[0].0.ptr.raw(), 512 * 8);
        samples.clear();
        assert!(samples.held().freed.is_empty());
    }
}
