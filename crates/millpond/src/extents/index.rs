//! The indexes that answer "which free extent fits best" and "which unmapped one fits best".
//!
//! Extents are kept in bins by length, one to a power of two, with a bit for each bin that has any. So is the first
//! level of TLSF (Masmano et al., "TLSF: a new dynamic memory allocator for real-time systems", 2004). Unlike there
//! each bin is sorted, so that the best fit is found and not merely a good one. (Four bins to a power of two, as there,
//! took replays of recorded jobs 1 to 3 % more instructions: docs/lab/replay.md.)

use super::bin::{Bin, IndexEntry, Key, first_of, key};
use super::extent::{Extent, ExtentId};

/// Entries of extents by rising length.
#[derive(Debug)]
pub(super) struct Rising<'a> {
    index: &'a ExtentIndex,
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

/// The bin of extents of this length.
#[inline]
fn bin_of(units: u64) -> usize {
    units.checked_ilog2().map_or(0, |log| log as usize)
}

/// The extents of a zone that are free, or that are unmapped, by length.
#[derive(Debug)]
pub(super) struct ExtentIndex {
    /// One for each number of bits.
    bins: Box<[Bin; u64::BITS as usize]>,
    /// A bit for each bin that is not empty.
    filled: u64,
    len: usize,
    /// Whether extents are missing, since the host refused memory: a free must not fail.
    lacks: bool,
}

impl Default for ExtentIndex {
    fn default() -> Self {
        Self { bins: Box::new(std::array::from_fn(|_| Bin::default())), filled: 0, len: 0, lacks: false }
    }
}

impl ExtentIndex {
    /// Where the host has no memory for it, the index [lacks](Self::lacks) it from then on.
    pub(super) fn insert(&mut self, extent: &Extent, id: ExtentId) {
        let bin = bin_of(extent.units);
        if !self.bins[bin].insert(IndexEntry::new(extent, id)) {
            self.lacks = true;
            return;
        }
        self.filled |= 1 << bin;
        self.len += 1;
    }

    /// Whether some extents may be missing.
    #[inline]
    pub(super) fn lacks(&self) -> bool {
        self.lacks
    }

    /// Inserts an extent that may be missing.
    pub(super) fn insert_missing(&mut self, extent: &Extent, id: ExtentId) {
        if !self.contains(extent, id) {
            self.insert(extent, id);
        }
    }

    /// All that were missing are about to be [inserted](Self::insert_missing).
    pub(super) fn complete(&mut self) {
        self.lacks = false;
    }

    pub(super) fn remove(&mut self, extent: &Extent) {
        let bin = bin_of(extent.units);
        if !self.bins[bin].remove(key(extent)) {
            debug_assert!(self.lacks, "an extent that is removed is there");
            return;
        }
        if self.bins[bin].is_empty() {
            self.filled &= !(1 << bin);
        }
        self.len -= 1;
    }

    /// Extents of at least `units`, the best fit first.
    pub(super) fn at_least(&self, units: u64) -> impl Iterator<Item = ExtentId> + '_ {
        self.rising(units).map(|entry| entry.id)
    }

    /// The entries of extents of at least `units`, the best fit first.
    #[inline(always)]
    pub(super) fn rising(&self, units: u64) -> Rising<'_> {
        let bin = bin_of(units);
        let (first, more) = self.bins[bin].from(first_of(units));
        Rising { index: self, run: first.iter(), more, next_bin: bin + 1 }
    }

    /// Extents of less than `units`, the longest first.
    pub(super) fn below(&self, units: u64) -> impl Iterator<Item = ExtentId> + '_ {
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
        let mut left = self.filled & u64::MAX.checked_shr((self.bins.len() - end) as u32).unwrap_or(0);
        std::iter::from_fn(move || {
            let last = left.checked_ilog2()?;
            left &= !(1 << last);
            Some(last as usize)
        })
    }

    /// The length of the longest extent, in units.
    pub(super) fn longest(&self) -> u64 {
        let bin = self.filled_below(self.bins.len()).next();
        let last = bin.and_then(|bin| self.bins[bin].before(Key::MAX).next_back());
        last.map_or(0, |entry| entry.units())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether the extent is in it, as it is now.
    pub(super) fn contains(&self, extent: &Extent, id: ExtentId) -> bool {
        self.bins[bin_of(extent.units)].get(key(extent)) == Some(&IndexEntry::new(extent, id))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::extent::ExtentState;
    use super::super::layout::Zone;
    use super::*;

    fn extent(start: u64, units: u64) -> Extent {
        let mut extent = Extent::whole(0, Zone::Large, units, ExtentState::Free);
        extent.start = start;
        extent
    }

    proptest! {
        /// As a sorted list of all extents would answer.
        #[test]
        fn the_best_fit_and_the_longest_below_are_found(
            lengths in prop::collection::vec(prop_oneof![1u64..200, 1u64..1 << 40, Just(77)], 1..300),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..100),
            wanted in prop::collection::vec(prop_oneof![0u64..200, 0u64..1 << 41], 20),
        ) {
            let mut index = ExtentIndex::default();
            let mut all: Vec<_> = (0u32..).zip(&lengths).map(|(at, units)| (*units, at)).collect();
            for (units, at) in &all {
                index.insert(&extent(u64::from(*at), *units), ExtentId(*at));
            }
            for which in removed {
                if !all.is_empty() {
                    let (units, at) = all.swap_remove(which.index(all.len()));
                    index.remove(&extent(u64::from(at), units));
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
