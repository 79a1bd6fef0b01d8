//! What the caches do under the pool's lock: a request's slow path, between the thread's magazines, the depot and the
//! arena; taking back what threads cache; counting.

use std::sync::atomic::Ordering;

use super::Locked;
use super::caches::Caches;
use super::magazine::{Item, Magazine};
use super::sizes::MagazineIndex;
use super::stream_cache::{Magazines, StreamCaches};
use super::tally::{Tally, sum};
use super::thread::ThreadCache;
use super::thread_index::thread_id;
use crate::extents::{Allocation, Arena, BlockDescriptor, Place};
use crate::order::{Stream, Tick};
use crate::policy::caching::room;
use crate::stats::Stats;

impl Caches {
    /// The calling thread's cache, made if need be; `None` where it can have none.
    fn join_slow(&self, lock: &mut Locked) -> Option<&ThreadCache> {
        let mut mine = self.threads.mine();
        if !mine.is_owned() {
            mine = self.threads.join()?;
        }
        // One of a thread that ended may be its own still.
        if !mine.is_owned() {
            self.add_thread(lock);
            mine.set_owner(thread_id());
        }
        Some(mine)
    }

    /// The calling thread's cache, and what it caches of the stream, both made if need be, and open; `None` where it can have
    /// none. Blocks of streams that are gone go to the arena.
    #[expect(clippy::mut_from_ref, reason = "what `ThreadCache::stream_caches_under_lock` gives")]
    fn open_slow(
        &self,
        lock: &mut Locked,
        stream: &Stream,
        arena: &mut Arena,
    ) -> Option<(&ThreadCache, &mut Magazines)> {
        if stream.timeline().is_marked_at_once() || lock.is_paused {
            return None;
        }
        let cache = self.join_slow(lock)?;
        // SAFETY: the calling thread owns the cache, is not inside, and holds the lock.
        let stream_caches = unsafe { cache.stream_caches_under_lock() };
        let mut magazines = stream_caches.of_or_add(stream.timeline(), &self.totals, arena)?;
        cache.open(self.threads.have_lock_entries().then_some((stream.key(), magazines)));
        // SAFETY: as above; the stream caches own them.
        Some((cache, unsafe { magazines.as_mut() }))
    }

    // ---- a request ---------------------------------------------------------------------------------------

    /// A block of `units` for work on `stream`, from the thread's magazines or the depot; brings more of the
    /// same from there.
    pub(crate) fn restock(
        &self,
        lock: &mut Locked,
        units: u64,
        stream: &Stream,
        arena: &mut Arena,
    ) -> Option<Allocation> {
        let (cache, magazines) = self.open_slow(lock, stream, arena)?;
        let (at, size) = (MagazineIndex::of(units), self.sizes.bytes(units));
        let magazine = magazines.magazine(at);
        self.give_room(magazine, size);
        self.fetch(magazine, &cache.tally, (stream.timeline().id, Tick::MAX), size);
        let place = magazine.place();
        let item = magazine.take_top(|found| found == size)?;
        item.leave(place).then(|| item.out())
    }

    /// Lets a magazine that has no room hold blocks, if it may: large ones in throughput mode only.
    #[inline]
    fn give_room(&self, magazine: &mut Magazine, size: u64) {
        if magazine.has_room() || !self.caches_now(size) {
            return;
        }
        // Relaxed: a setting.
        let room = room(self.sizes.longest_beside(size), self.limit.load(Ordering::Relaxed));
        if room > 0
            && let Some(with_room) = Magazine::with_room(room)
        {
            *magazine = with_room;
        }
    }

    /// Takes a block that the program has just freed, without recorded uses, into the thread's magazines, and makes
    /// room for it. The older half of a full magazine goes to the arena. `false`, and nothing done, where the thread can
    /// have no magazine for it.
    pub(crate) fn put_slow(
        &self,
        lock: &mut Locked,
        descriptor: &BlockDescriptor,
        stream: &Stream,
        arena: &mut Arena,
    ) -> bool {
        let Some((cache, magazines)) = self.open_slow(lock, stream, arena) else { return false };
        let (size, of) = (descriptor.bytes(), stream.timeline().id);
        let at = MagazineIndex::of(self.sizes.exact_units(size));
        let magazine = magazines.magazine(at);
        self.give_room(magazine, size);
        if magazine.is_full() {
            let (place, half) = (magazine.place(), magazine.older_half().len());
            magazine.give_up(half, |item| item.give_back(place, of, &self.totals, arena));
        }
        if magazine.is_full() {
            return false;
        }
        descriptor.make_cached(magazine.place(), stream.timeline().now());
        cache.tally.count_free_outside(descriptor.requested(), size, &self.totals);
        // SAFETY: it is not full.
        unsafe { magazine.push(Item::new(descriptor.ptr(), descriptor)) };
        true
    }

    // ---- taking back -------------------------------------------------------------------------------------

    /// Gives the arena everything that any thread caches, and the depot's. Looks only where something seems to be; while
    /// nothing is cached, everywhere.
    #[cold]
    pub(crate) fn revoke(&self, lock: &mut Locked, arena: &mut Arena) {
        // Threads use the depot while they are inside their own caches, or under the pool's lock. Without any other
        // thread, an empty depot stays empty, and its many locks need not be taken.
        let close = self.depot.held() > 0 || !self.threads.all().all(|cache| self.threads.is_mine(cache));
        if close {
            self.depot.close(|of, item| item.give_back(Place::BETWEEN, of, &self.totals, arena));
        }
        let is_paused = lock.is_paused;
        let may_hold =
            |cache: &ThreadCache| is_paused || self.threads.is_mine(cache) || cache.tally.may_hold();
        self.threads.keep_out(lock, may_hold, || {
            self.threads.kept_out().for_each(|cache| _ = self.drain(cache, arena));
        });
        if close {
            self.depot.open();
        }
    }

