//! Where pages come from that lie in free blocks: stolen for another address, or exchanged for shorter ones.

use std::collections::BinaryHeap;

use super::backing::Stretch;
use super::blocks::State;
use super::placing::Place;
use super::{Arena, BlockId, Refusal, Zone};
use crate::device::DeviceError;
use crate::order::Stream;
use crate::pages::PageId;

/// A page that could be taken from a free block. The greatest is to be taken first: a page that is ready before
/// one that is not; of equal ones that of the block that has been free for longest, which is the least likely to
/// be wanted soon; and of one block's the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Victim {
    /// What it is judged by, in one number, which is compared faster than three.
    merit: u128,
    page: PageId,
    /// The free block that the page lies in, or the first of the pieces it was cut into.
    block: BlockId,
}

/// How soon a page is to be taken: `ready` says that the stream may use it without waiting, `number` in which order
/// it was found.
fn merit(ready: bool, freed: u64, number: u32) -> u128 {
    u128::from(ready) << 96 | u128::from(!freed) << 32 | u128::from(number)
}

/// The pages that free blocks could give to one miss.
#[derive(Debug, Default)]
pub(super) struct Supply {
    /// By the binary logarithm of the page's slots, which are a power of two.
    classes: Vec<Class>,
    /// Blocks whose pages went back to the device: to be made void once the miss is over, since that joins
    /// blocks, which the miss has in hand.
    pub(super) emptied: Vec<BlockId>,
    /// The free block that pages were cut out of last. It is on no index.
    robbed: Option<BlockId>,
}

/// Most misses take a few of many: a heap is made in linear time, and only of the classes that are asked.
#[derive(Debug)]
enum Class {
    Found(Vec<Victim>),
    Asked(BinaryHeap<Victim>),
}

/// Pages considered in one miss. Bounds the miss where very much is free in pieces.
const VICTIMS: u32 = 4096;

/// Pages whose work is not complete that an exchange looks at before it gives up: where the device is behind,
/// the others are hardly complete either.
const REFUSALS: usize = 8;

impl Supply {
    /// Empties it, but keeps its memory for the next miss.
    pub(super) fn clear(&mut self) {
        self.classes.iter_mut().for_each(Class::clear);
        self.emptied.clear();
    }

    fn add(&mut self, slots: u32, victim: Victim) {
        let class = slots.ilog2() as usize;
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, || Class::Found(Vec::new()));
        }
        if let Class::Found(victims) = &mut self.classes[class] {
            victims.push(victim);
        }
    }

    /// The longest page of at most `slots`.
    fn take_at_most(&mut self, slots: u32) -> Option<Victim> {
        let end = self.classes.len().min(slots.ilog2() as usize + 1);
        self.classes[..end].iter_mut().rev().find_map(Class::take)
    }

    /// The shortest page.
    fn take_shortest(&mut self) -> Option<Victim> {
        self.classes.iter_mut().find_map(Class::take)
    }
}

impl Class {
    fn clear(&mut self) {
        let mut victims = match std::mem::replace(self, Self::Found(Vec::new())) {
            Self::Found(victims) => victims,
            Self::Asked(heap) => heap.into_vec(),
        };
        victims.clear();
        *self = Self::Found(victims);
    }

    fn take(&mut self) -> Option<Victim> {
        if let Self::Found(victims) = self {
            *self = Self::Asked(std::mem::take(victims).into());
        }
        match self {
            Self::Found(_) => None,
            Self::Asked(victims) => victims.pop(),
        }
    }
}

impl Arena {
    /// The pages outside the place that free blocks could give to `stream`.
    pub(super) fn supply(&mut self, place: &Place, stream: &Stream) -> Supply {
        let per_slot = self.layout.units_per_slot();
        let mut supply = std::mem::take(&mut self.spare_supply);
        if self.keeps {
            return supply;
        }
        let (mut count, mut reach) = (0, self.reach(stream));
        for zone in Zone::BOTH {
            for id in self.free[zone as usize].at_least(per_slot).filter(|id| self.has_whole_page(*id)) {
                let block = &self.blocks[id];
                let ready = reach.covers(&block.fence);
                if !ready && !self.policies.internal_dependencies {
                    continue;
                }
                let here = block.region == place.region;
                for (page, slot, slots) in self.whole_pages(id) {
                    let (start, end) = (slot * per_slot, (slot + u64::from(slots)) * per_slot);
                    if !here || end <= place.start || place.end <= start {
                        let merit = merit(ready, block.freed, count);
                        supply.add(slots, Victim { merit, page, block: id });
                        count += 1;
                    }
                }
                if count >= VICTIMS {
                    return supply;
                }
            }
        }
        supply
    }

    fn has_whole_page(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        block.pinned_units() < block.units
    }

