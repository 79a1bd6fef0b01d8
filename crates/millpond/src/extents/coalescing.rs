//! Free extents are joined with their neighbours.
//!
//! An extent that becomes free is joined at once with neighbours that the same streams freed, or whose work is
//! complete. Others stay apart, listed as unmerged, until a join costs no stream its reuse. So does what a stream
//! frees while it is captured: nobody else can use that before the capture ends, nor what it was joined with.

use super::extent::{Extent, ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::reuse_rules::ReuseRules;
use crate::order::Fence;

/// Puts an extent that has just become free on the index, joined with neighbours that are free behind the same
/// streams, or for all.
pub(super) fn insert_free(map: &mut ExtentMap, rules: &ReuseRules, id: ExtentId) {
    rules.prune_several(map.fence_mut(id));
    let Extent { prev, next, .. } = map[id];
    let id = join_if_ready(map, rules, id, prev);
    let id = join_if_ready(map, rules, id, next);
    map.index(id);
    map.list_if_unmerged(id);
}

/// Joins a free extent, which is on no index, with a neighbour that is free behind the same streams, or for
/// anybody.
#[inline]
fn join_if_ready(
    map: &mut ExtentMap,
    rules: &ReuseRules,
    id: ExtentId,
    neighbour: Option<ExtentId>,
) -> ExtentId {
    match neighbour {
        Some(neighbour) if map.is(neighbour, ExtentState::Free) => join_if_alike(map, rules, id, neighbour),
        _ => id,
    }
}

fn join_if_alike(map: &mut ExtentMap, rules: &ReuseRules, id: ExtentId, neighbour: ExtentId) -> ExtentId {
    rules.prune_several(map.fence_mut(neighbour));
    let is_alike = are_alike(map, id, neighbour) || is_alike_or_complete_slow(map, rules, id, neighbour);
    if !is_alike || rules.is_one_of_a_capture(&map[id].fence, &map[neighbour].fence) {
        return id;
    }
    map.unindex(neighbour);
    map.extents.join(id, neighbour)
}

/// Whether the same streams freed both.
#[inline]
fn are_alike(map: &ExtentMap, a: ExtentId, b: ExtentId) -> bool {
    map[a].fence.same_streams(&map[b].fence)
}

/// Whether the device says now that a neighbour's work is complete, or only the same streams are left. Neighbours
/// that stay apart serve nothing longer than either, and would become more and more. But what is free for all
/// must not wait for a shorter one, unless that is complete too.
#[cold]
fn is_alike_or_complete_slow(
    map: &mut ExtentMap,
    rules: &ReuseRules,
    id: ExtentId,
    neighbour: ExtentId,
) -> bool {
    if !rules.prune_to_nothing(map.fence_mut(neighbour)) {
        return are_alike(map, id, neighbour);
    }
    map[neighbour].units <= map[id].units || rules.prune_to_nothing(map.fence_mut(id))
}

/// As [`join_unmerged`], after asking the device where that matters.
#[cold]
pub(super) fn join_what_is_complete(map: &mut ExtentMap, rules: &ReuseRules) -> bool {
    if rules.policies.opportunistic && !rules.policies.internal_dependencies {
        let is_free = |id: &ExtentId| map.is(*id, ExtentState::Free);
        let free = map.unmerged().iter().copied().filter(is_free);
        let around = free.flat_map(|id| [map[id].prev, Some(id), map[id].next]);
        rules.poll(&map.fence_of(around.flatten().filter(is_free)));
    }
    join_unmerged(map, rules)
}

/// Joins free neighbours that were kept apart because different streams freed them, where that costs no stream its
/// reuse. Those are all of them where the pool may make streams wait, else the complete ones. Returns whether any were
/// joined.
pub(super) fn join_unmerged(map: &mut ExtentMap, rules: &ReuseRules) -> bool {
    let mut joined = false;
    let mut kept_apart = Vec::new();
    while let Some(id) = map.pop_unmerged() {
        if !map.is(id, ExtentState::Free) {
            continue;
        }
        match join_around(map, rules, id) {
            // It has other neighbours now: look again.
            Some(whole) => {
                map.list_if_unmerged(whole);
                joined = true;
            }
            None if kept_apart.try_reserve(1).is_ok() => kept_apart.push(id),
            // Without memory for the list, the others stay apart for now.
            None => {
                map.list_unmerged(id);
                break;
            }
        }
    }
    kept_apart.into_iter().for_each(|id| map.list_if_unmerged(id));
    joined
}

/// Joins neighbours whose work is complete, which the policies keep apart, so that pages across them can go.
pub(super) fn join_complete(map: &mut ExtentMap, rules: &ReuseRules) {
    let is_complete =
        |map: &ExtentMap, id| map.is(id, ExtentState::Free) && rules.is_complete(&map[id].fence);
    for at in 0..map.unmerged().len() {
        let id = map.unmerged()[at];
        if is_complete(map, id) {
            *map.fence_mut(id) = Fence::empty();
            for neighbour in [map[id].prev, map[id].next].into_iter().flatten() {
                if is_complete(map, neighbour) {
                    *map.fence_mut(neighbour) = Fence::empty();
                }
            }
        }
    }
    join_unmerged(map, rules);
}

/// Joins a free extent with all free neighbours, one after the other, that it may be joined with. `None` where
/// there are none.
fn join_around(map: &mut ExtentMap, rules: &ReuseRules, id: ExtentId) -> Option<ExtentId> {
    let (mut whole, mut joined) = (id, false);
    while let Some(neighbour) = joinable(map, rules, whole) {
        if !joined {
            map.unindex(whole);
        }
        map.unindex(neighbour);
        whole = map.extents.join(whole, neighbour);
        joined = true;
    }
    if joined {
        // Once for all: with many streams, each join would look at every stream again.
        rules.prune_several(map.fence_mut(whole));
        map.index(whole);
    }
    joined.then_some(whole)
}

/// A free neighbour that the extent may be joined with.
fn joinable(map: &mut ExtentMap, rules: &ReuseRules, id: ExtentId) -> Option<ExtentId> {
    let neighbours = [map[id].prev, map[id].next].into_iter().flatten();
    neighbours.into_iter().find(|other| map.is(*other, ExtentState::Free) && may_join(map, rules, id, *other))
}

fn may_join(map: &mut ExtentMap, rules: &ReuseRules, a: ExtentId, b: ExtentId) -> bool {
    if rules.is_one_of_a_capture(&map[a].fence, &map[b].fence) {
        return false;
    }
    if are_alike(map, a, b) {
        return true;
    }
    if rules.policies.internal_dependencies {
        return map.extents.make_room_to_join(a, b);
    }
    [a, b].into_iter().for_each(|id| rules.prune(map.fence_mut(id)));
    are_alike(map, a, b)
}
