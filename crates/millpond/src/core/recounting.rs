//! Recounts every invariant of a pool, for tests.

use super::pool_core::{Core, PoolState};
use crate::extents;

/// Recounts everything; says what is wrong, if anything is.
pub(crate) fn check(core: &Core) -> Result<(), String> {
    let mut state = core.state.lock();
    let PoolState { arenas, locked, .. } = &mut *state;
    // While no thread allocates or frees.
    core.caches.check(locked, |cached| {
        let counted = core.counted();
        let (mut held, mut blocks, mut live, mut requested, mut allocated) = (0, 0, 0, 0, 0);
        for (_, arena) in arenas.iter() {
            extents::check(arena)?;
            held += arena.held();
            blocks += arena.blocks();
            for (id, descriptor) in arena.iter_allocated().filter(|(_, descriptor)| descriptor.is_live()) {
                live += 1;
                requested += arena.requested(id);
                allocated += descriptor.bytes();
            }
        }
        let figures = [
            ("reserved bytes", held, core.counters.reserved.current()),
            ("live blocks", live, counted.blocks.current),
            ("requested bytes", requested, counted.requested.current),
            ("allocated bytes", allocated, counted.allocated.current),
            ("cached blocks", blocks - live, cached),
        ];
        match figures.into_iter().find(|(_, recount, counted)| recount != counted) {
            Some((what, recount, counted)) => Err(format!("{what}: recount {recount}, counted {counted}")),
            None => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::Error;
    use crate::fixtures::{Bench, Freeing, MIB};

    #[test]
    fn a_figure_that_is_wrong_is_told() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let block = pool.alloc(MIB, &stream).unwrap();
        pool.check().unwrap();
        let reserved = &pool.inner().counters.reserved;
        reserved.raise(1);
        let told = pool.check().unwrap_err();
        assert!(matches!(&told, Error::Broken { why, .. } if why.contains("reserved bytes")), "{told}");
        reserved.lower(1);
        pool.free_block(block, &stream).unwrap();
        pool.check().unwrap();
    }
}
