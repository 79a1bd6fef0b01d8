//! Strays. A stray is the second copy of a block that two threads freed at once; it was counted as a free.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::magazine::Item;
use super::totals::{Figures, Totals};
use crate::extents::Place;

/// Strays that were dropped, by whichever thread found them. See `extents/page_map.rs`.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// What was counted as freed for them. A block that was handed out again meanwhile has its new length.
    counted: [AtomicI64; 3],
    totals: Arc<Totals>,
}

impl Strays {
    pub(super) fn new(totals: Arc<Totals>) -> Self {
        Self { counted: Default::default(), totals }
    }

    /// Notes a copy that was dropped. It is reported later: whoever comes upon it may be inside a cache.
    #[cold]
    fn note(&self, item: Item) {
        let (requested, bytes) = item.descriptor().last_counted();
        for (figure, more) in [requested as i64, bytes as i64, 2].into_iter().enumerate() {
            self.totals.add(figure, more);
            // Relaxed, here and below: a count.
            self.counted[figure].fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Gives `each` a block that leaves its place, unless it is a stray there.
    #[inline]
    pub(super) fn sort_out(&self, item: Item, place: Place, each: impl FnOnce(Item)) {
        if item.leave(place) { each(item) } else { self.note(item) }
    }

    pub(super) fn count(&self) -> u64 {
        self.counted()[2] as u64 / 2
    }

    /// To be added to what the threads counted.
    pub(super) fn counted(&self) -> Figures {
        self.counted.each_ref().map(|sum| sum.load(Ordering::Relaxed))
    }
}
