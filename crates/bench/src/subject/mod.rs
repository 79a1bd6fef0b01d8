//! `subject/`: an allocator as the loops that measure see it.
//!
//! A suite is generic over [`Subject`], so that its calls are compiled in, as in a program that uses the allocator:
//! where a pair costs ten nanoseconds, a call through a table would show. [`with_subject`] chooses the allocator once,
//! outside of all loops.

mod mimalloc;
mod ordered;

use millpond::Context;
use millpond_baselines::{Allocator, NAMES, with_allocator};

use crate::Result;
use crate::opaque::Opaque;
use crate::target::Target;
pub use mimalloc::MIMALLOC;
pub(crate) use mimalloc::Mimalloc;
use ordered::{Millpond, Ordered};

/// An allocator under measurement.
pub(crate) trait Subject: Sync {
    /// Where the work runs that a thread's blocks are for: a stream.
    type Lane: Send + Sync;
    /// A live block.
    type Block: Send + Opaque;

    /// The name by which the command knows it.
    fn name(&self) -> &'static str;

    /// A new lane. Not measured.
    fn lane(&self) -> Result<Self::Lane>;

    /// Allocates for work on `lane`.
    fn allocate(&self, bytes: u64, lane: &Self::Lane) -> Result<Self::Block>;

    /// Frees after the work given to `lane`.
    fn free(&self, block: Self::Block, lane: &Self::Lane) -> Result<()>;
}

/// What to do with an allocator once it is chosen.
pub(crate) trait Visit {
    type Outcome;

    /// `build` makes the allocator anew, on the device that `opened` is.
    fn visit<S: Subject>(self, build: impl Fn() -> Result<S>) -> Result<Self::Outcome>;
}

/// The names of all allocators that can be measured, in the order of reports.
pub fn names() -> Vec<&'static str> {
    NAMES.into_iter().chain([MIMALLOC]).collect()
}

/// Chooses the allocator of this name and hands it to `visit`.
pub(crate) fn with_subject<V: Visit>(name: &str, target: &Target, visit: V) -> Result<V::Outcome> {
    match name {
        MIMALLOC => visit.visit(|| Ok(Mimalloc)),
        name if name == NAMES[0] => visit.visit(|| Millpond::new(target.open()?.context)),
        _ => with_allocator(name, InOrder { target, visit })?,
    }
}

/// Opens the device for an allocator in stream order.
struct InOrder<'a, V> {
    target: &'a Target,
    visit: V,
}

impl<V: Visit> millpond_baselines::Visit for InOrder<'_, V> {
    type Outcome = Result<V::Outcome>;

    fn visit<A: Allocator>(self, build: impl Fn(&Context) -> millpond::Result<A>) -> Self::Outcome {
        self.visit.visit(|| Ordered::build(self.target.open()?.context, &build))
    }
}
