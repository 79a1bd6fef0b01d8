//! How far a stream is ordered after others: the answers of one search, which asks about the same few streams for
//! each of many fences.

use parking_lot::RwLockReadGuard;
use smallvec::SmallVec;

use super::timelines::Table;
use super::{Fence, ReusePolicies, Tick, Timeline, TimelineId, Timelines};

/// What `Timelines::is_ready` would say to any fence, each stream being looked at once. To be dropped before anything else
/// is asked of the timelines, or of the device: what is learned later is not in it.
pub(crate) struct Reach<'a> {
    timelines: &'a Timelines,
    stream: &'a Timeline,
    policies: ReusePolicies,
    /// The last tick of each stream that memory is ready for everybody after, for the streams that were asked about.
    known: SmallVec<[(TimelineId, Tick); 8]>,
    /// All timelines, once one is looked at.
    all: Option<RwLockReadGuard<'a, Table>>,
    /// What the stream has waited for, once that matters.
    ordered_after: Option<Fence>,
}

impl<'a> Reach<'a> {
    pub(super) fn new(timelines: &'a Timelines, stream: &'a Timeline, policies: ReusePolicies) -> Self {
        Self { timelines, stream, policies, known: SmallVec::new(), all: None, ordered_after: None }
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
        self.over(id) >= tick || (self.policies.follows() && self.is_ordered_after(id, tick))
    }

    #[inline]
    fn over(&mut self, id: TimelineId) -> Tick {
        match self.known.iter().find(|(known, _)| *known == id) {
            Some((_, tick)) => *tick,
            None => self.look_slow(id),
        }
    }

    #[cold]
    fn look_slow(&mut self, id: TimelineId) -> Tick {
        let all = self.all.get_or_insert_with(|| self.timelines.all());
        let tick = all.get(id).map_or(Tick::MAX, |timeline| timeline.over(self.policies));
        self.known.push((id, tick));
        tick
    }

    fn is_ordered_after(&mut self, id: TimelineId, tick: Tick) -> bool {
        self.ordered_after.get_or_insert_with(|| self.stream.ordered_after()).tick_of(id) >= tick
    }
}
