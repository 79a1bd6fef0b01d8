//! The driver's own stream-ordered pool (`cuMemAllocAsync`): the calls, and a model of it for the devices without a driver.
//!
//! **The model.** Best fit with splitting and coalescing over chunks that are never given back, as a pool with its
//! release threshold at the maximum. A free block carries a fence: what its last stream had been given when the block
//! was freed. That stream gets the block again at once, another stream once the fence is reached. Unlike the real one,
//! it never makes a stream wait in order to reuse a block.

use std::collections::{BTreeMap, BTreeSet};

use super::error::DeviceResult;
use super::inventory::invalid;
use super::types::{AsyncUsage, DevicePtr, StreamHandle};

/// The driver's own stream-ordered pool, of a device that has one ([`Device::driver_pool`](super::Device::driver_pool)).
/// No pool of this crate uses it: it is what they are measured against.
///
/// It belongs to the device object, and its release threshold is at the maximum: it keeps what it has.
///
/// # Safety
/// As for [`Device`](super::Device): blocks that are out do not overlap.
pub unsafe trait DriverPool {
    /// Allocates in stream order (`cuMemAllocAsync`).
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`](super::DeviceError::OutOfMemory) where the device has too little free memory.
    ///
    /// # Safety
    /// The stream is [valid](super).
    unsafe fn alloc_async(&self, bytes: u64, stream: StreamHandle) -> DeviceResult<DevicePtr>;

    /// Frees in stream order (`cuMemFreeAsync`).
    ///
    /// # Safety
    /// `at` came from [`alloc_async`](Self::alloc_async), and work that uses it is ordered before this free.
    unsafe fn free_async(&self, at: DevicePtr, stream: StreamHandle) -> DeviceResult<()>;

    /// What the pool holds now and held at most.
    fn async_usage(&self) -> DeviceResult<AsyncUsage>;
}

/// Block sizes and addresses are multiples of this, in bytes; `cuMemAllocAsync` aligns so.
const ALIGNMENT: u64 = 512;

/// What the driver's pool grows by at least, in bytes: `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` goes up in
/// steps of 32 MiB.
pub(super) const CHUNK: u64 = 32 << 20;

/// Blocks of one device, each guarded by a fence of type `F` while it is free.
#[derive(Debug)]
pub(super) struct DriverPoolModel<F> {
    blocks: BTreeMap<u64, Block<F>>,
    /// The free blocks, by size and then address.
    free: BTreeSet<(u64, u64)>,
    usage: AsyncUsage,
}

#[derive(Debug)]
struct Block<F> {
    bytes: u64,
    /// Set while the block is free.
    fence: Option<F>,
    /// The block starts a chunk, so it cannot be merged with the one before.
    starts_chunk: bool,
}

impl<F: Clone> DriverPoolModel<F> {
    pub(super) fn new() -> Self {
        Self { blocks: BTreeMap::new(), free: BTreeSet::new(), usage: AsyncUsage::default() }
    }

    pub(super) fn usage(&self) -> AsyncUsage {
        self.usage
    }

    /// The size of the block that a request gets, or nothing where there is no such size.
    pub(super) fn block_size(bytes: u64) -> Option<u64> {
        bytes.max(1).checked_next_multiple_of(ALIGNMENT)
    }

    /// A block of `bytes`, a [`block_size`](Self::block_size), whose fence is `passed`. Where there is none,
    /// the pool has to [`grow`](Self::grow).
    pub(super) fn alloc(&mut self, bytes: u64, passed: impl Fn(&F) -> bool) -> Option<DevicePtr> {
        let (size, at) = *self.free.range((bytes, 0)..).find(|(_, at)| {
            let fence = self.blocks[at].fence.as_ref().expect("blocks of the free set are free");
            passed(fence)
        })?;
        self.free.remove(&(size, at));
        let block = self.blocks.get_mut(&at).expect("blocks of the free set exist");
        let fence = block.fence.take().expect("blocks of the free set are free");
        block.bytes = bytes;
        if size > bytes {
            self.insert_free(at + bytes, size - bytes, fence, false);
        }
        self.usage.used += bytes;
        self.usage.used_high = self.usage.used_high.max(self.usage.used);
        Some(DevicePtr::new(at))
    }

    /// Adds a chunk of the device's memory that nothing has used, so that any fence will do for it.
    pub(super) fn grow(&mut self, at: DevicePtr, bytes: u64, fence: F) {
        self.usage.reserved += bytes;
        self.usage.reserved_high = self.usage.reserved_high.max(self.usage.reserved);
        self.insert_free(at.raw(), bytes, fence, true);
    }

    /// Frees the block at `at` behind `fence`. Merges it with the free neighbours whose fences that fence
    /// covers (`covered`).
    pub(super) fn free(&mut self, at: DevicePtr, fence: F, covered: impl Fn(&F) -> bool) -> DeviceResult<()> {
        let mut at = at.raw();
        let (mut bytes, mut starts_chunk) = match self.blocks.get(&at) {
            Some(block) if block.fence.is_none() => (block.bytes, block.starts_chunk),
            Some(_) => return invalid("free_async", format!("the block at {at:#x} is already free")),
            None => return invalid("free_async", format!("no block of the driver's pool starts at {at:#x}")),
        };
        self.usage.used -= bytes;
        let mergeable = |block: &Block<F>| block.fence.as_ref().is_some_and(&covered);
        if let Some((&next, block)) = self.blocks.range(at + 1..).next()
            && next == at + bytes
            && !block.starts_chunk
            && mergeable(block)
        {
            let size = block.bytes;
            self.remove_free(next, size);
            bytes += size;
        }
        if !starts_chunk
            && let Some((&before, block)) = self.blocks.range(..at).next_back()
            && mergeable(block)
        {
            let size = block.bytes;
            starts_chunk = block.starts_chunk;
            self.remove_free(before, size);
            self.blocks.remove(&at);
            at = before;
            bytes += size;
        }
        self.insert_free(at, bytes, fence, starts_chunk);
        Ok(())
    }

    /// The fences of the free blocks, to be brought up to date.
    pub(super) fn fences_mut(&mut self) -> impl Iterator<Item = &mut F> {
        self.blocks.values_mut().filter_map(|block| block.fence.as_mut())
    }

    fn insert_free(&mut self, at: u64, bytes: u64, fence: F, starts_chunk: bool) {
        self.blocks.insert(at, Block { bytes, fence: Some(fence), starts_chunk });
        self.free.insert((bytes, at));
    }

    fn remove_free(&mut self, at: u64, bytes: u64) {
        self.blocks.remove(&at);
        self.free.remove(&(bytes, at));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Stream and time of the free. Passes for its own stream at once, for others three steps later.
    type TestFence = (u8, u64);

    impl DriverPoolModel<TestFence> {
        /// The blocks tile the chunks, the free set is the free blocks, and the account is right.
        fn check(&self, chunks: &BTreeMap<u64, u64>) {
            let mut left = chunks.clone();
            let (mut used, mut next) = (0, 0);
            for (&at, block) in &self.blocks {
                assert!(block.bytes > 0 && block.bytes.is_multiple_of(ALIGNMENT));
                if let Some(bytes) = left.remove(&at) {
                    assert!(block.starts_chunk);
                    assert!(at >= next);
                    next = at + bytes;
                } else {
                    assert!(!block.starts_chunk);
                }
                assert!(at + block.bytes <= next, "a block lies outside its chunk");
                used += if block.fence.is_none() { block.bytes } else { 0 };
                assert_eq!(self.free.contains(&(block.bytes, at)), block.fence.is_some());
            }
            assert!(left.is_empty());
            let all: u64 = self.blocks.values().map(|block| block.bytes).sum();
            assert_eq!((all, used), (self.usage.reserved, self.usage.used));
            assert_eq!(self.free.len(), self.blocks.values().filter(|block| block.fence.is_some()).count());
        }
    }

    proptest! {
        #[test]
        fn blocks_tile_the_chunks_and_live_ones_do_not_overlap(
            program in prop::collection::vec((0..3_u8, 1..2_000_000_u64, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut pool = DriverPoolModel::<TestFence>::new();
            let (mut chunks, mut live) = (BTreeMap::new(), Vec::new());
            let mut next_chunk = 1 << 30;
            for (now, (stream, bytes, which)) in program.into_iter().enumerate() {
                let now = now as u64;
                let passed = |fence: &TestFence| fence.0 == stream || fence.1 + 3 <= now;
                if bytes % 2 == 0 && !live.is_empty() {
                    let at = live.swap_remove(which.index(live.len()));
                    pool.free(at, (stream, now), passed).unwrap();
                    prop_assert!(pool.free(at, (stream, now), passed).is_err());
                } else {
                    let size = DriverPoolModel::<TestFence>::block_size(bytes).unwrap();
                    let at = pool.alloc(size, passed).unwrap_or_else(|| {
                        chunks.insert(next_chunk, 4 << 20);
                        pool.grow(DevicePtr::new(next_chunk), 4 << 20, (stream, now));
                        next_chunk += 4 << 20;
                        pool.alloc(size, passed).expect("the new chunk is this stream's")
                    });
                    live.push(at);
                }
                pool.check(&chunks);
            }
        }
    }
}
