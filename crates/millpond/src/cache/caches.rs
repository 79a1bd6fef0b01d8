//! The caches of all threads in one pool, and what uses them without the pool's lock.

use std::hint::cold_path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::asymmetric_lock::Passage;
use super::depot::Depot;
use super::magazine::{Item, Magazine};
use super::sizes::{MagazineIndex, Sizes};
use super::stream_cache::Magazines;
use super::tally::Tally;
use super::thread::ThreadCache;
use super::threads::Threads;
use super::totals::Totals;
use crate::device::DevicePtr;
use crate::extents::{PageMap, Place, Plain};
use crate::order::{Stream, StreamKey, Tick, Timeline, TimelineId};
use crate::policy::caching::{may_keep, room};
use crate::policy::size_classes::is_rounded_in_throughput_mode;

/// See the [module](super).
#[derive(Debug)]
pub(crate) struct Caches {
    pub(super) threads: Threads,
    pub(crate) page_map: Arc<PageMap>,
    pub(super) sizes: Sizes,
    pub(super) depot: Depot,
    /// What threads without a cache count. Written under the pool's lock.
    pub(super) others: Tally,
    pub(super) totals: Totals,
    /// A large block in a magazine serves requests that are shorter by less than this, in bytes: any of its magazine in throughput mode,
    /// else those of its exact length. Written under the pool's lock.
    slack_of_large: AtomicU64,
}

impl Caches {
    pub(crate) fn new(page_map: Arc<PageMap>, sizes: Sizes) -> Self {
        Self {
            slack_of_large: AtomicU64::new(sizes.bytes(1)),
            threads: Threads::new(),
            page_map,
            sizes,
            depot: Depot::default(),
            others: Tally::default(),
            totals: Totals::default(),
        }
    }

    // ---- the fast path ---------------------------------------------------------------------------

    /// A block for work on `stream` from the calling thread's magazines, if the first look finds one that fits.
    #[inline(always)]
    pub(crate) fn alloc(&self, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
        // SAFETY: the cache under a thread's index is that thread's own, or a thread that ended left it
        // (`Threads::collect_ended`). Else its asymmetric lock is closed until it is (`join_slow`).
        unsafe { self.get(self.threads.mine_near(), bytes, stream.key()) }
    }

    /// # Safety
    /// `mine` is the calling thread's cache here, or the sentinel.
    // Always inlined: a call would have its caller keep in registers what only the slow path needs.
    #[inline(always)]
    pub(super) unsafe fn get(&self, mine: &ThreadCache, bytes: u64, stream: StreamKey) -> Option<DevicePtr> {
        if self.sizes.is_rounded(bytes) {
            // SAFETY: just asked.
            let index = unsafe { self.sizes.magazine_for_rounded(bytes) };
            // SAFETY: the caller's promise.
            return unsafe { Self::get_from(mine, (index, stream), bytes, |_| true) };
        }
        if !is_rounded_in_throughput_mode(bytes) {
            return None;
        }
        // SAFETY: just asked.
        let index = unsafe { self.sizes.magazine_for_large(bytes) };
        // SAFETY: the caller's promise.
        unsafe { Self::get_from(mine, (index, stream), bytes, |item| self.large_fits(item.bytes(), bytes)) }
    }

    /// # Safety
    /// As for [`get`](Self::get).
    #[inline(always)]
    unsafe fn get_from(
        mine: &ThreadCache,
        (index, stream): (MagazineIndex, StreamKey),
        bytes: u64,
        fits: impl Fn(&Item) -> bool,
    ) -> Option<DevicePtr> {
        // SAFETY: the caller's promise; the sentinel is closed. All that return here leave.
        let (magazines, passage) = unsafe { mine.enter::<false>(|tally| &tally.to_alloc, stream) }?;
        let magazine = magazines.magazine(index);
        let item = *magazine.top();
        // Also where it is empty.
        if !fits(&item) || !item.is_in(magazine.place()) || !mine.tally.rise(bytes, item.bytes()) {
            cold_path();
            return None;
        }
        // SAFETY: just seen.
        unsafe { magazine.drop_top() };
        Some(Self::hand_out(item, bytes, passage))
    }

