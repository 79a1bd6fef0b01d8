//! Freeing in tests, whose blocks are their own.

use millpond::device::DevicePtr;
use millpond::{Context, Pool, Result, Stream};

/// [`Pool::free`] and [`Context::free`] for blocks that nobody but the test has, and for pointers that are refused.
pub(crate) trait Freeing {
    /// Frees the block.
    fn free_block(&self, ptr: DevicePtr, stream: &Stream) -> Result<()>;
}

impl Freeing for Pool {
    fn free_block(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: the tests free what they allocated themselves, and order their work. What is no live block is refused.
        unsafe { self.free(ptr, stream) }
    }
}

impl Freeing for Context {
    fn free_block(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.free(ptr, stream) }
    }
}
