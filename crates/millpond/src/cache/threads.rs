//! The caches of all threads in one pool: which is whose, and keeping owners out.

use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Locked;
use super::asymmetric_lock::Epoch;
use super::sync::{heavy_barrier, register};
use super::table::{Published, Table};
use super::thread::ThreadCache;
use super::thread_index::{NO_THREAD, ended, find_index, has_ended, near_index, thread_index};
use crate::policy::caching::NEAR_THREADS;
use crate::system::host_memory::try_box;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Threads {
    /// By thread index. A raw pointer owns each, since a `Box` that moves with this struct would claim to be the only one.
    ///
    /// The first one is the sentinel, and so is that of each thread without a cache here: permanently closed, without owner
    /// or magazines. So the fast path needs no null check. Threads that enter it write its epochs, and nothing else.
    caches: [Published<ThreadCache>; NEAR_THREADS],
    /// Those of the threads whose indices follow; null for none.
    far: Table<Published<ThreadCache>>,
    /// Entries of `caches` that may be in use.
    used: AtomicUsize,
    /// Whether the kernel does what asymmetric locks need. Else all of them stay closed.
    pub(super) may_open: bool,
    /// Threads that had ended when their caches were last collected.
    collected: AtomicU64,
}

impl Threads {
    pub(super) fn new() -> Self {
        let sentinel = Box::into_raw(Box::new(ThreadCache::new()));
        Self {
            caches: std::array::from_fn(|_| Published::new(sentinel)),
            far: Table::new(),
            used: AtomicUsize::new(0),
            may_open: register(),
            collected: AtomicU64::new(0),
        }
    }

    /// The calling thread's cache if its index is a near one, or the sentinel. For the fast path.
    #[inline(always)]
    pub(super) fn mine_near(&self) -> &ThreadCache {
        // SAFETY: a near index is below `NEAR_THREADS`.
        let place = unsafe { self.caches.get_unchecked(near_index()) };
        // SAFETY: caches are dropped with the pool only. Another thread with this index may have made it.
        unsafe { &*place.get() }
    }

    /// The calling thread's cache, or the sentinel.
    pub(super) fn mine(&self) -> &ThreadCache {
        let index = thread_index();
        if index < NEAR_THREADS {
            return self.mine_near();
        }
        let far = self.far.get(index).map_or(ptr::null_mut(), Published::get);
        // SAFETY: as in `mine_near`.
        unsafe { far.as_ref() }.unwrap_or_else(|| self.mine_near())
    }

