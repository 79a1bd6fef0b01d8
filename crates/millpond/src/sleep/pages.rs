//! The pages of an arena that sleep: they give their memory back, while blocks, addresses and the places of pages stay.
//!
//! While an arena sleeps, nothing is allocated, moved or trimmed in it. A free is as ever: it changes only what is known of
//! the addresses.

use crate::device::{DeviceError, DeviceResult};
use crate::extents::{Arena, PageAtHome, reap};
use crate::physical::{OtherMappings, Refusal};

/// A page, and where else it is mapped.
#[derive(Debug)]
pub(crate) struct PlacedPage {
    pub(crate) home: PageAtHome,
    pub(super) others: OtherMappings,
}

impl PlacedPage {
    /// The pages that can sleep, in the order of their addresses: those that are mapped at home, and elsewhere only for graphs, and
    /// are no segments. No work may use them: the device is idle.
    pub(super) fn all_of(arena: &mut Arena) -> DeviceResult<Vec<Self>> {
        reap(arena);
        let pages = &arena.pages;
        let no_memory = || DeviceError::HostMemory {
            what: "a list of pages",
            bytes: (pages.records() * size_of::<Self>()) as u64,
        };
        let mut found: Vec<Self> = Vec::new();
        found.try_reserve_exact(pages.records()).map_err(|_| no_memory())?;
        let at_home =
            pages.ids().filter_map(|id| arena.home_of(id)).filter(|page| !pages.is_segment(page.id));
        found.extend(at_home.map(|home| Self { home, others: OtherMappings::default() }));
        found.sort_unstable_by_key(|page| page.home.id);
        for (id, at) in arena.staying() {
            if let Ok(of) = found.binary_search_by_key(&id, |page| page.home.id)
                && !found[of].others.add(at)
            {
                return Err(no_memory());
            }
        }
        found.retain(|page| pages.get(page.home.id).mappings as usize == 1 + page.others.count());
        found.sort_unstable_by_key(|page| page.home.at);
        Ok(found)
    }

    /// Gives the page's memory back, but not its place. After an error, it can be called again, and so can [`wake`](Self::wake).
    pub(super) fn put_to_sleep(&mut self, arena: &mut Arena) -> DeviceResult<()> {
        let Self { home, others } = self;
        if !arena.pages.knows(home.id) {
            // Forgotten. No id is used again while the arena sleeps.
            return Ok(());
        }
        let pages = &mut arena.pages;
        // SAFETY: the page is mapped at home and there only. Who puts an arena to sleep has waited for the device.
        unsafe { pages.lay_down(home.id, others) }?;
        // SAFETY: it is mapped at home only now.
        unsafe { pages.put_to_sleep(home.id, home.at) }
    }

    /// Undoes [`put_to_sleep`](Self::put_to_sleep). `false` where the page was forgotten.
    pub(super) fn wake(&mut self, arena: &mut Arena) -> Result<bool, Refusal> {
        let Self { home, others } = self;
        if !arena.pages.knows(home.id) {
            return Ok(false);
        }
        // SAFETY: the page's home is there: nothing moves while the arena sleeps.
        unsafe { arena.pages.wake(home.id, home.at) }?;
        // SAFETY: the same holds for where else it was mapped.
        unsafe { arena.pages.get_up(home.id, others) }?;
        Ok(true)
    }
}
