//! `caching` and `expandable`: the rules of PyTorch's CUDA caching allocator (2.x, native backend), without and
//! with `expandable_segments:True`. Learnt from `c10/cuda/CUDACachingAllocator.cpp`; replayed traces allocate
//! the same segments as PyTorch did.
//!
//! **How one request passes through.** `sizes.rs` rounds it and says which of the stream's two pools it goes to.
//! `blocks.rs` finds the smallest free block there that is large enough, and splits it. Where there is none,
//! [`Caching::grow`] allocates a segment, or maps pages at the end of the stream's expandable one (`segment.rs`).
//! `growth.rs` says what that means for the blocks. Where the device has no more, what is cached goes back first
//! (`release.rs`).
//!
//! A free gives the block back to the pool of the stream that it was allocated on, merged with its free neighbours. It
//! is reused on that stream at once; no other stream ever gets it. Where other streams used the block (`record_use`, or
//! a free on another stream), it is pending until events on them are complete (`pending.rs`). Each allocation asks
//! about these.
//!
//! **Left out**: private pools of CUDA graphs and user memory pools. There is one allocator for each device, as
//! in PyTorch.

mod blocks;
mod growth;
mod options;
mod pending;
mod release;
mod segment;
mod sizes;

use std::sync::Arc;

use millpond::device::{Device, DeviceError, DevicePtr, DeviceResult};
use millpond::{Context, Result, Stream};
use parking_lot::Mutex;
use slab::Slab;

use crate::books::{Block as Entry, Books};
use crate::streams::Streams;
use crate::{Allocator, Usage};
use blocks::{BlockId, Blocks, PoolId, State as BlockState};
pub use options::{CachingOptions, Divisions};
use pending::Pending;
use segment::{Counted, Segment};
use sizes::Size;

/// Everything behind the lock.
#[derive(Debug)]
struct State {
    blocks: Blocks,
    segments: Slab<Segment>,
    pending: Pending,
    streams: Streams,
    books: Books<BlockId>,
}

