//! How far a stream is ordered after others: the answers of one search, which asks about the same few streams for
//! each of many fences.

use smallvec::SmallVec;

use super::{Fence, ReusePolicies, Tick, Timeline, TimelineId, Timelines};

/// What `Timelines::is_ready` would say to any fence, each stream being looked at once. To be dropped before the
/// device is asked or told anything: what is learned later is not in it.
pub(crate) struct Reach<'a> {
    timelines: &'a Timelines,
    stream: &'a Timeline,
    policies: ReusePolicies,
    /// The last tick of each stream that is reached, for the streams that were asked about.
    known: SmallVec<[(TimelineId, Tick); 8]>,
}

impl<'a> Reach<'a> {
    pub(super) fn new(timelines: &'a Timelines, stream: &'a Timeline, policies: ReusePolicies) -> Self {
        Self { timelines, stream, policies, known: SmallVec::new() }
    }

    /// Whether later work on the stream may use memory behind `fence`.
    #[inline]
    pub(crate) fn covers(&mut self, fence: &Fence) -> bool {
        fence.iter().all(|(id, tick)| id == self.stream.id || self.last_reached(id) >= tick)
    }

    #[inline]
    fn last_reached(&mut self, id: TimelineId) -> Tick {
        match self.known.iter().find(|(known, _)| *known == id) {
            Some((_, tick)) => *tick,
            None => self.look_slow(id),
        }
    }

    #[cold]
    fn look_slow(&mut self, id: TimelineId) -> Tick {
        let tick = self.timelines.last_reached(id, self.stream, self.policies);
        self.known.push((id, tick));
        tick
    }
}
