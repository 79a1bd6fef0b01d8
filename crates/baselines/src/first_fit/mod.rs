//! `first-fit`: one linked list of chunks over segments of the driver's, split and coalesced, behind a mutex.
//! The textbook's allocator (Knuth, The Art of Computer Programming, volume 1, section 2.5, algorithm A).
//!
//! `chunks.rs` holds the list and knows nothing of devices. An allocation walks it from the front
//! (`Chunks::take`); where nothing fits, a segment is added at the end. A free finds
//! its chunk by the books and merges it with its free neighbours.
//!
//! Stream order is kept by the simplest means. A free chunk remembers the streams that used it. An allocation on
//! another stream makes that one wait for all that they were given so far.

mod chunks;

use std::sync::Arc;

use millpond::device::{Device, DeviceError, DevicePtr};
use millpond::{Context, Result, Stream};
use parking_lot::Mutex;

use crate::books::{Books, round_up};
use crate::{Allocator, Usage};
use chunks::{ChunkId, Chunks};

/// Bytes that chunks start at multiples of.
const ALIGNMENT: u64 = 256;
/// Bytes of the smallest segment, while the device has that many: fewer, larger segments fragment less.
const SEGMENT: u64 = 64 << 20;

#[derive(Debug)]
struct FirstFitState {
    chunks: Chunks,
    books: Books<ChunkId>,
}

/// One linked list of chunks over large segments: the first that fits is split, neighbours are merged.
#[derive(Debug)]
pub struct FirstFit {
    device: Arc<dyn Device>,
    state: Mutex<FirstFitState>,
}

impl FirstFit {
    /// An empty list over the context's device.
    pub fn new(context: &Context) -> Self {
        let state = FirstFitState { chunks: Chunks::default(), books: Books::new(Self::NAME) };
        Self { device: context.device().clone(), state: Mutex::new(state) }
    }

    /// The name in [`NAMES`](crate::NAMES).
    pub const NAME: &str = "first-fit";

    /// Adds a segment of at least `bytes`: a large one, else one that just suffices, else that one after all
    /// free segments were given back.
    fn grow(&self, state: &mut FirstFitState, bytes: u64) -> Result<()> {
        let enough = round_up(bytes, self.device.properties().granularity)?;
        match self.add_segment(state, enough.max(SEGMENT)) {
            Err(DeviceError::OutOfMemory { .. }) => {}
            other => return Ok(other?),
        }
        match self.add_segment(state, enough) {
            Err(full @ DeviceError::OutOfMemory { .. }) => {
                self.release_free_segments(state).map_err(|_| full)?;
                Ok(self.add_segment(state, enough)?)
            }
            other => Ok(other?),
        }
    }

    fn add_segment(&self, state: &mut FirstFitState, bytes: u64) -> std::result::Result<(), DeviceError> {
        let start = self.device.alloc_segment(bytes)?;
        state.books.usage.calls.alloc += 1;
        state.books.reserve(bytes);
        state.chunks.add_segment(start, bytes);
        Ok(())
    }

    /// Gives back every segment that is one free chunk. Waits for the device.
    fn release_free_segments(&self, state: &mut FirstFitState) -> Result<()> {
        while let Some((id, start, bytes)) = state.chunks.free_segment() {
            // SAFETY: the segment came from `alloc_segment`, and all of it is free. Work that used it was given to the
            // device before its frees. The call waits for that.
            unsafe { self.device.free_segment(start) }?;
            state.chunks.remove_segment(id);
            state.books.usage.calls.free += 1;
            state.books.unreserve(bytes);
        }
        Ok(())
    }
}

impl Allocator for FirstFit {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let rounded = round_up(bytes, ALIGNMENT)?;
        let mut state = self.state.lock();
        let taken = match state.chunks.take(rounded) {
            Some(taken) => Some(taken),
            None => {
                self.grow(&mut state, rounded)?;
                state.chunks.take(rounded)
            }
        };
        let taken = taken.expect("the segment just added is one free chunk that is large enough");
        for used in taken.used_by.iter().filter(|used| used.id() != stream.id()) {
            if let Err(error) = stream.wait_for(used) {
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
        let mut state = self.state.lock();
        let block = state.books.close(ptr)?;
        let mut used_by = block.uses;
        chunks::join(&mut used_by, vec![stream.clone()]);
        state.chunks.give(block.place, used_by);
        Ok(())
    }

    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        self.state.lock().books.note_use(ptr, stream)
    }

    fn trim(&self) -> Result<()> {
        self.release_free_segments(&mut self.state.lock())
    }

    fn usage(&self) -> Usage {
        self.state.lock().books.usage
    }
}

impl Drop for FirstFit {
    /// Gives back every segment without live blocks, whose users may still be at work.
    fn drop(&mut self) {
        if let Err(error) = self.trim() {
            tracing::warn!(%error, "the first-fit allocator could not give its memory back");
        }
    }
}
