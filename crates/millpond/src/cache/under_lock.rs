//! What the caches do under the pool's lock: opening what a thread caches; taking back what threads cache; counting.

use std::sync::atomic::Ordering;

use super::Locked;
use super::asymmetric_lock::Epoch;
use super::caches::Caches;
use super::stream_cache::StreamCaches;
use super::tally::{Tally, sum};
use super::thread::ThreadCache;
use super::thread_index::thread_id;
use crate::extents::{Arena, Place};
use crate::figures::stats::Stats;
use crate::order::Stream;

impl Caches {
    /// The calling thread's cache, made if need be; `None` where it can have none.
    fn join_slow(&self, lock: &mut Locked) -> Option<&ThreadCache> {
        let mine = self.threads.join()?;
        // One of a thread that ended may be its own still.
        if !mine.is_owned() {
            self.add_thread(lock);
            mine.set_owner(thread_id());
        }
        Some(mine)
    }

    /// Opens what the calling thread caches of the stream, which is made if need be; `false` where it can have no cache, or blocks of so
    /// many bytes are not cached now. Blocks of streams that are gone go to the arena.
    pub(crate) fn open(&self, lock: &mut Locked, bytes: u64, stream: &Stream, arena: &mut Arena) -> bool {
        stream.timeline().mark_if_wanted();
        let may_be_cached = stream.timeline().may_be_marked_here();
        if !self.caches_now(bytes) || !may_be_cached || lock.is_paused || !self.threads.may_open {
            return false;
        }
        let Some(cache) = self.join_slow(lock) else { return false };
        // SAFETY: the calling thread owns the cache, is not inside, and holds the lock.
        let stream_caches = unsafe { cache.stream_caches_under_lock() };
        let magazines = stream_caches.of_or_add(stream, &self.totals, arena);
        let entry = magazines.filter(|_| !lock.entries_are_closed);
        cache.open(entry.map(|magazines| (stream.key(), magazines)));
        magazines.is_some()
    }

    // ---- taking back -------------------------------------------------------------------------------------

    /// Gives the arena everything that any thread caches, and the depot's. Looks only where something seems to be, or `everywhere`, and
    /// then also gives back the host memory of all stream caches. They are made anew when they are needed.
    #[cold]
    pub(crate) fn revoke(&self, lock: &mut Locked, arena: &mut Arena, everywhere: bool) {
        // Threads use the depot while they are inside their own caches, or under the pool's lock.
        self.depot.close(|of, item| item.give_back(Place::BETWEEN, of, &self.totals, arena));
        let may_hold = |cache: &ThreadCache| everywhere || cache.tally.may_hold();
        self.threads.keep_out(lock, may_hold, || {
            for cache in self.threads.kept_out() {
                let stream_caches = self.drain(cache, arena);
                if everywhere {
                    stream_caches.clear();
                }
            }
        });
        self.depot.open();
    }

