//! The pages of an arena that sleep: they give their memory back, while blocks, addresses and the places of pages stay.
//!
//! While an arena sleeps, nothing is allocated, moved or trimmed in it. A free is as ever: it changes only what is known of
//! the addresses.

use crate::device::{DeviceError, DeviceResult};
use crate::extents::{Arena, PageAtHome, reap};
use crate::physical::{OtherMappings, Refusal};

/// A page, and where else it is mapped.
pub(crate) type PlacedPage = (PageAtHome, OtherMappings);

/// The pages that can sleep, in the order of their addresses: those that are mapped at home, and elsewhere only for graphs, and
/// are no segments. No work may use them: the device is idle.
pub(super) fn pages_that_can_sleep(arena: &mut Arena) -> DeviceResult<Vec<PlacedPage>> {
    reap(arena);
    let pages = &arena.pages;
    let no_memory = || DeviceError::HostMemory {
        what: "a list of pages",
        bytes: (pages.records() * size_of::<PlacedPage>()) as u64,
    };
    let mut found: Vec<PlacedPage> = Vec::new();
    found.try_reserve_exact(pages.records()).map_err(|_| no_memory())?;
    let at_home = pages.ids().filter_map(|id| arena.home_of(id)).filter(|page| !pages.is_segment(page.id));
    found.extend(at_home.map(|page| (page, OtherMappings::default())));
    found.sort_unstable_by_key(|(page, _)| page.id);
    for (id, at) in arena.staying() {
        if let Ok(of) = found.binary_search_by_key(&id, |(page, _)| page.id)
            && !found[of].1.add(at)
        {
            return Err(no_memory());
        }
    }
    found.retain(|(page, others)| pages.get(page.id).mappings as usize == 1 + others.count());
    found.sort_unstable_by_key(|(page, _)| page.at);
    Ok(found)
}

/// Gives the page's memory back, but not its place. After an error, it can be called again, and so can [`wake`].
pub(super) fn put_to_sleep(arena: &mut Arena, (page, others): &mut PlacedPage) -> DeviceResult<()> {
    if !arena.pages.knows(page.id) {
        // Forgotten. No id is used again while the arena sleeps.
        return Ok(());
    }
    let pages = &mut arena.pages;
    // SAFETY: the page is mapped at home and there only. Who puts an arena to sleep has waited for the device.
    unsafe { pages.lay_down(page.id, others) }?;
    // SAFETY: it is mapped at home only now.
    unsafe { pages.put_to_sleep(page.id, page.at) }
}

/// Undoes [`put_to_sleep`]. `false` where the page was forgotten.
pub(super) fn wake(arena: &mut Arena, (page, others): &mut PlacedPage) -> Result<bool, Refusal> {
    if !arena.pages.knows(page.id) {
        return Ok(false);
    }
    // SAFETY: the page's home is there: nothing moves while the arena sleeps.
    unsafe { arena.pages.wake(page.id, page.at) }?;
    // SAFETY: the same holds for where else it was mapped.
    unsafe { arena.pages.get_up(page.id, others) }?;
    Ok(true)
}
