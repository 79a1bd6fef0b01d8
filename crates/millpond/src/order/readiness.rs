//! Whether many fences are ready for one stream: what one search asks of the same few timelines. Locks are taken
//! once.

use crate::lock::RwLockReadGuard;

use super::timelines::Table;
use super::{Fence, ReusePolicies, Tick, Timeline, TimelineId, Timelines};

/// Answers for any fence. Drop it before any other call to the timelines or the device.
pub(crate) struct ReadinessQuery<'a> {
    pub(super) timelines: &'a Timelines,
    pub(super) stream: &'a Timeline,
    pub(super) policies: ReusePolicies,
    /// All timelines, locked at the first look.
    pub(super) all: Option<RwLockReadGuard<'a, Table>>,
}

impl ReadinessQuery<'_> {
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
        let ready = all.get(id).map_or(Tick::MAX, |timeline| timeline.ready_up_to(self.policies));
        ready >= tick || (self.policies.follows() && self.stream.is_ordered_after(id, tick))
    }
}
