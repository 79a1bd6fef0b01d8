//! The indexes that answer "which free block fits best" and "which unmapped one fits best".
//!
//! Blocks are kept in bins by length, one to a power of two, as in the first level of TLSF (Masmano et al.,
//! "TLSF: a new dynamic memory allocator for real-time systems", 2004), with a bit for each bin that has any.
//! Unlike there each bin is sorted, so that the best fit is found and not merely a good one. (Four bins to a power of two,
//! as there, took replays of recorded jobs 1 to 3 % more instructions: docs/replay.md.)

use super::bin::{Bin, IndexEntry, Key, first_of, key};
use super::extent::{Block, BlockId};

/// Entries of blocks by rising length.
#[derive(Debug)]
pub(super) struct Rising<'a> {
    index: &'a FreeIndex,
    run: std::slice::Iter<'a, IndexEntry>,
    more: std::slice::Iter<'a, Vec<IndexEntry>>,
    next_bin: usize,
}

impl<'a> Iterator for Rising<'a> {
    type Item = &'a IndexEntry;

    #[inline]
    fn next(&mut self) -> Option<&'a IndexEntry> {
        match self.run.next() {
            Some(entry) => Some(entry),
            None => self.next_run(),
        }
    }
}

impl<'a> Rising<'a> {
    /// The first entry of the next run, which is not empty.
    fn next_run(&mut self) -> Option<&'a IndexEntry> {
        let run = match self.more.next() {
            Some(run) => run,
            None => {
                let bin = self.index.first_filled(self.next_bin)?;
                self.next_bin = bin + 1;
                let (first, more) = self.index.bins[bin].all();
                self.more = more;
                first
            }
        };
        self.run = run.iter();
        self.run.next()
    }
}

/// Bins for every length of an address space, which has less than 2^48 units.
const BINS: usize = 64;

/// The bin of blocks of this length.
#[inline]
fn bin_of(units: u64) -> usize {
    units.checked_ilog2().map_or(0, |log| log as usize)
}

/// The free blocks of a zone, by length.
#[derive(Debug)]
pub(super) struct FreeIndex {
    bins: Box<[Bin; BINS]>,
    /// A bit for each bin that is not empty.
    filled: u64,
    len: usize,
    /// Whether the host refused memory for a block, which is on no index since: a free must not fail.
    lacks: bool,
}

impl Default for FreeIndex {
    fn default() -> Self {
        Self { bins: Box::new(std::array::from_fn(|_| Bin::default())), filled: 0, len: 0, lacks: false }
    }
}

impl FreeIndex {
    /// Where the host has no memory for it, the index [lacks](Self::lacks) it from then on.
    pub(super) fn insert(&mut self, block: &Block, id: BlockId) {
        let bin = bin_of(block.units);
        if !self.bins[bin].insert(IndexEntry::new(block, id)) {
            self.lacks = true;
            return;
        }
        self.filled |= 1 << bin;
        self.len += 1;
    }

    /// Whether some blocks may be missing.
    #[inline]
    pub(super) fn lacks(&self) -> bool {
        self.lacks
    }

    /// Inserts a block that may be missing.
    pub(super) fn insert_missing(&mut self, block: &Block, id: BlockId) {
        if !self.contains(block, id) {
            self.insert(block, id);
        }
    }

    /// All that were missing are about to be [inserted](Self::insert_missing).
    pub(super) fn complete(&mut self) {
        self.lacks = false;
    }

    pub(super) fn remove(&mut self, block: &Block) {
        let bin = bin_of(block.units);
        if !self.bins[bin].remove(key(block)) {
            debug_assert!(self.lacks, "a block that is removed is there");
            return;
        }
        if self.bins[bin].is_empty() {
            self.filled &= !(1 << bin);
        }
        self.len -= 1;
    }

