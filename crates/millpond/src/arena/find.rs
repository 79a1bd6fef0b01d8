//! Finding a free block that the stream may use: the hit path of an allocation, in three steps of rising cost.

use super::bin::Entry;
use super::blocks::Block;
use super::pins::Scale;
use super::{Arena, BlockId, Refusal, Zone};
use crate::order::{Fence, Stream, StreamKey};

/// What an allocation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) zone: Zone,
    pub(super) units: u64,
    /// In bytes, at least a unit.
    pub(super) align: u64,
    /// Units that the placement may waste (see `pins`).
    pub(super) waste: i64,
    /// Units that a hit may waste that is taken without a look for less.
    pub(super) little: i64,
}

/// What a search found that wastes too much to be taken before the caches were asked. The search need not be
/// repeated where nothing has changed since.
#[derive(Debug)]
pub(super) struct Looked {
    want: Want,
    stream: StreamKey,
    /// The arena's count of changes to its free blocks then.
    changes: u64,
    found: Option<(BlockId, u64)>,
}

/// Free blocks looked at before a search gives up: enough that the best fit for the stream is found where
/// streams share a pool evenly, few enough that a search over another stream's blocks costs about as much as
/// the event query that follows it.
const CANDIDATES: usize = 16;

impl Arena {
    /// A free block for `want` that later work on `stream` may use, and the unit in it to start at.
    pub(super) fn find(&mut self, want: &Want, stream: &Stream) -> Result<Option<(BlockId, u64)>, Refusal> {
        if let found @ Some(_) = self.find_ready_again(want, stream) {
            return Ok(found);
        }
        if let found @ Some(_) = self.find_by_policy_slow(want, stream)? {
            return Ok(found);
        }
        if self.unmerged.is_empty() || !self.join_unmerged() {
            return Ok(None);
        }
        if let found @ Some(_) = self.find_ready(want, stream) {
            return Ok(found);
        }
        self.find_by_policy_slow(want, stream)
    }

    /// As [`find_ready`](Self::find_ready), but wasting little. Where there is no such block, what was
    /// found for more is kept.
    pub(super) fn find_ready_for_little(&mut self, want: &Want, stream: &Stream) -> Option<(BlockId, u64)> {
        let (waste, found) = self.least_wasteful(want, stream).unzip();
        if waste.is_some_and(|waste| waste <= want.little) {
            return found;
        }
        self.looked = Some(Looked { want: *want, stream: stream.key(), changes: self.changes, found });
        None
    }

    /// What [`find_ready`](Self::find_ready) finds, or was found to find just before.
    fn find_ready_again(&mut self, want: &Want, stream: &Stream) -> Option<(BlockId, u64)> {
        match self.looked.take() {
            Some(looked)
                if looked.changes == self.changes
                    && looked.want == *want
                    && looked.stream == stream.key() =>
            {
                looked.found
            }
            _ => self.find_ready(want, stream),
        }
    }

    /// Of the blocks that are ready by what is known already, the best fit that wastes little, else the
    /// one that wastes least.
    pub(super) fn find_ready(&self, want: &Want, stream: &Stream) -> Option<(BlockId, u64)> {
        self.least_wasteful(want, stream).map(|(_, found)| found)
    }

    /// What [`find_ready`](Self::find_ready) finds, behind its waste.
    fn least_wasteful(&self, want: &Want, stream: &Stream) -> Option<(i64, (BlockId, u64))> {
        if want.align > self.layout.unit_bytes {
            return self.least_wasteful_aligned_slow(want, stream);
        }
        if want.zone == Zone::Small {
            return self.first_ready(want, stream);
        }
        if self.gatherer.is_lenient() {
            return self.best_fit(want, stream);
        }
        let mut scale = self.scale(want);
        self.least_of(want, stream, |entry| Some(scale.least_waste(&entry.piece())))
    }

    #[cold]
    fn least_wasteful_aligned_slow(&self, want: &Want, stream: &Stream) -> Option<(i64, (BlockId, u64))> {
        let mut scale = self.scale(want);
        self.least_of(want, stream, |entry| self.weigh(entry, want, &mut scale))
    }

    /// The best fit that is ready: of small blocks, none wastes anything.
    fn first_ready(&self, want: &Want, stream: &Stream) -> Option<(i64, (BlockId, u64))> {
        let mut reach = self.reach(stream);
        let mut all = self.free[Zone::Small as usize].runs_at_least(want.units).flatten().take(CANDIDATES);
        let found = all.find(|entry| reach.covers(&self.blocks[entry.id].fence))?;
        Some((0, (found.id, found.piece().start)))
    }

    /// The best fit that is ready, at its start, whatever it wastes: where all lies in one range, what is left
    /// over stays in one piece that way.
    fn best_fit(&self, want: &Want, stream: &Stream) -> Option<(i64, (BlockId, u64))> {
        let mut reach = self.reach(stream);
        let all = self.free[want.zone as usize].runs_at_least(want.units).flatten();
        let found = all.take(CANDIDATES).find(|entry| reach.covers(&self.blocks[entry.id].fence))?;
        let waste = self.scale(want).least_waste(&found.piece()).0;
        Some((waste, (found.id, found.piece().start)))
    }

