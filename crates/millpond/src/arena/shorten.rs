//! Shortening: free pages that are long are exchanged for short ones of the same bytes, in their place, where long ones
//! cost the pool memory.
//!
//! Where pages were gathered, blocks lie anywhere in the range, whatever pages are under it. Holes between them that are
//! shorter than a page are pinned, and at the highest water that is what the pool lacks: it grows by what is pinned more
//! than ever before. Short pages pin less, and cost more calls each time that they move. So pages are shortened only
//! while the pool is lenient; after a high water at which much was pinned; of what is free at low water; and in a small
//! part of the pool's time.
//!
//! A page is given back before short ones are created for it: what is reserved never rises. So the work on it must be
//! complete then, for which nobody waits.

use std::cmp::Reverse;
use std::time::Duration;

use super::backing::Stretch;
use super::blocks::State;
use super::{Arena, BlockId, Refusal, Zone};
use crate::order::Fence;
use crate::pages::PageId;

/// A short page is this part of the longest. (docs/pages.md has what others give.)
const SHORT_PART: u32 = 4;

/// The part of the pool's time that goes into it, at most.
const TIME_PART: u32 = 512;

/// Pages that are exchanged at once, at most: what takes about 12 ms on an H200.
const AT_ONCE: usize = 64;

/// Frees until it is looked again, at the same low water, for long pages that became free.
const LOOK_AFTER: u64 = 16;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Shortener {
    /// The count of frees from which on it is due at low water, after a high water at which much was pinned.
    due: Option<u64>,
    /// When the pool was made, by the device's clock.
    made: Duration,
    /// Time that went into it.
    spent: Duration,
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

impl Shortener {
    pub(super) fn new(now: Duration) -> Self {
        Self { due: None, made: now, spent: Duration::ZERO }
    }

    fn has_time(&self, now: Duration) -> bool {
        self.spent * TIME_PART <= now.saturating_sub(self.made)
    }
}

impl Arena {
    /// Notes what was pinned at the last high water.
    pub(super) fn note_high_water(&mut self, pinned: u64) {
        let is_much = self.is_lenient() && pinned > self.strict_pins();
        self.shortener.due = is_much.then_some(0);
    }

    /// Whether long pages should be exchanged for [short](Self::shorten) ones now.
    #[inline]
    pub(crate) fn is_shortening_due(&self) -> bool {
        self.shortener.due.is_some_and(|due| due <= self.frees) && self.is_lenient() && self.is_low_water()
    }

    /// Exchanges free pages of the large zone whose work is complete for short ones, the longest first. What cannot be
    /// created anew is void.
    #[cold]
    pub(crate) fn shorten(&mut self) {
        self.shortener.due = Some(self.frees + LOOK_AFTER);
        let mut now = self.device.now();
        if !self.shortener.has_time(now) {
            return;
        }
        // What was gathered is mapped where it was, too, until somebody looks.
        self.reap();
        let mut long = self.long_free_pages();
        long.sort_unstable_by_key(|long| (Reverse(long.slots), long.region, long.slot));
        for long in long.iter().take(AT_ONCE) {
            let exchanged = self.exchange_in_place(long);
            let began = std::mem::replace(&mut now, self.device.now());
            self.shortener.spent += now.saturating_sub(began);
            if let Err(refusal) = exchanged {
                tracing::warn!(?refusal, "a long page could not be exchanged for short ones");
                return;
            }
            if !self.shortener.has_time(now) {
                return;
            }
        }
    }

    fn short_slots(&self) -> u32 {
        (self.layout.largest_page / SHORT_PART).max(1)
    }

    fn long_free_pages(&self) -> Vec<Long> {
        let short = self.short_slots();
        let units = (u64::from(short) + 1) << self.layout.slot_shift();
        let blocks: Vec<_> = self.free[Zone::Large as usize].at_least(units).collect();
        self.poll_quietly(&self.fence_of(&blocks));
        let complete = blocks.into_iter().filter(|id| self.timelines.is_complete(&self.blocks[*id].fence));
        let pages = complete.flat_map(|block| {
            let region = self.blocks[block].region;
            let pages = self.whole_pages(block);
            pages.map(move |(page, slot, slots)| Long { block, page, region, slot, slots })
        });
        // Of some an old mapping is left, which waits for its work.
        pages.filter(|long| long.slots > short && self.pages.mappings(long.page) == 1).collect()
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
            let slots = self.short_slots().min(stretch.room());
            let bytes = u64::from(slots) * self.layout.slot_bytes;
            let page = self.pages.create(slots).map_err(|error| Refusal::of_page(error, bytes))?;
            self.attach_unmapped(page, stretch, (fence.clone(), freed))?;
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
