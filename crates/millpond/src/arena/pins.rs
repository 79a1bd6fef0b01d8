//! What a placement pins: free memory on pages that it shares with live blocks, which therefore can be neither
//! stolen nor given back. This is what a pool of long pages wastes, so placements are weighed by it.
//!
//! The *take* of a placement is what it takes of the memory that could still move: the pages that were free as
//! a whole and are touched by it, and the slots that have to be backed. Its *waste* is that less its own length.
//! A fresh place wastes what is left of its last slot. A hit wastes the rest of the pages that its ends lie on,
//! which for a page of 32 MiB is much; but it costs no device call. So waste is allowed while little is pinned
//! ([`Arena::allowance`]), and beyond that pages move instead.

use super::blocks::{Block, Edges};
use super::find::Want;
use super::regions::{Backing, Span};
use super::{Arena, BlockId, Zone};

/// Free memory that may be pinned before placements become strict: this part of what is reserved. A pool that
/// repeats itself stays below it and pays no moves; half of the 2 % that may be wasted are left to blocks that
/// die beside others, which no placement foresees.
const PINNED_PART: u64 = 56;

/// Bytes that may be pinned in any case: in a small pool a part is less than a page, and pages would move all the
/// time.
const PINNED_LEAST: u64 = 32 << 20;

/// What a strict placement may waste: this part of its length.
const WASTED_PART: u64 = 32;

/// What a block may waste to spare a device call, in even shares of what may be pinned: a share is the part of one
/// of as many blocks as are out. Wastes below a limit are half of it in the mean, and a hole lies between two
/// blocks, so that this many come to about one.
const SHARES: u64 = 4;

/// What a hit may waste that is taken without a look for less: this part of its length.
const LITTLE_PART: u64 = 64;

/// And this part of what may still be pinned: while that is much, most requests take one of the first blocks that are
/// looked at, where they went through all of them, and through the caches, for less. (docs/replay.md has other parts.)
const LITTLE_OF_LEFT: u64 = 128;

/// But at most this part of its length, or short blocks would pin as much as long ones.
const MOST_LITTLE_PART: u64 = 8;

/// What it counts to share a page longer than a slot with live blocks: this part of the page. What such a
/// placement takes was pinned already, but it keeps the page pinned when the others have died.
const SHARING_PART: u64 = 64;

/// A free block, as placements are weighed in it: its bounds in units, and what it wastes to use its ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) region: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) edges: Edges,
}

impl From<&Block> for Piece {
    #[inline]
    fn from(block: &Block) -> Self {
        Self { region: block.region, start: block.start, end: block.end(), edges: block.edges }
    }
}

impl Arena {
    /// How much a placement of `units` may waste now, in units.
    pub(super) fn allowance(&self, zone: Zone, units: u64) -> i64 {
        if zone == Zone::Small {
            // Small blocks lie on the smallest pages, and moving pages for them would cost more than it gains.
            return i64::MAX;
        }
        let most = self.may_pin();
        let (left, part, tail) = (most.saturating_sub(self.pinned), units / WASTED_PART, self.tail_of(units));
        if left >= part.max(tail) {
            // Nearly always, without a division: what is strict is no more.
            return signed(left);
        }
        // Few blocks can afford the rest of a slot each; many cannot.
        let share = SHARES * most / self.out_blocks[Zone::Large as usize].max(1);
        signed(part.max(tail.min(share)).max(left))
    }

    /// How much a hit for `units` may waste that is taken without a look for less, in units.
    pub(super) fn little(&self, zone: Zone, units: u64) -> i64 {
        if zone == Zone::Small {
            return i64::MAX;
        }
        let of_left = self.may_pin().saturating_sub(self.pinned) / LITTLE_OF_LEFT;
        let of_length = (units / LITTLE_PART).max(self.layout.units_per_slot() / 8);
        signed(of_left.min(units / MOST_LITTLE_PART).max(of_length))
    }

