//! Free extents are joined with their neighbours.
//!
//! An extent that becomes free is joined at once with neighbours that the same streams freed, or whose work is
//! complete. Others stay apart, listed as unmerged, until a join costs no stream its reuse. So does what a stream
//! frees while it is captured: nobody else can use that before the capture ends, nor what it was joined with.

use super::arena::Arena;
use super::extent::{Extent, ExtentId, ExtentState};
use crate::order::Fence;

/// Puts an extent that has just become free on the index, joined with neighbours that are free behind the same
/// streams, or for all.
pub(super) fn insert_free(arena: &mut Arena, id: ExtentId) {
    arena.rules.prune_several(arena.map.fence_mut(id));
    let Extent { prev, next, .. } = arena.map[id];
    let id = join_if_ready(arena, id, prev);
    let id = join_if_ready(arena, id, next);
    arena.map.index(id);
    arena.map.list_if_unmerged(id);
}

/// Joins a free extent, which is on no index, with a neighbour that is free behind the same streams, or for
/// anybody.
#[inline]
fn join_if_ready(arena: &mut Arena, id: ExtentId, neighbour: Option<ExtentId>) -> ExtentId {
    match neighbour {
        Some(neighbour) if arena.map.is(neighbour, ExtentState::Free) => join_if_alike(arena, id, neighbour),
        _ => id,
    }
}

fn join_if_alike(arena: &mut Arena, id: ExtentId, neighbour: ExtentId) -> ExtentId {
    arena.rules.prune_several(arena.map.fence_mut(neighbour));
    let is_alike = are_alike(arena, id, neighbour) || is_alike_or_complete_slow(arena, id, neighbour);
    if !is_alike || arena.rules.is_one_of_a_capture(&arena.map[id].fence, &arena.map[neighbour].fence) {
        return id;
    }
    arena.map.unindex(neighbour);
    arena.map.extents.join(id, neighbour)
}

/// Whether the same streams freed both.
#[inline]
fn are_alike(arena: &Arena, a: ExtentId, b: ExtentId) -> bool {
    arena.map[a].fence.same_streams(&arena.map[b].fence)
}

/// Whether the device says now that a neighbour's work is complete, or only the same streams are left. Neighbours
/// that stay apart serve nothing longer than either, and would become more and more. But what is free for all
/// must not wait for a shorter one, unless that is complete too.
#[cold]
fn is_alike_or_complete_slow(arena: &mut Arena, id: ExtentId, neighbour: ExtentId) -> bool {
    if !arena.rules.prune_to_nothing(arena.map.fence_mut(neighbour)) {
        return are_alike(arena, id, neighbour);
    }
    arena.map[neighbour].units <= arena.map[id].units || arena.rules.prune_to_nothing(arena.map.fence_mut(id))
}

/// As [`join_unmerged`], after asking the device where that matters.
#[cold]
pub(super) fn join_what_is_complete(arena: &mut Arena) -> bool {
    if arena.rules.policies.opportunistic && !arena.rules.policies.internal_dependencies {
        let is_free = |id: &ExtentId| arena.map.is(*id, ExtentState::Free);
        let free = arena.map.unmerged().iter().copied().filter(is_free);
        let around = free.flat_map(|id| [arena.map[id].prev, Some(id), arena.map[id].next]);
        arena.rules.poll(&arena.map.fence_of(around.flatten().filter(is_free)));
    }
    join_unmerged(arena)
}

/// Joins free neighbours that were kept apart because different streams freed them, where that costs no stream its
/// reuse. Those are all of them where the pool may make streams wait, else the complete ones. Returns whether any were
/// joined.
pub(super) fn join_unmerged(arena: &mut Arena) -> bool {
    let mut joined = false;
    let mut kept_apart = Vec::new();
    while let Some(id) = arena.map.pop_unmerged() {
        if !arena.map.is(id, ExtentState::Free) {
            continue;
        }
        match join_around(arena, id) {
            // It has other neighbours now: look again.
            Some(whole) => {
                arena.map.list_if_unmerged(whole);
                joined = true;
            }
            None if kept_apart.try_reserve(1).is_ok() => kept_apart.push(id),
            // Without memory for the list, the others stay apart for now.
            None => {
                arena.map.list_unmerged(id);
                break;
            }
        }
    }
    kept_apart.into_iter().for_each(|id| arena.map.list_if_unmerged(id));
    joined
}

/// Joins neighbours whose work is complete, which the policies keep apart, so that pages across them can go.
pub(super) fn join_complete(arena: &mut Arena) {
    let is_complete = |arena: &Arena, id| {
        arena.map.is(id, ExtentState::Free) && arena.rules.is_complete(&arena.map[id].fence)
    };
    for at in 0..arena.map.unmerged().len() {
        let id = arena.map.unmerged()[at];
        if is_complete(arena, id) {
            *arena.map.fence_mut(id) = Fence::empty();
            for neighbour in [arena.map[id].prev, arena.map[id].next].into_iter().flatten() {
                if is_complete(arena, neighbour) {
                    *arena.map.fence_mut(neighbour) = Fence::empty();
                }
            }
        }
    }
    join_unmerged(arena);
}

/// Joins a free extent with all free neighbours, one after the other, that it may be joined with. `None` where
/// there are none.
fn join_around(arena: &mut Arena, id: ExtentId) -> Option<ExtentId> {
    let (mut whole, mut joined) = (id, false);
    while let Some(neighbour) = joinable(arena, whole) {
        if !joined {
            arena.map.unindex(whole);
        }
        arena.map.unindex(neighbour);
        whole = arena.map.extents.join(whole, neighbour);
        joined = true;
    }
    if joined {
        // Once for all: with many streams, each join would look at every stream again.
        arena.rules.prune_several(arena.map.fence_mut(whole));
        arena.map.index(whole);
    }
    joined.then_some(whole)
}

/// A free neighbour that the extent may be joined with.
fn joinable(arena: &mut Arena, id: ExtentId) -> Option<ExtentId> {
    let neighbours = [arena.map[id].prev, arena.map[id].next].into_iter().flatten();
    neighbours
        .into_iter()
        .find(|other| arena.map.is(*other, ExtentState::Free) && may_join(arena, id, *other))
}

fn may_join(arena: &mut Arena, a: ExtentId, b: ExtentId) -> bool {
    if arena.rules.is_one_of_a_capture(&arena.map[a].fence, &arena.map[b].fence) {
        return false;
    }
    if are_alike(arena, a, b) {
        return true;
    }
    if arena.rules.policies.internal_dependencies {
        return arena.map.extents.make_room_to_join(a, b);
    }
    [a, b].into_iter().for_each(|id| arena.rules.prune(arena.map.fence_mut(id)));
    are_alike(arena, a, b)
}