    /// Empties the magazines of a thread that is kept out; returns its stream caches.
    #[expect(clippy::mut_from_ref, reason = "what `ThreadCache::stream_caches_under_lock` gives")]
    fn drain<'a>(&self, cache: &'a ThreadCache, arena: &mut Arena) -> &'a mut StreamCaches {
        // SAFETY: callers hold the lock, and keep owners out.
        let stream_caches = unsafe { cache.stream_caches_under_lock() };
        stream_caches.drain(&self.totals, arena);
        cache.tally.note_emptied();
        stream_caches
    }

    /// Takes back everything, as [`revoke`](Self::revoke) does, and caches nothing until [`resume`](Self::resume): every
    /// request takes the slow path.
    pub(crate) fn pause(&self, lock: &mut Locked, arena: &mut Arena) {
        lock.is_paused = true;
        self.revoke(lock, arena, true);
    }

    /// Caches again: a thread's cache opens when it next takes the slow path.
    pub(crate) fn resume(&self, lock: &mut Locked) {
        lock.is_paused = false;
    }

    /// Closes the lock entries of every cache, or opens them. While they are closed, the fast path finds nothing. Every
    /// request then takes the slow functions, which can note it. When this returns, no thread is on the fast path any
    /// more.
    #[cold]
    pub(crate) fn close_entries(&self, lock: &mut Locked, are_closed: bool) {
        lock.entries_are_closed = are_closed;
        self.threads.keep_out(lock, |_| true, || ());
    }

    /// Takes back what threads that ended cached.
    #[cold]
    pub(crate) fn collect_ended(&self, lock: &mut Locked, arena: &mut Arena) {
        self.threads.collect_ended(lock, |cache| {
            self.totals.threads.fetch_sub(1, Ordering::Relaxed);
            cache.tally.settle(&self.totals);
            self.drain(cache, arena).clear();
        });
    }

    // ---- counting ----------------------------------------------------------------------------------------

    /// Counts a block that the arena gave to the program, of which it asked for `requested` bytes.
    pub(crate) fn count_alloc(&self, lock: &mut Locked, requested: u64, bytes: u64) {
        self.count(lock, |tally| &tally.to_alloc, [requested as i64, bytes as i64]);
    }

    /// Counts a block that the program freed to the arena.
    pub(crate) fn count_free(&self, lock: &mut Locked, requested: u64, bytes: u64) {
        self.count(lock, |tally| &tally.to_free, [-(requested as i64), -(bytes as i64)]);
    }

    /// In the tally that the calling thread may write under the lock.
    fn count(&self, lock: &mut Locked, epoch: fn(&Tally) -> &Epoch, bytes: [i64; 2]) {
        if let Some(cache) = self.join_slow(lock) {
            return cache.tally.count_outside(epoch, bytes, &self.totals);
        }
        if self.others.passages() == (0, 0) {
            self.add_thread(lock);
        }
        self.others.count_outside(epoch, bytes, &self.totals);
        // Several threads count there, so nobody brings its ceilings down later.
        self.others.settle(&self.totals);
    }

    /// A thread more counts for itself soon.
    fn add_thread(&self, lock: &mut Locked) {
        if self.totals.threads.fetch_add(1, Ordering::Relaxed) == 1 {
            // Until now the other one had no need to lower its ceilings.
            self.settle_and(lock, || ());
        }
        self.threads.all().for_each(|cache| cache.tally.forget_slack());
    }

    /// The high-water marks start again from now.
    pub(crate) fn reset_high_water(&self, lock: &mut Locked) {
        self.settle_and(lock, || self.totals.reset());
    }

    /// Brings all ceilings down to where the figures are, and calls `and` before any can rise again.
    fn settle_and(&self, lock: &mut Locked, and: impl FnOnce()) {
        self.threads.keep_out(lock, ThreadCache::is_owned, || {
            self.threads.kept_out().for_each(|cache| cache.tally.settle(&self.totals));
            and();
        });
    }

    /// What all threads counted.
    pub(crate) fn counted(&self) -> Stats {
        let tallies = self.threads.all().map(|cache| &cache.tally).chain([&self.others]);
        sum(tallies, &self.totals)
    }

    // ---- recounting --------------------------------------------------------------------------------------

    /// Recounts what the caches hold, and calls `recount` with the number of blocks in them while every owner is
    /// kept out.
    pub(crate) fn check(
        &self,
        lock: &mut Locked,
        recount: impl FnOnce(u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let every = |_: &ThreadCache| true;
        self.threads.keep_out(lock, every, || {
            let in_depot = self.depot.items().into_iter().map(|item| (Place::BETWEEN, item));
            let mut items: Vec<_> = in_depot.collect();
            let (counted, held) =
                (self.depot.held(), items.iter().map(|(_, item)| item.bytes()).sum::<u64>());
            if held != counted {
                return Err(format!("the depot has {held} bytes and counted {counted}"));
            }
            for cache in self.threads.kept_out() {
                let before = items.len();
                // SAFETY: the lock is held, and owners are kept out.
                items.extend(unsafe { cache.stream_caches_under_lock() }.items());
                if items.len() > before && !cache.tally.may_hold() {
                    return Err("a thread caches blocks and looks empty".to_owned());
                }
            }
            match items.iter().find(|(place, item)| !item.is_in(*place)) {
                Some((_, item)) => Err(format!("{} is cached, and is {:?}", item.ptr, item.descriptor())),
                None => recount(items.len() as u64),
            }
        })
    }
}
