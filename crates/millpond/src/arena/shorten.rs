//! Shortening: free pages that are long are exchanged for short ones of the same bytes, in their place, where long ones
//! cost the pool memory.
//!
//! Holes between blocks that are shorter than a page are pinned, and where most is needed at once that is what the pool
//! lacks: it grows by what is pinned more than ever before. Short pages pin less, and cost more calls each time that they
//! move. So pages are shortened once the pool had to grow while much was free, for a quarter of what it holds then; and
//! with what the [purse](super::purse) has saved. Where nothing grows any more, that ends soon.
//!
//! A page is given back before short ones are created for it: what is reserved never rises. So the work on it must be
//! complete then, for which nobody waits.

use std::cmp::Reverse;
use std::time::Duration;

use super::backing::Stretch;
use super::blocks::{Block, State};
use super::{Arena, BlockId, Refusal, Zone};
use crate::order::Fence;
use crate::pages::PageId;

/// Slots of a short page. One of two slots pins nearly as little as one of one, and is moved twice as far by a call.
const SHORT: u32 = 2;

/// This part of what is held, or more, is much to be free while the pool grows.
const MUCH_PART: u64 = 256;

/// The part of what is held that is shortened each time.
const SHORTENED_PART: u64 = 4;

/// Pages that are exchanged at once, at most: what takes about 20 ms on an H200.
const AT_ONCE: usize = 64;

/// Pages that a look has in hand, at most: there may be thousands, of which it needs the longest.
const KEPT: usize = 4 * AT_ONCE;

/// What must be saved before it is looked for long pages, and is spent then: enough for some twelve of them on an H200. To
/// look takes longer, the more is free.
const BATCH: Duration = Duration::from_millis(4);

/// Frees until it is looked again for long pages that became free.
const LOOK_AFTER: u64 = 16;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Shortener {
    /// Slots of long pages that are still to be exchanged.
    left: u64,
    /// The count of frees from which on it is looked for them.
    due: u64,
}

/// A page that is free as a whole.
#[derive(Debug, Clone, Copy)]
struct Long {
    /// The block that it lies in.
    block: BlockId,
    page: PageId,
    region: u32,
    slot: u64,
    slots: u32,
}

impl Long {
    /// The longest comes first; of those that are as long, the one at the lowest address.
    fn rank(&self) -> (Reverse<u32>, u32, u64) {
        (Reverse(self.slots), self.region, self.slot)
    }
}

/// Keeps as many pages as are exchanged at once, in no order.
fn keep_longest(pages: &mut Vec<Long>) {
    if pages.len() > AT_ONCE {
        pages.select_nth_unstable_by_key(AT_ONCE, Long::rank);
        pages.truncate(AT_ONCE);
    }
}

impl Arena {
    /// Notes that the pool is about to hold more than ever, `after` slots here, for a block of `units`. (What captures hold
    /// is theirs, and not free here.)
    pub(super) fn note_growth(&mut self, after: u64, units: u64) {
        let held = after << self.layout.slot_shift();
        let free = held.saturating_sub(self.out_units + units);
        if free >= held / MUCH_PART {
            self.shortener.left = after / SHORTENED_PART;
        }
    }

    /// Whether long pages should be exchanged for [short](Self::shorten) ones now, if there is time.
    #[inline]
    pub(crate) fn is_shortening_due(&self) -> bool {
        self.shortener.left > 0 && self.shortener.due <= self.frees && !self.keeps
    }

    /// Exchanges free pages of the large zone whose work is complete for short ones, the longest first, as far as there is
    /// time. What cannot be created anew is void. Returns whether any was exchanged.
    #[cold]
    pub(crate) fn shorten(&mut self) -> bool {
        self.shortener.due = self.frees + LOOK_AFTER;
        let began = self.device.now();
        if self.purse.savings(began) < BATCH {
            return false;
        }
        self.reap();
        let long = self.longest_free_pages();
        // Also where there are none: to look takes time, and is done again soon.
        self.purse.pay(self.device.now().saturating_sub(began));
        let mut any = false;
        for long in &long {
            let began = self.device.now();
            if self.shortener.left == 0 || self.purse.savings(began).is_zero() {
                break;
            }
            let exchanged = self.exchange_in_place(long);
            self.purse.pay(self.device.now().saturating_sub(began));
            self.shortener.left = self.shortener.left.saturating_sub(u64::from(long.slots));
            any = true;
            if let Err(refusal) = exchanged {
                tracing::warn!(?refusal, "a long page could not be exchanged for short ones");
                break;
            }
        }
        any
    }

