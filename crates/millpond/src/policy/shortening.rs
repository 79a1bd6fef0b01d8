//! When free pages that are long are exchanged for short ones, and how many of them.
//!
//! Holes shorter than a page are pinned. At its peak, the pool grows by what is pinned. So pages are shortened once the
//! pool had to grow while much was free, up to a quarter of what it then holds. The ledger's savings pay for it.
//! Once nothing grows, this soon ends. docs/lab/pages.md, "How long should a page be?", has what was measured.

use std::time::Duration;

/// Base pages in a short page. Two pin nearly as little as one, and one call moves twice as much. (Pages of 2, 4 and
/// 8 MiB came to 1.0229 at 0.73 %, 1.0231 at 0.61 % and 1.0258 at 0.50 %.)
pub(crate) const SHORT_PAGE: u32 = 2;

/// Much is free while the pool grows if it is this part of what is held.
const MUCH_PART: u64 = 256;

/// The part of what is held that is shortened each time.
const SHORTENED_PART: u64 = 4;

/// Pages that are exchanged at once, at most: what takes about 20 ms on an H200.
pub(crate) const AT_ONCE: usize = 64;

/// Savings needed before a search for long pages, and spent then: enough for some twelve on an H200. The search takes
/// longer, the more is free.
const BATCH: Duration = Duration::from_millis(4);

/// Frees until the next search for long pages that became free.
const LOOK_AFTER: u64 = 16;

const _: () = assert!(SHORT_PAGE.is_power_of_two());

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Shortening {
    /// Base pages of long pages that are still to be exchanged.
    left: u64,
    /// The count of frees from which they are searched for.
    due: u64,
}

impl Shortening {
    /// Notes that the pool is about to hold more than ever: so many base pages, `held` units, of which `used` are in use.
    pub(crate) fn note_growth(&mut self, base_pages: u64, (held, used): (u64, u64)) {
        if held.saturating_sub(used) >= held / MUCH_PART {
            self.left = base_pages / SHORTENED_PART;
        }
    }

    /// Whether to search now, if there is time. `frees` counts those of the pool so far.
    #[inline]
    pub(crate) fn is_due(&self, frees: u64) -> bool {
        self.left > 0 && self.due <= frees
    }

    /// Whether there is time for a search, which is about to begin. The next one comes later.
    pub(crate) fn begin(&mut self, frees: u64, savings: Duration) -> bool {
        self.due = frees + LOOK_AFTER;
        savings >= BATCH
    }

    /// Whether to exchange one more page.
    pub(crate) fn goes_on(&self, savings: Duration) -> bool {
        self.left > 0 && !savings.is_zero()
    }

    /// Notes that a page of so many base pages was exchanged.
    pub(crate) fn note_exchanged(&mut self, base_pages: u32) {
        self.left = self.left.saturating_sub(u64::from(base_pages));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool that holds 1024 base pages, each of 4096 units.
    fn grown(free: u64) -> Shortening {
        let mut shortening = Shortening::default();
        shortening.note_growth(1024, (1024 << 12, (1024 << 12) - free));
        shortening
    }

    #[test]
    fn growth_with_little_free_shortens_nothing() {
        assert!(!grown(4 * 4096 - 1).is_due(0) && grown(4 * 4096).is_due(0));
    }

    #[test]
    fn a_quarter_is_exchanged_then_it_ends() {
        let mut shortening = grown(1 << 20);
        let savings = Duration::from_millis(4);
        (0..16).for_each(|_| shortening.note_exchanged(15));
        assert!(shortening.goes_on(savings) && !shortening.goes_on(Duration::ZERO));
        shortening.note_exchanged(16);
        assert!(!shortening.goes_on(savings));
    }

    #[test]
    fn a_search_needs_savings_and_the_next_comes_later() {
        let mut shortening = grown(1 << 20);
        assert!(!shortening.begin(100, Duration::from_millis(3)), "too little is saved");
        assert!(!shortening.is_due(115) && shortening.is_due(116));
        assert!(shortening.begin(116, Duration::from_millis(4)));
    }
}
