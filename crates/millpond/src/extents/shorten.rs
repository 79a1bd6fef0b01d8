//! Splitting long pages: free ones are exchanged for short ones in the same place, where long ones cost the pool
//! memory.
//!
//! Holes shorter than a page are pinned. At its peak, the pool grows by what is pinned. Short pages pin less, but
//! cost more calls when they move. So pages are shortened once the pool had to grow while much was free, up to a
//! quarter of what it then holds. The ledger's savings pay for it. Once nothing
//! grows, this soon ends.
//!
//! A page is given back before short ones are created, so reserved bytes never rise. Its work must be complete by
//! then; nobody waits for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::extent::{Extent, ExtentState};
use super::mapping::MapCursor;
use super::{Arena, ExtentId, Refusal, Zone};
use crate::physical::PageId;
use crate::policy::ledger::{Balance, Ledger};

/// Base pages in a short page. Two pin nearly as little as one, and one call moves twice as much.
pub(super) const SHORT: u32 = 2;

/// Much is free while the pool grows if it is this part of what is held.
const MUCH_PART: u64 = 256;

/// The part of what is held that is shortened each time.
const SHORTENED_PART: u64 = 4;

/// Pages that are exchanged at once, at most: what takes about 20 ms on an H200.
const AT_ONCE: usize = 64;

/// Savings needed before a search for long pages, and spent then: enough for some twelve on an H200. The search takes
/// longer, the more is free.
const BATCH: Duration = Duration::from_millis(4);

/// Frees until the next search for long pages that became free.
const LOOK_AFTER: u64 = 16;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Shortener {
    /// Base pages of long pages that are still to be exchanged.
    left: u64,
    /// The count of frees from which they are searched for.
    due: u64,
}

/// A page that is free as a whole. The greatest is the longest, and of equals the one at the lowest address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LongPage {
    base_pages: u32,
    region: Reverse<u32>,
    base_page: Reverse<u64>,
    page: PageId,
    /// The extent that it lies in.
    extent: ExtentId,
}

impl Arena {
    /// Notes that the pool is about to hold more than ever, `after` base pages here, for a block of `units`. (What
    /// captures hold is not free here.)
    pub(super) fn note_growth(&mut self, after: u64, units: u64) {
        let held = after << self.layout.base_page_shift();
        let free = held.saturating_sub(self.allocated_units + units);
        if free >= held / MUCH_PART {
            self.shortener.left = after / SHORTENED_PART;
        }
    }

    /// Whether long pages should be exchanged for [short](Self::shorten) ones now, if there is time.
    #[inline]
    pub(crate) fn is_shortening_due(&self) -> bool {
        self.shortener.left > 0 && self.shortener.due <= self.frees && !self.keeps
    }

    /// Exchanges free pages of the large zone whose work is complete for short ones, the longest first, as far as
    /// the savings of the `ledger` go, which pays. What cannot be created anew is unmapped. Returns whether any was exchanged.
    #[cold]
    pub(crate) fn shorten(&mut self, ledger: &mut Ledger) -> bool {
        self.shortener.due = self.frees + LOOK_AFTER;
        let began = self.device.now();
        if !matches!(ledger.balance(began), Balance::Saving(saved) if saved >= BATCH) {
            return false;
        }
        self.reap();
        let mut all = self.long_free_pages();
        // Also if there are none: the search takes time, and is soon repeated.
        ledger.pay_for_pages(self.device.now().saturating_sub(began));
        let mut any = false;
        for _ in 0..AT_ONCE {
            let began = self.device.now();
            let has_savings = matches!(ledger.balance(began), Balance::Saving(saved) if !saved.is_zero());
            if self.shortener.left == 0 || !has_savings {
                break;
            }
            let Some(long) = all.pop() else { break };
            let exchanged = self.exchange_in_place(&long);
            ledger.pay_for_pages(self.device.now().saturating_sub(began));
            self.shortener.left = self.shortener.left.saturating_sub(u64::from(long.base_pages));
            any = true;
            if let Err(refusal) = exchanged {
                tracing::warn!(?refusal, "a long page could not be exchanged for short ones");
                break;
            }
        }
        any
    }

