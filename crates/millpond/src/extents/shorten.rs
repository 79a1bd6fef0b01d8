//! Splitting long pages: free ones go back to the device, and short ones are created instead. Those are parked, for the next
//! misses. `policy/shortening.rs` says when.
//!
//! A page is given back before short ones are created, so reserved bytes never rise. Its work must be complete by
//! then; nobody waits for it.

use super::arena::Arena;
use super::map::layout::Zone;
use super::trim::{Fate, trim_extent};
use crate::log::log;
use crate::policy::ledger::Ledger;
use crate::policy::shortening::{AT_ONCE, SHORT_PAGE, goes_on};

/// Exchanges free long pages of the large zone while the `ledger` has savings. It pays for them. The work on them is complete.
/// Returns whether any was exchanged.
#[cold]
pub(crate) fn shorten(arena: &mut Arena, ledger: &mut Ledger) -> bool {
    let device = arena.pages.device().clone();
    let mut began = device.now();
    let Arena { map, rules, old_mappings, pages, shortening, .. } = &mut *arena;
    if !shortening.begin(map.frees, ledger.balance(began)) {
        return false;
    }
    old_mappings.settle(map, rules, pages);
    // Those that a long page may lie in. Without host memory for the list, a later search finds them.
    let long = (u64::from(SHORT_PAGE) + 1) << map.layout.base_page_shift;
    let Ok(mut free) = map.list_of_free(map.free_with_page()) else { return false };
    free.retain(|id| map[*id].zone == Zone::Large && map[*id].units >= long);
    rules.poll(&map.fence_of(free.iter().copied()));
    free.retain(|id| rules.timelines.is_complete(&map[*id].fence));
    let held = arena.reserved();
    let (mut exchanged, mut is_over) = (0, false);
    for id in free {
        if is_over {
            break;
        }
        let fate = |arena: &mut Arena, page| {
            let is_long = arena.pages.get(page).base_pages > SHORT_PAGE
                && arena.pages.get(page).mappings == 1
                && !arena.pages.is_segment(page);
            if !is_long {
                return Some(Fate::Stays);
            }
            park_short(arena, held);
            let now = device.now();
            ledger.pay_for_pages(now.saturating_sub(std::mem::replace(&mut began, now)), held);
            is_over = exchanged == AT_ONCE || !goes_on(ledger.balance(now));
            exchanged += u64::from(!is_over);
            (!is_over).then_some(Fate::Released)
        };
        if let Err(error) = trim_extent(arena, id, fate) {
            log!(WARN, "a long page could not be exchanged for short ones", error);
        }
    }
    park_short(arena, held);
    // Also if there are none: the search takes time, and is soon repeated.
    ledger.pay_for_pages(device.now().saturating_sub(began), held);
    if exchanged == 0 {
        arena.shortening.note_none();
    }
    exchanged > 0
}

/// Creates short pages for what is reserved no more, and parks them.
fn park_short(arena: &mut Arena, held: u64) {
    let bytes = u64::from(SHORT_PAGE) * arena.map.layout.base_page_bytes;
    while arena.reserved() + bytes <= held
        && let Ok(page) = arena.pages.create(SHORT_PAGE)
    {
        arena.pages.park(page);
    }
}
