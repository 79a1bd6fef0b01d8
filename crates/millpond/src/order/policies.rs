//! How freed memory may pass between streams: the policies, and how they are changed while threads follow them.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

/// How memory that one stream freed may pass to another, as for CUDA's own pools (`CU_MEMPOOL_ATTR_REUSE_…`).
///
/// With all three off, a stream reuses only its own frees, and what the host has synchronised with.
///
/// ```
/// use millpond::{Context, Pool, ReusePolicies};
///
/// let device = Context::host()?;
/// let policies = ReusePolicies { internal_dependencies: false, ..ReusePolicies::ALL };
/// let pool = Pool::builder(&device).reuse(policies).build()?;
/// pool.set_reuse(ReusePolicies::NONE); // from now on
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReusePolicies {
    /// Where the allocating stream is already ordered after the free, through our streams and events.
    pub follow_event_dependencies: bool,
    /// Where the free is seen to be complete.
    pub opportunistic: bool,
    /// By making the allocating stream wait for the freeing one.
    pub internal_dependencies: bool,
}

impl ReusePolicies {
    /// All three, the default.
    pub const ALL: Self =
        Self { follow_event_dependencies: true, opportunistic: true, internal_dependencies: true };
    /// None of the three.
    pub const NONE: Self =
        Self { follow_event_dependencies: false, opportunistic: false, internal_dependencies: false };

    /// Whether what a stream has waited for, by whoever's doing, is ready for it.
    pub(super) fn follows(self) -> bool {
        self.follow_event_dependencies || self.internal_dependencies
    }
}

/// Policies that may change while threads follow them: the three, in their order.
#[derive(Debug)]
pub(crate) struct Reuse([AtomicBool; 3]);

impl Reuse {
    pub(crate) fn new(policies: ReusePolicies) -> Self {
        let reuse = Self(Default::default());
        reuse.set(policies);
        reuse
    }

    #[inline]
    pub(crate) fn get(&self) -> ReusePolicies {
        // Relaxed, here and below: settings; each is safe, whenever it is seen.
        let [follow_event_dependencies, opportunistic, internal_dependencies] =
            self.0.each_ref().map(|policy| policy.load(Ordering::Relaxed));
        ReusePolicies { follow_event_dependencies, opportunistic, internal_dependencies }
    }

    pub(crate) fn set(&self, policies: ReusePolicies) {
        let ReusePolicies { follow_event_dependencies, opportunistic, internal_dependencies } = policies;
        let policies = [follow_event_dependencies, opportunistic, internal_dependencies];
        self.0.iter().zip(policies).for_each(|(to, policy)| to.store(policy, Ordering::Relaxed));
    }
}

impl Default for ReusePolicies {
    fn default() -> Self {
        Self::ALL
    }
}
