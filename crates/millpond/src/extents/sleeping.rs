//! Sleep: pages give their memory back, while blocks, addresses and the places of pages stay as they are.
//!
//! While an arena sleeps, nothing is allocated, moved or trimmed in it. A free is as ever: it changes only what is known of
//! the addresses.

use super::extent::ExtentState;
use super::extent_map::ExtentMap;
use super::layout::Zone;
use super::mapper::Mapper;
use super::refusal::Refusal;
use crate::device::{DeviceError, DevicePtr};
use crate::physical::{PageId, Pages};
use crate::policy::sleeping::PAGE_TO_WAKE;

/// A page where an arena uses it, and nowhere else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageAtHome {
    id: PageId,
    pub(crate) at: DevicePtr,
    pub(crate) bytes: u64,
}

/// See [`Arena::pages_at_home`](super::Arena::pages_at_home).
pub(super) fn pages_at_home(map: &ExtentMap, mapper: &Mapper) -> Result<Vec<PageAtHome>, DeviceError> {
    let pages = mapper.pages();
    let mut found = list(pages.records())?;
    // Those that have no old mapping, and are no segments.
    let can_sleep = |id| pages.mappings(id) == 1 && !pages.is_segment(id);
    for (id, home) in mapper.table().iter().filter(|(id, _)| can_sleep(*id)) {
        found.push(PageAtHome { id, at: map.address_of_home(home), bytes: pages.bytes_of(id) });
    }
    found.sort_unstable_by_key(|page| page.at);
    Ok(found)
}

/// See [`Arena::live_ranges`](super::Arena::live_ranges).
pub(super) fn live_ranges(map: &ExtentMap, gap: u64) -> Result<Vec<(DevicePtr, u64)>, DeviceError> {
    let mut live: Vec<(DevicePtr, u64)> = list(map.allocated().0.iter().sum::<u64>() as usize)?;
    for (_, region) in map.regions.iter() {
        // Since the last live range ended: free bytes, unless something lies there that nothing backs.
        let mut free = None;
        for id in map.until(region.head, u64::MAX) {
            let bytes = map.bytes(id);
            match map[id].state {
                ExtentState::Allocated => {
                    match (live.last_mut(), free.filter(|free| *free <= gap)) {
                        (Some((_, length)), Some(free)) => *length += free + bytes,
                        _ => live.push((map.address_of(id), bytes)),
                    }
                    free = Some(0);
                }
                ExtentState::Free => free = free.map(|free| free + bytes),
                _ => free = None,
            }
        }
    }
    live.sort_unstable();
    Ok(live)
}

pub(super) fn put_to_sleep(pages: &mut Pages, page: &PageAtHome) -> Result<(), DeviceError> {
    if !pages.knows(page.id) {
        // Forgotten. No id is used again while the arena sleeps.
        return Ok(());
    }
    // SAFETY: the page is at home there only, and who puts an arena to sleep has waited for the device.
    unsafe { pages.put_to_sleep(page.id, page.at) }
}

pub(super) fn wake(pages: &mut Pages, page: &PageAtHome) -> Result<bool, Refusal> {
    if !pages.knows(page.id) {
        return Ok(false);
    }
    // SAFETY: the page's home is there: nothing moves while the arena sleeps.
    unsafe { pages.wake(page.id, page.at) }.map_err(|error| Refusal::of_page(error, page.bytes))?;
    Ok(true)
}

/// See [`Arena::join_asleep`](super::Arena::join_asleep).
pub(super) fn join(map: &ExtentMap, mapper: &mut Mapper, first: &mut PageAtHome, next: &PageAtHome) -> bool {
    let Some((region, at)) = map.regions.find(first.at) else { return false };
    let most = u64::from(PAGE_TO_WAKE.min(map.layout.largest_page)) * map.layout.base_page_bytes;
    let may_join = map.regions.get(region).zone == Zone::Large
        && map.regions.find(next.at) == Some((region, at + first.bytes))
        && first.bytes == next.bytes
        && first.bytes + next.bytes <= most;
    if !may_join || !mapper.pages_mut().join_gone(first.id, next.id) {
        return false;
    }
    mapper.forget_home(next.id);
    mapper.forget_home(first.id);
    mapper.set_home(first.id, (region, at / map.layout.base_page_bytes));
    first.bytes *= 2;
    true
}

/// See [`Arena::forget_asleep`](super::Arena::forget_asleep).
pub(super) fn forget_free(map: &mut ExtentMap, mapper: &mut Mapper) -> Result<(), DeviceError> {
    let mut free = map.list_for_free()?;
    free.extend(map.free_ids());
    let sleeps = |mapper: &Mapper, page| Some(mapper.pages().sleeps(page));
    let mut done = Ok(());
    for id in free {
        // One failure is no reason to keep the rest.
        done = done.and(mapper.trim_extent(map, id, sleeps));
    }
    done
}

fn list<T>(most: usize) -> Result<Vec<T>, DeviceError> {
    let mut list = Vec::new();
    match list.try_reserve_exact(most) {
        Ok(()) => Ok(list),
        Err(_) => {
            Err(DeviceError::HostMemory { what: "a list of pages", bytes: (most * size_of::<T>()) as u64 })
        }
    }
}