    /// Whether so much is pinned that placements are strict.
    pub(super) fn pins_much(&self) -> bool {
        self.pinned >= self.may_pin()
    }

    /// Units that may be pinned before placements become strict.
    fn may_pin(&self) -> u64 {
        if self.gatherer.is_lenient() {
            let reserved = self.counters.reserved.current() >> self.layout.unit_shift();
            return reserved.saturating_sub(self.out_units);
        }
        self.strict_pins()
    }

    /// What [`may_pin`](Self::may_pin) says where pages were not [gathered](Self::gather).
    pub(super) fn strict_pins(&self) -> u64 {
        (self.counters.reserved.current() / PINNED_PART).max(PINNED_LEAST) >> self.layout.unit_shift()
    }

    /// Whether more is pinned than may be where pages were not gathered.
    pub(super) fn pins_more_than_strict(&self) -> bool {
        self.pinned > self.strict_pins()
    }

    /// The rest of the last slot of a fresh place.
    pub(super) fn tail_of(&self, units: u64) -> u64 {
        units.wrapping_neg() & (self.layout.units_per_slot() - 1)
    }

    /// Where in a free block that has room from `at` on a placement wastes least: at its start or at its end.
    /// Returns the waste and the unit.
    #[inline]
    pub(super) fn least_waste(&self, block: &Block, at: u64, want: &Want) -> (i64, u64) {
        if want.zone == Zone::Small || block.units == want.units {
            // Whatever else were done with a block of just this length, it would pin no less.
            return (0, at);
        }
        let low = self.waste_in(block, (at, at + want.units));
        if low <= 0 || block.end() == at + want.units {
            return (low, at);
        }
        match self.align_down(block.region, block.end() - want.units, want.align).filter(|high| *high > at) {
            Some(high) => (low, at).min((self.waste_in(block, (high, high + want.units)), high)),
            None => (low, at),
        }
    }

    /// To weigh placements of `want`, one after the other, where it may start at any unit.
    #[inline]
    pub(super) fn scale(&self, want: &Want) -> Scale<'_> {
        let (units, is_small) = (want.units, want.zone == Zone::Small);
        Scale { arena: self, units, is_small, region: u32::MAX, backing: Backing::default() }
    }

    /// What using any `window` of a free block wastes.
    pub(super) fn waste_in(&self, block: &Block, window: (u64, u64)) -> i64 {
        // At an end of the block where it pins nothing there is no need to ask for the page: all of it is used,
        // unless the page at the other end is the same.
        let low_is_clean = window.0 == block.start && block.pinned.0 == 0;
        let high_is_clean = window.1 == block.end() && block.pinned.1 == 0;
        let piece = &Piece::from(block);
        let mut waste = 0;
        if !low_is_clean {
            let Some(page) = self.page_bounds(block.region, window.0) else { return 0 };
            if window.1 <= page.1 {
                return self.waste_on(piece, page, window.1 - window.0);
            }
            waste += self.waste_on(piece, page, page.1 - window.0);
        }
        if !high_is_clean {
            let Some(page) = self.page_bounds(block.region, window.1 - 1) else { return 0 };
            if page.0 <= window.0 {
                return self.waste_on(piece, page, window.1 - window.0);
            }
            waste += self.waste_on(piece, page, window.1 - page.0);
        }
        waste
    }

    /// What using `units` of a page, of which the free block has at least those, wastes.
    #[inline]
    fn waste_on(&self, piece: &Piece, page: Span, units: u64) -> i64 {
        let length = page.1 - page.0;
        // Both are known before either is chosen: searches weigh many blocks, and which it is cannot be foreseen.
        let is_whole = (piece.start <= page.0) & (page.1 <= piece.end);
        let is_long = length > self.layout.units_per_slot();
        let shared = if is_long { signed(length / SHARING_PART) } else { -signed(units) };
        if is_whole { signed(length) - signed(units) } else { shared }
    }

    /// Notes what the ends of a free block of the large zone pin, and what it wastes to use them.
    pub(super) fn note_ends(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let ends =
            (self.page_bounds(block.region, block.start), self.page_bounds(block.region, block.end() - 1));
        // A segment is one piece: nothing in it could move.
        let (mut pinned, mut edges) = ((0, 0), (0, 0));
        if let (Some(first), Some(last)) = ends {
            let low = if first.0 < block.start || first.1 > block.end() {
                first.1.min(block.end())
            } else {
                block.start
            };
            let high = if last.1 > block.end() { last.0.max(low) } else { block.end() };
            let (below, above) = (low - block.start, block.end() - high);
            let piece = &Piece::from(block);
            // Weighed whether it pins anything or not: that cannot be foreseen.
            let edge = |page, units| {
                let waste = self.waste_on(piece, page, units);
                short(if units == 0 { 0 } else { waste })
            };
            edges = (edge(first, below), edge(last, above));
            pinned = (below as u32, above as u32);
        }
        let block = &mut self.blocks[id];
        (block.pinned, block.edges) = (pinned, edges);
    }

    /// The units of the page behind a unit of the region.
    #[inline]
    fn page_bounds(&self, region: u32, unit: u64) -> Option<Span> {
        self.regions.backing(region).span(self.layout.slot_of(unit))
    }
}

