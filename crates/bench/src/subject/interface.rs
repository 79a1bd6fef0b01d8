//! What a suite calls of an allocator.

use crate::error::Result;
use crate::opaque::Opaque;

/// An allocator under measurement.
pub(crate) trait Subject: Sync {
    /// Where the work runs that a thread's blocks are for: a stream.
    type Stream: Send + Sync;
    /// A live block.
    type Block: Send + Opaque;

    /// The name by which the command knows it.
    fn name(&self) -> &'static str;

    /// A new stream. Not measured.
    fn create_stream(&self) -> Result<Self::Stream>;

    /// Allocates for work on `stream`.
    fn allocate(&self, bytes: u64, stream: &Self::Stream) -> Result<Self::Block>;

    /// Frees after the work given to `stream`.
    fn free(&self, block: Self::Block, stream: &Self::Stream) -> Result<()>;
}

/// What to do with an allocator once it is chosen.
pub(crate) trait Visit {
    type Outcome;

    /// `build` makes the allocator anew, on the device that `opened` is.
    fn visit<S: Subject>(self, build: impl Fn() -> Result<S>) -> Result<Self::Outcome>;
}