    /// Of the blocks that are ready, that for which `weigh` says the least, or the first of which it says little.
    #[inline(always)]
    fn least_of(
        &self,
        want: &Want,
        stream: &Stream,
        mut weigh: impl FnMut(&Entry) -> Option<(i64, u64)>,
    ) -> Option<(i64, (BlockId, u64))> {
        let little = want.little.min(want.waste);
        let mut reach = self.reach(stream);
        let mut best: Option<(i64, (BlockId, u64))> = None;
        // What is no better than this is passed over.
        let mut limit = want.waste.saturating_add(1);
        let mut left = CANDIDATES;
        for run in self.free[want.zone as usize].runs_at_least(want.units) {
            let looked_at = &run[..run.len().min(left)];
            for entry in looked_at {
                let Some((waste, at)) = weigh(entry) else { continue };
                // The fence is asked last: for it the block's record must be fetched.
                if (waste < limit || waste <= little) && reach.covers(&self.blocks[entry.id].fence) {
                    best = Some((waste, (entry.id, at)));
                    if waste <= little {
                        return best;
                    }
                    limit = waste;
                }
            }
            left -= looked_at.len();
            if left == 0 {
                break;
            }
        }
        best
    }

    /// Calls `look` for each block that a search looks at, the best fit first, until that says no.
    #[inline]
    fn look_at_each(&self, want: &Want, mut look: impl FnMut(&Entry) -> bool) {
        let mut left = CANDIDATES;
        for run in self.free[want.zone as usize].runs_at_least(want.units) {
            let looked_at = &run[..run.len().min(left)];
            if !looked_at.iter().all(&mut look) {
                return;
            }
            left -= looked_at.len();
            if left == 0 {
                return;
            }
        }
    }

    /// What the best placement of `want` in a free block of at least its length wastes, and the unit where it
    /// starts; `None` where it does not fit.
    #[inline(always)]
    fn weigh(&self, entry: &Entry, want: &Want, scale: &mut Scale<'_>) -> Option<(i64, u64)> {
        if want.align <= self.layout.unit_bytes {
            // Nearly always. There is room.
            return Some(scale.least_waste(&entry.piece()));
        }
        let block = &self.blocks[entry.id];
        let at = self.place_in(block, want)?;
        Some(self.least_waste(block, at, want))
    }

    /// The best fit that is ready after asking the device, or after making the stream wait.
    #[cold]
    fn find_by_policy_slow(
        &mut self,
        want: &Want,
        stream: &Stream,
    ) -> Result<Option<(BlockId, u64)>, Refusal> {
        if self.policies.opportunistic {
            // Each stream is asked once, however many of the blocks it freed.
            let mut all = Fence::empty();
            self.look_at_each(want, |entry| {
                if self.fits(entry, want) {
                    all.join(&self.blocks[entry.id].fence);
                }
                true
            });
            let learned = self.timelines.poll(&all)?;
            if learned && let found @ Some(_) = self.find_ready(want, stream) {
                return Ok(found);
            }
        }
        if self.policies.internal_dependencies
            && let Some((id, at)) = self.first_within_allowance(want)
            && self.timelines.make_wait(&self.blocks[id].fence, stream.timeline())?
        {
            self.counters.stream_waits.add(1);
            return Ok(Some((id, at)));
        }
        Ok(None)
    }

    fn first_within_allowance(&self, want: &Want) -> Option<(BlockId, u64)> {
        let mut scale = self.scale(want);
        let mut found = None;
        self.look_at_each(want, |entry| {
            let weighed = self.weigh(entry, want, &mut scale);
            found = weighed.filter(|(waste, _)| *waste <= want.waste).map(|(_, at)| (entry.id, at));
            found.is_none()
        });
        found
    }

    fn fits(&self, entry: &Entry, want: &Want) -> bool {
        want.align <= self.layout.unit_bytes || self.place_in(&self.blocks[entry.id], want).is_some()
    }

    /// The first unit of the block at which `want` can start, if it fits there.
    #[inline]
    pub(super) fn place_in(&self, block: &Block, want: &Want) -> Option<u64> {
        let at = self.align_up(block.region, block.start, want.align);
        (at + want.units <= block.end()).then_some(at)
    }

    /// The first unit of the region from `unit` on whose address is a multiple of `align` bytes.
    #[inline]
    pub(super) fn align_up(&self, region: u32, unit: u64, align: u64) -> u64 {
        if align <= self.layout.unit_bytes {
            return unit;
        }
        let base = self.regions.get(region).base.raw();
        let address = (base + unit * self.layout.unit_bytes).next_multiple_of(align);
        (address - base) >> self.layout.unit_shift()
    }
}
