//! Taking back what threads cache, and recounting it, while their owners are kept out. All under the pool's lock.

use std::sync::atomic::Ordering;

use super::Locked;
use super::caches::{Cached, Caches};
use super::magazine::Item;
use super::stream_cache::StreamCaches;
use super::sync::heavy_barrier;
use super::thread::ThreadCache;
use crate::extents::Place;
use crate::order::TimelineId;

impl Caches {
    /// Takes back everything that any thread caches, and the depot: gives it to `each`.
    #[cold]
    pub(crate) fn revoke(&self, lock: &mut Locked, each: impl FnMut(Cached)) {
        self.revoke_and(lock, each, |_| ());
    }

    /// As [`revoke`](Self::revoke), and gives back host memory that the caches do not need at rest. Those are the
    /// caches of streams that are gone, and all but the records of the others.
    #[cold]
    pub(crate) fn give_back(
        &self,
        lock: &mut Locked,
        is_gone: impl Fn(TimelineId) -> bool,
        each: impl FnMut(Cached),
    ) {
        // Also those that look empty.
        self.all().for_each(|cache| cache.tally.note_filled());
        self.revoke_and(lock, each, |stream_caches| stream_caches.give_back(&is_gone));
        self.depot.give_back();
    }

    /// Takes back everything, and calls `and` with the stream caches of each cache that had something.
    fn revoke_and(
        &self,
        lock: &mut Locked,
        mut each: impl FnMut(Cached),
        mut and: impl FnMut(&mut StreamCaches),
    ) {
        let closed = self.close_depot(&mut each);
        self.for_all(lock, |cache, stream_caches| {
            self.drain(stream_caches, &mut each);
            and(stream_caches);
            cache.note_granted(stream_caches);
            cache.tally.note_emptied();
        });
        if closed {
            self.depot.open();
        }
    }

    /// Whether there may be large blocks in any magazine, or in the depot.
    pub(crate) fn may_hold_large(&self, _lock: &Locked) -> bool {
        // No magazine gets room but under the lock.
        let mut some = self.all().filter(|cache| cache.granted_large() > 0);
        some.any(|cache| cache.tally.may_hold()) || self.depot.held_large() > 0
    }

    /// Empties the depot, if it must be; returns whether it has to be opened again.
    fn close_depot(&self, each: &mut impl FnMut(Cached)) -> bool {
        // Threads use the depot while they are inside their own caches, or under the pool's lock. Without any other
        // thread, an empty depot stays empty, and its many locks need not be taken.
        let must_close = self.depot.held() > 0 || !self.all().all(|cache| self.is_mine(cache));
        if must_close {
            self.depot.close(|of, item| {
                self.strays.sort_out(item, Place::BETWEEN, |item| each(Cached { item, of }));
            });
        }
        must_close
    }

    /// Empties the magazines.
    pub(super) fn drain(&self, stream_caches: &mut StreamCaches, each: &mut impl FnMut(Cached)) {
        stream_caches.drain(|size| self.sizes.is_large(size), |of, item| each(Cached { item, of }));
    }

    /// Takes back everything, as [`revoke`](Self::revoke) does, and caches nothing from now on.
    pub(crate) fn shut(&self, lock: &mut Locked, each: impl FnMut(Cached)) {
        // Relaxed: under the lock.
        self.is_shut.store(true, Ordering::Relaxed);
        self.close_all(lock, each);
    }

    /// As [`shut`](Self::shut), until [`resume`](Self::resume): every request takes the slow path.
    pub(crate) fn pause(&self, lock: &mut Locked, each: impl FnMut(Cached)) {
        // Relaxed: under the lock.
        self.is_paused.store(true, Ordering::Relaxed);
        self.close_all(lock, each);
    }

