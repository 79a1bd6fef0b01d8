//! Strays. A stray is the second copy of a block that two threads freed at once; it was counted as a free.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::Mutex;

use super::magazine::Item;
use super::tally::Tally;
use super::totals::Totals;
use crate::counters::Counted;
use crate::extents::Place;

/// Strays that were dropped, by whichever thread found them. See `extents/page_map.rs`.
#[derive(Debug)]
pub(super) struct Strays {
    count: AtomicU64,
    /// Those that were reported.
    reported: AtomicU64,
    /// Makes up for what was counted as freed. A block that was handed out again meanwhile has its new length.
    tally: Tally,
    /// Who has it writes the tally.
    writes: Mutex<()>,
}

impl Default for Strays {
    /// Of no pool.
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Strays {
    pub(super) fn new(totals: Arc<Totals>) -> Self {
        let (count, reported) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { count, reported, tally: Tally::new(totals), writes: Mutex::default() }
    }

    /// Notes a copy that was dropped. It is reported later: whoever comes upon it may be inside a cache.
    #[cold]
    fn note(&self, item: Item) {
        let (requested, bytes) = item.descriptor().last_counted();
        let _writes = self.writes.lock();
        self.tally.count_alloc_outside(requested, bytes);
        // Relaxed, here and below: a count.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives `each` a block that leaves its place, unless it is a stray there.
    #[inline]
    pub(super) fn sort_out(&self, item: Item, place: Place, each: impl FnOnce(Item)) {
        if item.leave(place) { each(item) } else { self.note(item) }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// How many there were in all, if any came that were not reported yet.
    #[inline]
    pub(super) fn to_report(&self) -> Option<u64> {
        let count = self.count();
        (count > self.reported.load(Ordering::Relaxed)
            && self.reported.fetch_max(count, Ordering::Relaxed) < count)
            .then_some(count)
    }

    /// To be added to those of the threads.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// They were neither frees nor allocations.
    pub(super) fn correct(&self, counted: &mut Counted) {
        let count = self.count();
        counted.allocations = counted.allocations.saturating_sub(count);
        counted.frees = counted.frees.saturating_sub(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stray_is_reported_once() {
        let strays = Strays::default();
        assert_eq!(strays.to_report(), None);
        strays.count.store(2, Ordering::Relaxed);
        assert_eq!([strays.to_report(), strays.to_report()], [Some(2), None]);
    }
}
