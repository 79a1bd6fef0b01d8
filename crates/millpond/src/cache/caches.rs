//! The caches of all threads in one pool, and what uses them without the pool's lock.

use std::hint::cold_path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::asymmetric_lock::Passage;
use super::depot::Depot;
use super::magazine::{Item, Magazine};
use super::sizes::{MagazineIndex, Sizes};
use super::stream_cache::Magazines;
use super::tally::Tally;
use super::thread::{Entered, ThreadCache};
use super::threads::Threads;
use super::totals::Totals;
use crate::device::DevicePtr;
use crate::extents::{PageMap, Place, Plain};
use crate::order::{Stream, StreamKey, Tick, Timeline, TimelineId};
use crate::policy::caching::{LEAST_LIMIT, limits};

/// See the [module](super).
#[derive(Debug)]
pub(crate) struct Caches {
    pub(super) threads: Threads,
    pub(crate) page_map: Arc<PageMap>,
    pub(super) sizes: Sizes,
    pub(super) depot: Depot,
    /// Bytes that one thread may cache.
    pub(super) limit: AtomicU64,
    /// Bytes that the depot may hold.
    pub(super) depot_limit: AtomicU64,
    /// A block serves a request of a large size if it is less than so many bytes longer. That is one unit. In
    /// throughput mode it is any length, since blocks of one magazine differ by an eighth at most.
    most_slack: AtomicU64,
    /// Whether memory is spent to save time.
    in_throughput_mode: AtomicBool,
    /// What threads without a cache count. Written under the pool's lock.
    pub(super) others: Tally,
    pub(super) totals: Totals,
}

impl Caches {
    pub(crate) fn new(page_map: Arc<PageMap>, sizes: Sizes) -> Self {
        Self {
            threads: Threads::new(),
            page_map,
            sizes,
            depot: Depot::default(),
            limit: AtomicU64::new(LEAST_LIMIT),
            depot_limit: AtomicU64::new(LEAST_LIMIT),
            most_slack: AtomicU64::new(sizes.bytes(1)),
            in_throughput_mode: AtomicBool::new(false),
            others: Tally::default(),
            totals: Totals::default(),
        }
    }

    // ---- the fast path ---------------------------------------------------------------------------

