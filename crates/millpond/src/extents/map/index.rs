//! The index of holes, which answers "which one fits best".
//!
//! A hole is what lies between two blocks, or between a block and an end of its region: free, unmapped, or the old mappings of
//! pages that moved. So holes change where blocks come and go, not where pages do. Those of one zone stand in order of their
//! length, then of their address. Short sorted runs hold them, so that a search that starts in one goes through a slice. A tree
//! finds a place as fast, but costs several times as much to walk.

use super::extent::ExtentId;
use super::layout::Zone;
use crate::policy::fit::CANDIDATES;

/// Length, and region and start: sorts by best fit, then by address. Two numbers are compared faster than three.
type Key = (u64, u64);

/// Bits for a start. More than the units of a region: a tebibyte of the shortest, or a single extent.
const START_BITS: u32 = 40;

/// Whether the bits left can name a region. One is as long as all device memory, or a segment.
pub(in crate::extents) fn is_region(id: u32) -> bool {
    id >> (u64::BITS - START_BITS) == 0
}

/// A hole: where it lies, and the block before it, unless it begins its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::extents) struct Hole {
    key: Key,
    pub(in crate::extents) before: Option<ExtentId>,
}

impl Hole {
    /// Of a region, from one unit to another, behind a block.
    #[inline]
    pub(in crate::extents) fn new(region: u32, (start, end): (u64, u64), before: Option<ExtentId>) -> Self {
        debug_assert!(start >> START_BITS == 0 && is_region(region) && start <= end);
        Self { key: (end - start, u64::from(region) << START_BITS | start), before }
    }

    #[inline]
    pub(in crate::extents) fn units(&self) -> u64 {
        self.key.0
    }

    /// Whether it comes before another where both are long enough: the shorter one, then the one at the lower address.
    pub(in crate::extents) fn fits_before(&self, other: &Self) -> bool {
        self.key < other.key
    }

    /// Its region and first unit.
    #[inline]
    pub(in crate::extents) fn place(&self) -> (u32, u64) {
        let place = self.key.1;
        ((place >> START_BITS) as u32, place & ((1 << START_BITS) - 1))
    }
}

/// Where in runs a key has its place: the number of the run, and the place there.
#[inline(always)]
fn place_of(runs: &[Vec<Hole>], key: Key) -> (usize, usize) {
    let number = match runs {
        // Nearly always.
        [_] => 0,
        runs => runs[1..].partition_point(|run| run[0].key <= key),
    };
    let run = &runs[number];
    // By the length first: comparing one number takes no unpredictable branch.
    let mut at = run.partition_point(|other| other.key.0 < key.0);
    while run.get(at).is_some_and(|other| other.key < key) {
        at += 1;
    }
    (number, at)
}

/// See the [module](self).
#[derive(Debug)]
pub(in crate::extents) struct HoleIndex {
    /// By zone, at least one. None is empty if there are several.
    runs: [Vec<Vec<Hole>>; 2],
    /// Whether holes may be missing, since the host refused memory: a free must not fail.
    lacks: bool,
}

impl Default for HoleIndex {
    fn default() -> Self {
        Self { runs: std::array::from_fn(|_| vec![Vec::new()]), lacks: false }
    }
}

impl HoleIndex {
    /// What stands in for an index that is taken out. It takes no memory, and nothing is looked for in it.
    pub(in crate::extents) const TAKEN: Self = Self { runs: [const { Vec::new() }; 2], lacks: true };

    /// Inserts a hole, unless it is empty. Where the host has no memory for it, the index [lacks](Self::lacks) it from then on.
    pub(in crate::extents) fn insert(&mut self, zone: Zone, hole: Hole) {
        if hole.units() == 0 {
            return;
        }
        let runs = &mut self.runs[zone as usize];
        let (number, at) = place_of(runs, hole.key);
        let run = &mut runs[number];
        if run.len() == run.capacity() && run.try_reserve(1).is_err() {
            self.lacks = true;
            return;
        }
        run.insert(at, hole);
        if run.len() > CANDIDATES {
            // A long run is cut in two, if the host has memory for that: else it goes on growing.
            let (mut second, half) = (Vec::new(), run.len() - CANDIDATES / 2);
            if second.try_reserve(half).is_ok() && runs.try_reserve(1).is_ok() {
                second.extend(runs[number].drain(CANDIDATES / 2..));
                runs.insert(number + 1, second);
            }
        }
    }

