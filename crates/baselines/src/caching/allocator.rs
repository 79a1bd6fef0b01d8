//! The allocator: a request finds a free block, or new memory.

use millpond::device::{DeviceError, DevicePtr, DeviceResult};
use millpond::{Context, Result, Stream};
use parking_lot::Mutex;
use slab::Slab;

use super::blocks::{BlockId, BlockState, Blocks, PoolId};
use super::cache::{Cache, Rules};
use super::options::CachingOptions;
use super::pending::Pending;
use super::segment::{Counted, Segment};
use super::sizes::Size;
use crate::books::{Block as Entry, Books};
use crate::streams::Streams;
use crate::{Allocator, Usage};

/// PyTorch's caching allocator.
#[derive(Debug)]
pub struct Caching {
    rules: Rules,
    cache: Mutex<Cache>,
}

impl Caching {
    /// The name in [`NAMES`](crate::NAMES) without expandable segments.
    pub const NAME: &str = "caching";
    /// The name in [`NAMES`](crate::NAMES) with expandable segments.
    pub const EXPANDABLE: &str = "expandable";

    /// An allocator with PyTorch's default options over the context's device.
    pub fn new(context: &Context) -> Self {
        Self::over(context, CachingOptions::default())
    }

    /// An allocator with these options.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for expandable segments where the device cannot map pages.
    pub fn with_options(context: &Context, options: CachingOptions) -> Result<Self> {
        let properties = context.device().properties();
        if options.expandable_segments && !properties.virtual_memory {
            let device = properties.name.clone();
            return Err(DeviceError::Unsupported { device, what: "virtual memory" }.into());
        }
        Ok(Self::over(context, options))
    }

    fn over(context: &Context, options: CachingOptions) -> Self {
        let device = context.device().clone();
        let name = if options.expandable_segments { Self::EXPANDABLE } else { Self::NAME };
        let cache = Cache {
            blocks: Blocks::default(),
            segments: Slab::new(),
            pending: Pending::new(device.clone()),
            streams: Streams::default(),
            books: Books::new(name),
        };
        let allowed = options.allowed(device.properties().total_memory);
        Self { rules: Rules { device, options, allowed }, cache: Mutex::new(cache) }
    }

    fn find(&self, cache: &mut Cache, pool: PoolId, bytes: u64) -> Option<BlockId> {
        let found = if self.rules.options.expandable_segments {
            cache.blocks.best_fit_growing(pool, bytes)
        } else {
            cache.blocks.best_fit(pool, bytes)
        };
        found.filter(|&id| self.rules.options.may_serve(cache.blocks.get(id).bytes, bytes))
    }

    /// New memory for a request that no free block serves. It is tried at once, then after part of the cache was given
    /// back, then after all of it was.
    #[cold]
    fn grow(&self, cache: &mut Cache, pool: PoolId, bytes: u64) -> Result<BlockId> {
        self.rules.collect_garbage(cache)?;
        let full = match self.add(cache, pool, bytes) {
            Err(full @ DeviceError::OutOfMemory { .. }) => full,
            other => return Ok(other?),
        };
        if self.rules.release_oversize(cache, pool, bytes).map_err(|_| full.clone())? {
            match self.add(cache, pool, bytes) {
                Err(DeviceError::OutOfMemory { .. }) => {}
                other => return Ok(other?),
            }
        }
        self.rules.release_cached(cache).map_err(|_| full)?;
        Ok(self.add(cache, pool, bytes)?)
    }

    /// A free block of at least `bytes` that is new, at least in part.
    fn add(&self, cache: &mut Cache, pool: PoolId, bytes: u64) -> DeviceResult<BlockId> {
        let segment = self.rules.options.segment_bytes(bytes);
        let held = cache.books.usage.reserved.current;
        if self.rules.allowed.is_some_and(|allowed| held.saturating_add(segment) > allowed) {
            return Err(DeviceError::OutOfMemory { call: "per_process_memory_fraction", requested: segment });
        }
        if self.rules.options.expandable_segments {
            return self.expand(cache, pool, bytes);
        }
        let start = self.rules.device.alloc_segment(segment)?;
        cache.books.usage.calls.alloc += 1;
        cache.books.reserve(segment);
        Ok(cache.blocks.add((start, segment), pool, None))
    }

