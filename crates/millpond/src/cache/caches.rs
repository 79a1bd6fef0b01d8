//! The caches of all threads in one pool, and what uses them without the pool's lock.

use std::hint::cold_path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::asymmetric_lock::{Epoch, Passage};
use super::depot::Depot;
use super::magazine::{BufferedMagazine, Item};
use super::sizes::{MagazineIndex, Sizes};
use super::strays::Strays;
use super::stream_cache::{Bounds, Known, Magazines};
use super::tally::Tally;
use super::thread::{Entered, ThreadCache};
use super::thread_index::{Ended, MOST_THREADS, NO_THREAD, thread_index};
use super::totals::Totals;
use crate::device::DevicePtr;
use crate::extents::{BlockDescriptor, PageMap};
use crate::order::{Fence, Stream, StreamKey, Tick, Timeline, TimelineId};
use crate::policy::borrowing::CLASSES_TO_BORROW_FROM;
use crate::policy::caching::{CacheLimits, LEAST_LIMIT};
use crate::policy::size_classes::SLACK_IN_THROUGHPUT_MODE;
use crate::policy::{Mechanism, without};

/// See the [module](super).
#[derive(Debug)]
pub(crate) struct Caches {
    /// By thread index. The first one is [`SENTINEL`], and so is that of each thread without a cache here. A raw pointer
    /// owns the others, since a `Box` that moves with this struct would claim to be the only one.
    pub(super) threads: [AtomicPtr<ThreadCache>; MOST_THREADS + 1],
    page_map: Arc<PageMap>,
    pub(super) sizes: Sizes,
    pub(super) depot: Depot,
    /// Bytes that one thread may cache.
    pub(super) limit: AtomicU64,
    /// Bytes that the depot may hold.
    pub(super) depot_limit: AtomicU64,
    /// A block serves a request of a large size if it is less than so many bytes longer. That is one unit. In
    /// throughput mode it is any length, since blocks of one magazine differ by an eighth at most.
    most_slack: AtomicU64,
    /// Whether a request of a class that has no block may have one of a longer class.
    borrows: AtomicBool,
    /// Whether requests may take the fast path. Written under the pool's lock.
    pub(super) has_lock_entries: AtomicBool,
    /// Entries of `threads` that may be in use.
    pub(super) used: AtomicUsize,
    /// What threads without a cache count. Written under the pool's lock.
    pub(super) others: Tally,
    pub(super) totals: Arc<Totals>,
    /// Notes of threads that ended, whose caches are still open.
    pub(super) ended: Arc<Ended>,
    pub(super) strays: Arc<Strays>,
    /// Whether nothing is cached any more. Written under the pool's lock.
    pub(super) is_shut: AtomicBool,
    /// Whether nothing is cached for the time being. Written under the pool's lock.
    pub(super) is_paused: AtomicBool,
}

/// The sentinel cache of every pool: permanently closed, without owner or magazines. So the fast path needs no null
/// check. Threads that enter it write its epochs, and nothing else.
///
/// Made with the first pool, and kept. No `OnceLock`: after a fork in between, the child would wait for ever.
static SENTINEL: AtomicPtr<ThreadCache> = AtomicPtr::new(ptr::null_mut());

fn sentinel() -> *mut ThreadCache {
    // Acquire: pairs with the Release below.
    let there = SENTINEL.load(Ordering::Acquire);
    if !there.is_null() {
        return there;
    }
    let fresh =
        Box::into_raw(Box::new(ThreadCache::new(Arc::new(Strays::new(Arc::default())), Arc::default())));
    // Release: who reads it sees what it points to. Acquire: another thread may have been first.
    match SENTINEL.compare_exchange(there, fresh, Ordering::Release, Ordering::Acquire) {
        Ok(_) => fresh,
        Err(other) => {
            // SAFETY: it came from `Box::into_raw`, and nobody else knows it.
            drop(unsafe { Box::from_raw(fresh) });
            other
        }
    }
}

/// A block that a cache gave up: the arena's to take back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cached {
    pub(super) item: Item,
    pub(super) of: TimelineId,
}

