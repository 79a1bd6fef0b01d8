//! Recounts every invariant of a pool, for tests.

use super::pool_core::{Core, PoolState};
use crate::extents::{self, Arena};

/// Recounts everything; says what is wrong, if anything is.
pub(crate) fn check(core: &Core) -> std::result::Result<(), String> {
    let mut state = core.state.lock();
    let PoolState { arenas, locked, .. } = &mut *state;
    let mut own = core.counters.reserved.current();
    for (_, arena) in arenas.iter().filter(|(id, _)| id.is_some()) {
        extents::check(arena, arena.held())?;
        own -= arena.held();
    }
    extents::check(&arenas.own, own)?;
    let arenas = arenas.iter().map(|(_, arena)| arena);
    core.caches.check(locked, |cached| check_counts(core, arenas, cached))
}

/// Recounts the blocks that are out, of which `cached` are in caches, while no thread allocates or frees.
fn check_counts<'a>(
    core: &Core,
    arenas: impl Iterator<Item = &'a Arena>,
    cached: u64,
) -> std::result::Result<(), String> {
    let (mut live, mut requested, mut allocated, mut others) = (0, 0, 0, 0);
    for (arena, (id, descriptor)) in
        arenas.flat_map(|arena| arena.iter_allocated().map(move |out| (arena, out)))
    {
        if descriptor.is_live() {
            live += 1;
            requested += arena.requested(id);
            allocated += descriptor.bytes();
        } else {
            others += 1;
        }
    }
    let counted = core.counted();
    let ensure = |what: &str, recount: u64, counted: u64| {
        if recount == counted { Ok(()) } else { Err(format!("{what}: recount {recount}, counted {counted}")) }
    };
    ensure("live blocks", live, counted.blocks.current)?;
    ensure("requested bytes", requested, counted.requested.current)?;
    ensure("allocated bytes", allocated, counted.allocated.current)?;
    ensure("cached blocks", others, cached)
}
