//! Splitting long pages: free ones go back to the device, and short ones are created instead. Those are parked, for the next
//! misses. [`Shortening`] says when.
//!
//! A page is given back before short ones are created, so reserved bytes never rise. Its work must be complete by
//! then; nobody waits for it.

use super::extent_map::ExtentMap;
use super::layout::Zone;
use super::mapper::Mapper;
use super::reuse_rules::ReuseRules;
use crate::policy::ledger::Ledger;
use crate::policy::shortening::{AT_ONCE, SHORT_PAGE, Shortening, goes_on};

/// Exchanges free long pages of the large zone while the `ledger` has savings. It pays for them. The work on them is complete.
/// Returns whether any was exchanged.
#[cold]
pub(super) fn shorten(
    map: &mut ExtentMap,
    rules: &ReuseRules,
    mapper: &mut Mapper,
    (shortening, ledger): (&mut Shortening, &mut Ledger),
) -> bool {
    let device = rules.timelines.device();
    let mut began = device.now();
    if !shortening.begin(map.frees, ledger.balance(began)) {
        return false;
    }
    mapper.old_mappings.settle(map, rules, &mut mapper.pages);
    let units = (u64::from(SHORT_PAGE) + 1) << map.layout.base_page_shift();
    rules.poll(&map.fence_of(map.indexes.free(Zone::Large).at_least(units)));
    // Without host memory for the list, a later search finds them.
    let Ok(mut free) = map.list_for_free() else { return false };
    let long = map.indexes.free(Zone::Large).at_least(units);
    free.extend(long.filter(|id| rules.is_complete(&map[*id].fence)));
    let (held, base_page_bytes) = (mapper.reserved(), map.layout.base_page_bytes);
    let mut exchanged = 0;
    for id in free {
        let goes = |mapper: &mut Mapper, page| {
            park_short(mapper, held, base_page_bytes);
            let now = device.now();
            ledger.pay_for_pages(now.saturating_sub(std::mem::replace(&mut began, now)));
            let goes_on = exchanged < AT_ONCE && goes_on(ledger.balance(now));
            let is_long = mapper.pages.get(page).base_pages > SHORT_PAGE
                && mapper.pages.get(page).mappings == 1
                && !mapper.pages.is_segment(page);
            exchanged += u64::from(goes_on && is_long);
            goes_on.then_some(is_long)
        };
        if let Err(error) = mapper.trim_extent(map, id, goes) {
            tracing::warn!(%error, "a long page could not be exchanged for short ones");
        }
    }
    park_short(mapper, held, base_page_bytes);
    // Also if there are none: the search takes time, and is soon repeated.
    ledger.pay_for_pages(device.now().saturating_sub(began));
    if exchanged == 0 {
        shortening.note_none();
    }
    exchanged > 0
}

/// Creates short pages for what is reserved no more, and parks them.
fn park_short(mapper: &mut Mapper, held: u64, base_page_bytes: u64) {
    let bytes = u64::from(SHORT_PAGE) * base_page_bytes;
    while mapper.reserved() + bytes <= held
        && let Ok(page) = mapper.pages.create(SHORT_PAGE)
    {
        mapper.pages.park(page);
    }
}
