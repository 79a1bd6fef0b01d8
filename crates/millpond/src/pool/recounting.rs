//! Recounts every invariant of a pool, for tests.

use super::inner::{PoolInner, PoolState};
use crate::extents::Arena;

impl PoolInner {
    /// Recounts everything; says what is wrong, if anything is.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let mut state = self.state.lock();
        let elsewhere: u64 = state.captured.iter().map(|(_, arena)| arena.held()).sum();
        state.arena.check(self.counters.reserved.current() - elsewhere)?;
        for (_, arena) in state.captured.iter() {
            arena.check(arena.held())?;
        }
        let PoolState { arena, locked, captured, .. } = &mut *state;
        let arenas = std::iter::once(&*arena).chain(captured.iter().map(|(_, arena)| arena));
        self.caches.check(locked, |cached| self.check_counts(arenas, cached))
    }

    /// Recounts the blocks that are out, of which `cached` are in caches, while no thread allocates or frees.
    fn check_counts<'a>(
        &self,
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
        let counted = self.counted();
        let ensure = |what: &str, recount: u64, counted: u64| {
            if recount == counted {
                Ok(())
            } else {
                Err(format!("{what}: recount {recount}, counted {counted}"))
            }
        };
        ensure("live blocks", live, counted.blocks.current)?;
        ensure("requested bytes", requested, counted.requested.current)?;
        ensure("allocated bytes", allocated, counted.allocated.current)?;
        ensure("cached blocks", others, cached)
    }
}