    /// Maps pages at the lowest place of the pool's expandable segments where that makes `bytes` in one.
    fn expand(&self, cache: &mut Cache, pool: PoolId, bytes: u64) -> DeviceResult<BlockId> {
        if bytes > self.rules.device.properties().total_memory {
            return Err(DeviceError::OutOfMemory { call: "expandable segment", requested: bytes });
        }
        let mut place = match cache.blocks.place_to_grow(pool, bytes) {
            Some(place) => place,
            None => self.add_expandable(cache, pool)?,
        };
        if cache.blocks.get(place).state == BlockState::Unmapped {
            self.map(cache, place, bytes)?;
        }
        loop {
            // Free, so whatever is free before and after it is part of it.
            let block = cache.blocks.get(place);
            let (have, after) = (block.bytes, block.after);
            if have >= bytes {
                return Ok(place);
            }
            place = after.expect("place_to_grow found room for all of the bytes");
            self.map(cache, place, bytes - have)?;
        }
    }

    fn add_expandable(&self, cache: &mut Cache, pool: PoolId) -> DeviceResult<BlockId> {
        let on = Counted { device: &*self.rules.device, calls: &mut cache.books.usage.calls };
        let segment = Segment::reserve(on, self.rules.options.page_bytes(pool.size))?;
        let range = (segment.start(), segment.bytes());
        let id = cache.segments.insert(segment);
        Ok(cache.blocks.add(range, pool, Some(id)))
    }

    /// Maps pages for the first `bytes` of an unmapped block, which is free then, and merged.
    fn map(&self, cache: &mut Cache, id: BlockId, bytes: u64) -> DeviceResult<()> {
        let block = cache.blocks.get(id);
        let segment = block.segment.expect("only blocks of expandable segments are ever unmapped");
        let (start, bytes) = (block.start, bytes.min(block.bytes));
        let on = Counted { device: &*self.rules.device, calls: &mut cache.books.usage.calls };
        let mapped = cache.segments[segment].map(on, start, bytes)?;
        cache.books.reserve(mapped);
        cache.blocks.mapped(id, mapped);
        Ok(())
    }

    /// Frees a block that is out of the books: at once, or once the other streams that used it are past it.
    fn free_block(&self, cache: &mut Cache, entry: &Entry<BlockId>, stream: &Stream) -> Result<()> {
        let Cache { blocks, pending, streams, .. } = cache;
        let owner = streams.get(blocks.get(entry.place).pool.stream).id();
        let freed_elsewhere = entry.uses.iter().all(|used| used.id() != stream.id()).then_some(stream);
        let mut others =
            entry.uses.iter().chain(freed_elsewhere).filter(|used| used.id() != owner).peekable();
        if others.peek().is_none() {
            blocks.settle(entry.place, BlockState::Free);
            return Ok(());
        }
        let waits = pending.record(entry.place, others)?;
        blocks.hold(entry.place, waits);
        Ok(())
    }
}

impl Allocator for Caching {
    fn name(&self) -> &'static str {
        if self.rules.options.expandable_segments { Self::EXPANDABLE } else { Self::NAME }
    }

    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let rounded = self.rules.options.rounded(bytes)?;
        let cache = &mut *self.cache.lock();
        cache.pending.take_complete(|block| cache.blocks.passed(block))?;
        let pool = PoolId { stream: cache.streams.number(stream), size: Size::of(rounded) };
        cache.blocks.open(pool);
        let id = match self.find(cache, pool, rounded) {
            Some(id) => id,
            None => self.grow(cache, pool, rounded)?,
        };
        let block = cache.blocks.get(id);
        let (start, whole) = (block.start, block.bytes);
        let taken = if self.rules.options.splits(pool.size, whole, rounded) { rounded } else { whole };
        cache.blocks.take(id, taken);
        cache.books.open(start, bytes, id);
        Ok(start)
    }

    unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let cache = &mut *self.cache.lock();
        let entry = cache.books.close(ptr)?;
        let freed = self.free_block(cache, &entry, stream);
        if freed.is_err() {
            cache.books.reopen(ptr, entry);
        }
        freed
    }

    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.cache.lock().books.note_use(ptr, stream)
    }

    /// As `torch.cuda.empty_cache()`: **waits** for the streams that freed blocks wait for.
    fn trim(&self) -> Result<()> {
        self.rules.release_cached(&mut self.cache.lock())
    }

    fn usage(&self) -> Usage {
        self.cache.lock().books.usage
    }
}

impl Drop for Caching {
    /// Gives back every segment and page without live blocks, whose users may still be at work.
    fn drop(&mut self) {
        if let Err(error) = self.trim() {
            tracing::warn!(%error, allocator = self.name(), "an allocator could not give its memory back");
        }
    }
}
