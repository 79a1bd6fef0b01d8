//! How far a stream is ordered after others: the answers of one search, which asks about the same few streams for
//! each of many fences. Locks are taken once.

use crate::lock::RwLockReadGuard;

use super::timelines::Table;
use super::{Fence, ReusePolicies, Tick, Timeline, TimelineId, Timelines};

/// What `Timelines::is_ready` would say to any fence. To be dropped before anything else is asked of the timelines, or of the
/// device.
pub(crate) struct Reach<'a> {
    timelines: &'a Timelines,
    stream: &'a Timeline,
    policies: ReusePolicies,
    /// All timelines, once one is looked at.
    all: Option<RwLockReadGuard<'a, Table>>,
    /// What the stream has waited for, once that matters.
    ordered_after: Option<Fence>,
}

impl<'a> Reach<'a> {
    pub(super) fn new(timelines: &'a Timelines, stream: &'a Timeline, policies: ReusePolicies) -> Self {
        Self { timelines, stream, policies, all: None, ordered_after: None }
    }

    /// Whether later work on the stream may use memory behind `fence`.
    #[inline]
    pub(crate) fn covers(&mut self, fence: &Fence) -> bool {
        fence.is_only_of(self.stream.id) || self.covers_several(fence)
    }

    fn covers_several(&mut self, fence: &Fence) -> bool {
        fence.iter().all(|(id, tick)| id == self.stream.id || self.is_reached(id, tick))
    }

    #[inline]
    fn is_reached(&mut self, id: TimelineId, tick: Tick) -> bool {
        let all = self.all.get_or_insert_with(|| self.timelines.all());
        let over = all.get(id).map_or(Tick::MAX, |timeline| timeline.over(self.policies));
        over >= tick || (self.policies.follows() && self.is_ordered_after(id, tick))
    }

    fn is_ordered_after(&mut self, id: TimelineId, tick: Tick) -> bool {
        self.ordered_after.get_or_insert_with(|| self.stream.ordered_after()).tick_of(id) >= tick
    }
}
