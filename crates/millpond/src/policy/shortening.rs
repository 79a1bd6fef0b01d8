//! When free pages that are long are exchanged for short ones, and how many of them.
//!
//! Holes shorter than a page are pinned. At its peak, the pool grows by what is pinned. So once the pool had to grow, its
//! long pages are shortened as they become free, and the ledger pays, out of its savings. That ends when no long page is
//! found, until the pool grows again. docs/lab/pages.md, "How long should a page be?", has what was measured.

use super::ledger::{Balance, LOOK_AFTER};

/// Base pages in a short page. (Pages of 2 MiB come to 1.0165 at 0.61 %, and of 4 to 1.0096 at 0.60 %. Those of 8 come to 1.0105 at
/// 0.57 %, and of 16 to 1.0122 at 0.53 %.)
pub(crate) const SHORT_PAGE: u32 = 2;

/// Pages that are exchanged at once, at most, and frees until the next search for long pages that became free. (16 pages at once
/// come to 1.0104, 32 to 1.0098, 128 and any number to 1.0096. 16 frees come to 1.0095, 64 to 1.0096.)
pub(crate) const AT_ONCE: u64 = 64;

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
        self.due = frees + AT_ONCE;
        matches!(balance, Balance::Saving(saved) if saved >= LOOK_AFTER)
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
    use std::time::Duration;

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
        assert!(!shortening.is_due(163) && shortening.is_due(164));
        assert!(shortening.begin(164, saved(4)));
    }

    #[test]
    fn exchanging_ends_with_the_savings() {
        assert!(goes_on(saved(1)));
        assert!([saved(0), Balance::Even, Balance::Overdrawn].iter().all(|balance| !goes_on(*balance)));
    }
}
