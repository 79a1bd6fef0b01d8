//! `rmm-pool`: the rules of RMM's `pool_memory_resource`, without an initial size. Learnt from `pool_memory_resource.hpp`,
//! `stream_ordered_memory_resource.hpp` and `coalescing_free_list.hpp`.
//!
//! **How one request passes through.** It is rounded to 256 bytes. The free blocks of its stream are looked at first, then those of the
//! others, whose whole list is taken over if one fits. Then all lists are merged, one by one. Where that does not help, the pool grows by
//! as much as it holds, or by half of that again and again where the device has less.
//!
//! **What differs.** RMM gives nothing back before its end. [`trim`](Allocator::trim) gives back chunks that are free, as for every
//! allocator here.

mod free_blocks;

use std::collections::BTreeMap;
use std::sync::Arc;

use millpond::device::{Device, DeviceError, DevicePtr, DeviceResult};
use millpond::{Context, Result, Stream};
use parking_lot::Mutex;

use crate::books::{Books, round_up};
use crate::streams::{StreamNumber, Streams};
use crate::{Allocator, Usage};
use free_blocks::{FreeBlock, FreeBlocks};

/// Bytes that blocks are multiples of.
const UNIT: u64 = 256;

#[derive(Debug)]
struct RmmPoolState {
    streams: Streams,
    /// Of each stream that has some. What is in a list may be used on its stream at once.
    free: BTreeMap<StreamNumber, FreeBlocks>,
    /// Bytes of what was taken from the device, by address.
    chunks: BTreeMap<u64, u64>,
    /// Of each live block: its bytes, and whether it begins a chunk.
    books: Books<(u64, bool)>,
}

/// RMM's pool.
#[derive(Debug)]
pub struct RmmPool {
    device: Arc<dyn Device>,
    state: Mutex<RmmPoolState>,
}

impl RmmPool {
    /// The name in [`OF_RMM`](crate::OF_RMM).
    pub const NAME: &str = "rmm-pool";

    /// An empty pool over the context's device.
    pub fn new(context: &Context) -> Self {
        let (streams, free, chunks) = Default::default();
        let state = RmmPoolState { streams, free, chunks, books: Books::new(Self::NAME) };
        Self { device: context.device().clone(), state: Mutex::new(state) }
    }

    /// As much as the pool holds, or half of that again and again, but `bytes` at least.
    #[cold]
    fn grow(&self, state: &mut RmmPoolState, bytes: u64) -> DeviceResult<FreeBlock> {
        let mut chunk = bytes.max(state.books.usage.reserved.current);
        let start = loop {
            match self.device.alloc_segment(chunk) {
                Err(DeviceError::OutOfMemory { .. }) if chunk > bytes => {
                    chunk = (chunk / 2).next_multiple_of(UNIT).max(bytes);
                }
                other => break other?,
            }
        };
        state.books.usage.calls.alloc += 1;
        state.books.reserve(chunk);
        state.chunks.insert(start.raw(), chunk);
        Ok(FreeBlock { address: start.raw(), bytes: chunk, begins_chunk: true })
    }
}

