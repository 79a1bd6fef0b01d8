//! Tags: a part of a pool's memory that sleeps on its own, as a pool under the same limits.

use std::fmt;

use super::{Pool, PoolBuilder};
use crate::lock::Mutex;
use crate::process::OfProcess;

/// The pools of a pool's tags.
pub(super) struct Tags {
    /// What the pool was built with; `None` for one that is destroyed from the start.
    pub(super) options: Option<PoolBuilder>,
    pub(super) pools: OfProcess<Mutex<Vec<(String, Pool)>>>,
}

impl fmt::Debug for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tags").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Tags {
    pub(super) fn new(options: Option<PoolBuilder>) -> Self {
        Self { options, pools: OfProcess::default() }
    }
}
