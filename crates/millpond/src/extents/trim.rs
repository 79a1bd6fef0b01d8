//! Giving memory back: old mappings, pages that hold no live byte, and at the end the address space.

use super::arena::Arena;
use super::coalescing::join_complete;
use super::map::extent::{Extent, ExtentId, ExtentState};
use super::map::extent_map::ExtentMap;
use super::segments;
use crate::device::DeviceError;
use crate::order::Fence;
use crate::physical::{Home, PageId, passing, release_parked};

/// Removes the old mappings whose work is complete. Never waits; a mapping that cannot be removed stays pending unmap.
pub(crate) fn reap(arena: &mut Arena) {
    _ = arena.reap_arriving();
    arena.old_mappings.reap(&mut arena.map, &arena.rules, &mut arena.pages);
}

/// The work that must be complete before everything free can be given back.
pub(crate) fn fence_of_all_free(arena: &Arena) -> Fence {
    let mut all = arena.map.fence_of(arena.map.free());
    // Host memory may be short, as there.
    let _ = all.try_join(&arena.old_mappings.fence(&arena.map));
    passing::join_handovers(&arena.pages, &mut all);
    arena.rules.prune(&mut all);
    all
}

/// Gives memory that holds no live byte, and whose work is complete, back to the device until at most `keep` bytes are
/// reserved. Never waits for the device: segments [leave](segments), and are still to be given back.
pub(crate) fn trim(arena: &mut Arena, keep: u64) -> Result<(), DeviceError> {
    let before = arena.reserved();
    if before <= keep {
        return Ok(());
    }
    if arena.keeps() {
        // What is mapped nowhere no graph uses.
        reap(arena);
        return release_parked(&mut arena.pages, keep, |_, _| true);
    }
    // Without memory for the index, a later trim gets what is missing there.
    let _ = arena.map.complete_index();
    arena.rules.poll(&fence_of_all_free(arena));
    reap(arena);
    join_complete(arena);
    // One failure is no reason to keep the rest.
    let parked = release_parked(&mut arena.pages, keep, |_, _| true);
    let pages = trim_pages(arena, keep);
    if arena.reserved() < before {
        arena.map.shrink();
    }
    parked.and(pages)
}

/// Unmaps and releases whole pages of free extents, those that have been free for longest first.
fn trim_pages(arena: &mut Arena, keep: u64) -> Result<(), DeviceError> {
    let Arena { map, rules, .. } = &*arena;
    let mut idle = map.list_of_free(map.free_with_page())?;
    idle.retain(|id| rules.timelines.is_complete(&map[*id].fence));
    idle.sort_unstable_by_key(|id| (map[*id].freed, *id));
    let mut done = Ok(());
    for id in idle {
        let goes = |arena: &mut Arena, _| (arena.reserved() > keep).then_some(Fate::Released);
        done = done.and(trim_extent(arena, id, goes));
    }
    done
}

/// What becomes of a page in a free extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    Released,
}

/// Forgets the pages that have no memory now, and hold no live byte. Their addresses are free again.
pub(crate) fn forget_gone(arena: &mut Arena) -> Result<(), DeviceError> {
    // A page may lie in two free extents.
    join_complete(arena);
    let mut done = Ok(());
    for id in arena.map.list_of_free(arena.map.free())? {
        done = done.and(trim_extent(arena, id, |arena, page| {
            Some(if arena.pages.sleeps(page) { Fate::Released } else { Fate::Stays })
        }));
    }
    done
}