impl RmmPoolState {
    /// A free block for this stream, which waits for the streams whose blocks it takes over.
    fn take(&mut self, bytes: u64, own: StreamNumber, stream: &Stream) -> Result<Option<FreeBlock>> {
        if let Some(block) = self.free.get_mut(&own).and_then(|free| free.take(bytes)) {
            return Ok(Some(block));
        }
        let others: Vec<StreamNumber> = self.free.keys().copied().filter(|&other| other != own).collect();
        for &other in &others {
            let Some(block) = self.free.get_mut(&other).and_then(|free| free.take(bytes)) else { continue };
            let joined = self.join(own, other, stream);
            let Err(error) = joined else { return Ok(Some(block)) };
            self.free.entry(other).or_default().insert(block);
            return Err(error);
        }
        for other in others {
            self.join(own, other, stream)?;
            if let Some(block) = self.free.get_mut(&own).and_then(|free| free.take(bytes)) {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Adds another stream's free blocks to those of this one, once it waits for that.
    fn join(&mut self, own: StreamNumber, other: StreamNumber, stream: &Stream) -> Result<()> {
        stream.wait_for(self.streams.get(other))?;
        if let Some(blocks) = self.free.remove(&other) {
            self.free.entry(own).or_default().merge(blocks);
        }
        Ok(())
    }

    /// The chunks that are free from end to end.
    fn free_chunks(&self) -> Vec<(u64, u64)> {
        let mut free: BTreeMap<u64, u64> = BTreeMap::new();
        for block in self.free.values().flat_map(FreeBlocks::blocks) {
            let chunk = self.chunks.range(..=block.address).next_back();
            chunk.into_iter().for_each(|(start, _)| *free.entry(*start).or_default() += block.bytes);
        }
        let is_free = |(start, bytes): &(&u64, &u64)| free.get(start) == Some(bytes);
        self.chunks.iter().filter(is_free).map(|(start, bytes)| (*start, *bytes)).collect()
    }
}

impl Allocator for RmmPool {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let rounded = round_up(bytes, UNIT)?;
        let state = &mut *self.state.lock();
        let own = state.streams.number(stream);
        let block = match state.take(rounded, own, stream)? {
            Some(block) => block,
            None => self.grow(state, rounded)?,
        };
        let FreeBlock { address, bytes: found, begins_chunk } = block;
        if found > rounded {
            let rest = FreeBlock { address: address + rounded, bytes: found - rounded, begins_chunk: false };
            state.free.entry(own).or_default().insert(rest);
        }
        let ptr = DevicePtr::new(address);
        state.books.open(ptr, bytes, (rounded, begins_chunk));
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let state = &mut *self.state.lock();
        let block = state.books.close(ptr)?;
        // RMM knows no other streams that use a block.
        for used in block.uses.iter().filter(|used| used.id() != stream.id()) {
            if let Err(error) = stream.wait_for(used) {
                state.books.reopen(ptr, block);
                return Err(error);
            }
        }
        let own = state.streams.number(stream);
        let (bytes, begins_chunk) = block.place;
        state.free.entry(own).or_default().insert(FreeBlock { address: ptr.raw(), bytes, begins_chunk });
        Ok(())
    }

    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.state.lock().books.note_use(ptr, stream)
    }

    fn trim(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        for (start, bytes) in state.free_chunks() {
            // SAFETY: the chunk came from `alloc_segment`, and all of it is free. Work that used it was given to the device before its
            // frees. The call waits for that.
            unsafe { self.device.free_segment(DevicePtr::new(start)) }?;
            state.free.values_mut().for_each(|free| free.remove_within(start, start + bytes));
            state.chunks.remove(&start);
            state.books.usage.calls.free += 1;
            state.books.unreserve(bytes);
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.state.lock().books.usage
    }
}

impl Drop for RmmPool {
    /// Gives back every chunk without live blocks, whose users may still be at work.
    fn drop(&mut self) {
        if let Err(error) = self.trim() {
            tracing::warn!(%error, "RMM's pool could not give its memory back");
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond::device::sim::{SimDevice, SimOptions};

    use super::*;

    #[test]
    fn the_pool_doubles_and_takes_what_other_streams_freed() {
        let device = SimDevice::new(SimOptions::default().capacity(64 << 20)).unwrap();
        let context = Context::new(device);
        let pool = RmmPool::new(&context);
        let streams = [context.create_stream().unwrap(), context.create_stream().unwrap()];
        let held = |pool: &RmmPool| pool.usage().reserved.current >> 20;
        let first = pool.allocate(8 << 20, &streams[0]).unwrap();
        let second = pool.allocate(4 << 20, &streams[0]).unwrap();
        // As much again as it had: half of that is free.
        assert_eq!(held(&pool), 16);
        // SAFETY: the blocks are this test's, without work.
        unsafe { pool.free(first, &streams[0]) }.unwrap();
        let third = pool.allocate(6 << 20, &streams[1]).unwrap();
        assert_eq!((third, held(&pool)), (first, 16));
        let fourth = pool.allocate(20 << 20, &streams[1]).unwrap();
        assert_eq!(held(&pool), 36);
        // 36 MiB more are not there: half of that is less than is asked for.
        let fifth = pool.allocate(26 << 20, &streams[0]).unwrap();
        assert_eq!(held(&pool), 62);
        for block in [second, third, fourth, fifth] {
            // SAFETY: as above.
            unsafe { pool.free(block, &streams[1]) }.unwrap();
        }
        pool.trim().unwrap();
        assert_eq!(held(&pool), 0);
    }
}