    /// Caches again: a thread's cache opens when it next takes the slow path.
    pub(crate) fn resume(&self, _lock: &mut Locked) {
        // Relaxed: under the lock.
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// Opens the lock entries of every cache, or closes them. While they are closed, the fast path finds nothing. Every
    /// request then takes the slow functions, which can note it. When this returns, no thread is on the fast path any
    /// more.
    #[cold]
    pub(crate) fn set_lock_entries(&self, _lock: &mut Locked, open: bool) {
        // Relaxed: for owners it is a hint; what counts is written under the lock.
        self.has_lock_entries.store(open, Ordering::Relaxed);
        self.keep_out(|_| true);
        self.let_in();
    }

    /// Whether threads enter by lock entries.
    pub(crate) fn has_lock_entries(&self) -> bool {
        self.has_lock_entries.load(Ordering::Relaxed)
    }

    /// Whether no cache may be opened. Under the lock.
    pub(super) fn is_closed(&self) -> bool {
        self.is_shut.load(Ordering::Relaxed) || self.is_paused.load(Ordering::Relaxed)
    }

    fn close_all(&self, lock: &mut Locked, each: impl FnMut(Cached)) {
        // Also those that look empty: they stay closed.
        self.all().for_each(|cache| cache.tally.note_filled());
        self.revoke(lock, each);
    }

    /// Calls `each` with every cache that may have something in it, while all their owners are kept out.
    fn for_all(&self, _lock: &mut Locked, mut each: impl FnMut(&ThreadCache, &mut StreamCaches)) {
        self.keep_out(|cache| self.is_mine(cache) || cache.tally.may_hold());
        for cache in self.kept_out() {
            // SAFETY: the lock is held (`lock`), and owners are kept out.
            let stream_caches = unsafe { cache.stream_caches_under_lock() };
            each(cache, stream_caches);
        }
        // While they are closed, others count in one place for all (`pause`).
        self.kept_out().for_each(|cache| cache.tally.settle());
        self.let_in();
    }

    /// Whether the cache is the calling thread's own.
    pub(super) fn is_mine(&self, cache: &ThreadCache) -> bool {
        std::ptr::eq(cache, self.mine())
    }

    /// Closes these caches to their owners, and waits until none is inside. Under the lock.
    pub(super) fn keep_out(&self, is_concerned: impl Fn(&ThreadCache) -> bool) {
        self.all().filter(|cache| is_concerned(cache)).for_each(ThreadCache::close);
        self.wait_for_kept_out();
    }

    /// Waits until no owner is inside a cache that was closed.
    fn wait_for_kept_out(&self) {
        // The calling thread is not inside, and needs no barrier to see its own writes.
        if self.kept_out().any(|cache| !self.is_mine(cache)) {
            heavy_barrier();
            self.kept_out().for_each(ThreadCache::wait_until_left);
        }
    }

    /// The caches whose owners are kept out.
    pub(super) fn kept_out(&self) -> impl Iterator<Item = &ThreadCache> {
        self.all().filter(|cache| cache.is_kept_out())
    }

    /// Opens the caches that [`keep_out`](Self::keep_out) closed; those without an owner stay closed.
    pub(super) fn let_in(&self) {
        for cache in self.kept_out() {
            cache.let_in();
            if cache.is_owned() && !self.is_closed() {
                // SAFETY: the lock is held, and owners are kept out until here.
                cache.open_all(unsafe { cache.stream_caches_under_lock() }, self.has_lock_entries());
            }
        }
    }

    /// Whether anything may be cached. A glance.
    pub(crate) fn holds_any(&self) -> bool {
        self.depot.held() > 0 || self.all().any(|cache| cache.tally.may_hold())
    }

    /// Whether threads ended whose caches were not collected. A glance.
    #[inline]
    pub(crate) fn any_ended(&self) -> bool {
        self.ended.any()
    }

    /// Takes back what threads that ended cached.
    #[cold]
    pub(crate) fn collect_ended(&self, lock: &mut Locked, mut each: impl FnMut(Cached)) {
        self.ended.take(|index| {
            // Relaxed: under the lock, where it was written.
            let cache = self.threads[index].load(Ordering::Relaxed);
            // Where the host had no memory for a cache, there is the sentinel, which is all pools'.
            if cache != self.sentinel() {
                // SAFETY: as in `mine`.
                unsafe { &*cache }.close();
            }
        });
        // Another thread may have got the index, in another pool, and be inside: until now the cache is its own.
        self.wait_for_kept_out();
        for cache in self.kept_out() {
            if cache.is_owned() {
                self.note_no_owner(lock, cache);
            }
            cache.disown();
            // SAFETY: the lock is held (`lock`), and owners are kept out.
            let stream_caches = unsafe { cache.stream_caches_under_lock() };
            self.drain(stream_caches, &mut each);
            stream_caches.clear();
            cache.note_granted(stream_caches);
            cache.tally.note_emptied();
            cache.let_in();
        }
    }

    /// Recounts what the caches hold, and calls `recount` with the number of blocks in them while every owner is
    /// kept out.
    pub(crate) fn check(
        &self,
        lock: &mut Locked,
        recount: impl FnOnce(u64) -> Result<(), String>,
    ) -> Result<(), String> {
        self.keep_out(|_| true);
        let result = self.check_kept_out(lock).and_then(recount);
        self.let_in();
        result
    }

    /// Recounts what caches whose owners are kept out hold: returns the number of blocks in them and the depot.
    fn check_kept_out(&self, _lock: &mut Locked) -> Result<u64, String> {
        let bytes = |items: &[Item]| items.iter().map(Item::bytes).sum::<u64>();
        let mut items = self.depot.items();
        let mut misplaced = items.iter().find(|item| !item.is_in(Place::BETWEEN)).copied();
        let held = self.depot.held();
        if bytes(&items) != held {
            return Err(format!("the depot has {} bytes and counted {held}", bytes(&items)));
        }
        for cache in self.kept_out() {
            // SAFETY: the lock is held (`lock`), and owners are kept out.
            let stream_caches = unsafe { cache.stream_caches_under_lock() };
            let held: Vec<_> = stream_caches.iter().map(|(_, item)| *item).collect();
            let stray = stream_caches.iter().find(|(place, item)| !item.is_in(*place));
            misplaced = misplaced.or(stray.map(|(_, item)| *item));
            if bytes(&held) > stream_caches.granted() {
                return Err(format!(
                    "a thread caches {}, more than {}",
                    bytes(&held),
                    stream_caches.granted()
                ));
            }
            if stream_caches.granted_large() != cache.granted_large() {
                return Err("what a thread may cache was not noted".to_owned());
            }
            if !held.is_empty() && !cache.tally.may_hold() {
                return Err("a thread caches blocks and looks empty".to_owned());
            }
            items.extend(held);
        }
        if let Some(item) = misplaced {
            return Err(format!("{} is cached, and is {:?}", item.ptr, item.descriptor()));
        }
        let blocks = items.len();
        items.sort_unstable_by_key(|item| item.ptr);
        items.dedup_by_key(|item| item.ptr);
        if items.len() == blocks { Ok(blocks as u64) } else { Err("a block is cached twice".to_owned()) }
    }
}
