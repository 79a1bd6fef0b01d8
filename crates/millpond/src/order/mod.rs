//! `order/`: who may use freed memory, and when.
//!
//! Uses `device/` only. It knows nothing of pools, addresses or pages.
//!
//! **Timelines.** Each stream is a [`Timeline`]: a counter that names *ticks*. Work given to the stream belongs to the
//! present tick. A *mark* (an event recorded on the stream) closes the tick. Once the mark is complete, so is all work
//! of that tick and of those before it.
//!
//! **Fences.** A [`Fence`] has a tick for each stream that last used a piece of memory. Nobody else may use the memory
//! before those ticks are reached. Joining two fences takes the later tick per stream.
//!
//! **How one request passes through.** A free takes the stream's present tick ([`Stream::tick`]): a load, no device
//! call. An allocation on stream *S* asks [`Timelines::readiness`]: yes where the fence names only *S*, or what the host
//! or *S* has waited for. Each stream carries a vector clock of the ticks that it is ordered after. Clocks are joined
//! along event dependencies, as Fidge's and Mattern's are. Else the caller may look ([`Timelines::poll`], the
//! *opportunistic* policy), make *S* wait ([`Timelines::make_wait`], *internal dependencies*), or make the host wait
//! ([`Timelines::wait_on_host`], under memory pressure). Marks are recorded only here, when somebody needs them, not at
//! every free.
//!
//! **Streams that go away.** A stream's last handle records a final mark before the stream is destroyed. The timeline
//! stays until that mark is complete. Then every tick of it counts as reached. Timelines are named by slot and
//! generation, and streams by the driver's id, so a recycled handle is never taken for the old stream.
//!
//! **Streams of others** are kept by promises of different lengths (`timeline::Promise`). A [`RegisteredStream`] is valid
//! until its owner ends the registration; that is when its last tick is closed. A stream without a promise is marked
//! with each tick ([`Timeline::is_marked_at_once`]).

mod event;
mod events;
mod fence;
mod questions;
mod registered;
mod stream;
mod timeline;
mod timelines;

use std::sync::atomic::{AtomicBool, Ordering};

pub use event::Event;
pub(crate) use events::OwnedEvent;
#[cfg(test)]
pub(crate) use fence::LOOKS;
pub(crate) use fence::{Fence, Reached, Tick, TimelineId};
pub(crate) use questions::{Admission, ReadinessQuery};
pub use registered::RegisteredStream;
pub use stream::Stream;
pub(crate) use stream::StreamKey;
pub(crate) use timeline::Timeline;
pub(crate) use timelines::{AfterSync, Timelines};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    fn follows(self) -> bool {
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