    /// Hands out a block that was just taken from a magazine, and for which the tally [rose](Tally::rise), for a
    /// request of so many bytes. Leaves the cache. From then on the magazine is anybody's: as an argument here it would
    /// have to be this thread's until the end.
    #[inline(always)]
    pub(super) fn hand_out(item: Item, requested: u64, passage: Passage<'_>) -> DevicePtr {
        item.descriptor().make_live(item.ptr, requested);
        passage.complete();
        item.ptr
    }

    // ---- without the pool's lock: the depot's only --------------------------------------------------------

    /// As [`alloc`](Self::alloc), also where lock entries are closed, or the tally has to rise above a ceiling. Looks into the
    /// depot, too: for what this stream freed, or for what was [`seen`](Self::find_of_other_stream) of another, after which the
    /// stream is ordered now.
    #[cold]
    pub(crate) fn alloc_searching(
        &self,
        bytes: u64,
        stream: &Stream,
        seen: Option<(TimelineId, Tick)>,
    ) -> Option<DevicePtr> {
        let is_cached = self.caches_now(bytes);
        if !is_cached && !may_keep(bytes) {
            return None;
        }
        let mine = self.threads.mine();
        // SAFETY: the cache is this thread's (`alloc`). All that return here leave.
        let (magazines, passage) = unsafe { mine.enter::<true>(|tally| &tally.to_alloc, stream.key()) }?;
        let (index, size) = self.class_of(bytes);
        let magazine = magazines.magazine(index);
        if magazine.is_empty() && self.depot.held() == 0 && !self.in_throughput_mode() {
            // Nearly always: there is nowhere to look.
            return None;
        }
        let place = magazine.place();
        while !magazine.is_empty() && !magazine.top().is_in(place) {
            magazine.top().note_stray(&self.totals);
            // SAFETY: there is one on top.
            unsafe { magazine.drop_top() };
        }
        let fits =
            |size| if self.sizes.is_rounded(bytes) { size >= bytes } else { self.large_fits(size, bytes) };
        let mut found = magazine.take_top(fits);
        if found.is_none() && is_cached {
            // SAFETY: inside of the cache, as entered.
            unsafe { mine.list(stream.key(), magazines) };
            let magazine = magazines.magazine(index);
            self.give_room(magazine, size);
            self.fetch(magazine, &mine.tally, size, (stream.timeline(), seen));
            found = magazine.take_top(fits);
        }
        if found.is_none() && seen.is_none() && self.in_throughput_mode() {
            found = magazines.borrow(index);
        }
        let item = found?;
        mine.tally.count([bytes as i64, item.bytes() as i64], 1, &self.totals);
        Some(Self::hand_out(item, bytes, passage))
    }

    /// Whether blocks of so many bytes are cached now: large ones in throughput mode only.
    pub(super) fn caches_now(&self, bytes: u64) -> bool {
        self.sizes.is_rounded(bytes) || self.caches_large(bytes)
    }

    #[inline]
    fn caches_large(&self, bytes: u64) -> bool {
        is_rounded_in_throughput_mode(bytes) && self.in_throughput_mode()
    }

    /// Whether a block of the magazine for so many bytes, which are not rounded, serves the request.
    #[inline]
    fn large_fits(&self, size: u64, bytes: u64) -> bool {
        // Relaxed: a setting. A shorter block wraps around.
        size.wrapping_sub(bytes) < self.slack_of_large.load(Ordering::Relaxed)
    }

    /// The magazine for requests of so many bytes, which are [cached](Self::caches_now), and how long their blocks are.
    fn class_of(&self, bytes: u64) -> (MagazineIndex, u64) {
        let units = self.sizes.units_in_throughput_mode(bytes);
        (MagazineIndex::of(units), self.sizes.bytes(units))
    }

    // ---- what other streams freed: in throughput mode, from the depot ------------------------------------
    //
    // The stream must first be ordered after the other's work, which may take device calls. So there are two steps: the
    // thread looks what the depot has, and leaves its cache. Then, with the stream ordered after the fence of what was
    // seen, it takes blocks behind that fence: the same or others ([`alloc_searching`](Self::alloc_searching)).

