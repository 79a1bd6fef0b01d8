//! Free extents are joined with their neighbours.
//!
//! An extent that becomes free is joined at once with neighbours that the same streams freed, or whose work is
//! complete. Others stay apart, *unmerged*, until a join costs no stream its reuse. So does what a stream
//! frees while it is captured: nobody else can use that before the capture ends, nor what it was joined with.

use super::arena::Arena;
use super::map::extent::{Extent, ExtentId, ExtentState};
use crate::order::Fence;

/// Puts an extent that has just become free on its list, joined with neighbours that are free behind the same
/// streams, or for all.
pub(super) fn insert_free(arena: &mut Arena, id: ExtentId) {
    arena.rules.prune_several(&mut arena.map.extents[id].fence);
    let Extent { prev, next, .. } = arena.map[id];
    let id = join_if_ready(arena, id, prev);
    let id = join_if_ready(arena, id, next);
    arena.map.list(id);
    arena.map.note_if_unmerged(id);
}

/// Joins a free extent, which is on no list, with a neighbour that is free behind the same streams, or for anybody.
#[inline]
fn join_if_ready(arena: &mut Arena, id: ExtentId, neighbour: Option<ExtentId>) -> ExtentId {
    let Some(neighbour) = neighbour.filter(|other| arena.map.is(*other, ExtentState::Free)) else {
        return id;
    };
    arena.rules.prune_several(&mut arena.map.extents[neighbour].fence);
    let is_alike = are_alike(arena, id, neighbour) || is_alike_or_complete_slow(arena, id, neighbour);
    if !is_alike || arena.rules.is_one_of_a_capture(&arena.map[id].fence, &arena.map[neighbour].fence) {
        return id;
    }
    arena.map.unlist(neighbour);
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
    if !arena.rules.prune_to_nothing(&mut arena.map.extents[neighbour].fence) {
        return are_alike(arena, id, neighbour);
    }
    arena.map[neighbour].units <= arena.map[id].units
        || arena.rules.prune_to_nothing(&mut arena.map.extents[id].fence)
}

/// As [`join_unmerged`], after asking the device where that matters.
#[cold]
pub(super) fn join_what_is_complete(arena: &mut Arena) -> bool {
    let Arena { map, rules, .. } = &*arena;
    if rules.policies.opportunistic && !rules.policies.internal_dependencies {
        rules.poll(&map.fence_of(map.free().filter(|id| map.has_free_neighbour(*id))));
    }
    join_unmerged(arena)
}

/// Joins free neighbours that were kept apart because different streams freed them, where that costs no stream its
/// reuse. Those are all of them where the pool may make streams wait, else the complete ones. Returns whether any were
/// joined.
fn join_unmerged(arena: &mut Arena) -> bool {
    // Without memory for the list, they stay apart for now.
    let Ok(free) = arena.map.list_of_free(arena.map.free()) else { return false };
    arena.map.has_unmerged = false;
    let mut joined = false;
    for id in free {
        // Some are joined with others by now.
        if arena.map.is(id, ExtentState::Free) {
            joined |= join_those_behind(arena, id);
            arena.map.note_if_unmerged(id);
        }
    }
    joined
}

/// Joins neighbours whose work is complete, which the policies keep apart, so that pages across them can go.
pub(super) fn join_complete(arena: &mut Arena) {
    let Arena { map, rules, .. } = &mut *arena;
    map.change_fences(|fence| {
        if rules.timelines.is_complete(fence) {
            *fence = Fence::empty();
        }
    });
    join_unmerged(arena);
}

/// Joins a free extent with those behind it that it may be joined with. Returns whether there are any.
fn join_those_behind(arena: &mut Arena, id: ExtentId) -> bool {
    let mut joined = false;
    while let Some(next) = arena.map[id].next
        && arena.map.is(next, ExtentState::Free)
        && may_join(arena, id, next)
    {
        if !std::mem::replace(&mut joined, true) {
            arena.map.unlist(id);
        }
        arena.map.unlist(next);
        arena.map.extents.join(id, next);
    }
    if joined {
        // Once for all: with many streams, each join would look at every stream again.
        arena.rules.prune_several(&mut arena.map.extents[id].fence);
        arena.map.list(id);
    }
    joined
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
    [a, b].into_iter().for_each(|id| arena.rules.prune(&mut arena.map.extents[id].fence));
    are_alike(arena, a, b)
}
