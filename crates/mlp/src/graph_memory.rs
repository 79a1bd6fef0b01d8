//! The memory of captured steps: it stays at its addresses until the graphs are gone.
//!
//! That of a pool is its own [`CapturePool`]. Other allocators know no captures, so their blocks are [`CapturedBlocks`].

use std::sync::Arc;

use millpond::{CapturePool, Stream};

use crate::captured_blocks::CapturedBlocks;
use crate::{Memory, Result};

/// Memory for graphs that are replayed on one stream, one after another.
#[derive(Debug)]
pub(crate) struct GraphMemory {
    memory: Memory,
    of: Of,
}

#[derive(Debug)]
enum Of {
    Pool(CapturePool),
    Other(Arc<CapturedBlocks>),
}

impl GraphMemory {
    /// For what is captured on the stream of `memory`; `beside` never is.
    pub(crate) fn new(memory: &Memory, beside: &Stream) -> Self {
        let of = match memory.pool() {
            Some(pool) => Of::Pool(pool.capture_pool()),
            None => Of::Other(Arc::new(memory.kept(beside))),
        };
        Self { memory: memory.clone(), of }
    }

    /// Captures: what is allocated meanwhile is of this memory.
    ///
    /// # Errors
    /// Those of `capture`, and the pool's own.
    pub(crate) fn within<T>(&self, capture: impl FnOnce() -> Result<T>) -> Result<T> {
        match &self.of {
            Of::Pool(pool) => {
                let _capturing = pool.begin(self.memory.stream())?;
                capture()
            }
            Of::Other(kept) => {
                self.memory.keep(Some(kept.clone()));
                let captured = capture();
                self.memory.keep(None);
                // What is replayed from here on comes after the allocations.
                kept.main.wait_for(&kept.beside)?;
                captured
            }
        }
    }
}