impl Cached {
    /// What is known of the block, which is still out.
    pub(crate) fn descriptor(&self) -> &BlockDescriptor {
        self.item.descriptor()
    }

    /// The work that used it.
    pub(crate) fn fence(&self) -> Fence {
        Fence::at(self.of, self.descriptor().tick())
    }
}

/// A block found without the pool's lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) ptr: DevicePtr,
    /// Whether its magazine should get more room ([`Caches::widen`]), to go to the depot less often.
    pub(crate) is_narrow: bool,
}

impl Caches {
    pub(crate) fn new(page_map: Arc<PageMap>, sizes: Sizes) -> Self {
        let (sentinel, totals) = (sentinel(), Arc::<Totals>::default());
        Self {
            threads: std::array::from_fn(|_| AtomicPtr::new(sentinel)),
            page_map,
            sizes,
            depot: Depot::new(sizes.large_from()),
            limit: AtomicU64::new(LEAST_LIMIT),
            depot_limit: AtomicU64::new(LEAST_LIMIT),
            most_slack: AtomicU64::new(sizes.bytes(1)),
            borrows: AtomicBool::new(false),
            has_lock_entries: AtomicBool::new(true),
            used: AtomicUsize::new(0),
            others: Tally::new(totals.clone()),
            ended: Arc::default(),
            strays: Arc::new(Strays::new(totals.clone())),
            totals,
            is_shut: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
        }
    }

    // ---- the fast path ---------------------------------------------------------------------------

    /// The calling thread's cache, or the sentinel.
    #[inline(always)]
    pub(super) fn mine(&self) -> &ThreadCache {
        // SAFETY: an index is at most `MOST_THREADS`.
        let place = unsafe { self.threads.get_unchecked(thread_index()) };
        // Acquire: pairs with the Release in `join_slow`; another thread with this index may have made it.
        // SAFETY: caches are dropped with the pool only, and the sentinel never.
        unsafe { &*place.load(Ordering::Acquire) }
    }