    /// Removes a hole, unless it is empty.
    pub(in crate::extents) fn remove(&mut self, zone: Zone, hole: Hole) {
        if hole.units() == 0 {
            return;
        }
        let runs = &mut self.runs[zone as usize];
        let (number, at) = place_of(runs, hole.key);
        let run = &mut runs[number];
        if run.get(at) != Some(&hole) {
            debug_assert!(self.lacks, "a hole that is removed is there");
            return;
        }
        run.remove(at);
        if run.is_empty() && runs.len() > 1 {
            runs.remove(number);
        }
    }

    /// Removes a hole and inserts another, either of which may be empty. Most are about as long: then what lies between them moves by
    /// one place, and not all that is behind each.
    #[inline]
    pub(in crate::extents) fn replace(&mut self, zone: Zone, old: Hole, new: Hole) {
        if old.units() > 0 && new.units() > 0 {
            let runs = &mut self.runs[zone as usize];
            let ((number, from), (same, to)) = (place_of(runs, old.key), place_of(runs, new.key));
            let run = &mut runs[number];
            if number == same && run.get(from) == Some(&old) {
                let to = if from < to { to - 1 } else { to };
                if from < to {
                    run.copy_within(from + 1..=to, from);
                } else {
                    run.copy_within(to..from, to + 1);
                }
                run[to] = new;
                return;
            }
        }
        self.remove(zone, old);
        self.insert(zone, new);
    }

    /// Whether some holes may be missing.
    #[inline]
    pub(in crate::extents) fn lacks(&self) -> bool {
        self.lacks
    }

    /// Inserts every hole that is missing of all there are, since the host refused memory. `false` where it still does.
    #[cold]
    pub(in crate::extents) fn complete(&mut self, all: impl Iterator<Item = (Zone, Hole)>) -> bool {
        self.lacks = false;
        for (zone, hole) in all {
            if !self.contains(zone, hole) {
                self.insert(zone, hole);
            }
        }
        !self.lacks
    }

    /// Holes of at least `units`, the best fit first.
    #[inline(always)]
    pub(in crate::extents) fn at_least(
        &self,
        zone: Zone,
        units: u64,
    ) -> impl DoubleEndedIterator<Item = &Hole> {
        let runs = &self.runs[zone as usize];
        let (number, at) = place_of(runs, (units, 0));
        runs[number][at..].iter().chain(runs[number + 1..].iter().flatten())
    }

    pub(in crate::extents) fn len(&self) -> usize {
        self.runs.iter().flatten().map(Vec::len).sum()
    }

    /// Whether the hole is in it, as it is now.
    pub(in crate::extents) fn contains(&self, zone: Zone, hole: Hole) -> bool {
        let runs = &self.runs[zone as usize];
        let (number, at) = place_of(runs, hole.key);
        hole.units() == 0 || runs[number].get(at) == Some(&hole)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hole(start: u64, units: u64) -> Hole {
        Hole::new(0, (start, start + units), None)
    }

    proptest! {
        /// As a sorted list of all holes would answer.
        #[test]
        fn the_best_fit_is_found(
            lengths in prop::collection::vec(prop_oneof![1u64..200, 1u64..1 << 38, Just(77)], 1..300),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..100),
            replaced in prop::collection::vec((any::<prop::sample::Index>(), 0u64..300), 0..100),
            wanted in prop::collection::vec(prop_oneof![0u64..200, 0u64..1 << 39], 20),
        ) {
            let mut index = HoleIndex::default();
            let mut all: Vec<_> = (0u64..).zip(&lengths).map(|(at, units)| (*units, at)).collect();
            for (units, at) in &all {
                index.insert(Zone::Large, hole(*at, *units));
            }
            for which in removed {
                if !all.is_empty() {
                    let (units, at) = all.swap_remove(which.index(all.len()));
                    index.remove(Zone::Large, hole(at, units));
                }
            }
            for (which, length) in replaced {
                if !all.is_empty() {
                    let (units, at) = all.swap_remove(which.index(all.len()));
                    index.replace(Zone::Large, hole(at, units), hole(at, length));
                    all.extend((length > 0).then_some((length, at)));
                }
            }
            all.sort_unstable();
            prop_assert_eq!(index.len(), all.len());
            // Of the other zone, and one that is none.
            index.insert(Zone::Small, hole(1000, 99));
            index.insert(Zone::Large, hole(1000, 0));
            for units in wanted {
                let fitting: Vec<_> = index.at_least(Zone::Large, units).map(|hole| hole.place().1).collect();
                let from = all.partition_point(|(length, _)| *length < units);
                prop_assert_eq!(fitting, all[from..].iter().map(|entry| entry.1).collect::<Vec<_>>());
            }
        }
    }
}
