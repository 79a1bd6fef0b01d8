//! Giving memory back: old mappings, pages that hold no live byte, and at the end the address space.

use super::coalescing::{join_complete, join_unmerged};
use super::extent::ExtentState;
use super::extent_map::ExtentMap;
use super::mapper::Mapper;
use super::reuse_rules::ReuseRules;
use crate::device::DeviceError;
use crate::order::Fence;

/// The work that must be complete before everything free can be given back.
pub(super) fn fence_of_all_free(map: &ExtentMap, rules: &ReuseRules, mapper: &Mapper) -> Fence {
    let mut all = map.fence_of(map.free_ids());
    // Host memory may be short, as there.
    let _ = all.try_join(&mapper.old_mappings.fence(map));
    rules.prune(&mut all);
    all
}

/// Gives memory that holds no live byte, and whose work is complete, back to the device until at most `keep` bytes are
/// reserved.
pub(super) fn trim(
    map: &mut ExtentMap,
    rules: &ReuseRules,
    mapper: &mut Mapper,
    keep: u64,
) -> Result<(), DeviceError> {
    let before = mapper.reserved();
    // Without memory for the indexes, a later trim gets what is missing there.
    let _ = map.indexes.complete(&map.extents);
    rules.poll(&fence_of_all_free(map, rules, mapper));
    mapper.old_mappings.reap(map, rules, &mut mapper.pages);
    join_unmerged(map, rules);
    join_complete(map, rules);
    // One failure is no reason to keep the rest.
    let parked = mapper.pages.release_parked(keep);
    let pages = trim_pages(map, rules, mapper, keep);
    if mapper.reserved() < before {
        map.shrink();
    }
    parked.and(pages)
}

/// Unmaps and releases whole pages of free extents, those that have been free for longest first.
fn trim_pages(
    map: &mut ExtentMap,
    rules: &ReuseRules,
    mapper: &mut Mapper,
    keep: u64,
) -> Result<(), DeviceError> {
    let mut idle = map.list_for_free()?;
    let free = map
        .free_ids()
        .filter(|id| map[*id].units >= map.layout.units_per_base_page())
        .filter(|id| rules.is_complete(&map[*id].fence));
    idle.extend(free.map(|id| (map[id].freed, id)));
    idle.sort_unstable();
    let mut result = Ok(());
    for (_, id) in idle {
        let goes = |mapper: &mut Mapper, _| (mapper.reserved() > keep).then_some(true);
        result = result.and(mapper.trim_extent(map, id, goes));
    }
    result
}

/// Forgets the pages that have no memory now, and hold no live byte.
pub(super) fn forget_gone(map: &mut ExtentMap, mapper: &mut Mapper) -> Result<(), DeviceError> {
    let mut free = map.list_for_free()?;
    free.extend(map.free_ids());
    let mut done = Ok(());
    for id in free {
        // One failure is no reason to keep the rest.
        done = done.and(mapper.trim_extent(map, id, |mapper, page| Some(mapper.pages.sleeps(page))));
    }
    done
}

/// Gives back the addresses of regions in which nothing is mapped.
pub(super) fn unreserve_all(map: &mut ExtentMap) -> Result<(), DeviceError> {
    let mut done = Ok(());
    for id in 0..map.regions.ids() {
        // One that stays is no reason to keep the others.
        if is_bare(map, id) {
            done = done.and(map.remove_region(id, |addresses, base, bytes| {
                // SAFETY: the region is one unmapped extent: nothing is mapped in it, and the map forgets it.
                unsafe { addresses.unreserve(base, bytes) }
            }));
        }
    }
    done
}

fn is_bare(map: &ExtentMap, id: u32) -> bool {
    map.regions.at(id).is_some_and(|region| {
        let head = &map[region.head];
        let is_whole = head.units * map.layout.unit_bytes == region.bytes;
        is_whole && head.state == ExtentState::Unmapped
    })
}
