//! A context's memory of other processes.

use std::sync::Arc;

use super::inner::PoolInner;
use crate::sharing::ImportedMemory;

/// The pool of all that other processes shared, and the device that it takes as its segments.
#[derive(Debug)]
pub(super) struct OfOthers {
    pub(super) memory: Arc<ImportedMemory>,
    pub(super) pool: Arc<PoolInner>,
}
