//! Emptying caches for an allocation, before the arena puts pages behind it.
//!
//! What threads cache belongs to the pool: nothing is mapped before all of it is taken back. Before that, a large
//! request needs the large blocks only. The small ones lie in a zone of their own, and could only give the pages that
//! they pin. And a program that loses its small blocks with each large request would never find them in its magazines.

use super::inner::{PoolInner, PoolState};
use super::throughput_mode::{REVOCATION, THROUGH_ARENA};
use crate::cache::Cached;
use crate::extents::{Allocation, Arena, Refusal};
use crate::order::Stream;
use crate::policy::{Mechanism, without};

/// Small blocks stay cached while a large one is looked for, as long as they are together no more than this part of
/// what the pool holds. Many would keep pages from it: with ten times as much, generated jobs with experts reserved
/// 0.1 % more, and without a limit 0.4 %.
const SMALL_PART: u64 = 512;

impl PoolInner {
    /// Allocates where no free block is ready, once the caches are emptied. Notes as slow-path time what memory would
    /// have saved: growth is not.
    pub(super) fn alloc_emptying_caches(
        &self,
        state: &mut PoolState,
        units: u64,
        align: u64,
        stream: &Stream,
    ) -> Result<Allocation, Refusal> {
        let device = self.timelines.device();
        let (began, moved) = (device.now(), self.pages_moved());
        let mut revoked = self.empty_caches_for(state, units);
        let out = match state.arena.alloc_unbacked(units, align, stream) {
            Ok(Some(out)) => Ok(out),
            Ok(None) => {
                let more = self.empty_caches(state);
                revoked |= more;
                if more {
                    state.arena.alloc(units, align, stream)
                } else {
                    state.arena.alloc_backed(units, align, stream)
                }
            }
            Err(refusal) => Err(refusal),
        };
        let took = device.now().saturating_sub(began);
        let least = if revoked { REVOCATION } else { THROUGH_ARENA };
        let slow = if revoked || self.pages_moved() > moved { took.max(least) } else { THROUGH_ARENA };
        self.note_slow_path_time(state, slow);
        out
    }

    /// Gives the arena what threads cache, as far as that may serve a request of `units`; returns whether there was
    /// anything.
    fn empty_caches_for(&self, state: &mut PoolState, units: u64) -> bool {
        let most = self.counters.reserved.current() / SMALL_PART;
        let PoolState { arena, locked, throughput_mode, .. } = &mut *state;
        if throughput_mode.is_on()
            || !arena.is_large(units)
            || !self.caches.holds_few_small(locked, most)
            || without(Mechanism::RevokeLarge)
        {
            return self.empty_caches(state);
        }
        self.caches.revoke_large(locked, |cached| take_back(arena, cached))
    }

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
}

/// A block that a cache gave up goes back to the arena.
pub(super) fn take_back(arena: &mut Arena, cached: Cached) {
    if !arena.take_back(cached.descriptor(), cached.fence()) {
        tracing::error!(descriptor = ?cached.descriptor(), "a cache gave up a block that is not allocated; it is dropped");
    }
}

#[cfg(test)]
mod tests {
    use crate::device::DevicePtr;
    use crate::device::sim::{SimDevice, SimOptions};
    use crate::{Context, Pool, Stream};

    const MIB: u64 = 1 << 20;

    /// A pool that holds a gigabyte, nothing of it live.
    fn pool() -> (Pool, Stream) {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let pool = Pool::builder(&context).build().unwrap();
        let stream = context.create_stream().unwrap();
        free(&pool, &stream, pool.alloc(1024 * MIB, &stream).unwrap());
        (pool, stream)
    }

    fn free(pool: &Pool, stream: &Stream, ptr: DevicePtr) {
        // SAFETY: the tests free blocks of their own, and give them no work.
        unsafe { pool.free(ptr, stream) }.unwrap();
    }

