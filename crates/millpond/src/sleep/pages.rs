//! The pages of an arena that sleep: they give their memory back, while blocks, addresses and the places of pages stay.
//!
//! While an arena sleeps, nothing is allocated, moved or trimmed in it. A free is as ever: it changes only what is known of
//! the addresses.

use crate::device::{DeviceError, DeviceResult};
use crate::extents::{Arena, PageAtHome, Refusal};

/// The pages that can sleep, in the order of their addresses: those that lie in one place only, and are no segments. No work
/// may use them: the device is idle.
pub(super) fn pages_that_can_sleep(arena: &mut Arena) -> DeviceResult<Vec<PageAtHome>> {
    arena.reap();
    let pages = arena.pages();
    let mut found = Vec::new();
    found.try_reserve_exact(pages.records()).map_err(|_| DeviceError::HostMemory {
        what: "a list of pages",
        bytes: (pages.records() * size_of::<PageAtHome>()) as u64,
    })?;
    let can_sleep = |page: &PageAtHome| pages.mappings(page.id) == 1 && !pages.is_segment(page.id);
    found.extend(pages.ids().filter_map(|id| arena.home_of(id)).filter(can_sleep));
    found.sort_unstable_by_key(|page| page.at);
    Ok(found)
}

/// Gives the page's memory back, but not its place. After an error, it can be called again.
pub(super) fn put_to_sleep(arena: &mut Arena, page: &PageAtHome) -> DeviceResult<()> {
    if !arena.pages().knows(page.id) {
        // Forgotten. No id is used again while the arena sleeps.
        return Ok(());
    }
    // SAFETY: the page is at home there only, and who puts an arena to sleep has waited for the device.
    unsafe { arena.pages_mut().put_to_sleep(page.id, page.at) }
}

/// Undoes [`put_to_sleep`]. `false` where the page was forgotten.
pub(super) fn wake(arena: &mut Arena, page: &PageAtHome) -> Result<bool, Refusal> {
    if !arena.pages().knows(page.id) {
        return Ok(false);
    }
    // SAFETY: the page's home is there: nothing moves while the arena sleeps.
    let woken = unsafe { arena.pages_mut().wake(page.id, page.at) };
    woken.map_err(|error| Refusal::of_page(error, page.bytes))?;
    Ok(true)
}
