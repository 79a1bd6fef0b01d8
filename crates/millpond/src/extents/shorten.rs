//! Splitting long pages: free ones are exchanged for short ones in the same place. [`Shortening`] says when.
//!
//! A page is given back before short ones are created, so reserved bytes never rise. Its work must be complete by
//! then; nobody waits for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::extent::{Extent, ExtentId};
use super::extent_map::ExtentMap;
use super::layout::Zone;
use super::mapper::Mapper;
use super::refusal::Refusal;
use super::reuse_rules::ReuseRules;
use crate::physical::{MapFailure, PageId};
use crate::policy::ledger::Ledger;
use crate::policy::shortening::{AT_ONCE, SHORT_PAGE, Shortening, goes_on};

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

/// Exchanges free long pages of the large zone for short ones, the longest first, while the `ledger` has savings. It pays
/// for them. The work on them is complete. What cannot be created anew is unmapped. Returns whether any was exchanged.
#[cold]
pub(super) fn shorten(
    map: &mut ExtentMap,
    rules: &ReuseRules,
    mapper: &mut Mapper,
    (shortening, ledger): (&mut Shortening, &mut Ledger),
) -> bool {
    let device = rules.timelines.device();
    let began = device.now();
    if !shortening.begin(map.frees(), ledger.balance(began)) {
        return false;
    }
    mapper.reap(map, rules);
    let mut all = long_free_pages(map, rules, mapper);
    // Also if there are none: the search takes time, and is soon repeated.
    ledger.pay_for_pages(device.now().saturating_sub(began));
    if all.is_empty() {
        shortening.note_none();
    }
    let mut any = false;
    for _ in 0..AT_ONCE {
        let began = device.now();
        if !goes_on(ledger.balance(began)) {
            break;
        }
        let Some(long) = all.pop() else { break };
        let exchanged = exchange_in_place(map, mapper, &long);
        ledger.pay_for_pages(device.now().saturating_sub(began));
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
fn long_free_pages(map: &ExtentMap, rules: &ReuseRules, mapper: &Mapper) -> BinaryHeap<LongPage> {
    let units = (u64::from(SHORT_PAGE) + 1) << map.layout.base_page_shift();
    let free = map.indexes.free(Zone::Large);
    rules.poll(&map.fence_of(free.at_least(units)));
    let mut all = Vec::new();
    // It may grow; without memory for that, those found so far will do.
    let _ = all.try_reserve(4 * AT_ONCE);
    for extent in free.at_least(units) {
        let Extent { region, ref fence, .. } = map[extent];
        if !rules.is_complete(fence) {
            continue;
        }
        let (start, mut end) = map.base_pages_within(extent);
        while let Some((page, home)) = mapper.table().last_whole(region, (start, end)) {
            end = home.span().0;
            // Some have an old mapping, which waits for its work.
            if home.base_pages > SHORT_PAGE
                && mapper.pages().mappings(page) == 1
                && !mapper.pages().is_segment(page)
                && all.try_reserve(1).is_ok()
            {
                let (region, base_page) = (Reverse(region), Reverse(end));
                all.push(LongPage { base_pages: home.base_pages, region, base_page, page, extent });
            }
        }
    }
    all.into()
}

/// Exchanges one page. Its extent stays as it is, unless memory is lost to others meanwhile.
fn exchange_in_place(map: &mut ExtentMap, mapper: &mut Mapper, long: &LongPage) -> Result<(), Refusal> {
    let LongPage { base_page: Reverse(base_page), region: Reverse(region), page, .. } = *long;
    let base_pages = (base_page, base_page + u64::from(long.base_pages));
    if !map.make_room_for(3, map[long.extent].fence.len()) || !mapper.make_room_for(1, region, base_pages) {
        return Err(map.no_room());
    }
    // SAFETY: the page lies wholly in a free extent whose fence is complete. Others take its place below.
    unsafe { mapper.unmap(map, page) }?;
    if let Err(error) = mapper.release(page) {
        // It is parked, for the next miss.
        cut_bare(map, long, base_page);
        return Err(error.into());
    }
    back_with_short(map, mapper, long)
}

/// Puts short pages where a long one was.
fn back_with_short(map: &mut ExtentMap, mapper: &mut Mapper, long: &LongPage) -> Result<(), Refusal> {
    let LongPage { region: Reverse(region), base_page: Reverse(mut base_page), .. } = *long;
    let mut left = long.base_pages;
    while left > 0 {
        let base_pages = SHORT_PAGE.min(left);
        let page = match mapper.create(base_pages) {
            Ok(page) => page,
            Err(error) => {
                cut_bare(map, long, base_page);
                let bytes = u64::from(base_pages) * map.layout.base_page_bytes;
                return Err(Refusal::of_page(error, bytes));
            }
        };
        let address = map.address_of_base_page(region, base_page);
        // SAFETY: the long page that was here was unmapped before, and short ones come one behind the other.
        if let Err(failure) = unsafe { mapper.pages_mut().map(page, address) } {
            let bare = cut_bare(map, long, base_page);
            mapper.park(page);
            let error = match failure {
                MapFailure::Clean(error) => error,
                MapFailure::Stuck(error) => {
                    let range = map.layout.units_of((base_page, base_page + u64::from(base_pages)));
                    let stuck = map.cut(map.piece_at(bare, range.0), range);
                    mapper.leave(map, (stuck, page), false);
                    error
                }
            };
            return Err(Refusal::of_mapping(error));
        }
        mapper.set_home(page, (region, base_page));
        (base_page, left) = (base_page + u64::from(base_pages), left - base_pages);
    }
    Ok(())
}

/// Makes the base pages from `base_page` on, which lost their long page, unmapped. Returns the unmapped extent.
#[cold]
fn cut_bare(map: &mut ExtentMap, long: &LongPage, base_page: u64) -> ExtentId {
    let end = long.base_page.0 + u64::from(long.base_pages);
    let (start, end) = map.layout.units_of((base_page, end));
    let bare = map.cut(long.extent, (start, end));
    map.make_unmapped(bare)
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
