//! Other processes that share a named budget, and are killed at any moment.

use crate::finding::Finding;
use crate::options::Options;

/// The processes of a soak.
#[derive(Debug)]
pub(crate) struct Tenants {}

impl Tenants {
    pub(crate) fn begin(_options: &Options) -> Self {
        Self {}
    }

    /// How many processes were killed, and what was wrong.
    pub(crate) fn end(self) -> (u64, Option<Box<Finding>>) {
        (0, None)
    }
}
