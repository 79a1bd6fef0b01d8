//! Taking back what threads cache: it belongs to the pool.

use super::inner::{PoolInner, PoolState};
use crate::cache::Cached;
use crate::extents::Arena;

impl PoolInner {
    /// Gives the arena what every thread caches; returns whether there was anything.
    pub(super) fn empty_caches(&self, state: &mut PoolState) -> bool {
        if self.caches.any_ended() {
            self.collect_ended(state);
        }
        let PoolState { arena, locked, .. } = state;
        let any = self.caches.holds_any();
        if any {
            self.caches.revoke(locked, |cached| take_back(arena, cached));
        }
        any
    }

    /// Gives the arena what threads that ended cached.
    #[cold]
    pub(super) fn collect_ended(&self, state: &mut PoolState) {
        let PoolState { arena, locked, .. } = state;
        self.caches.collect_ended(locked, |cached| take_back(arena, cached));
    }

    /// As [`collect_ended`](Self::collect_ended), if there is anything, and nobody has the lock.
    pub(super) fn collect_ended_if_free(&self) {
        if self.caches.any_ended()
            && self.is_here()
            && let Some(mut state) = self.state.try_lock()
        {
            self.collect_ended(&mut state);
        }
    }
}

/// A block that a cache gave up goes back to the arena.
pub(super) fn take_back(arena: &mut Arena, cached: Cached) {
    if !arena.take_back(cached.descriptor(), cached.fence()) {
        tracing::error!(descriptor = ?cached.descriptor(), "a cache gave up a block that is not allocated; it is dropped");
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures::{Bench, Freeing, MIB};

    /// A pool that holds a gigabyte, nothing of it live.
    fn bench() -> Bench {
        let bench = Bench::new(|pool| pool);
        let whole = bench.pool.alloc(1024 * MIB, &bench.stream).unwrap();
        bench.pool.free_block(whole, &bench.stream).unwrap();
        bench
    }

    /// Has as many small blocks cached.
    fn cache_small(Bench { pool, stream, .. }: &Bench, count: usize, bytes: u64) {
        let blocks: Vec<_> = (0..count).map(|_| pool.alloc(bytes, stream).unwrap()).collect();
        blocks.into_iter().for_each(|ptr| pool.free_block(ptr, stream).unwrap());
        assert!(pool.inner().caches.holds_any());
    }

    /// What is free is much longer, so that the caches are asked first, if they have large blocks.
    fn alloc_from_what_is_free(Bench { pool, stream, .. }: &Bench) {
        let misses = pool.stats().misses;
        pool.alloc(3 * MIB, stream).unwrap();
        assert_eq!(pool.stats().misses, misses, "nothing was mapped");
    }

    #[test]
    fn a_free_extent_serves_without_emptying_caches_of_small_blocks() {
        let bench = bench();
        cache_small(&bench, 16, MIB / 2);
        alloc_from_what_is_free(&bench);
        assert!(bench.pool.inner().caches.holds_any());
        bench.pool.check().unwrap();
    }

    #[test]
    fn all_caches_are_emptied_before_anything_is_mapped() {
        let bench = bench();
        cache_small(&bench, 4, 4096);
        let misses = bench.pool.stats().misses;
        bench.pool.alloc(2048 * MIB, &bench.stream).unwrap();
        assert!(bench.pool.stats().misses > misses && !bench.pool.inner().caches.holds_any());
        bench.pool.check().unwrap();
    }
}