    /// Looks for blocks for a request of so many bytes among those that other streams freed. Returns which stream freed them, and
    /// up to which tick.
    #[cold]
    pub(crate) fn find_of_other_stream(&self, bytes: u64, stream: &Stream) -> Option<(TimelineId, Tick)> {
        if !(self.in_throughput_mode() && self.caches_now(bytes)) {
            return None;
        }
        // A closed cache may mean that the stream is being captured.
        // SAFETY: the cache is this thread's (`alloc`), which leaves at once.
        unsafe { self.threads.mine().enter::<true>(|tally| &tally.to_alloc, stream.key()) }?;
        self.depot.other_with(stream.timeline().id, self.class_of(bytes).1)
    }

    /// Brings blocks of this length from the depot to the thread's magazine, up to half of what it may hold: what this stream freed, or
    /// what was seen of another one.
    fn fetch(
        &self,
        magazine: &mut Magazine,
        tally: &Tally,
        size: u64,
        (timeline, seen): (&Timeline, Option<(TimelineId, Tick)>),
    ) {
        // Mostly there is nothing: to find the ends of a magazine takes longer than this look.
        let most = if self.depot.held() > 0 { magazine.restock_by() } else { 0 };
        if most == 0 {
            return;
        }
        // Before it happens: who closes the depot next sees that this thread may hold something (`revoke`).
        tally.note_filled();
        let (place, before) = (magazine.place(), magazine.items().len());
        self.depot.take(seen.unwrap_or((timeline.id, Tick::MAX)), size, most, |item| {
            // SAFETY: it is not full: no more come than half of what it may hold.
            unsafe { magazine.push(item) };
        });
        // Another thread wrote to the descriptors last: together they come to this processor's cache sooner than one by
        // one later. Those that were no longer in the depot are strays here.
        for item in magazine.items()[before..].iter().filter(|item| item.is_in(Place::BETWEEN)) {
            // What another stream freed is from here on as if this one had freed it now.
            let tick = if seen.is_some() { timeline.now() } else { item.descriptor().tick() };
            item.descriptor().make_cached(place, tick);
        }
    }

    /// Lets a magazine that has no room hold blocks, if it may.
    fn give_room(&self, magazine: &mut Magazine, size: u64) {
        if !magazine.has_room()
            && self.caches_now(size)
            && let Some(with_room) = Magazine::with_room(room(size))
        {
            *magazine = with_room;
        }
    }

    /// Sees to it that a full magazine takes a block of this length, which the stream frees. It gets room if it has none. Else its
    /// older half goes to the depot, if its blocks are alike. Returns whether there is room now.
    fn make_room(&self, magazine: &mut Magazine, size: u64, of: &Timeline) -> bool {
        self.give_room(magazine, size);
        if !magazine.is_full() {
            return true;
        }
        let (place, half) = (magazine.place(), magazine.older_half());
        let (count, Some(bytes)) = (half.len(), half.first().map(Item::bytes)) else { return false };
        let are_alike = count > 1 && half.iter().all(|item| item.bytes() == bytes && item.is_in(place));
        if !are_alike {
            return false;
        }
        of.mark_for_others();
        if !self.depot.put(of.id, bytes, half) {
            return false;
        }
        magazine.give_up(count, |_| ());
        true
    }

    /// Takes a live block, freed on `stream`, into the calling thread's magazines. `false`, and nothing done,
    /// where there is no room, or it is not as simple as that.
    #[inline(always)]
    pub(crate) fn free(&self, ptr: DevicePtr, stream: &Stream) -> bool {
        // SAFETY: the cache is this thread's (`alloc`).
        unsafe { self.put::<false>(self.threads.mine_near(), ptr, stream.key(), || stream.timeline()) }
            .is_some()
    }

    /// As [`free`](Self::free), also where lock entries are closed, and where room can be made.
    #[cold]
    pub(crate) fn free_without_entry(&self, ptr: DevicePtr, stream: &Stream) -> bool {
        // SAFETY: the cache is this thread's (`alloc`).
        unsafe { self.put::<true>(self.threads.mine(), ptr, stream.key(), || stream.timeline()) }.is_some()
    }

