//! The caches of all threads in one pool: which is whose, and keeping owners out.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::Locked;
use super::asymmetric_lock::Epoch;
use super::sync::{heavy_barrier, register};
use super::thread::ThreadCache;
use super::thread_index::{NO_THREAD, ended, find_index, has_ended, thread_index};
use crate::host::try_box;
use crate::policy::caching::MOST_THREADS;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Threads {
    /// By thread index. A raw pointer owns each, since a `Box` that moves with this struct would claim to be the only one.
    ///
    /// The first one is the sentinel, and so is that of each thread without a cache here: permanently closed, without owner
    /// or magazines. So the fast path needs no null check. Threads that enter it write its epochs, and nothing else.
    caches: [AtomicPtr<ThreadCache>; MOST_THREADS + 1],
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
            caches: std::array::from_fn(|_| AtomicPtr::new(sentinel)),
            used: AtomicUsize::new(0),
            may_open: register(),
            collected: AtomicU64::new(0),
        }
    }

    /// The calling thread's cache, or the sentinel.
    #[inline(always)]
    pub(super) fn mine(&self) -> &ThreadCache {
        // SAFETY: an index is at most `MOST_THREADS`.
        let place = unsafe { self.caches.get_unchecked(thread_index()) };
        // Acquire: pairs with the Release in `join`; another thread with this index may have made it.
        // SAFETY: caches are dropped with the pool only.
        unsafe { &*place.load(Ordering::Acquire) }
    }

    fn sentinel(&self) -> *mut ThreadCache {
        // Relaxed: never written.
        self.caches[NO_THREAD].load(Ordering::Relaxed)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ThreadCache> + Clone {
        // Relaxed: an index beyond it has nothing to tell yet.
        let used = self.used.load(Ordering::Relaxed);
        let sentinel = self.sentinel();
        // Acquire: as in `mine`.
        let all = self.caches[..used].iter().map(|place| place.load(Ordering::Acquire));
        // SAFETY: as in `mine`.
        all.filter(move |cache| *cache != sentinel).map(|cache| unsafe { &*cache })
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
        let place = &self.caches[index];
        // Relaxed: written under the lock.
        if place.load(Ordering::Relaxed) == self.sentinel() {
            // Without memory for it, the thread keeps the sentinel.
            let cache = try_box(ThreadCache::new())?;
            // Release: see `mine`.
            place.store(cache.as_ptr(), Ordering::Release);
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
        let all = self.caches.iter_mut().map(|place| *place.get_mut());
        for cache in all.filter(|cache| *cache != sentinel).chain([sentinel]) {
            // SAFETY: the cache came from a box (`new`, `join`). The pool is going, so no thread is inside.
            drop(unsafe { Box::from_raw(cache) });
        }
    }
}