    /// Blocks of at least `units`, the best fit first.
    pub(super) fn at_least(&self, units: u64) -> impl Iterator<Item = BlockId> + '_ {
        self.rising(units).map(|entry| entry.id)
    }

    /// The entries of blocks of at least `units`, the best fit first.
    #[inline(always)]
    pub(super) fn rising(&self, units: u64) -> Rising<'_> {
        let bin = bin_of(units);
        let (first, more) = self.bins[bin].from(first_of(units));
        Rising { index: self, run: first.iter(), more, next_bin: bin + 1 }
    }

    /// Blocks of less than `units`, the longest first.
    pub(super) fn below(&self, units: u64) -> impl Iterator<Item = BlockId> + '_ {
        let last = bin_of(units);
        let longest = self.bins[last].before(first_of(units)).rev();
        let shorter = self.filled_below(last).flat_map(|bin| self.bins[bin].before(Key::MAX).rev());
        longest.chain(shorter).map(|entry| entry.id)
    }

    /// The first bin from `bin` up that is not empty.
    #[inline]
    fn first_filled(&self, bin: usize) -> Option<usize> {
        let from = self.filled.checked_shr(bin as u32)?;
        (from != 0).then(|| bin + from.trailing_zeros() as usize)
    }

    /// The bins that are not empty, from below `end` down.
    fn filled_below(&self, end: usize) -> impl Iterator<Item = usize> + '_ {
        let mut left = self.filled & u64::MAX.checked_shr((BINS - end) as u32).unwrap_or(0);
        std::iter::from_fn(move || {
            let last = left.checked_ilog2()?;
            left &= !(1 << last);
            Some(last as usize)
        })
    }

    /// The length of the longest block, in units.
    pub(super) fn longest(&self) -> u64 {
        let bin = self.filled_below(BINS).next();
        let last = bin.and_then(|bin| self.bins[bin].before(Key::MAX).next_back());
        last.map_or(0, |entry| entry.units())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether the block is in it, as it is now.
    pub(super) fn contains(&self, block: &Block, id: BlockId) -> bool {
        self.bins[bin_of(block.units)].get(key(block)) == Some(&IndexEntry::new(block, id))
    }
}

/// The unmapped blocks of a zone, by length. The same structure: an unmapped block is found as a free block is.
pub(super) type UnmappedIndex = FreeIndex;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::extent::{State, Zone};
    use super::*;

    fn block(start: u64, units: u64) -> Block {
        let mut block = Block::whole(0, Zone::Large, units, State::Free);
        block.start = start;
        block
    }

    proptest! {
        /// As a sorted list of all blocks would answer.
        #[test]
        fn the_best_fit_and_the_longest_below_are_found(
            lengths in prop::collection::vec(prop_oneof![1u64..200, 1u64..1 << 40, Just(77)], 1..300),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..100),
            wanted in prop::collection::vec(prop_oneof![0u64..200, 0u64..1 << 41], 20),
        ) {
            let mut index = FreeIndex::default();
            let mut all: Vec<_> = (0u32..).zip(&lengths).map(|(at, units)| (*units, at)).collect();
            for (units, at) in &all {
                index.insert(&block(u64::from(*at), *units), BlockId(*at));
            }
            for which in removed {
                if !all.is_empty() {
                    let (units, at) = all.swap_remove(which.index(all.len()));
                    index.remove(&block(u64::from(at), units));
                }
            }
            all.sort_unstable();
            prop_assert_eq!(index.len(), all.len());
            prop_assert_eq!(index.longest(), all.last().map_or(0, |last| last.0));
            for units in wanted {
                let fitting: Vec<_> = index.at_least(units).map(|id| id.0).collect();
                let shorter: Vec<_> = index.below(units).map(|id| id.0).collect();
                let from = all.partition_point(|(length, _)| *length < units);
                prop_assert_eq!(fitting, all[from..].iter().map(|entry| entry.1).collect::<Vec<_>>());
                prop_assert_eq!(shorter, all[..from].iter().rev().map(|entry| entry.1).collect::<Vec<_>>());
            }
        }
    }
}
