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
pub(crate) struct CapturedBlocks {
    pub(crate) allocator: Arc<dyn Allocator>,
    /// Where the graphs are replayed.
    pub(crate) main: Stream,
    /// Never captured.
    pub(crate) beside: Stream,
    /// By size, those that no tensor has.
    pub(crate) free: Mutex<HashMap<u64, Vec<DevicePtr>>>,
    /// Where a free that is refused is told.
    pub(crate) refused: Arc<Mutex<Option<Error>>>,
}

impl CapturedBlocks {
    /// A block for captured work.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<DevicePtr> {
        match self.free.lock().get_mut(&bytes).and_then(Vec::pop) {
            Some(ptr) => Ok(ptr),
            None => self.allocator.allocate(bytes, &self.beside),
        }
    }

    /// Keeps a block of this size for the next request of it.
    pub(crate) fn free(&self, ptr: DevicePtr, bytes: u64) {
        self.free.lock().entry(bytes).or_default().push(ptr);
    }
}

impl Drop for CapturedBlocks {
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
