//! Finding a free block that the stream may use: the hit path of an allocation, in three steps of rising cost.

use super::{Arena, BlockId, Refusal, Zone};
use crate::order::Stream;

/// What an allocation needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Want {
    pub(super) zone: Zone,
    pub(super) units: u64,
    /// In bytes, at least a unit.
    pub(super) align: u64,
}

/// Free blocks looked at before a search gives up: enough that the best fit for the stream is found where
/// streams share a pool evenly, few enough that a search over another stream's blocks costs about as much as
/// the event query that follows it.
const CANDIDATES: usize = 32;

impl Arena {
    /// A free block for `want` that later work on `stream` may use, and the unit in it to start at.
    pub(super) fn find(&mut self, want: &Want, stream: &Stream) -> Result<Option<(BlockId, u64)>, Refusal> {
        if let found @ Some(_) = self.find_ready(want, stream) {
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

    /// The best fit that is ready by what is known already.
    pub(super) fn find_ready(&self, want: &Want, stream: &Stream) -> Option<(BlockId, u64)> {
        let timeline = stream.timeline();
        self.candidates(want)
            .find(|(id, _)| self.timelines.is_ready(&self.blocks[*id].fence, timeline, self.policies))
    }

    /// The best fit that is ready after asking the device, or after making the stream wait.
    #[cold]
    fn find_by_policy_slow(
        &mut self,
        want: &Want,
        stream: &Stream,
    ) -> Result<Option<(BlockId, u64)>, Refusal> {
        if self.policies.opportunistic {
            let mut learned = false;
            for (id, _) in self.candidates(want) {
                learned |= self.timelines.poll(&self.blocks[id].fence)?;
            }
            if learned && let found @ Some(_) = self.find_ready(want, stream) {
                return Ok(found);
            }
        }
        if self.policies.internal_dependencies
            && let Some((id, at)) = self.candidates(want).next()
            && self.timelines.make_wait(&self.blocks[id].fence, stream.timeline())?
        {
            self.counters.stream_waits.add(1);
            return Ok(Some((id, at)));
        }
        Ok(None)
    }

    fn candidates(&self, want: &Want) -> impl Iterator<Item = (BlockId, u64)> + '_ {
        let want = *want;
        self.free[want.zone as usize]
            .at_least(want.units)
            .take(CANDIDATES)
            .filter_map(move |id| Some((id, self.place_in(id, &want)?)))
    }

    /// The first unit of the block at which `want` can start, if it fits there.
    pub(super) fn place_in(&self, id: BlockId, want: &Want) -> Option<u64> {
        let block = &self.blocks[id];
        let at = self.align_up(block.region, block.start, want.align);
        (at + want.units <= block.end()).then_some(at)
    }

    /// The first unit of the region from `unit` on whose address is a multiple of `align` bytes.
    pub(super) fn align_up(&self, region: u32, unit: u64, align: u64) -> u64 {
        if align <= self.layout.unit_bytes {
            return unit;
        }
        let base = self.regions.get(region).base.raw();
        let address = (base + unit * self.layout.unit_bytes).next_multiple_of(align);
        (address - base) / self.layout.unit_bytes
    }
}