    fn sentinel(&self) -> *mut ThreadCache {
        self.caches[NO_THREAD].get()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ThreadCache> + Clone {
        // Relaxed: an index beyond it has nothing to tell yet.
        let used = self.used.load(Ordering::Relaxed);
        let sentinel = self.sentinel();
        let near = self.caches[..used.min(NEAR_THREADS)].iter();
        let far = self.far.iter().take(used.saturating_sub(NEAR_THREADS));
        let all = near.chain(far).map(Published::get);
        // SAFETY: as in `mine`.
        all.filter(move |cache| *cache != sentinel).filter_map(|cache| unsafe { cache.as_ref() })
    }

    /// The threads that have a cache here.
    #[cfg(test)]
    pub(super) fn owned(&self) -> impl Iterator<Item = &ThreadCache> {
        self.all().filter(|cache| cache.is_owned())
    }

    /// A cache for the calling thread, made if there is none; `None` where it can have none.
    #[cold]
    pub(super) fn join(&self) -> Option<&ThreadCache> {
        let index = find_index()?;
        let place = self.caches.get(index).or_else(|| self.far.get_or_make(index))?;
        let known = place.get();
        if known.is_null() || known == self.sentinel() {
            // Without memory for it, the thread keeps the sentinel.
            let cache = try_box(ThreadCache::new())?;
            place.publish(cache);
            self.used.fetch_max(index + 1, Ordering::Relaxed);
        }
        Some(self.mine())
    }

    // ---- keeping owners out, under the pool's lock ---------------------------------------------------------

    /// Closes these caches to their owners, waits until none is inside, and calls `meanwhile`. Then it opens them, and
    /// others that are closed.
    pub(super) fn keep_out<R>(
        &self,
        lock: &mut Locked,
        is_concerned: impl Fn(&ThreadCache) -> bool,
        meanwhile: impl FnOnce() -> R,
    ) -> R {
        // The calling thread is not inside, and needs no barrier to see its own writes.
        let close =
            |others, cache: &ThreadCache| cache.lock.close() && !ptr::eq(cache, self.mine()) || others;
        if self.all().filter(|cache| is_concerned(cache)).fold(false, close) {
            heavy_barrier();
            self.kept_out().flat_map(|cache| cache.tally.epochs()).for_each(Epoch::wait_until_left);
        }
        let result = meanwhile();
        for cache in self.kept_out().filter(|_| self.may_open && !lock.is_paused) {
            // SAFETY: the lock is held, and owners are kept out until here.
            let entries = unsafe { cache.stream_caches_under_lock() }.all();
            cache.open(entries.filter(|_| !lock.entries_are_closed));
        }
        result
    }

    /// The caches whose owners are kept out.
    pub(super) fn kept_out(&self) -> impl Iterator<Item = &ThreadCache> {
        self.all().filter(|cache| cache.is_kept_out())
    }

    /// Keeps the owners out that threads which ended have left, or that have their indices now, and calls `each` with the caches. They
    /// have no owner then. (Another thread may have got the index, in another pool, and be inside: until now the cache is its own.)
    pub(super) fn collect_ended(&self, lock: &mut Locked, mut each: impl FnMut(&ThreadCache)) {
        let has_ended = |cache: &ThreadCache| cache.is_owned() && has_ended(cache.owner());
        // Before the look: who ends meanwhile is seen another time.
        self.collected.store(ended(), Ordering::Relaxed);
        self.keep_out(lock, has_ended, || {
            for cache in self.kept_out().filter(|cache| has_ended(cache)) {
                each(cache);
                cache.set_owner(0);
            }
        });
    }

    /// Whether threads ended whose caches were not collected. A glance.
    #[inline]
    pub(super) fn any_ended(&self) -> bool {
        // Relaxed: written under the lock; for others a glance.
        ended() != self.collected.load(Ordering::Relaxed)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let sentinel = self.sentinel();
        let all = self.caches.iter().chain(self.far.iter()).map(Published::get);
        for cache in all.filter(|cache| *cache != sentinel && !cache.is_null()).chain([sentinel]) {
            // SAFETY: the cache came from a box (`new`, `join`). The pool is going, so no thread is inside.
            drop(unsafe { Box::from_raw(cache) });
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::{Arc, Barrier, mpsc};
    use std::thread::Builder;
    use std::time::Duration;

    use super::*;
    use crate::fixtures::{Bench, Freeing, alone};

    #[test]
    fn a_thread_beside_many_pairs_without_the_pools_lock() {
        // Other tests expect near indices.
        let name = "cache::threads::tests::a_thread_beside_many_pairs_without_the_pools_lock";
        alone(name, pair_beside_many);
    }

    fn pair_beside_many() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let (ready, end) =
            (Arc::new(Barrier::new(NEAR_THREADS + 1)), Arc::new(Barrier::new(NEAR_THREADS + 1)));
        let idle = |_| {
            let (ready, end) = (ready.clone(), end.clone());
            let stay = move || {
                find_index().unwrap();
                ready.wait();
                end.wait();
            };
            Builder::new().stack_size(64 << 10).spawn(stay).unwrap()
        };
        let threads: Vec<_> = (0..NEAR_THREADS).map(idle).collect();
        ready.wait();
        let (done, is_done) = mpsc::channel();
        std::thread::scope(|scope| {
            let pair = || {
                let block = pool.alloc(4096, &stream).unwrap();
                pool.free_block(block, &stream).unwrap();
            };
            let (go, may_go) = mpsc::channel();
            scope.spawn(move || {
                pair();
                assert!(thread_index() >= NEAR_THREADS);
                done.send(()).unwrap();
                may_go.recv().unwrap();
                (0..100).for_each(|_| pair());
                done.send(()).unwrap();
            });
            is_done.recv().unwrap();
            let held = pool.inner().state.lock();
            go.send(()).unwrap();
            let paired = is_done.recv_timeout(Duration::from_secs(60));
            drop(held);
            paired.expect("the pairs did not wait for the lock");
        });
        end.wait();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        pool.check().unwrap();
        pool.trim_to(0).unwrap();
        assert_eq!(pool.reserved().current, 0);
    }
}
