//! The index of free and unmapped extents, which answers "which one fits best".
//!
//! Those of one kind and zone stand in order of their length, then of their address. Short sorted runs hold them, so that a
//! search that starts in one goes through a slice. A tree finds a place as fast, but costs several times as much to walk.

use super::extent::{Extent, ExtentId, ExtentState, Extents};
use super::layout::Zone;
use crate::policy::fit::CANDIDATES;

/// Length, and region and start: sorts by best fit, then by address. Two numbers are compared faster than three.
type Key = (u64, u64);

/// Bits for a start. More than the units of a region: a tebibyte of the shortest, or a single extent.
const START_BITS: u32 = 40;

/// Whether the bits left can name a region. One is as long as all device memory, or a segment.
pub(super) fn is_region(id: u32) -> bool {
    id >> (u64::BITS - START_BITS) == 0
}

/// The extents of a zone that are free, or that are unmapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind(usize);

impl Kind {
    pub(super) const fn free(zone: Zone) -> Self {
        Self(zone as usize)
    }

    pub(super) const fn unmapped(zone: Zone) -> Self {
        Self(2 + zone as usize)
    }

    #[inline]
    fn of(extent: &Extent) -> Self {
        debug_assert!(is_indexed(extent), "{extent:?}");
        let Extent { state, zone, .. } = *extent;
        if state == ExtentState::Free { Self::free(zone) } else { Self::unmapped(zone) }
    }
}

/// An extent in the index, and where it lies: its record is elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexEntry {
    key: Key,
    pub(super) id: ExtentId,
}

impl IndexEntry {
    #[inline]
    fn new(extent: &Extent, id: ExtentId) -> Self {
        let Extent { region, start, units, .. } = *extent;
        debug_assert!(start >> START_BITS == 0 && is_region(region));
        Self { key: (units, u64::from(region) << START_BITS | start), id }
    }

    /// The extent's length.
    #[inline]
    pub(super) fn units(&self) -> u64 {
        self.key.0
    }

    /// The extent's region and first unit in one number, which sorts as its address does.
    #[inline]
    pub(super) fn place_bits(&self) -> u64 {
        self.key.1
    }

    /// The extent's region and first unit.
    #[inline]
    pub(super) fn place(&self) -> (u32, u64) {
        let place = self.place_bits();
        ((place >> START_BITS) as u32, place & ((1 << START_BITS) - 1))
    }
}

fn is_indexed(extent: &Extent) -> bool {
    matches!(extent.state, ExtentState::Free | ExtentState::Unmapped)
}

