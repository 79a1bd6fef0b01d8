//! What goes back to the device, and when. Garbage collection gives back segments that lie unused for long. When memory
//! runs out, some oversize ones go back, and then everything unused.

use millpond::device::DeviceResult;
use millpond::{Result, Stream};

use super::blocks::{BlockId, PoolId};
use super::cache::{Cache, Rules};
use super::segment::Counted;
use super::sizes::Size;

impl Rules {
    /// Releases large segments that are unused longer than the average, until what is held is below the
    /// threshold. Does nothing unless the options have both a threshold and a limit.
    pub(super) fn collect_garbage(&self, cache: &mut Cache) -> Result<()> {
        let threshold = self.options.garbage_collection_threshold;
        let Some(allowed) = self.allowed.filter(|_| threshold > 0.0) else { return Ok(()) };
        let bound = (threshold * allowed as f64) as u64;
        loop {
            if cache.books.usage.reserved.current <= bound {
                return Ok(());
            }
            let unused: Vec<BlockId> =
                cache.blocks.free_of(Size::Large).filter(|&id| is_segment(cache, id)).collect();
            let total: u64 = unused.iter().map(|&id| cache.blocks.age(id)).sum();
            if unused.is_empty() {
                return Ok(());
            }
            let average = total as f64 / unused.len() as f64;
            // All of those, also beyond the threshold, so that this does not happen soon again.
            for id in unused {
                if cache.blocks.age(id) as f64 >= average {
                    self.release_segment(cache, id)?;
                }
            }
        }
    }

    /// Releases oversize blocks of the request's pool. That is the smallest that is as large as the request, else the
    /// largest ones until their sum is. Returns whether they do.
    pub(super) fn release_oversize(&self, cache: &mut Cache, pool: PoolId, bytes: u64) -> Result<bool> {
        let oversize = self.options.max_split_size;
        if oversize == u64::MAX || self.options.expandable_segments {
            return Ok(false);
        }
        let wanted = bytes.max(oversize);
        let free = &cache.blocks.pool(pool).free;
        let enough = free.range((wanted, Default::default(), 0)..).next();
        if let Some(&(_, _, id)) = enough {
            self.release_segment(cache, id)?;
            return Ok(true);
        }
        let largest = free.iter().rev().take_while(|(bytes, ..)| *bytes >= oversize);
        let mut released = 0;
        for (bytes, id) in largest.map(|&(bytes, _, id)| (bytes, id)).collect::<Vec<_>>() {
            if released >= wanted {
                break;
            }
            self.release_segment(cache, id)?;
            released += bytes;
        }
        Ok(released >= wanted)
    }

    /// Waits for pending blocks, then gives back every segment, and every page of an expandable segment, that
    /// no block in use lies on.
    pub(super) fn release_cached(&self, cache: &mut Cache) -> Result<()> {
        cache.pending.take_all(|block| cache.blocks.passed(block))?;
        for size in [Size::Large, Size::Small] {
            let free: Vec<BlockId> = cache.blocks.free_of(size).collect();
            let mut synchronized = None;
            for id in free {
                let block = cache.blocks.get(id);
                let stream = block.pool.stream;
                if block.segment.is_none() {
                    if !block.is_split() {
                        self.release_segment(cache, id)?;
                    }
                    continue;
                }
                // Unlike `cuMemFree`, unmapping does not wait for the work that the blocks were freed after.
                if synchronized != Some(stream) {
                    self.synchronize(cache.streams.get(stream))?;
                    synchronized = Some(stream);
                }
                self.unmap(cache, id)?;
            }
        }
        self.release_empty_segments(cache)
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
    fn release_segment(&self, cache: &mut Cache, id: BlockId) -> Result<()> {
        let block = cache.blocks.get(id);
        // SAFETY: the segment came from `alloc_segment`, and all of it is free, so nobody uses it later. Work that used
        // it was given to the device before, and the call waits for that.
        unsafe { self.device.free_segment(block.start) }?;
        let block = cache.blocks.remove(id);
        cache.books.usage.calls.free += 1;
        cache.books.unreserve(block.bytes);
        Ok(())
    }

    /// Unmaps the whole pages in a free block of an expandable segment whose stream was synchronized.
    fn unmap(&self, cache: &mut Cache, id: BlockId) -> Result<()> {
        let Cache { blocks, segments, books, .. } = cache;
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
    fn release_empty_segments(&self, cache: &mut Cache) -> Result<()> {
        for id in cache.blocks.empty_segments() {
            let Some(segment) = cache.blocks.remove(id).segment else { continue };
            let on = Counted { device: &*self.device, calls: &mut cache.books.usage.calls };
            // SAFETY: one unmapped block spanned the segment, so nothing is mapped; both were taken out.
            unsafe { cache.segments.remove(segment).unreserve(on) }?;
        }
        Ok(())
    }
}

/// Whether a free block is a whole segment of the driver's.
fn is_segment(cache: &Cache, id: BlockId) -> bool {
    let block = cache.blocks.get(id);
    block.segment.is_none() && !block.is_split()
}