/// Gives everything back whose work is complete, addresses too, for an arena that will not be used again. Does
/// not wait, so that it can be called under the pool's lock: wait for [all that is free](fence_of_all_free)
/// before. What cannot be given back stays, and [`held`](Arena::held) says so.
pub(crate) fn tear_down(arena: &mut Arena) -> Result<(), DeviceError> {
    // Mappings of pages that were given away may be left where nothing is held.
    arena.rules.poll(&fence_of_all_free(arena));
    reap(arena);
    let mut done = forget_gone(arena).and(trim(arena, 0));
    let Arena { map, pages, .. } = arena;
    // Nothing is mapped in a region that is one unmapped extent. From the last on, since a list could be refused.
    let is_bare = |extent: &Extent| extent.prev.is_none() && extent.next.is_none();
    let bare = |map: &ExtentMap, end| {
        let bare = map.in_state(ExtentState::Unmapped).filter(|(_, extent)| is_bare(extent));
        bare.map(|(_, extent)| extent.region).filter(|id| *id < end).max()
    };
    let mut next = bare(map, u32::MAX);
    while let Some(id) = next {
        let (base, bytes) = (map.regions.get(id).base, map.regions.get(id).bytes);
        let head = map.withdraw_region(id);
        // SAFETY: nothing is mapped in the region, and the map forgets it.
        let given_back = unsafe { pages.device().unreserve(base, bytes) };
        match given_back {
            Ok(()) => {
                pages.counters.calls.unreserve.add(1);
                map.forget_region(head);
            }
            Err(_) => map.publish_region(head),
        }
        done = done.and(given_back);
        next = bare(map, id);
    }
    done
}

/// Takes the pages out that lie wholly in a free and complete extent, as `fate` says of each; ends when it is `None`.
pub(super) fn trim_extent(
    arena: &mut Arena,
    id: ExtentId,
    mut fate: impl FnMut(&mut Arena, PageId) -> Option<Fate>,
) -> Result<(), DeviceError> {
    let region = arena.map[id].region;
    let (start, mut end) = arena.map.base_pages_within(id);
    let mut done = Ok(());
    // From the end, so that `id` keeps naming the part that is left.
    while let Some((page, home)) = arena.last_whole((region, (start, end)))
        && let Some(fate) = fate(arena, page)
    {
        if fate != Fate::Stays {
            done = done.and(trim_page(arena, id, (page, home)));
        }
        end = home.1.0;
    }
    done
}

/// Takes a page out that lies wholly in a free and complete extent.
fn trim_page(arena: &mut Arena, id: ExtentId, (page, home): (PageId, Home)) -> Result<(), DeviceError> {
    let (region, (first, _)) = home;
    if arena.pages.is_segment(page) {
        segments::leave(arena, region);
        return Ok(());
    }
    let Arena { map, rules, pages, .. } = &mut *arena;
    if pages.get(page).leaves_behind().is_some() {
        return Ok(());
    }
    map.make_room(2, map[id].fence.len())?;
    let (at, asleep) = (map.address_of_base_page(region, first), pages.asleep(page));
    let mapping = asleep.or_else(|| {
        let reached = rules.timelines.reached(&map[id].fence)?;
        // SAFETY: the page is mapped here, wholly in a free extent, whose fence is that of the work on it. The program holds no
        // pointer into it.
        Some(unsafe { pages.lay_aside(page, at, reached) })
    });
    let Some(mapping) = mapping else { return Ok(()) };
    // SAFETY: it is the mapping here.
    unsafe { pages.unmap(mapping, at) }?;
    let units = arena.leave(page);
    let unmapped = arena.map.cut(id, units);
    arena.map.make_unmapped(unmapped);
    if arena.pages.get(page).mappings > 0 {
        // An older mapping is still waiting for its work; the page goes when that has gone.
        arena.pages.park(page);
        return Ok(());
    }
    arena.pages.release(page).map(drop)
}

#[cfg(test)]
mod tests {
    use crate::device::sim::Call;
    use crate::fixtures::{Bench, Freeing, MIB};

    #[test]
    fn addresses_that_cannot_be_given_back_are_tried_once() {
        let Bench { sim, pool, stream, .. } = Bench::new(|pool| pool);
        let block = pool.alloc(MIB, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
        sim.fail_randomly(Call::Unreserve, 1.0);
        let inner = pool.inner();
        inner.empty_caches(&mut inner.state.lock());
        super::super::fence_of_all_free(&inner.state.lock().arenas.own);
        inner.state.lock().arenas.tear_down().unwrap_err();
        sim.fail_no_more();
    }
}