/// Where in runs a key has its place: the number of the run, and the place there.
#[inline(always)]
fn place_of(runs: &[Vec<IndexEntry>], key: Key) -> (usize, usize) {
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
pub(super) struct ExtentIndex {
    /// By kind, at least one. None is empty if there are several.
    runs: [Vec<Vec<IndexEntry>>; 4],
    /// Whether extents may be missing, since the host refused memory: a free must not fail.
    lacks: bool,
}

impl Default for ExtentIndex {
    fn default() -> Self {
        Self { runs: std::array::from_fn(|_| vec![Vec::new()]), lacks: false }
    }
}

impl ExtentIndex {
    /// Where the host has no memory for it, the index [lacks](Self::lacks) it from then on.
    pub(super) fn insert(&mut self, extent: &Extent, id: ExtentId) {
        let (entry, runs) = (IndexEntry::new(extent, id), &mut self.runs[Kind::of(extent).0]);
        let (number, at) = place_of(runs, entry.key);
        let run = &mut runs[number];
        if run.len() == run.capacity() && run.try_reserve(1).is_err() {
            self.lacks = true;
            return;
        }
        run.insert(at, entry);
        if run.len() > CANDIDATES {
            // A long run is cut in two, if the host has memory for that: else it goes on growing.
            let (mut second, half) = (Vec::new(), run.len() - CANDIDATES / 2);
            if second.try_reserve(half).is_ok() && runs.try_reserve(1).is_ok() {
                second.extend(runs[number].drain(CANDIDATES / 2..));
                runs.insert(number + 1, second);
            }
        }
    }

    pub(super) fn remove(&mut self, extent: &Extent, id: ExtentId) {
        let (entry, runs) = (IndexEntry::new(extent, id), &mut self.runs[Kind::of(extent).0]);
        let (number, at) = place_of(runs, entry.key);
        let run = &mut runs[number];
        if run.get(at) != Some(&entry) {
            debug_assert!(self.lacks, "an extent that is removed is there");
            return;
        }
        run.remove(at);
        if run.is_empty() && runs.len() > 1 {
            runs.remove(number);
        }
    }

    /// Whether some extents may be missing.
    #[inline]
    pub(super) fn lacks(&self) -> bool {
        self.lacks
    }

    /// Inserts every extent that is missing, since the host refused memory. `false` where it still does. Called between requests,
    /// when none is missing for another reason.
    #[cold]
    pub(super) fn complete(&mut self, extents: &Extents) -> bool {
        if std::mem::take(&mut self.lacks) {
            for (id, extent) in extents.iter().filter(|(_, extent)| is_indexed(extent)) {
                if !self.contains(extent, id) {
                    self.insert(extent, id);
                }
            }
        }
        !self.lacks
    }

    /// Extents of at least `units`, the best fit first.
    #[inline(always)]
    pub(super) fn at_least(&self, kind: Kind, units: u64) -> impl Iterator<Item = &IndexEntry> {
        let runs = &self.runs[kind.0];
        let (number, at) = place_of(runs, (units, 0));
        runs[number][at..].iter().chain(runs[number + 1..].iter().flatten())
    }

    /// Extents of less than `units`, the longest first.
    pub(super) fn below(&self, kind: Kind, units: u64) -> impl Iterator<Item = &IndexEntry> {
        let runs = &self.runs[kind.0];
        let (number, at) = place_of(runs, (units, 0));
        runs[..number].iter().flatten().chain(&runs[number][..at]).rev()
    }

    /// The free extents of both zones that have at least so many units.
    pub(super) fn free_of(&self, units: u64) -> impl Iterator<Item = ExtentId> {
        let of_zone = move |zone| self.at_least(Kind::free(zone), units);
        Zone::BOTH.into_iter().flat_map(of_zone).map(|entry| entry.id)
    }

    pub(super) fn len(&self) -> usize {
        self.runs.iter().flatten().map(Vec::len).sum()
    }

    /// Whether the extent is in it, as it is now.
    pub(super) fn contains(&self, extent: &Extent, id: ExtentId) -> bool {
        let (entry, runs) = (IndexEntry::new(extent, id), &self.runs[Kind::of(extent).0]);
        let (number, at) = place_of(runs, entry.key);
        runs[number].get(at) == Some(&entry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIND: Kind = Kind::free(Zone::Large);

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
                    index.remove(&extent(u64::from(at), units), ExtentId(at));
                }
            }
            all.sort_unstable();
            prop_assert_eq!(index.len(), all.len());
            // Of other kinds.
            for state in [ExtentState::Free, ExtentState::Unmapped] {
                index.insert(&Extent::whole(0, Zone::Small, 99, state), ExtentId(1000));
            }
            index.insert(&Extent::whole(0, Zone::Large, 99, ExtentState::Unmapped), ExtentId(1000));
            for units in wanted {
                let fitting: Vec<_> = index.at_least(KIND, units).map(|entry| entry.id.0).collect();
                let shorter: Vec<_> = index.below(KIND, units).map(|entry| entry.id.0).collect();
                let from = all.partition_point(|(length, _)| *length < units);
                prop_assert_eq!(fitting, all[from..].iter().map(|entry| entry.1).collect::<Vec<_>>());
                prop_assert_eq!(shorter, all[..from].iter().rev().map(|entry| entry.1).collect::<Vec<_>>());
            }
        }
    }
}