    /// Gives back the host memory of all stream caches, which are empty, and of the depot. They are made anew when they are
    /// needed.
    #[cold]
    pub(crate) fn give_back(&self, lock: &mut Locked, arena: &mut Arena) {
        self.threads.keep_out(
            lock,
            |_| true,
            || self.threads.kept_out().for_each(|cache| self.drain(cache, arena).clear()),
        );
        self.depot.give_back();
    }

    /// Empties the magazines of a thread that is kept out; returns its stream caches.
    #[expect(clippy::mut_from_ref, reason = "what `ThreadCache::stream_caches_under_lock` gives")]
    fn drain<'a>(&self, cache: &'a ThreadCache, arena: &mut Arena) -> &'a mut StreamCaches {
        // SAFETY: callers hold the lock, and keep owners out.
        let stream_caches = unsafe { cache.stream_caches_under_lock() };
        stream_caches.drain(self.sizes.first_large(), &self.totals, arena);
        cache.tally.note_emptied();
        stream_caches
    }

    /// Takes back everything, as [`revoke`](Self::revoke) does, and caches nothing until [`resume`](Self::resume): every
    /// request takes the slow path.
    pub(crate) fn pause(&self, lock: &mut Locked, arena: &mut Arena) {
        lock.is_paused = true;
        self.revoke(lock, arena);
    }

    /// Caches again: a thread's cache opens when it next takes the slow path.
    pub(crate) fn resume(&self, lock: &mut Locked) {
        lock.is_paused = false;
    }

    /// Opens the lock entries of every cache, or closes them. While they are closed, the fast path finds nothing. Every
    /// request then takes the slow functions, which can note it. When this returns, no thread is on the fast path any
    /// more.
    #[cold]
    pub(crate) fn set_lock_entries(&self, lock: &mut Locked, open: bool) {
        self.threads.set_lock_entries(lock, open);
        self.threads.keep_out(lock, |_| true, || ());
    }

    /// Takes back what threads that ended cached.
    #[cold]
    pub(crate) fn collect_ended(&self, lock: &mut Locked, arena: &mut Arena) {
        self.threads.collect_ended(lock, |cache| {
            self.totals.remove_thread();
            cache.tally.settle(&self.totals);
            self.drain(cache, arena).clear();
        });
    }

    // ---- counting ----------------------------------------------------------------------------------------

    /// Counts a block that the arena gave to the program, of which it asked for `requested` bytes.
    pub(crate) fn count_alloc(&self, lock: &mut Locked, requested: u64, bytes: u64) {
        self.tally_slow(lock).count_alloc_outside(requested, bytes, &self.totals);
    }

    /// Counts a block that the program freed to the arena.
    pub(crate) fn count_free(&self, lock: &mut Locked, requested: u64, bytes: u64) {
        let tally = self.tally_slow(lock);
        tally.count_free_outside(requested, bytes, &self.totals);
        if std::ptr::eq(tally, &self.others) {
            // Several threads count there, so nobody brings its ceilings down later.
            tally.settle(&self.totals);
        }
    }

    /// The tally that the calling thread may write under the lock.
    fn tally_slow(&self, lock: &mut Locked) -> &Tally {
        if let Some(cache) = self.join_slow(lock) {
            return &cache.tally;
        }
        if self.others.passages() == (0, 0) {
            self.add_thread(lock);
        }
        &self.others
    }

    /// A thread more counts for itself soon.
    fn add_thread(&self, lock: &mut Locked) {
        if self.totals.add_thread() == 2 {
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
        self.threads.keep_out(lock, |_| true, || self.check_kept_out().and_then(recount))
    }

    /// Recounts what caches whose owners are kept out hold: returns the number of blocks in them and the depot.
    fn check_kept_out(&self) -> Result<u64, String> {
        let mut items: Vec<_> = self.depot.items().into_iter().map(|item| (Place::BETWEEN, item)).collect();
        let (counted, held) = (self.depot.held(), items.iter().map(|(_, item)| item.bytes()).sum::<u64>());
        if held != counted {
            return Err(format!("the depot has {held} bytes and counted {counted}"));
        }
        for cache in self.threads.kept_out() {
            let before = items.len();
            // SAFETY: the lock is held (`check`), and owners are kept out.
            items.extend(unsafe { cache.stream_caches_under_lock() }.items());
            if items.len() > before && !cache.tally.may_hold() {
                return Err("a thread caches blocks and looks empty".to_owned());
            }
        }
        if let Some((_, item)) = items.iter().find(|(place, item)| !item.is_in(*place)) {
            return Err(format!("{} is cached, and is {:?}", item.ptr, item.descriptor()));
        }
        let blocks = items.len();
        items.sort_unstable_by_key(|(_, item)| item.ptr);
        items.dedup_by_key(|(_, item)| item.ptr);
        if items.len() == blocks { Ok(blocks as u64) } else { Err("a block is cached twice".to_owned()) }
    }
}
