//! When free pages that are long are exchanged for short ones, and how many of them.
//!
//! Holes shorter than a page are pinned. At its peak, the pool grows by what is pinned. So once the pool had to grow, its
//! long pages are shortened as they become free, and the ledger pays, out of its savings. That ends when no long page is
//! found, until the pool grows again. docs/lab/pages.md, "How long should a page be?", has what was measured.

use std::time::Duration;

use super::ledger::Balance;

/// Base pages in a short page. (Pages of 2 MiB come to 1.0165 at 0.61 %, of 4 to 1.0096 at 0.60 %, of 8 to 1.0105 at 0.57 %, of 16
/// to 1.0122 at 0.53 %.)
pub(crate) const SHORT_PAGE: u32 = 2;

/// Pages that are exchanged at once, at most. (16 come to 1.0104, 32 to 1.0098, 128 to 1.0096, as 64 do.)
pub(crate) const AT_ONCE: usize = 64;

/// Savings needed before a search for long pages, and spent then. The search takes longer, the more is free. (1 ms comes to
/// 1.0099, 2 to 1.0100, 4 to 1.0096, 8 to 1.0099.)
const BATCH: Duration = Duration::from_millis(4);

/// Frees until the next search for long pages that became free.
const LOOK_AFTER: u64 = 16;

const _: () = assert!(SHORT_PAGE.is_power_of_two());

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Shortening {
    /// Whether the pool grew since no long page was found.
    has_grown: bool,
    /// The count of frees from which long pages are searched for.
    due: u64,
}

impl Shortening {
    /// Notes that the pool is about to hold more than ever.
    pub(crate) fn note_growth(&mut self) {
        self.has_grown = true;
    }

    /// Whether to search now, if there is time. `frees` counts those of the pool so far.
    #[inline]
    pub(crate) fn is_due(&self, frees: u64) -> bool {
        self.has_grown && self.due <= frees
    }

    /// Whether there is time for a search, which is about to begin. The next one comes later.
    pub(crate) fn begin(&mut self, frees: u64, balance: Balance) -> bool {
        self.due = frees + LOOK_AFTER;
        matches!(balance, Balance::Saving(saved) if saved >= BATCH)
    }

    /// Notes that a search found no long page.
    pub(crate) fn note_none(&mut self) {
        self.has_grown = false;
    }
}

/// Whether to exchange one more page.
pub(crate) fn goes_on(balance: Balance) -> bool {
    matches!(balance, Balance::Saving(saved) if !saved.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn saved(millis: u64) -> Balance {
        Balance::Saving(Duration::from_millis(millis))
    }

    #[test]
    fn growth_begins_it_and_a_search_in_vain_ends_it() {
        let mut shortening = Shortening::default();
        assert!(!shortening.is_due(100));
        shortening.note_growth();
        assert!(shortening.is_due(100));
        shortening.note_none();
        assert!(!shortening.is_due(100));
    }

    #[test]
    fn a_search_needs_savings_and_the_next_comes_later() {
        let mut shortening = Shortening::default();
        shortening.note_growth();
        assert!(!shortening.begin(100, saved(3)), "too little is saved");
        assert!(!shortening.is_due(115) && shortening.is_due(116));
        assert!(shortening.begin(116, saved(4)));
    }

    #[test]
    fn exchanging_ends_with_the_savings() {
        assert!(goes_on(saved(1)));
        assert!([saved(0), Balance::Even, Balance::Overdrawn].iter().all(|balance| !goes_on(*balance)));
    }
}