    /// The pages that lie wholly in a block: page, first slot, slots.
    pub(super) fn whole_pages(&self, id: BlockId) -> impl Iterator<Item = (PageId, u64, u32)> + '_ {
        let block = &self.blocks[id];
        let (slot, end) = (self.layout.slots_for(block.start), self.layout.slot_of(block.end()));
        self.regions.pages_within(block.region, slot, end)
    }

    /// Maps the largest page that fits from a free block elsewhere to the stretch; its old mapping becomes stale.
    /// Returns whether there was one.
    pub(super) fn steal(
        &mut self,
        stretch: &mut Stretch,
        supply: &mut Supply,
        stream: &Stream,
    ) -> Result<bool, Refusal> {
        while let Some(victim) = supply.take_at_most(stretch.room()) {
            let Some((from, home)) = self.whereabouts(&victim) else { continue };
            if !self.make_block_ready(from, stream)? {
                continue;
            }
            let fence = self.blocks[from].fence.clone();
            let freed = self.blocks[from].freed;
            self.map_page(victim.page, stretch)?;
            let stale = self.cut_page(from, home, victim.page, supply);
            self.stale.push(stale);
            self.attach(victim.page, stretch, fence, freed);
            self.counters.pages_stolen.add(1);
            return Ok(true);
        }
        Ok(false)
    }

    /// The piece of a block that holds the victim now, and where the page is.
    fn whereabouts(&self, victim: &Victim) -> Option<(BlockId, (u32, u64))> {
        let (region, slot) = self.pages.get(victim.page).home?;
        let slot = u64::from(slot);
        Some((self.piece_at(victim.block, slot * self.layout.units_per_slot()), (region, slot)))
    }

    /// Gives free pages back to the device until that has made room for `bytes`, as far as their work is
    /// complete. It is asked where no free page is short enough: one that is too long is exchanged for shorter
    /// ones. Returns whether any was given back.
    pub(super) fn exchange(&mut self, bytes: u64, supply: &mut Supply) -> bool {
        let before = self.counters.reserved.current();
        let mut refused = 0;
        while before - self.counters.reserved.current() < bytes
            && refused < REFUSALS
            && let Some(victim) = supply.take_shortest()
        {
            match self.give_back(&victim, supply) {
                Ok(true) => {}
                Ok(false) => refused += 1,
                Err(error) => {
                    refused += 1;
                    tracing::warn!(%error, "a free page could not be given back");
                }
            }
        }
        before > self.counters.reserved.current()
    }

    /// Gives one page back, if the work on it is complete; its place stays in `supply.emptied`. Returns
    /// whether it was.
    fn give_back(&mut self, victim: &Victim, supply: &mut Supply) -> Result<bool, DeviceError> {
        let Some((from, (region, slot))) = self.whereabouts(victim) else { return Ok(false) };
        self.poll_quietly(&self.blocks[from].fence);
        let old_mappings = self.pages.mappings(victim.page) > 1;
        if old_mappings || !self.timelines.is_complete(&self.blocks[from].fence) {
            return Ok(false);
        }
        let at = self.regions.address(region, slot * self.layout.units_per_slot(), &self.layout);
        // SAFETY: the page is mapped here and lies wholly in a free block whose fence is complete; the
        // program holds no pointer into it.
        unsafe { self.pages.unmap(victim.page, at) }?;
        let emptied = self.cut_page(from, (region, slot), victim.page, supply);
        supply.emptied.push(emptied);
        self.pages.release(victim.page).map(|_| true)
    }

    /// Cuts the page's range out of the free block `from`, as a stale block that the caller lists. What is left of
    /// the block before it is on no index until the [end](Self::close_robbed): the next page is likely to be the one
    /// before.
    fn cut_page(
        &mut self,
        from: BlockId,
        (region, slot): (u32, u64),
        page: PageId,
        supply: &mut Supply,
    ) -> BlockId {
        let per_slot = self.layout.units_per_slot();
        let slots = self.pages.get(page).slots;
        let (start, end) = (slot * per_slot, (slot + u64::from(slots)) * per_slot);
        if supply.robbed != Some(from) {
            self.close_robbed(supply);
            self.remove_free(from);
        }
        let mut cut = from;
        supply.robbed = None;
        if self.blocks[from].start < start {
            cut = self.blocks.split(from, start);
            supply.robbed = Some(from);
        }
        if end < self.blocks[cut].end() {
            self.index_rest(cut, end);
        }
        self.regions.set_page(region, slot, slots, None);
        self.blocks[cut].state = State::Stale(page);
        cut
    }

    /// Puts what is left of the block that pages were cut out of last on the index.
    pub(super) fn close_robbed(&mut self, supply: &mut Supply) {
        if let Some(robbed) = supply.robbed.take() {
            self.index_free(robbed);
        }
    }
}