/// Weighs placements of so many units in free blocks that are long enough. A search asks about many blocks, nearly all of
/// them in one region.
#[derive(Debug)]
pub(super) struct Scale<'a> {
    arena: &'a Arena,
    units: u64,
    is_small: bool,
    /// The region asked about last.
    region: u32,
    /// What backs its slots.
    backing: Backing<'a>,
}

impl Scale<'_> {
    /// What a placement wastes that wastes least: at the block's start or at its end; and its first unit.
    #[inline(always)]
    pub(super) fn least_waste(&mut self, piece: &Piece) -> (i64, u64) {
        let high = piece.end - self.units;
        if high == piece.start || self.is_small {
            // Whatever else were done with a block of just this length, it would pin no less.
            return (0, piece.start);
        }
        if piece.region != self.region {
            (self.region, self.backing) = (piece.region, self.arena.regions.backing(piece.region));
        }
        let low = self.waste_below(piece, piece.start + self.units);
        if low <= 0 {
            return (low, piece.start);
        }
        let above = self.waste_above(piece, high);
        if above < low { (above, high) } else { (low, piece.start) }
    }

    /// What using the block from its start up to `end`, which lies in it, wastes.
    #[inline(always)]
    fn waste_below(&self, piece: &Piece, end: u64) -> i64 {
        let Some(page) = self.page_bounds(end - 1) else { return 0 };
        let edge = if page.0 <= piece.start { 0 } else { i64::from(piece.edges.0) };
        edge + self.arena.waste_on(piece, page, end - page.0.max(piece.start))
    }

    /// What using the block from `start`, which lies in it, to its end wastes.
    #[inline(always)]
    fn waste_above(&self, piece: &Piece, start: u64) -> i64 {
        let Some(page) = self.page_bounds(start) else { return 0 };
        let edge = if piece.end <= page.1 { 0 } else { i64::from(piece.edges.1) };
        edge + self.arena.waste_on(piece, page, page.1.min(piece.end) - start)
    }

    #[inline]
    fn page_bounds(&self, unit: u64) -> Option<Span> {
        self.backing.span(self.arena.layout.slot_of(unit))
    }
}

/// A difference of units on one page, for [`Edges`].
fn short(units: i64) -> i32 {
    i32::try_from(units).unwrap_or(if units < 0 { i32::MIN } else { i32::MAX })
}

/// Units as a difference. No address space has 2^63 of them.
pub(super) fn signed(units: u64) -> i64 {
    units as i64
}