    /// The long pages that are free, whose work is complete. A heap, since of thousands only the longest few are
    /// exchanged.
    fn long_free_pages(&self) -> BinaryHeap<LongPage> {
        let units = (u64::from(SHORT) + 1) << self.layout.base_page_shift();
        let free = &self.free[Zone::Large as usize];
        self.poll_quietly(&self.fence_of(free.at_least(units)));
        let mut all = Vec::new();
        // It may grow; without memory for that, those found so far will do.
        let _ = all.try_reserve(4 * AT_ONCE);
        for extent in free.at_least(units) {
            let Extent { region, ref fence, .. } = self.extents[extent];
            if !self.timelines.is_complete(fence) {
                continue;
            }
            self.regions.for_each_long(
                region,
                self.base_pages_within(extent),
                |page, base_page, base_pages| {
                    // Some have an old mapping, which waits for its work.
                    if self.pages.mappings(page) == 1 && all.try_reserve(1).is_ok() {
                        all.push(LongPage {
                            base_pages,
                            region: Reverse(region),
                            base_page: Reverse(base_page),
                            page,
                            extent,
                        });
                    }
                },
            );
        }
        all.into()
    }

    /// Exchanges one page. Its extent stays as it is, unless memory is lost to others meanwhile.
    fn exchange_in_place(&mut self, long: &LongPage) -> Result<(), Refusal> {
        let LongPage { region: Reverse(region), base_page: Reverse(base_page), page, .. } = *long;
        let at = self.regions.address(region, base_page * self.layout.units_per_base_page(), &self.layout);
        // SAFETY: the page is mapped here and lies wholly in a free extent whose fence is complete; the
        // program holds no pointer into it.
        unsafe { self.pages.unmap(page, at) }?;
        if let Err(error) = self.pages.release(page) {
            // It is parked, for the next miss.
            let bare = self.cut_unbacked(long, base_page);
            self.close_cursor(&bare);
            return Err(error.into());
        }
        self.extents[long.extent].whole = None;
        self.back_with_short(long)
    }

    /// Puts short pages where a long one was.
    fn back_with_short(&mut self, long: &LongPage) -> Result<(), Refusal> {
        let LongPage { region: Reverse(region), base_page: Reverse(mut base_page), base_pages, .. } = *long;
        let mut left = base_pages;
        while left > 0 {
            let base_pages = SHORT.min(left);
            let page = match self.pages.create(base_pages) {
                Ok(page) => page,
                Err(error) => {
                    let bare = self.cut_unbacked(long, base_page);
                    self.close_cursor(&bare);
                    return Err(Refusal::of_page(error, u64::from(base_pages) * self.layout.base_page_bytes));
                }
            };
            let at =
                self.regions.address(region, base_page * self.layout.units_per_base_page(), &self.layout);
            // SAFETY: the arena reserved the range, and what was mapped there is gone.
            if let Err(failure) = unsafe { self.pages.map(page, at) } {
                let mut bare = self.cut_unbacked(long, base_page);
                let refusal = self.park_after_map_failure(page, &mut bare, failure);
                self.close_cursor(&bare);
                return Err(refusal);
            }
            self.set_home(page, region, base_page);
            (base_page, left) = (base_page + u64::from(base_pages), left - base_pages);
        }
        Ok(())
    }

    /// Cuts the base pages from `base_page` on, which lost their long page, out of its extent.
    #[cold]
    fn cut_unbacked(&mut self, long: &LongPage, base_page: u64) -> MapCursor {
        let LongPage { region: Reverse(region), base_page: Reverse(first), base_pages, extent, .. } = *long;
        let end = first + u64::from(base_pages);
        let per_base_page = self.layout.units_per_base_page();
        let unmapped = self.cut_free(extent, base_page * per_base_page, end * per_base_page);
        self.extents[unmapped].state = ExtentState::Unmapped;
        self.regions.set_page(region, base_page, (end - base_page) as u32, None);
        MapCursor::over(region, (base_page, end), unmapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_come_first_then_those_at_low_addresses() {
        let page = |number: u64| {
            let (base_pages, base_page) = (4 << (number % 3), Reverse(number * 7919 % 5003));
            LongPage { base_pages, region: Reverse(0), base_page, page: PageId(0), extent: ExtentId(0) }
        };
        let mut heap: BinaryHeap<_> = (0..1000).map(page).collect();
        let came: Vec<_> =
            std::iter::from_fn(|| heap.pop()).map(|page| (page.base_pages, page.base_page.0)).collect();
        assert!(came.is_sorted_by_key(|(base_pages, base_page)| (Reverse(*base_pages), *base_page)));
    }
}
