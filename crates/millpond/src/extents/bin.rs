//! A bin of an index: entries in order, in short sorted runs.

use super::extent::{Extent, ExtentId};
use crate::policy::fit::LONGEST_RUN;

/// Length, region and start in one number, which is compared faster than three: sorts by best fit, then by address.
pub(super) type Key = u128;

pub(super) fn key(extent: &Extent) -> Key {
    debug_assert!(extent.start >> START_BITS == 0 && is_region(extent.region));
    first_of(extent.units) | u128::from(extent.region) << START_BITS | u128::from(extent.start)
}

/// Bits for a start. More than the units of a region: a tebibyte of the shortest, or a single extent.
const START_BITS: u32 = 40;

/// Whether the bits left can name a region. One is as long as all device memory, or a segment.
pub(super) fn is_region(id: u32) -> bool {
    id >> (u64::BITS - START_BITS) == 0
}

/// The least key of any extent of this length.
pub(super) fn first_of(units: u64) -> Key {
    u128::from(units) << 64
}

/// The length of the extent with this key.
pub(super) fn units_of(key: Key) -> u64 {
    (key >> 64) as u64
}

/// An extent in a bin, and where it lies: its record is elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexEntry {
    key: Key,
    pub(super) id: ExtentId,
}

impl IndexEntry {
    pub(super) fn new(extent: &Extent, id: ExtentId) -> Self {
        Self { key: key(extent), id }
    }

    /// The extent's length.
    #[inline]
    pub(super) fn units(&self) -> u64 {
        units_of(self.key)
    }

    /// The extent's region and first unit in one number, which sorts as its address does.
    #[inline]
    pub(super) fn place_bits(&self) -> u64 {
        self.key as u64
    }

    /// The extent's region and first unit.
    #[inline]
    pub(super) fn place(&self) -> (u32, u64) {
        let place = self.place_bits();
        ((place >> START_BITS) as u32, place & ((1 << START_BITS) - 1))
    }
}

/// Extents in order. Most bins are one run: a search that starts in it goes through a slice. A tree finds a place as
/// fast, but costs several times as much to walk.
#[derive(Debug, Default)]
pub(super) struct Bin {
    first: Vec<IndexEntry>,
    /// The runs behind the first, none of which is empty; nor is the first then.
    more: Vec<Vec<IndexEntry>>,
}

impl Bin {
    /// The number of the run in which the key has its place: 0 for the first.
    #[inline]
    fn run_of(&self, key: Key) -> usize {
        if self.more.is_empty() { 0 } else { self.more.partition_point(|run| run[0].key <= key) }
    }

    fn run(&self, number: usize) -> &Vec<IndexEntry> {
        if number == 0 { &self.first } else { &self.more[number - 1] }
    }

    fn run_mut(&mut self, number: usize) -> &mut Vec<IndexEntry> {
        if number == 0 { &mut self.first } else { &mut self.more[number - 1] }
    }

    /// `false`, and nothing done, where the host has no memory for it.
    #[must_use]
    pub(super) fn insert(&mut self, entry: IndexEntry) -> bool {
        let number = self.run_of(entry.key);
        let run = self.run_mut(number);
        if run.len() == run.capacity() && run.try_reserve(1).is_err() {
            return false;
        }
        let at = place_in(run, entry.key);
        run.insert(at, entry);
        if run.len() > LONGEST_RUN {
            self.cut_in_two(number);
        }
        true
    }

    /// Cuts a long run in two, if the host has memory for that: else it goes on growing.
    fn cut_in_two(&mut self, number: usize) {
        let mut second = Vec::new();
        let half = self.run(number).len() - LONGEST_RUN / 2;
        if self.more.try_reserve(1).is_err() || second.try_reserve(half).is_err() {
            return;
        }
        second.extend(self.run_mut(number).drain(LONGEST_RUN / 2..));
        self.more.insert(number, second);
    }

    /// Removes a key; returns whether it was there.
    pub(super) fn remove(&mut self, key: Key) -> bool {
        let number = self.run_of(key);
        let run = self.run_mut(number);
        let at = place_in(run, key);
        if run.get(at).is_none_or(|entry| entry.key != key) {
            return false;
        }
        run.remove(at);
        if run.is_empty() && !self.more.is_empty() {
            let next = self.more.remove(number.saturating_sub(1));
            if number == 0 {
                self.first = next;
            }
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    pub(super) fn get(&self, key: Key) -> Option<&IndexEntry> {
        let run = self.run(self.run_of(key));
        run.get(place_in(run, key)).filter(|entry| entry.key == key)
    }

    /// The extents from `key` on, in order: the rest of a run, and the runs behind it.
    #[inline]
    pub(super) fn from(&self, key: Key) -> (&[IndexEntry], std::slice::Iter<'_, Vec<IndexEntry>>) {
        let number = self.run_of(key);
        let run = self.run(number);
        (&run[place_in(run, key)..], self.more[number..].iter())
    }

    /// All extents, in order, likewise.
    #[inline]
    pub(super) fn all(&self) -> (&Vec<IndexEntry>, std::slice::Iter<'_, Vec<IndexEntry>>) {
        (&self.first, self.more.iter())
    }

    /// The extents before `key`, in order.
    pub(super) fn before(&self, key: Key) -> impl DoubleEndedIterator<Item = IndexEntry> + '_ {
        let number = self.run_of(key);
        let last = self.run(number);
        let last = &last[..place_in(last, key)];
        let (first, between) = match number {
            0 => (&[][..], &[][..]),
            _ => (&self.first[..], &self.more[..number - 1]),
        };
        first.iter().chain(between.iter().flatten()).chain(last).copied()
    }
}

/// Where in a run the key is, or would be.
#[inline]
fn place_in(run: &[IndexEntry], key: Key) -> usize {
    // By length first: comparing half of a key takes no unpredictable branch.
    let mut at = run.partition_point(|other| other.units() < units_of(key));
    while run.get(at).is_some_and(|other| other.key < key) {
        at += 1;
    }
    at
}