    /// Enters the calling thread's cache without a lock entry, to take a block from it.
    fn enter_to_alloc(&self, stream: &Stream) -> Option<Entered<'_>> {
        // SAFETY: the cache under a thread's index is that thread's own, or a thread that ended left it
        // (`Threads::collect_ended`). Else its asymmetric lock is closed until it is (`join_slow`). Callers leave before they
        // return.
        unsafe { self.threads.mine().enter::<true>(Tally::to_alloc, stream.key()) }
    }

    /// A block for work on `stream` from the calling thread's magazines, if the first look finds one that fits.
    #[inline(always)]
    pub(crate) fn alloc(&self, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
        // SAFETY: the cache is this thread's.
        unsafe { self.get(self.threads.mine(), bytes, stream.key()) }
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
        let index = self.sizes.magazine_for_exact(bytes)?;
        // Relaxed: a setting; any value that it ever had is safe.
        let most_slack = self.most_slack.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe {
            Self::get_from(mine, (index, stream), bytes, |item| item.bytes().wrapping_sub(bytes) < most_slack)
        }
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
        let Entered { magazines, tally, passage } = unsafe { mine.enter::<false>(Tally::to_alloc, stream) }?;
        let magazine = magazines.magazine(index);
        let item = *magazine.top();
        // Also where it is empty.
        if !fits(&item) || !item.is_in(magazine.place()) || !tally.rise(bytes, item.bytes()) {
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
        if !self.caches_now(bytes) {
            return None;
        }
        let Entered { magazines, tally, passage } = self.enter_to_alloc(stream)?;
        let (index, size) = self.class_of(bytes);
        let magazine = magazines.magazine(index);
        if magazine.is_empty() && self.depot.held() == 0 && !self.in_throughput_mode() {
            // Nearly always: there is nowhere to look.
            return None;
        }
        self.drop_strays_on_top(magazine);
        // Relaxed: a setting.
        let most_slack = self.most_slack.load(Ordering::Relaxed);
        let fits = |size: u64| self.sizes.is_rounded(bytes) || size.wrapping_sub(bytes) < most_slack;
        let mut found = magazine.take_top(fits);
        if found.is_none() {
            let (place, own) = (magazine.place(), (stream.timeline().id, Tick::MAX));
            let brought = self.fetch(magazine, tally, seen.unwrap_or(own), size);
            if seen.is_some() {
                // From here on, as if this stream had freed them now.
                let now = stream.timeline().now();
                let brought = brought.iter().filter(|item| item.is_in(place));
                brought.for_each(|item| item.descriptor().make_cached(place, now));
            }
            found = magazine.take_top(fits);
        }
        if found.is_none()
            && seen.is_none()
            && self.in_throughput_mode()
            && self.sizes.is_rounded_in_throughput_mode(bytes)
        {
            found = magazines.borrow(index);
        }
        let item = found?;
        tally.rise_slow(bytes, item.bytes(), &self.totals);
        Some(Self::hand_out(item, bytes, passage))
    }

    /// Whether blocks of so many bytes are cached now: large ones in throughput mode only.
    pub(super) fn caches_now(&self, bytes: u64) -> bool {
        (self.sizes.is_rounded(bytes) || self.in_throughput_mode()) && self.sizes.is_cached(bytes)
    }

    /// The magazine for requests of so many bytes, and how long their blocks are now.
    fn class_of(&self, bytes: u64) -> (MagazineIndex, u64) {
        let units = if self.in_throughput_mode() {
            self.sizes.units_in_throughput_mode(bytes)
        } else {
            self.sizes.units(bytes)
        };
        (MagazineIndex::of(units), self.sizes.bytes(units))
    }

    // ---- what other streams freed: in throughput mode, from the depot ------------------------------------
    //
    // The stream must first be ordered after the other's work, which may take device calls. So there are two steps: the
    // thread looks what the depot has, and leaves its cache. Then, with the stream ordered after the fence of what was
    // seen, it takes blocks behind that fence: the same or others ([`alloc_searching`](Self::alloc_searching)).

    /// Looks for blocks for a request of so many bytes among those that other streams freed, where the calling
    /// thread's magazine has room for some. Returns which stream freed them, and up to which tick.
    #[cold]
    pub(crate) fn find_of_other_stream(&self, bytes: u64, stream: &Stream) -> Option<(TimelineId, Tick)> {
        if !self.in_throughput_mode() || !self.sizes.is_cached(bytes) {
            return None;
        }
        // A closed cache may mean that the stream is being captured.
        let Entered { magazines, tally: _, passage: _passage } = self.enter_to_alloc(stream)?;
        let (index, bytes) = self.class_of(bytes);
        if magazines.magazine(index).restock_by() == 0 {
            return None;
        }
        self.depot.other_with(stream.timeline().id, bytes)
    }

    /// Brings blocks of this length from the depot to the thread's magazine, up to half of what it may hold. They were
    /// freed on a stream up to a tick. Returns what came.
    pub(super) fn fetch<'m>(
        &self,
        magazine: &'m mut Magazine,
        tally: &Tally,
        from: (TimelineId, Tick),
        size: u64,
    ) -> &'m [Item] {
        let most = magazine.restock_by();
        if most == 0 || self.depot.held() == 0 {
            return &[];
        }
        // Before it happens: who closes the depot next sees that this thread may hold something (`revoke`).
        tally.note_filled();
        let before = magazine.items().len();
        self.depot.take(from, size, most, |item| {
            // SAFETY: it is not full: no more come than half of what it may hold.
            unsafe { magazine.push(item) };
        });
        // Another thread wrote to the descriptors last: together they come to this processor's cache sooner than one by
        // one later. Those that were no longer in the depot are strays here.
        let brought = &magazine.items()[before..];
        for item in brought {
            if item.leave(Place::BETWEEN) {
                item.descriptor().move_to(magazine.place());
            }
        }
        brought
    }

    /// Brings the older half of a magazine to the depot, if its blocks are alike. Returns whether
    /// there is room now.
    #[inline]
    fn give_half_to_depot(&self, magazines: &mut Magazines, index: MagazineIndex, of: TimelineId) -> bool {
        let magazine = magazines.magazine(index);
        let half = magazine.older_half();
        let Some(bytes) = half.first().map(Item::bytes) else { return false };
        if half.len() < 2 || half.iter().any(|item| item.bytes() != bytes) {
            return false;
        }
        let place = magazine.place();
        let limit = self.depot_limit.load(Ordering::Relaxed);
        let left = half.iter().take_while(|item| item.leave(place)).count();
        // Strays are sorted out under the lock (`put_slow`).
        if left < half.len() || !self.depot.put(of, bytes, half, limit) {
            half[..left].iter().for_each(|item| item.descriptor().move_to(place));
            return false;
        }
        magazine.give_up(left, |_| ());
        true
    }

    /// Drops the strays on top.
    #[inline]
    pub(super) fn drop_strays_on_top(&self, magazine: &mut Magazine) {
        let place = magazine.place();
        while !magazine.is_empty() && !magazine.top().is_in(place) {
            magazine.top().note_stray(&self.totals);
            // SAFETY: there is one on top.
            unsafe { magazine.drop_top() };
        }
    }

    /// Takes a live block, freed on `stream`, into the calling thread's magazines. `false`, and nothing done,
    /// where there is no room, or it is not as simple as that.
    #[inline(always)]
    pub(crate) fn free(&self, ptr: DevicePtr, stream: &Stream) -> bool {
        // SAFETY: the cache is this thread's.
        unsafe { self.put::<false>(self.threads.mine(), ptr, stream.key(), || stream.timeline()) }.is_some()
    }

    /// As [`free`](Self::free), also where lock entries are closed, and where the depot has room. Returns the bytes that
    /// were asked for.
    #[cold]
    pub(crate) fn free_without_entry(&self, ptr: DevicePtr, stream: &Stream) -> Option<u64> {
        if !self.caches_now(self.page_map.find_plain(ptr)?.bytes) {
            return None;
        }
        // SAFETY: the cache is this thread's.
        unsafe { self.put::<true>(self.threads.mine(), ptr, stream.key(), || stream.timeline()) }
    }

    /// Takes a block and returns the bytes that were asked for. The timeline is the stream's, read only where needed:
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
    ) -> Option<u64> {
        // SAFETY: the caller's promise; the sentinel is closed. All that return here leave.
        let Entered { magazines, tally, passage } =
            unsafe { mine.enter::<WITHOUT_ENTRY>(Tally::to_free, stream) }?;
        let found = if WITHOUT_ENTRY { self.page_map.find_plain(ptr) } else { self.page_map.find_soon(ptr) }?;
        let Plain { descriptor, class, bytes } = found;
        let room = tally.room_after(bytes);
        if !(WITHOUT_ENTRY || tally.is_within_slack(room)) {
            cold_path();
            return None;
        }
        // SAFETY: the class is an allocated block's.
        let index = unsafe { MagazineIndex::of_class(class) };
        if magazines.magazine(index).is_full()
            && !(WITHOUT_ENTRY && self.give_half_to_depot(magazines, index, timeline().id))
        {
            cold_path();
            return None;
        }
        // SAFETY: it is not full.
        unsafe { magazines.magazine(index).push(Item::new(ptr, descriptor)) };
        let requested = descriptor.requested();
        descriptor.make_cached(magazines.magazine(index).place(), timeline().now());
        if WITHOUT_ENTRY {
            tally.fall_slow(requested, room, &self.totals);
        } else {
            tally.fall(requested, room);
        }
        passage.complete();
        Some(requested)
    }

    /// Shares what the pool holds between its threads, as the bytes that each may cache. That is much, but nothing is
    /// lost: whoever needs it takes it back. In throughput mode, the pool may `grow` by so many bytes.
    pub(crate) fn adapt(&self, reserved: u64, grow: Option<u64>) {
        let is_on = grow.is_some();
        let threads = self.threads.owned().count() as u64;
        let [of_thread, of_depot] = limits(reserved, grow.unwrap_or(0), threads);
        // A block that is shorter wraps around, beyond half of all numbers.
        let most_slack = if is_on { u64::MAX / 2 } else { self.sizes.bytes(1) };
        // Relaxed, all: settings.
        self.limit.store(of_thread, Ordering::Relaxed);
        self.depot_limit.store(of_depot, Ordering::Relaxed);
        self.most_slack.store(most_slack, Ordering::Relaxed);
        if self.in_throughput_mode.swap(is_on, Ordering::Relaxed) != is_on {
            self.totals.set_wide(is_on);
            self.threads.all().for_each(|cache| cache.tally.forget_slack());
        }
    }

    /// Whether memory is spent to save time.
    #[inline]
    pub(crate) fn in_throughput_mode(&self) -> bool {
        // Relaxed: a setting.
        self.in_throughput_mode.load(Ordering::Relaxed)
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

    /// Whether threads enter by lock entries.
    pub(crate) fn has_lock_entries(&self) -> bool {
        self.threads.have_lock_entries()
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
        inner.caches.adapt(1 << 40, Some(1 << 40));
        // Two lengths of one magazine, which is filled more than once with each.
        let lengths = [60_000, 100_000].map(|more| (1 << 20) + more);
        let blocks: Vec<_> =
            (0..400).map(|block| pool.alloc(lengths[block / 200], &stream).unwrap()).collect();
        // Misses told the caches that the pool saves.
        inner.caches.adapt(1 << 40, Some(1 << 40));
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
}