    #[inline]
    pub(super) fn enter<const WITHOUT_ENTRY: bool>(
        &self,
        epoch: fn(&Tally) -> &Epoch,
        stream: &Stream,
    ) -> Option<Entered<'_>> {
        // SAFETY: the cache under a thread's index is that thread's own, or a thread that ended left it
        // (`collect_ended`). Else its asymmetric lock is closed until it is (`join_slow`). Callers leave before they
        // return.
        unsafe { self.mine().enter::<WITHOUT_ENTRY>(epoch, stream.key()) }
    }

    /// A block for work on `stream` from the calling thread's magazines, if the first look finds one that fits.
    #[inline(always)]
    pub(crate) fn alloc(&self, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
        // SAFETY: the cache is this thread's.
        unsafe { self.get::<false>(self.mine(), bytes, stream.key()) }
    }

    /// # Safety
    /// `mine` is the calling thread's cache here, or the sentinel.
    // Always inlined: a call would have its caller keep in registers what only the slow path needs.
    #[inline(always)]
    pub(super) unsafe fn get<const WITHOUT_ENTRY: bool>(
        &self,
        mine: &ThreadCache,
        bytes: u64,
        stream: StreamKey,
    ) -> Option<DevicePtr> {
        if self.sizes.is_rounded(bytes) {
            // SAFETY: the caller's promise; the sentinel is closed. All that return here leave.
            let Entered { magazines, tally, passage } =
                unsafe { mine.enter::<WITHOUT_ENTRY>(Tally::to_alloc, stream) }?;
            // SAFETY: asked above.
            let index = unsafe { self.sizes.magazine_for_rounded(bytes) };
            let magazine = magazines.magazine(index);
            let item = *magazine.top_or_end();
            // Also where it is empty.
            if !item.is_in(magazine.place()) || !Self::rise::<WITHOUT_ENTRY>(tally, &passage, bytes, item) {
                cold_path();
                return None;
            }
            // SAFETY: just seen.
            unsafe { magazine.drop_top() };
            return Some(Self::hand_out(item, bytes, passage));
        }
        let index = self.sizes.magazine_for_exact(bytes)?;
        // Relaxed: a setting; any value that it ever had is safe.
        let most_slack = self.most_slack.load(Ordering::Relaxed);
        // SAFETY: as above.
        let Entered { magazines, tally, passage } =
            unsafe { mine.enter::<WITHOUT_ENTRY>(Tally::to_alloc, stream) }?;
        let magazine = magazines.magazine(index);
        let item = *magazine.top_or_end();
        if item.bytes().wrapping_sub(bytes) >= most_slack
            || !item.is_in(magazine.place())
            || !Self::rise::<WITHOUT_ENTRY>(tally, &passage, bytes, item)
        {
            cold_path();
            return None;
        }
        // SAFETY: just seen.
        unsafe { magazine.drop_top() };
        Some(Self::hand_out(item, bytes, passage))
    }

    /// Counts a block that is about to be handed out. `false`, and nothing done, where a ceiling has to rise before, and
    /// the thread is in a hurry.
    #[inline(always)]
    fn rise<const UNHURRIED: bool>(tally: &Tally, passage: &Passage<'_>, bytes: u64, item: Item) -> bool {
        if UNHURRIED {
            tally.rise_slow(bytes, item.bytes());
            return true;
        }
        tally.rise(passage, bytes, item.bytes())
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

    /// As [`alloc`](Self::alloc), also where lock entries are closed, or the tally has to rise above a ceiling. Looks
    /// below the top of a magazine of several sizes, and into the depot.
    #[cold]
    pub(crate) fn alloc_searching(&self, bytes: u64, stream: &Stream) -> Option<Found> {
        if !self.sizes.is_cached(bytes) || !self.may_have(bytes) {
            return None;
        }
        // SAFETY: the cache is this thread's.
        if let Some(ptr) = unsafe { self.get::<true>(self.mine(), bytes, stream.key()) } {
            return Some(Found { ptr, is_narrow: false });
        }
        let Entered { magazines, tally, passage } = self.enter::<true>(Tally::to_alloc, stream)?;
        let units = if self.in_throughput_mode() {
            self.sizes.units_in_throughput_mode(bytes)
        } else {
            self.sizes.units(bytes)
        };
        let index = MagazineIndex::of(units);
        let size = self.sizes.bytes(units);
        let mut is_narrow = false;
        if magazines.magazine(index).is_empty() && self.depot.held() == 0 && !self.in_throughput_mode() {
            // Nearly always: there is nowhere to look.
            return None;
        }
        let mut known = magazines.known(index)?;
        let magazine = &mut known.magazine;
        self.drop_strays_on_top(magazine);
        if !magazine.bring_up(size) {
            is_narrow = self.fetch(magazine, tally, (stream.timeline().id, Tick::MAX), size);
        }
        if magazine.has_on_top(size) {
            tally.rise_slow(bytes, size);
            let ptr = Self::hand_out(magazine.take_top(size)?, bytes, passage);
            return Some(Found { ptr, is_narrow });
        }
        // Relaxed: a setting.
        if !self.borrows.load(Ordering::Relaxed) || !self.sizes.is_rounded_in_throughput_mode(bytes) {
            return None;
        }
        if !known.borrowing.may_borrow(tally.to_alloc().passages()) {
            return None;
        }
        let item = Self::borrow(magazines, index)?;
        tally.rise_slow(bytes, item.bytes());
        Some(Found { ptr: Self::hand_out(item, bytes, passage), is_narrow: false })
    }

    /// Whether the thread's magazines or the depot may have a block for such a request, by a glance. If not, the slow
    /// path looks once more.
    #[inline]
    pub(crate) fn may_have(&self, bytes: u64) -> bool {
        !self.sizes.is_large(bytes) || self.mine().granted_large() > 0 || self.depot.held_large() > 0
    }

    /// Whether a block of so many bytes may find room in the thread's magazines, by a glance, as for
    /// [`may_have`](Self::may_have).
    #[inline]
    pub(crate) fn may_take(&self, bytes: u64) -> bool {
        !self.sizes.is_large(bytes) || self.mine().granted_large() > 0
    }

    /// A block of one of the next longer classes: it wastes less than another block would take, and neighbouring classes
    /// seldom run out together.
    fn borrow(magazines: &mut Magazines, index: MagazineIndex) -> Option<Item> {
        index.longer().take(CLASSES_TO_BORROW_FROM).find_map(|longer| {
            let magazine = magazines.magazine(longer);
            let item = *magazine.top()?;
            if !item.is_in(magazine.place()) {
                return None;
            }
            // SAFETY: just seen.
            unsafe { magazine.drop_top() };
            Some(item)
        })
    }

    /// Brings blocks of this length from the depot to the thread's magazine, up to half of what it may hold. They were
    /// freed on a stream up to a tick. Returns whether, in throughput mode, there were more, and the magazine may still
    /// grow.
    pub(super) fn fetch(
        &self,
        magazine: &mut BufferedMagazine<'_>,
        tally: &Tally,
        from: (TimelineId, Tick),
        size: u64,
    ) -> bool {
        let most = magazine.restock_by();
        if most == 0 || self.depot.held() == 0 {
            return false;
        }
        // Before it happens: who closes the depot next sees that this thread may hold something (`revoke`).
        tally.note_filled();
        let mut count = 0;
        let are_more = self.depot.take(from, size, most, |item| {
            // SAFETY: it is not full: no more come than half of what it may hold.
            unsafe { magazine.push(item) };
            count += 1;
        });
        magazine.claim_top(count);
        are_more
            && self.in_throughput_mode()
            && !magazine.is_at_most(size, true)
            && !without(Mechanism::Widening)
    }

    /// Brings the older half of a magazine of the largest size to the depot, if its blocks are alike. Returns whether
    /// there is room now.
    #[inline]
    fn give_half_to_depot(&self, magazines: &mut Magazines, index: MagazineIndex, of: TimelineId) -> bool {
        if magazines.magazine(index).is_empty() {
            // Nearly always, of large blocks.
            return false;
        }
        let Some(Known { mut magazine, .. }) = magazines.known(index) else { return false };
        let half = magazine.older_half();
        let Some(bytes) = half.first().map(Item::bytes) else { return false };
        if half.len() < 2
            || !magazine.is_at_most(bytes, self.in_throughput_mode())
            || half.iter().any(|item| item.bytes() != bytes)
        {
            return false;
        }
        let place = magazine.place();
        let limit = self.depot_limit.load(Ordering::Relaxed);
        let left = half.iter().take_while(|item| item.leave(place)).count();
        // Strays are sorted out under the lock (`make_room`).
        if left < half.len() || !self.depot.put(of, bytes, half, limit) {
            half[..left].iter().for_each(|item| item.descriptor().move_to(place));
            return false;
        }
        drop(magazine.give_up_half());
        true
    }

    /// Drops the strays on top.
    #[inline]
    pub(super) fn drop_strays_on_top(&self, magazine: &mut BufferedMagazine<'_>) {
        let place = magazine.place();
        let is_stray = |item: &Item| !item.is_in(place);
        while let Some(item) = magazine.top().copied().filter(is_stray) {
            self.strays.sort_out(item, place, |_| ());
            // SAFETY: there is one on top.
            unsafe { magazine.drop_top() };
        }
    }

    /// Takes a live block, freed on `stream`, into the calling thread's magazines. `false`, and nothing done,
    /// where there is no room, or it is not as simple as that.
    #[inline(always)]
    pub(crate) fn free(&self, ptr: DevicePtr, stream: &Stream) -> bool {
        // SAFETY: the cache is this thread's.
        unsafe { self.put::<false>(self.mine(), ptr, stream.key(), || stream.timeline()) }.is_some()
    }

    /// As [`free`](Self::free), also where lock entries are closed, and where the depot has room. Returns the bytes that
    /// were asked for.
    #[cold]
    pub(crate) fn free_without_entry(&self, ptr: DevicePtr, stream: &Stream) -> Option<u64> {
        // SAFETY: the cache is this thread's.
        unsafe { self.put::<true>(self.mine(), ptr, stream.key(), || stream.timeline()) }
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
        let descriptor = if WITHOUT_ENTRY { self.page_map.find(ptr) } else { self.page_map.find_soon(ptr) }?;
        let bytes = descriptor.bytes_of_live();
        if !descriptor.is_plain(ptr) || !(WITHOUT_ENTRY || tally.may_fall(bytes)) {
            cold_path();
            return None;
        }
        // SAFETY: a block that is live was labelled when it left the arena (`label`).
        let index = unsafe { MagazineIndex::from_label(descriptor.label()) };
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
            tally.count_free_slow(passage, requested, bytes);
        } else {
            tally.count_free(passage, requested, bytes);
        }
        Some(requested)
    }

    pub(super) fn sentinel(&self) -> *mut ThreadCache {
        // Relaxed: never written.
        self.threads[NO_THREAD].load(Ordering::Relaxed)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ThreadCache> + Clone {
        // Relaxed: an index beyond it has nothing to tell yet.
        let used = self.used.load(Ordering::Relaxed);
        let sentinel = self.sentinel();
        // Acquire: as in `mine`.
        let all = self.threads[..used].iter().map(|place| place.load(Ordering::Acquire));
        // SAFETY: as in `mine`.
        all.filter(move |cache| *cache != sentinel).map(|cache| unsafe { &*cache })
    }

    /// Shares what the pool holds between its threads, as the bytes that each may cache. That is much, but nothing is
    /// lost: whoever needs it takes it back. With a growth allowance, the pool is in throughput mode; where that gets
    /// scarce, classes borrow from longer ones.
    pub(crate) fn adapt(&self, reserved: u64, growth_allowance: u64, is_scarce: bool) {
        let threads = self.all().filter(|cache| cache.is_owned()).count() as u64;
        let limits = CacheLimits::new(reserved, growth_allowance, threads);
        // Relaxed: settings.
        self.limit.store(limits.of_thread, Ordering::Relaxed);
        self.depot_limit.store(limits.of_depot, Ordering::Relaxed);
        let most_slack = if growth_allowance > 0 { SLACK_IN_THROUGHPUT_MODE } else { self.sizes.bytes(1) };
        self.most_slack.store(most_slack, Ordering::Relaxed);
        self.borrows.store(is_scarce && !without(Mechanism::Borrowing), Ordering::Relaxed);
    }

    /// What bounds the room of a magazine for blocks of `size` bytes.
    pub(super) fn bounds(&self, size: u64) -> Bounds {
        Bounds {
            longest: self.sizes.longest_beside(size),
            is_large: self.sizes.is_large(size),
            // Relaxed: a setting.
            limit: self.limit.load(Ordering::Relaxed),
            in_throughput_mode: self.in_throughput_mode(),
        }
    }

    /// Whether memory is spent to save time.
    #[inline]
    pub(crate) fn in_throughput_mode(&self) -> bool {
        // Relaxed: a setting.
        self.most_slack.load(Ordering::Relaxed) == SLACK_IN_THROUGHPUT_MODE
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Threads that have a cache here.
    #[cfg(test)]
    pub(crate) fn threads_inside(&self) -> usize {
        self.all().filter(|cache| cache.is_owned()).count()
    }

    /// Blocks that were found to have been freed twice at once.
    pub(crate) fn freed_twice(&self) -> u64 {
        self.strays.count()
    }

    /// As [`freed_twice`](Self::freed_twice), if there are more since this was called last.
    #[inline]
    pub(crate) fn freed_twice_since(&self) -> Option<u64> {
        self.strays.to_report()
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        let sentinel = self.sentinel();
        let (_, others) = self.threads.split_first_mut().expect("there are many");
        for place in others {
            let cache = *place.get_mut();
            if cache != sentinel {
                // SAFETY: the cache came from `try_box`. The pool is going, so no thread is inside.
                drop(unsafe { Box::from_raw(cache) });
            }
        }
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
        // 2,752: a pointer and a number of two bytes for each magazine.
        assert!(size_of::<Magazines>() <= 11 << 8, "{}", size_of::<Magazines>());
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