    /// Has as many small blocks cached.
    fn cache_small(pool: &Pool, stream: &Stream, count: usize, bytes: u64) {
        let blocks: Vec<_> = (0..count).map(|_| pool.alloc(bytes, stream).unwrap()).collect();
        blocks.into_iter().for_each(|ptr| free(pool, stream, ptr));
        assert!(pool.inner().caches.holds_any());
    }

    /// Has a large block cached: a pair that is repeated keeps it.
    fn cache_large(pool: &Pool, stream: &Stream, bytes: u64) {
        (0..40).for_each(|_| free(pool, stream, pool.alloc(bytes, stream).unwrap()));
        assert!(holds_large(pool));
    }

    fn holds_large(pool: &Pool) -> bool {
        let inner = pool.inner();
        let state = inner.state.lock();
        inner.caches.may_hold_large(&state.locked)
    }

    /// What is free is much longer, so that the caches are asked first, if they have large blocks.
    fn alloc_from_what_is_free(pool: &Pool, stream: &Stream) {
        let misses = pool.stats().misses;
        pool.alloc(3 * MIB, stream).unwrap();
        assert_eq!(pool.stats().misses, misses, "nothing was mapped");
    }

    #[test]
    fn a_large_block_from_what_is_free_takes_large_ones_back_and_leaves_few_small_ones() {
        let (pool, stream) = pool();
        cache_small(&pool, &stream, 4, 4096);
        cache_large(&pool, &stream, 5 * MIB);
        alloc_from_what_is_free(&pool, &stream);
        assert!(pool.inner().caches.holds_any() && !holds_large(&pool));
        pool.check().unwrap();
    }

    #[test]
    fn many_small_blocks_are_taken_back_for_a_large_one_and_few_are_not() {
        for (count, bytes, are_left) in [(4, 4096, true), (16, MIB / 2, false)] {
            let (pool, stream) = pool();
            cache_small(&pool, &stream, count, bytes);
            let inner = pool.inner();
            inner.empty_caches_for(&mut inner.state.lock(), 3 * MIB / 512);
            assert_eq!(inner.caches.holds_any(), are_left, "{count} of {bytes} bytes");
        }
    }

    #[test]
    fn where_no_large_block_is_cached_one_from_what_is_free_takes_nothing_back() {
        let (pool, stream) = pool();
        cache_small(&pool, &stream, 16, MIB / 2);
        alloc_from_what_is_free(&pool, &stream);
        assert!(pool.inner().caches.holds_any());
        pool.check().unwrap();
    }

    #[test]
    fn before_anything_is_mapped_all_that_is_cached_is_taken_back() {
        let (pool, stream) = pool();
        cache_small(&pool, &stream, 4, 4096);
        let misses = pool.stats().misses;
        pool.alloc(2048 * MIB, &stream).unwrap();
        assert!(pool.stats().misses > misses && !pool.inner().caches.holds_any());
        pool.check().unwrap();
    }

    #[test]
    fn large_blocks_are_taken_back_from_idle_threads_too_while_their_small_ones_stay() {
        let (pool, stream) = pool();
        std::thread::scope(|scope| {
            let (done, wait) = std::sync::mpsc::channel::<()>();
            let (cached, is_cached) = std::sync::mpsc::channel();
            let (pool, stream) = (&pool, &stream);
            scope.spawn(move || {
                cache_small(pool, stream, 2, 4096);
                // A pair that is repeated keeps its block.
                for _ in 0..20 {
                    free(pool, stream, pool.alloc(500 * MIB, stream).unwrap());
                }
                cached.send(()).unwrap();
                wait.recv().unwrap();
            });
            is_cached.recv().unwrap();
            assert!(pool.inner().largest_free() <= 524 * MIB, "the large one is cached, too");
            let held = pool.stats().reserved.current;
            // Only fits where the cached block lies.
            free(pool, stream, pool.alloc(990 * MIB, stream).unwrap());
            assert_eq!(pool.stats().reserved.current, held);
            assert!(pool.inner().caches.holds_any(), "the small blocks");
            pool.check().unwrap();
            done.send(()).unwrap();
        });
    }
}
