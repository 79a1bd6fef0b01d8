//! What goes back to the device, and when. Garbage collection gives back segments that lie unused for long. When memory
//! runs out, some oversize ones go back, and then everything unused.

use millpond::device::DeviceResult;
use millpond::{Result, Stream};

use super::blocks::{BlockId, PoolId};
use super::segment::Counted;
use super::sizes::Size;
use super::{Caching, State};

impl Caching {
    /// Releases large segments that are unused longer than the average, until what is held is below the
    /// threshold. Does nothing unless the options have both a threshold and a limit.
    pub(super) fn collect_garbage(&self, state: &mut State) -> Result<()> {
        let threshold = self.options.garbage_collection_threshold;
        let Some(allowed) = self.allowed.filter(|_| threshold > 0.0) else { return Ok(()) };
        let bound = (threshold * allowed as f64) as u64;
        loop {
            if state.books.usage.reserved.current <= bound {
                return Ok(());
            }
            let unused: Vec<BlockId> =
                state.blocks.free_of(Size::Large).filter(|&id| is_segment(state, id)).collect();
            let total: u64 = unused.iter().map(|&id| state.blocks.age(id)).sum();
            if unused.is_empty() {
                return Ok(());
            }
            let average = total as f64 / unused.len() as f64;
            // All of those, also beyond the threshold, so that this does not happen soon again.
            for id in unused {
                if state.blocks.age(id) as f64 >= average {
                    self.release_segment(state, id)?;
                }
            }
        }
    }

    /// Releases oversize blocks of the request's pool. That is the smallest that is as large as the request, else the
    /// largest ones until their sum is. Returns whether they do.
    pub(super) fn release_oversize(&self, state: &mut State, pool: PoolId, bytes: u64) -> Result<bool> {
        let oversize = self.options.max_split_size;
        if oversize == u64::MAX || self.options.expandable_segments {
            return Ok(false);
        }
        let wanted = bytes.max(oversize);
        let free = &state.blocks.pool(pool).free;
        let enough = free.range((wanted, Default::default(), 0)..).next();
        if let Some(&(_, _, id)) = enough {
            self.release_segment(state, id)?;
            return Ok(true);
        }
        let largest = free.iter().rev().take_while(|(bytes, ..)| *bytes >= oversize);
        let mut released = 0;
        for (bytes, id) in largest.map(|&(bytes, _, id)| (bytes, id)).collect::<Vec<_>>() {
            if released >= wanted {
                break;
            }
            self.release_segment(state, id)?;
            released += bytes;
        }
        Ok(released >= wanted)
    }

    /// Waits for pending blocks, then gives back every segment, and every page of an expandable segment, that
    /// no block in use lies on.
    pub(super) fn release_cached(&self, state: &mut State) -> Result<()> {
        state.pending.take_all(|block| state.blocks.passed(block))?;
        for size in [Size::Large, Size::Small] {
            let free: Vec<BlockId> = state.blocks.free_of(size).collect();
            let mut synchronized = None;
            for id in free {
                let block = state.blocks.get(id);
                let stream = block.pool.stream;
                if block.segment.is_none() {
                    if !block.is_split() {
                        self.release_segment(state, id)?;
                    }
                    continue;
                }
                // Unlike `cuMemFree`, unmapping does not wait for the work that the blocks were freed after.
                if synchronized != Some(stream) {
                    self.synchronize(state.streams.get(stream))?;
                    synchronized = Some(stream);
                }
                self.unmap(state, id)?;
            }
        }
        self.release_empty_segments(state)
    }

    fn synchronize(&self, stream: &Stream) -> DeviceResult<()> {
        // The handle of a thread's default stream names another stream on another thread.
        // SAFETY: the stream is borrowed, so its handle is valid.
        if unsafe { self.device.stream_id(stream.handle()) }? == stream.id() {
            // SAFETY: as above.
            unsafe { self.device.synchronize_stream(stream.handle()) }
        } else {
            self.device.synchronize()
        }
    }

    /// Releases a free block that is a whole segment. Waits for the device.
    fn release_segment(&self, state: &mut State, id: BlockId) -> Result<()> {
        let block = state.blocks.get(id);
        // SAFETY: the segment came from `alloc_segment`, and all of it is free, so nobody uses it later. Work that used
        // it was given to the device before, and the call waits for that.
        unsafe { self.device.free_segment(block.start) }?;
        let block = state.blocks.remove(id);
        state.books.usage.calls.free += 1;
        state.books.unreserve(block.bytes);
        Ok(())
    }

    /// Unmaps the whole pages in a free block of an expandable segment whose stream was synchronized.
    fn unmap(&self, state: &mut State, id: BlockId) -> Result<()> {
        let State { blocks, segments, books, .. } = state;
        let block = blocks.get(id);
        let Some(segment) = block.segment else { return Ok(()) };
        let Some((start, bytes)) = segments[segment].whole_pages(block.start, block.bytes) else {
            return Ok(());
        };
        let on = Counted { device: &*self.device, calls: &mut books.usage.calls };
        // SAFETY: the pages lie in a free block, so they are mapped, and nobody uses them later. The stream that used
        // them before was synchronized. What other streams did with them was pending until then.
        let (unmapped, done) = unsafe { segments[segment].unmap(on, start, bytes) };
        if unmapped > 0 {
            books.unreserve(unmapped);
            blocks.unmapped(id, start, unmapped);
        }
        Ok(done?)
    }

    /// Gives up the addresses of expandable segments in which nothing is mapped.
    fn release_empty_segments(&self, state: &mut State) -> Result<()> {
        for id in state.blocks.empty_segments() {
            let Some(segment) = state.blocks.remove(id).segment else { continue };
            let on = Counted { device: &*self.device, calls: &mut state.books.usage.calls };
            // SAFETY: one unmapped block spanned the segment, so nothing is mapped; both were taken out.
            unsafe { state.segments.remove(segment).unreserve(on) }?;
        }
        Ok(())
    }
}

/// Whether a free block is a whole segment of the driver's.
fn is_segment(state: &State, id: BlockId) -> bool {
    let block = state.blocks.get(id);
    block.segment.is_none() && !block.is_split()
}
