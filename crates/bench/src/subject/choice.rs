//! The allocators by name.

use millpond::Context;
use millpond_baselines::{Allocator, NAMES, with_allocator};

use super::interface::Visit;
use super::mimalloc::{MIMALLOC, Mimalloc};
use super::ordered::{Millpond, Ordered};
use crate::error::Result;
use crate::target::Target;

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
