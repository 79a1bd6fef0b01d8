//! `bfc`: the rules of TensorFlow's "best fit with coalescing" allocator, as its GPU device uses it. Learnt
//! from `tsl/framework/bfc_allocator.cc`.
//!
//! **How one request passes through.** It is rounded to 256 bytes, and `chunks.rs` takes the smallest free chunk that
//! holds it. Where there is none, a region twice as large as the last is allocated ([`Bfc::extend`]), or a smaller one.
//! Where that fails, too, unused regions go back. A free merges the chunk with its free neighbours.
//!
//! **Stream order.** TensorFlow puts all kernels on one stream, so what was freed can be given out at once. Here
//! a free chunk remembers the streams that used it, and an allocation on another one makes that wait for them.

mod chunks;

use std::sync::Arc;

use millpond::device::{Device, DeviceError, DevicePtr, DeviceResult};
use millpond::{Context, Result, Stream};
use parking_lot::Mutex;

use crate::books::{Books, round_up};
use crate::streams::Streams;
use crate::{Allocator, Usage};
use chunks::{ChunkId, Chunks, FreeRegion, UsedBy, add_streams};

/// Bytes that chunks are multiples of.
const UNIT: u64 = 256;
/// Bytes of the first region, where regions grow.
const FIRST_REGION: u64 = 2 << 20;

/// TensorFlow's options of its GPU allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BfcOptions {
    /// Bytes that may be held; all of the device's, where there is no limit.
    pub memory_limit: Option<u64>,
    /// Whether regions start at 2 MiB and double (`TF_FORCE_GPU_ALLOW_GROWTH=true`). Else the first region is
    /// all that may be held.
    pub allow_growth: bool,
    /// Whether unused regions go back where memory runs out (`TF_ENABLE_GPU_GARBAGE_COLLECTION`).
    pub garbage_collection: bool,
}

impl Default for BfcOptions {
    /// TensorFlow's, but regions grow: otherwise what is reserved says nothing about the program.
    fn default() -> Self {
        Self { memory_limit: None, allow_growth: true, garbage_collection: true }
    }
}

#[derive(Debug)]
struct BfcState {
    chunks: Chunks,
    streams: Streams,
    /// Bytes of the next region, if that suffices.
    next_region: u64,
    books: Books<ChunkId>,
}

/// TensorFlow's best fit with coalescing.
#[derive(Debug)]
pub struct Bfc {
    device: Arc<dyn Device>,
    options: BfcOptions,
    /// Bytes that may be held.
    limit: u64,
    state: Mutex<BfcState>,
}

impl Bfc {
    /// The name in [`NAMES`](crate::NAMES).
    pub const NAME: &str = "bfc";

    /// An allocator with the default options over the context's device.
    pub fn new(context: &Context) -> Self {
        Self::with_options(context, BfcOptions::default())
    }

    /// An allocator with these options.
    pub fn with_options(context: &Context, options: BfcOptions) -> Self {
        let device = context.device().clone();
        let total = device.properties().total_memory;
        let limit = round_down(options.memory_limit.map_or(total, |limit| limit.min(total)));
        let state = BfcState {
            chunks: Chunks::default(),
            streams: Streams::default(),
            // At least a unit, so that doubling it gets anywhere.
            next_region: if options.allow_growth { limit.min(FIRST_REGION) } else { limit }.max(UNIT),
            books: Books::new(Self::NAME),
        };
        Self { device, options, limit, state: Mutex::new(state) }
    }

    /// Adds a region for a request, then again after unused ones went back.
    #[cold]
    fn grow(&self, state: &mut BfcState, bytes: u64) -> Result<()> {
        let full = match self.extend(state, bytes) {
            Err(full @ DeviceError::OutOfMemory { .. }) => full,
            other => return Ok(other?),
        };
        let unused: u64 = state.chunks.free_regions().map(|region| region.bytes).sum();
        let available = self.limit - state.books.usage.reserved.current + unused;
        if !self.options.garbage_collection || unused == 0 || bytes > available {
            return Err(full.into());
        }
        self.release_free_regions(state).map_err(|_| full)?;
        Ok(self.extend(state, bytes)?)
    }

    /// Adds a region of at least `bytes`, twice as large as the last, or as large as the device has left. Where that
    /// fails, it tries nine tenths again and again.
    fn extend(&self, state: &mut BfcState, bytes: u64) -> DeviceResult<()> {
        let available = round_down(self.limit - state.books.usage.reserved.current);
        if bytes > available {
            return Err(DeviceError::OutOfMemory { call: "bfc region", requested: bytes });
        }
        let turn = state.next_region;
        while bytes > state.next_region {
            state.next_region = state.next_region.saturating_mul(2);
        }
        let mut region = state.next_region.min(available);
        let start = loop {
            match self.device.alloc_segment(region) {
                Err(full @ DeviceError::OutOfMemory { .. }) => {
                    let smaller = (region / 10 * 9).next_multiple_of(UNIT);
                    if smaller < bytes || smaller == region {
                        return Err(full);
                    }
                    region = smaller;
                }
                other => break other?,
            }
        };
        if state.next_region == turn {
            state.next_region = turn.saturating_mul(2);
        }
        state.books.usage.calls.alloc += 1;
        state.books.reserve(region);
        state.chunks.add_region(start, region);
        Ok(())
    }

    /// Gives back every region of which nothing is used. Waits for the device.
    fn release_free_regions(&self, state: &mut BfcState) -> Result<()> {
        let regions: Vec<FreeRegion> = state.chunks.free_regions().collect();
        for region in regions {
            // SAFETY: the region came from `alloc_segment`, and all of it is free. Work that used it was given to the
            // device before its frees. The call waits for that.
            unsafe { self.device.free_segment(region.start) }?;
            state.chunks.remove_region(region);
            state.books.usage.calls.free += 1;
            state.books.unreserve(region.bytes);
        }
        Ok(())
    }
}

impl Allocator for Bfc {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let rounded = round_up(bytes, UNIT)?;
        let state = &mut *self.state.lock();
        let taken = match state.chunks.take(rounded) {
            Some(taken) => Some(taken),
            None => {
                self.grow(state, rounded)?;
                state.chunks.take(rounded)
            }
        };
        let taken = taken.expect("the region just added is one free chunk that is large enough");
        let own = state.streams.number(stream);
        for &used in taken.used_by.iter().filter(|&&used| used != own) {
            if let Err(error) = stream.wait_for(state.streams.get(used)) {
                state.chunks.give(taken.id, taken.used_by);
                return Err(error);
            }
        }
        state.books.open(taken.start, bytes, taken.id);
        Ok(taken.start)
    }

    unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let state = &mut *self.state.lock();
        let block = state.books.close(ptr)?;
        let mut used_by = UsedBy::from_slice(&[state.streams.number(stream)]);
        for used in &block.uses {
            add_streams(&mut used_by, &[state.streams.number(used)]);
        }
        state.chunks.give(block.place, used_by);
        Ok(())
    }

    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.state.lock().books.note_use(ptr, stream)
    }

    fn trim(&self) -> Result<()> {
        self.release_free_regions(&mut self.state.lock())
    }

    fn usage(&self) -> Usage {
        self.state.lock().books.usage
    }
}

impl Drop for Bfc {
    /// Gives back every region without live blocks, whose users may still be at work.
    fn drop(&mut self) {
        if let Err(error) = self.trim() {
            tracing::warn!(%error, "the bfc allocator could not give its memory back");
        }
    }
}

fn round_down(bytes: u64) -> u64 {
    bytes / UNIT * UNIT
}
