//! Blocks of an allocator that knows no captures, for captured work.
//!
//! The allocator is asked on a stream that is never captured, so it sees nothing of a capture. What captured work frees is
//! kept here for its next request of the same size. All of it is freed with the last handle, after the graphs.

use std::collections::HashMap;
use std::sync::Arc;

use millpond::device::DevicePtr;
use millpond::{Error, Result, Stream};
use millpond_baselines::Allocator;
use parking_lot::Mutex;

/// Blocks that captured work uses by turns.
#[derive(Debug)]
pub(crate) struct Kept {
    allocator: Arc<dyn Allocator>,
    /// Where the graphs are replayed.
    main: Stream,
    beside: Stream,
    /// By stream and size, those that no tensor has.
    free: Mutex<HashMap<(u64, u64), Vec<DevicePtr>>>,
    /// Where a free that is refused is told.
    refused: Arc<Mutex<Option<Error>>>,
}

impl Kept {
    /// For graphs that are replayed on `main`; `beside` is not captured.
    pub(crate) fn new(
        allocator: Arc<dyn Allocator>,
        [main, beside]: [Stream; 2],
        refused: Arc<Mutex<Option<Error>>>,
    ) -> Self {
        Self { allocator, main, beside, free: Mutex::default(), refused }
    }

    /// A block for captured work on `stream`.
    pub(crate) fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        match self.free.lock().get_mut(&key(bytes, stream)).and_then(Vec::pop) {
            Some(ptr) => Ok(ptr),
            None => self.allocator.allocate(bytes, &self.beside),
        }
    }

    /// Keeps a block of this size for the next request of it on the stream.
    pub(crate) fn free(&self, ptr: DevicePtr, bytes: u64, stream: &Stream) {
        self.free.lock().entry(key(bytes, stream)).or_default().push(ptr);
    }

    /// Has what is replayed from here on come after the allocations.
    ///
    /// # Errors
    /// The device's own.
    pub(crate) fn order(&self) -> Result<()> {
        Ok(self.main.wait_for(&self.beside)?)
    }
}

fn key(bytes: u64, stream: &Stream) -> (u64, u64) {
    (stream.handle().raw(), bytes)
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.beside.wait_for(&self.main).is_err() {
            // A device that refuses both does no more work.
            self.main.synchronize().ok();
        }
        for ptr in self.free.get_mut().values().flatten() {
            // SAFETY: no tensor has the block, and its stream waits for all replays.
            if let Err(error) = unsafe { self.allocator.free(*ptr, &self.beside) } {
                self.refused.lock().get_or_insert(error);
            }
        }
    }
}