    /// Takes a block; `None`, and nothing done, where that is not as simple. The timeline is the stream's, read only where needed:
    /// registers are few.
    ///
    /// # Safety
    /// `mine` is the calling thread's cache here, or the sentinel.
    #[inline(always)]
    pub(super) unsafe fn put<'t, const WITHOUT_ENTRY: bool>(
        &self,
        mine: &ThreadCache,
        ptr: DevicePtr,
        stream: StreamKey,
        timeline: impl Fn() -> &'t Timeline,
    ) -> Option<()> {
        // SAFETY: the caller's promise; the sentinel is closed. All that return here leave.
        let (magazines, passage) = unsafe { mine.enter::<WITHOUT_ENTRY>(|tally| &tally.to_free, stream) }?;
        let tally = &mine.tally;
        let found = if WITHOUT_ENTRY { self.page_map.find_plain(ptr) } else { self.page_map.find_soon(ptr) }?;
        let Plain { descriptor, class, bytes } = found;
        let room = tally.room_after(bytes);
        if !(WITHOUT_ENTRY || tally.is_within_slack(room)) {
            cold_path();
            return None;
        }
        // SAFETY: the class is an allocated block's.
        let index = unsafe { MagazineIndex::of_class(class) };
        let make_room = |magazines: &mut Magazines| {
            // SAFETY: inside of the cache, as entered.
            unsafe { mine.list(stream, magazines) };
            self.make_room(magazines.magazine(index), bytes, timeline())
        };
        if magazines.magazine(index).is_full() && !(WITHOUT_ENTRY && make_room(magazines)) {
            cold_path();
            return None;
        }
        // SAFETY: it is not full.
        unsafe { magazines.magazine(index).push(Item::new(ptr, descriptor)) };
        let requested = descriptor.requested();
        descriptor.make_cached(magazines.magazine(index).place(), timeline().now());
        if WITHOUT_ENTRY {
            tally.count([requested, bytes].map(|less| -(less as i64)), -1, &self.totals);
        } else {
            tally.fall(requested, room);
        }
        passage.complete();
        Some(())
    }

    /// Whether memory is spent to save time from now on. Under the pool's lock.
    pub(crate) fn set_throughput_mode(&self, is_on: bool) {
        // Relaxed, both: settings.
        let slack = if is_on { u64::MAX >> 1 } else { self.sizes.bytes(1) };
        self.slack_of_large.store(slack, Ordering::Relaxed);
        if self.totals.in_throughput_mode.swap(is_on, Ordering::Relaxed) != is_on {
            self.threads.all().for_each(|cache| cache.tally.forget_slack());
        }
    }

    /// Whether memory is spent to save time.
    #[inline]
    pub(crate) fn in_throughput_mode(&self) -> bool {
        // Relaxed: a setting.
        self.totals.in_throughput_mode.load(Ordering::Relaxed)
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Threads that have a cache here.
    #[cfg(test)]
    pub(crate) fn threads_inside(&self) -> usize {
        self.threads.owned().count()
    }

    /// Whether anything may be cached. A glance.
    pub(crate) fn holds_any(&self) -> bool {
        self.depot.held() > 0 || self.threads.all().any(|cache| cache.tally.may_hold())
    }

    /// Whether threads ended whose caches were not collected. A glance.
    #[inline]
    pub(crate) fn any_ended(&self) -> bool {
        self.threads.any_ended()
    }

    /// Blocks that were found to have been freed twice at once.
    pub(crate) fn freed_twice(&self) -> u64 {
        self.totals.strays()[2] as u64 / 2
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::cache::shortcut::Shortcut;
    use crate::cache::stream_cache::DRAINED;
    use crate::fixtures::{Bench, Freeing};

    #[test]
    fn the_caches_of_a_pool_without_threads_take_little_memory() {
        // 10,624 bytes: mostly a pointer for each of 1,024 threads.
        assert!(size_of::<Caches>() <= 16 << 10, "{}", size_of::<Caches>());
        // 2,304: mostly 256 lock entries, a pointer each.
        assert!(size_of::<ThreadCache>() <= 4 << 10, "{}", size_of::<ThreadCache>());
        // 2,200: a pointer for each magazine.
        assert!(size_of::<Magazines>() <= 9 << 8, "{}", size_of::<Magazines>());
    }

    /// Stream caches that are emptied by a miss beside so many, of which one holds a block.
    fn emptied_beside(streams: usize) -> usize {
        let Bench { context, pool, stream, .. } = Bench::new(|pool| pool);
        let pair = |stream: &Stream| {
            let block = pool.alloc(4096, stream).unwrap();
            pool.free_block(block, stream).unwrap();
        };
        let others: Vec<_> = (0..streams).map(|_| context.create_stream().unwrap()).collect();
        others.iter().for_each(&pair);
        let miss = |bytes| {
            let before = DRAINED.get();
            _ = pool.alloc(bytes, &stream).unwrap();
            DRAINED.get() - before
        };
        assert!(miss(64 << 20) >= streams);
        pair(&stream);
        let emptied = miss(128 << 20);
        pool.check().unwrap();
        emptied
    }

    #[test]
    fn a_miss_empties_only_stream_caches_that_hold_something() {
        assert_eq!([emptied_beside(0), emptied_beside(300)], [1, 1]);
    }

    #[test]
    fn a_right_program_has_no_stray_to_report() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let block = pool.alloc(512, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
        assert_eq!(pool.inner().caches.freed_twice(), 0);
    }

    #[test]
    fn the_depot_keeps_blocks_of_one_length_together() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let inner = pool.inner();
        inner.caches.set_throughput_mode(true);
        // Two lengths of one magazine, which is filled more than once with each.
        let lengths = [60_000, 100_000].map(|more| (1 << 20) + more);
        let blocks: Vec<_> =
            (0..400).map(|block| pool.alloc(lengths[block / 200], &stream).unwrap()).collect();
        // Misses told the caches that the pool saves.
        inner.caches.set_throughput_mode(true);
        blocks.into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
        let depot = &inner.caches.depot;
        assert!(depot.held() > 0 && depot.shelves_are_sorted());
        pool.check().unwrap();
    }

    /// For Miri, which sees whether a thread that has left its cache keeps what is then another's.
    #[test]
    fn a_thread_that_left_its_cache_has_nothing_of_it() {
        let Bench { context, pool, .. } = Bench::new(|pool| pool);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let stream = context.create_stream().unwrap();
                for _ in 0..if cfg!(miri) { 60 } else { 5000 } {
                    let block = pool.alloc(512, &stream).unwrap();
                    pool.free_block(block, &stream).unwrap();
                }
                is_done.store(true, Ordering::Relaxed);
            });
            while !is_done.load(Ordering::Relaxed) {
                // Looks at all magazines while owners are kept out.
                pool.check().unwrap();
            }
        });
        assert_eq!(pool.stats().blocks.current, 0);
    }

    /// The block that a pair leaves in the thread's magazines; `None` where it is not there without the slow path.
    fn cached_by_a_pair(pool: &crate::Pool, stream: &Stream) -> Option<DevicePtr> {
        let block = pool.alloc(512, stream).unwrap();
        pool.free_block(block, stream).unwrap();
        pool.inner().caches.alloc(512, stream)
    }

    #[test]
    fn a_pool_caches_again_after_a_pause() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let inner = pool.inner();
        inner.pause_caches(&mut inner.state.lock());
        assert_eq!(cached_by_a_pair(&pool, &stream), None);
        inner.resume_caches(&mut inner.state.lock());
        assert!(cached_by_a_pair(&pool, &stream).is_some());
    }

    #[test]
    fn who_looks_into_a_cache_leaves_it_open() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let block = cached_by_a_pair(&pool, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
        pool.check().unwrap();
        assert!(pool.inner().caches.alloc(512, &stream).is_some());
    }

    #[test]
    fn a_change_of_mode_has_threads_ask_for_their_slack() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let caches = &pool.inner().caches;
        let block = cached_by_a_pair(&pool, &stream).unwrap();
        caches.set_throughput_mode(false);
        assert!(caches.free(block, &stream), "it was the mode before");
        let block = caches.alloc(512, &stream).unwrap();
        caches.set_throughput_mode(true);
        assert!(!caches.free(block, &stream), "the slow path asks for it");
        pool.free_block(block, &stream).unwrap();
    }

    #[test]
    fn a_thread_has_a_shortcut_where_it_has_a_cache() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        let caches = &pool.inner().caches;
        assert!(Shortcut::of_thread(caches, &stream).is_none());
        let block = cached_by_a_pair(&pool, &stream).unwrap();
        let shortcut = Shortcut::of_thread(caches, &stream).unwrap();
        // SAFETY: pool and stream are alive, this is the thread, and nobody else has the block.
        assert!(unsafe { shortcut.free(block) });
    }
}