    /// As many long pages as are exchanged at once, the longest first.
    fn longest_free_pages(&self) -> Vec<Long> {
        let units = (u64::from(SHORT) + 1) << self.layout.slot_shift();
        let blocks: Vec<_> = self.free[Zone::Large as usize].at_least(units).collect();
        self.poll_quietly(&self.fence_of(&blocks));
        let mut longest = Vec::with_capacity(KEPT);
        for id in blocks {
            let Block { region, ref fence, .. } = self.blocks[id];
            if !self.timelines.is_complete(fence) {
                continue;
            }
            self.regions.for_each_whole(region, self.slots_within(id), |page, slot, slots| {
                // Of some an old mapping is left, which waits for its work.
                if slots > SHORT && self.pages.mappings(page) == 1 {
                    if longest.len() == KEPT {
                        keep_longest(&mut longest);
                    }
                    longest.push(Long { block: id, page, region, slot, slots });
                }
            });
        }
        keep_longest(&mut longest);
        longest.sort_unstable_by_key(Long::rank);
        longest
    }

    /// Exchanges one page. Blocks keep their bounds and ids, unless memory is lost to others meanwhile.
    fn exchange_in_place(&mut self, long: &Long) -> Result<(), Refusal> {
        let Long { block, page, region, slot, slots } = *long;
        let per_slot = self.layout.units_per_slot();
        let at = self.regions.address(region, slot * per_slot, &self.layout);
        // SAFETY: the page is mapped here and lies wholly in a free block whose fence is complete; the
        // program holds no pointer into it.
        unsafe { self.pages.unmap(page, at) }?;
        self.remove_free(block);
        self.regions.set_page(region, slot, slots, None);
        let (fence, freed) = (self.blocks[block].fence.clone(), self.blocks[block].freed);
        let (start, end) = (slot * per_slot, (slot + u64::from(slots)) * per_slot);
        let (mut below, mut void) = (None, block);
        if self.blocks[block].start < start {
            (below, void) = (Some(block), self.blocks.split(block, start));
        }
        let above = (end < self.blocks[void].end()).then(|| self.blocks.split(void, end));
        self.blocks[void].state = State::Void;
        let mut stretch = Stretch::over(region, (slot, slot + u64::from(slots)), void);
        // A page that is not given back is parked, for the next miss.
        let released = self.pages.release(page).map_err(Refusal::from);
        let backed = released.and_then(|_| self.back_with_short(&mut stretch, &fence, freed));
        self.join_again([below, stretch.backed, above]);
        if let Some(void) = stretch.void {
            self.make_void(void);
        }
        backed
    }

    fn back_with_short(&mut self, stretch: &mut Stretch, fence: &Fence, freed: u64) -> Result<(), Refusal> {
        while stretch.room() > 0 {
            let slots = SHORT.min(stretch.room());
            let bytes = u64::from(slots) * self.layout.slot_bytes;
            let page = self.pages.create(slots).map_err(|error| Refusal::of_page(error, bytes))?;
            self.attach_unmapped(page, stretch, fence, freed)?;
        }
        Ok(())
    }

    /// Puts pieces of what was one free block on the index, as one where they still lie side by side.
    fn join_again(&mut self, pieces: [Option<BlockId>; 3]) {
        let mut whole: Option<BlockId> = None;
        for piece in pieces.into_iter().flatten() {
            whole = Some(match whole {
                Some(before) if self.blocks[before].next == Some(piece) => self.blocks.join(before, piece),
                before => {
                    before.into_iter().for_each(|id| self.index_piece(id));
                    piece
                }
            });
        }
        whole.into_iter().for_each(|id| self.index_piece(id));
    }

    fn index_piece(&mut self, id: BlockId) {
        self.index_free(id);
        self.list_if_unmerged(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_pages_the_longest_are_kept_and_of_equal_ones_those_at_low_addresses() {
        let page = |number: u64| {
            let slots = 4 << (number % 3);
            Long { block: BlockId(0), page: PageId(0), region: 0, slot: number * 7919 % 5003, slots }
        };
        let all = (0..1000).map(page);
        let mut kept = Vec::new();
        for page in all.clone() {
            kept.push(page);
            if kept.len() == KEPT {
                keep_longest(&mut kept);
            }
        }
        keep_longest(&mut kept);
        kept.sort_by_key(Long::rank);
        let mut sorted: Vec<_> = all.collect();
        sorted.sort_by_key(Long::rank);
        let slots = |pages: &[Long]| pages.iter().map(|page| (page.slots, page.slot)).collect::<Vec<_>>();
        assert_eq!(slots(&kept), slots(&sorted[..AT_ONCE]));
    }
}
