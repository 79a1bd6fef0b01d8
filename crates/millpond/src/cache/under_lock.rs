//! What the caches do under the pool's lock: opening what a thread caches; taking back what threads cache; counting.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::Locked;
use super::asymmetric_lock::Epoch;
use super::caches::Caches;
use super::sizes::MagazineIndex;
use super::stream_cache::{Magazines, StreamCaches};
use super::tally::{Tally, sum};
use super::thread::ThreadCache;
use super::thread_index::thread_id;
use crate::extents::{Arena, BlockDescriptor, Place};
use crate::figures::stats::Stats;
use crate::order::Stream;
use crate::policy::caching::may_keep;

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
        self.caches_now(bytes) && self.open_stream(lock, stream, arena).is_some()
    }

    fn open_stream(
        &self,
        lock: &mut Locked,
        stream: &Stream,
        arena: &mut Arena,
    ) -> Option<(&ThreadCache, NonNull<Magazines>)> {
        if !stream.timeline().may_be_marked_here() || lock.is_paused || !self.threads.may_open {
            return None;
        }
        let cache = self.join_slow(lock)?;
        // SAFETY: the calling thread owns the cache, is not inside, and holds the lock.
        let stream_caches = unsafe { cache.stream_caches_under_lock() };
        let magazines = stream_caches.of_or_add(stream, &self.totals, arena);
        let entry = magazines.filter(|_| !lock.entries_are_closed);
        cache.open(entry.map(|magazines| (stream.key(), magazines)));
        Some((cache, magazines?))
    }

    // ---- one large block, outside of throughput mode -----------------------------------------------------
    //
    // A thread that asks for what it just freed keeps that block the next time, for the next request of that length. It gives the block
    // to the arena before it looks there for another large one, and before it frees another there. It keeps none where the next request
    // of that length would get memory elsewhere. So a thread alone gets what it would get without. What others keep is taken back before
    // anything is mapped, moved or created.

    /// As [`open`](Self::open), for a block that the thread is about to free. A large one that is not cached now may have room then,
    /// too: it is the one that the thread keeps.
    pub(crate) fn open_to_free(
        &self,
        lock: &mut Locked,
        descriptor: &BlockDescriptor,
        stream: &Stream,
        arena: &mut Arena,
    ) -> bool {
        let bytes = descriptor.bytes();
        let is_repeated = self.stream_caches_for_large(lock, bytes).is_some_and(|mine| {
            mine.give_up_kept(&self.totals, arena);
            mine.note_freed(bytes)
        });
        if self.caches_now(bytes) {
            return self.open(lock, bytes, stream, arena);
        }
        stream.timeline().mark_if_wanted();
        if !is_repeated || !may_keep(bytes) || !arena.is_best_fit(descriptor.id()) {
            return false;
        }
        let Some((cache, magazines)) = self.open_stream(lock, stream, arena) else { return false };
        // SAFETY: the class is an allocated block's.
        let index = unsafe { MagazineIndex::of_class(descriptor.class()) };
        // SAFETY: the calling thread owns the cache, is not inside, and holds the lock.
        let stream_caches = unsafe { cache.stream_caches_under_lock() };
        stream_caches.make_room_to_keep(stream.key(), magazines, index)
    }

    /// Gives the arena the large block that the calling thread keeps: a request for so many bytes may fit there, if it is large, too.
    pub(crate) fn give_up_kept(&self, lock: &mut Locked, bytes: u64, arena: &mut Arena) {
        if let Some(mine) = self.stream_caches_for_large(lock, bytes) {
            mine.give_up_kept(&self.totals, arena);
            mine.note_requested(self.sizes.bytes(self.sizes.exact_units(bytes)));
        }
    }

    /// What the calling thread caches, where so many bytes are large.
    fn stream_caches_for_large<'a>(&'a self, _: &'a mut Locked, bytes: u64) -> Option<&'a mut StreamCaches> {
        if self.sizes.is_rounded(bytes) {
            return None;
        }
        // SAFETY: the cache is this thread's (`alloc`), which is not inside. Or it is the sentinel, which has no owner. The lock is held.
        Some(unsafe { self.threads.mine().stream_caches_under_lock() })
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