/// PyTorch's caching allocator.
#[derive(Debug)]
pub struct Caching {
    device: Arc<dyn Device>,
    options: CachingOptions,
    /// Bytes that may be held, where the options limit them.
    allowed: Option<u64>,
    state: Mutex<State>,
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
        let state = State {
            blocks: Blocks::default(),
            segments: Slab::new(),
            pending: Pending::new(device.clone()),
            streams: Streams::default(),
            books: Books::new(name),
        };
        let allowed = options.allowed(device.properties().total_memory);
        Self { device, options, allowed, state: Mutex::new(state) }
    }

    fn find(&self, state: &mut State, pool: PoolId, bytes: u64) -> Option<BlockId> {
        let found = if self.options.expandable_segments {
            state.blocks.best_fit_growing(pool, bytes)
        } else {
            state.blocks.best_fit(pool, bytes)
        };
        found.filter(|&id| self.options.may_serve(state.blocks.get(id).bytes, bytes))
    }

    /// New memory for a request that no free block serves. It is tried at once, then after part of the cache was given
    /// back, then after all of it was.
    #[cold]
    fn grow(&self, state: &mut State, pool: PoolId, bytes: u64) -> Result<BlockId> {
        self.collect_garbage(state)?;
        let full = match self.add(state, pool, bytes) {
            Err(full @ DeviceError::OutOfMemory { .. }) => full,
            other => return Ok(other?),
        };
        if self.release_oversize(state, pool, bytes).map_err(|_| full.clone())? {
            match self.add(state, pool, bytes) {
                Err(DeviceError::OutOfMemory { .. }) => {}
                other => return Ok(other?),
            }
        }
        self.release_cached(state).map_err(|_| full)?;
        Ok(self.add(state, pool, bytes)?)
    }

    /// A free block of at least `bytes` that is new, at least in part.
    fn add(&self, state: &mut State, pool: PoolId, bytes: u64) -> DeviceResult<BlockId> {
        let segment = self.options.segment_bytes(bytes);
        let held = state.books.usage.reserved.current;
        if self.allowed.is_some_and(|allowed| held.saturating_add(segment) > allowed) {
            return Err(DeviceError::OutOfMemory { call: "per_process_memory_fraction", requested: segment });
        }
        if self.options.expandable_segments {
            return self.expand(state, pool, bytes);
        }
        let start = self.device.alloc_segment(segment)?;
        state.books.usage.calls.alloc += 1;
        state.books.reserve(segment);
        Ok(state.blocks.add((start, segment), pool, None))
    }

    /// Maps pages at the lowest place of the pool's expandable segments where that makes `bytes` in one.
    fn expand(&self, state: &mut State, pool: PoolId, bytes: u64) -> DeviceResult<BlockId> {
        if bytes > self.device.properties().total_memory {
            return Err(DeviceError::OutOfMemory { call: "expandable segment", requested: bytes });
        }
        let mut place = match state.blocks.place_to_grow(pool, bytes) {
            Some(place) => place,
            None => self.add_expandable(state, pool)?,
        };
        if state.blocks.get(place).state == BlockState::Unmapped {
            self.map(state, place, bytes)?;
        }
        loop {
            // Free, so whatever is free before and after it is part of it.
            let block = state.blocks.get(place);
            let (have, after) = (block.bytes, block.after);
            if have >= bytes {
                return Ok(place);
            }
            place = after.expect("place_to_grow found room for all of the bytes");
            self.map(state, place, bytes - have)?;
        }
    }

    fn add_expandable(&self, state: &mut State, pool: PoolId) -> DeviceResult<BlockId> {
        let on = Counted { device: &*self.device, calls: &mut state.books.usage.calls };
        let segment = Segment::reserve(on, self.options.page_bytes(pool.size))?;
        let range = (segment.start(), segment.bytes());
        let id = state.segments.insert(segment);
        Ok(state.blocks.add(range, pool, Some(id)))
    }

    /// Maps pages for the first `bytes` of an unmapped block, which is free then, and merged.
    fn map(&self, state: &mut State, id: BlockId, bytes: u64) -> DeviceResult<()> {
        let block = state.blocks.get(id);
        let segment = block.segment.expect("only blocks of expandable segments are ever unmapped");
        let (start, bytes) = (block.start, bytes.min(block.bytes));
        let on = Counted { device: &*self.device, calls: &mut state.books.usage.calls };
        let mapped = state.segments[segment].map(on, start, bytes)?;
        state.books.reserve(mapped);
        state.blocks.mapped(id, mapped);
        Ok(())
    }

    /// Frees a block that is out of the books: at once, or once the other streams that used it are past it.
    fn free_block(&self, state: &mut State, entry: &Entry<BlockId>, stream: &Stream) -> Result<()> {
        let State { blocks, pending, streams, .. } = state;
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
        if self.options.expandable_segments { Self::EXPANDABLE } else { Self::NAME }
    }

    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let rounded = self.options.rounded(bytes)?;
        let state = &mut *self.state.lock();
        state.pending.take_complete(|block| state.blocks.passed(block))?;
        let pool = PoolId { stream: state.streams.number(stream), size: Size::of(rounded) };
        state.blocks.open(pool);
        let id = match self.find(state, pool, rounded) {
            Some(id) => id,
            None => self.grow(state, pool, rounded)?,
        };
        let block = state.blocks.get(id);
        let (start, whole) = (block.start, block.bytes);
        let taken = if self.options.splits(pool.size, whole, rounded) { rounded } else { whole };
        state.blocks.take(id, taken);
        state.books.open(start, bytes, id);
        Ok(start)
    }

    unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let state = &mut *self.state.lock();
        let entry = state.books.close(ptr)?;
        let freed = self.free_block(state, &entry, stream);
        if freed.is_err() {
            state.books.reopen(ptr, entry);
        }
        freed
    }

    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.state.lock().books.note_use(ptr, stream)
    }

    /// As `torch.cuda.empty_cache()`: **waits** for the streams that freed blocks wait for.
    fn trim(&self) -> Result<()> {
        self.release_cached(&mut self.state.lock())
    }

    fn usage(&self) -> Usage {
        self.state.lock().books.usage
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
