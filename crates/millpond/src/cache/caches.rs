//! The caches of all threads in one pool.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use super::Locked;
use super::depot::Depot;
use super::lane::{Item, Lanes, Magazine};
use super::sizes::{MagazineIndex, Sizes};
use super::sync::heavy_barrier;
use super::tally::{Tally, sum};
use super::thread::{Own, ThreadCache};
use super::thread_index::{MOST_THREADS, ThreadEnd, thread_index, visit};
use crate::arena::{Entry, Out, Views};
use crate::counters::{Counted, HighWater};
use crate::device::DevicePtr;
use crate::order::{Fence, Marking, Stream, TimelineId};

/// See the [module](super).
#[derive(Debug)]
pub(crate) struct Caches {
    /// By thread index. The last one is *nobody's*, for whoever has none: it never has an owner, and its gate is
    /// always closed. Threads without a cache here have that one. A raw pointer owns it, since a `Box` that moves
    /// with this struct would claim that there are no others to it.
    threads: [AtomicPtr<ThreadCache>; MOST_THREADS + 1],
    views: Arc<Views>,
    sizes: Sizes,
    depot: Depot,
    /// Bytes that one thread may cache.
    limit: AtomicU64,
    /// A block serves a request of a large size if it has less than this to spare, in bytes: one unit, or in haste
    /// anything, since what lies in one magazine differs by an eighth at most.
    most_slack: AtomicU64,
    /// Entries of `threads` that may be in use.
    used: AtomicUsize,
    /// What threads without a cache count. Written under the pool's lock.
    others: Tally,
    pool: Weak<dyn ThreadEnd>,
    /// Whether nothing is cached any more. Written under the pool's lock.
    is_shut: AtomicBool,
    /// Whether nothing is cached for the time being. Written under the pool's lock.
    is_paused: AtomicBool,
}

/// A block that a cache gave up: the arena's to take back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cached {
    item: Item,
    of: TimelineId,
}

impl Cached {
    /// What is known of the block, which is still out.
    pub(crate) fn entry(&self) -> &Entry {
        self.item.entry()
    }

    /// The work that used it.
    pub(crate) fn fence(&self) -> Fence {
        Fence::at(self.of, self.entry().tick())
    }
}

/// The part of what a thread may cache, by which its high-water mark may be too high.
const MOST_DRIFT: u64 = 8;

/// Bytes that a thread may cache in a pool that is small; in a larger one it is a share of what is reserved.
const LEAST_LIMIT: u64 = 64 << 20;

/// More than blocks in one magazine of those that are ever rounded can differ by; the difference wraps around where
/// the block is shorter than the request.
const SLACK_IN_HASTE: u64 = 1 << 32;

impl Caches {
    pub(crate) fn new(views: Arc<Views>, sizes: Sizes, pool: Weak<dyn ThreadEnd>) -> Self {
        let nobody = Box::into_raw(Box::new(ThreadCache::new()));
        Self {
            threads: std::array::from_fn(|_| AtomicPtr::new(nobody)),
            views,
            sizes,
            depot: Depot::default(),
            limit: AtomicU64::new(LEAST_LIMIT),
            most_slack: AtomicU64::new(sizes.bytes(1)),
            used: AtomicUsize::new(0),
            others: Tally::default(),
            pool,
            is_shut: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
        }
    }

    // ---- the fast path ---------------------------------------------------------------------------

    /// The calling thread's cache, or nobody's.
    #[inline]
    fn mine(&self) -> &ThreadCache {
        // SAFETY: an index is at most `MOST_THREADS`.
        let place = unsafe { self.threads.get_unchecked(thread_index()) };
        // Acquire: pairs with the Release in `join_slow`; another thread with this index may have made it.
        // SAFETY: caches are dropped with the pool only.
        unsafe { &*place.load(Ordering::Acquire) }
    }

    #[inline]
    fn enter<const FENCED: bool>(&self, stream: &Stream) -> Option<Own<'_>> {
        // SAFETY: the cache under a thread's index is that thread's own, or its gate is closed until it is
        // (`join_slow`, `end_thread`). This function's callers leave before they return.
        unsafe { self.mine().enter::<FENCED>(stream.key()) }
    }

    /// A block for work on `stream` from the calling thread's magazines, if the first look finds one that fits.
    #[inline]
    pub(crate) fn alloc(&self, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
        if self.sizes.is_rounded(bytes) {
            let Own { lane, tally, _inside } = self.enter::<false>(stream)?;
            let magazine = lane.magazine(self.sizes.magazine_for_rounded(bytes));
            let item = *magazine.top()?;
            let size = item.bytes();
            return Some(Self::take(magazine, item, (bytes, size, size - bytes), tally));
        }
        let index = self.sizes.magazine_for_exact(bytes)?;
        let Own { lane, tally, _inside } = self.enter::<false>(stream)?;
        let magazine = lane.magazine(index);
        let item = *magazine.top()?;
        let size = item.bytes();
        let slack = size.wrapping_sub(bytes);
        // Relaxed: a setting; any value that it ever had is safe.
        if slack >= self.most_slack.load(Ordering::Relaxed) {
            return None;
        }
        Some(Self::take(magazine, item, (bytes, size, slack), tally))
    }

    /// Hands out the block on top of the magazine: `item`, for a request of so many bytes, with its size and what
    /// is left over.
    #[inline(always)]
    fn take(
        magazine: &mut Magazine,
        item: Item,
        (requested, size, slack): (u64, u64, u64),
        tally: &Tally,
    ) -> DevicePtr {
        magazine.drop_top();
        tally.count_alloc(requested, size);
        item.entry().make_live(slack);
        item.ptr
    }

    // ---- the way between: no lock but a part of the depot's ----------------------------------------------

    /// As [`alloc`](Self::alloc), and looks below the top of a magazine of several sizes, and into the depot.
    #[cold]
    pub(crate) fn alloc_searching(&self, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
        if !self.sizes.is_cached(bytes) {
            return None;
        }
        let Own { lane, tally, _inside } = self.enter::<true>(stream)?;
        let units =
            if self.is_in_haste() { self.sizes.units_in_haste(bytes) } else { self.sizes.units(bytes) };
        let magazine = lane.magazine(MagazineIndex::of(units));
        let size = self.sizes.bytes(units);
        if !magazine.bring_up(size) && !self.fetch(magazine, tally, stream, size) {
            return None;
        }
        let item = *magazine.top()?;
        Some(Self::take(magazine, item, (bytes, size, size - bytes), tally))
    }

    /// Brings blocks of this length from the depot to the thread's magazine, up to half of what it may hold.
    fn fetch(&self, magazine: &mut Magazine, tally: &Tally, stream: &Stream, size: u64) -> bool {
        let most = magazine.restock_by();
        if most == 0 || self.depot.held() == 0 {
            return false;
        }
        // Before it is so: who closes the depot next sees that this thread may hold something (`revoke`).
        tally.note_filled();
        let mut count = 0;
        self.depot.take(stream.timeline().id, size, most, |item| {
            // SAFETY: it is not full: no more come than half of what it may hold.
            unsafe { magazine.push(item) };
            count += 1;
        });
        magazine.draw_near(count);
        count > 0
    }

    /// Brings the older half of a magazine that is as large as it gets to the depot, if its blocks are alike.
    fn hand_on(&self, magazine: &mut Magazine, tally: &Tally, stream: &Stream) -> bool {
        // Relaxed: a setting.
        let limit = self.limit.load(Ordering::Relaxed);
        let half = magazine.older_half();
        let Some(bytes) = half.first().map(Item::bytes) else { return false };
        if half.len() < 2
            || !magazine.is_at_most(bytes, self.is_in_haste())
            || tally.drift() > limit / MOST_DRIFT
            || half.iter().any(|item| item.bytes() != bytes)
            || !self.depot.put(stream.timeline().id, bytes, half, limit)
        {
            return false;
        }
        drop(magazine.give_up_half());
        true
    }

    /// Takes a live block, freed on `stream`, into the calling thread's magazines. `false`, and nothing done,
    /// where there is no room, or it is not as simple as that.
    #[inline]
    pub(crate) fn free(&self, ptr: DevicePtr, stream: &Stream) -> bool {
        self.put::<false>(ptr, stream).is_some()
    }

    /// As [`free`](Self::free), also where the kernel issues no barriers for the gate, and where the depot has room.
    #[cold]
    pub(crate) fn free_fenced(&self, ptr: DevicePtr, stream: &Stream) -> bool {
        self.put::<true>(ptr, stream).is_some()
    }

    #[inline(always)]
    fn put<const FENCED: bool>(&self, ptr: DevicePtr, stream: &Stream) -> Option<()> {
        let Own { lane, tally, _inside } = self.enter::<FENCED>(stream)?;
        let (entry, offset) = self.views.find(ptr)?;
        let slack = entry.slack_if_plain(offset)?;
        // SAFETY: a block that is live was labelled when it left the arena (`labelled`).
        let index = unsafe { MagazineIndex::from_label(entry.label()) };
        let magazine = lane.magazine(index);
        if magazine.is_full() && !(FENCED && self.hand_on(magazine, tally, stream)) {
            return None;
        }
        entry.make_cached(offset, stream.timeline().now());
        // SAFETY: it is not full.
        unsafe { magazine.push(Item::new(ptr, entry)) };
        let size = entry.bytes();
        tally.count_free(size - slack, size);
        Some(())
    }

    // ---- the slow path: under the pool's lock -----------------------

    /// The calling thread's cache, made if need be; `None` where it can have none.
    #[cold]
    fn join_slow(&self, _lock: &mut Locked) -> Option<&ThreadCache> {
        if self.is_closed() {
            return None;
        }
        if self.mine().is_owned() {
            return Some(self.mine());
        }
        let index = visit(self.pool.clone())?;
        let place = &self.threads[index];
        // Relaxed: written under the lock.
        if place.load(Ordering::Relaxed) == self.nobody() {
            // Release: see `mine`.
            place.store(Box::into_raw(Box::new(ThreadCache::new())), Ordering::Release);
            self.used.fetch_max(index + 1, Ordering::Relaxed);
        }
        self.mine().own();
        Some(self.mine())
    }

    /// A block of `units` for work on `stream`, from the thread's magazines or the depot; brings more of the
    /// same from there. Blocks of streams that are gone are given to `each`.
    #[cold]
    pub(crate) fn restock(
        &self,
        lock: &mut Locked,
        units: u64,
        stream: &Stream,
        mut each: impl FnMut(Cached),
    ) -> Option<Out> {
        let timeline = stream.timeline();
        if timeline.marking != Marking::WhenNeeded {
            return None;
        }
        let cache = self.join_slow(lock)?;
        // SAFETY: the calling thread owns the cache, is not inside, and holds the lock.
        let lanes = unsafe { cache.lanes_under_lock() };
        lanes.of_or_add(timeline, |of, item| each(Cached { item, of }));
        cache.open(lanes);
        let magazine = lanes.of_or_add(timeline, |_, _| ()).magazine(MagazineIndex::of(units));
        let size = self.sizes.bytes(units);
        let item = if magazine.bring_up(size) {
            let top = magazine.top().copied();
            magazine.drop_top();
            top
        } else {
            let (at, has_room) = (MagazineIndex::of(units), magazine.restock_by() > 0);
            let regretted =
                self.sizes.is_large(size) && (lanes.note_alloc(stream.key(), at, size) || self.is_in_haste());
            // What other threads free again and again is worth room, too.
            if regretted || (!has_room && self.depot.has(timeline.id, size)) {
                self.grant(lanes, stream, (at, size), &mut each);
            }
            let magazine = lanes.of_or_add(timeline, |_, _| ()).magazine(at);
            let (mut first, mut count) = (None, 0);
            self.depot.take(timeline.id, size, 1 + magazine.restock_by(), |item| match first {
                None => first = Some(item),
                Some(_) => {
                    cache.tally.note_filled();
                    count += 1;
                    // SAFETY: it is not full: no more come than half of what it may hold.
                    unsafe { magazine.push(item) };
                }
            });
            magazine.draw_near(count);
            first
        };
        Some(item?.out())
    }

    /// As [`restock`](Self::restock), with what another stream freed. `admit` answers whether work on `stream` may
    /// use what is behind a fence, and sees to it if it can.
    #[cold]
    pub(crate) fn restock_from_others(
        &self,
        lock: &mut Locked,
        units: u64,
        stream: &Stream,
        admit: impl FnOnce(&Fence) -> bool,
    ) -> Option<Out> {
        let timeline = stream.timeline();
        let size = self.sizes.bytes(units);
        let other = self.depot.other_with(timeline.id, size)?;
        if timeline.marking != Marking::WhenNeeded {
            return None;
        }
        let cache = self.join_slow(lock)?;
        // SAFETY: as in `restock`.
        let lanes = unsafe { cache.lanes_under_lock() };
        let magazine = lanes.of_or_add(timeline, |_, _| ()).magazine(MagazineIndex::of(units));
        let mut items = Few::<Item>::new();
        self.depot.take(other, size, 1 + magazine.restock_by(), |item| items.push(item));
        let last = items.iter().map(|item| item.entry().tick()).max()?;
        if !admit(&Fence::at(other, last)) {
            self.depot.put(other, size, &items, u64::MAX);
            return None;
        }
        // From here on it is as if this stream had freed them, now.
        for item in &items {
            item.entry().make_cached(item.entry().offset(), timeline.now());
        }
        let first = items.pop();
        if !items.is_empty() {
            cache.tally.note_filled();
        }
        for item in items {
            // SAFETY: it is not full: no more came than half of what it may hold.
            unsafe { magazine.push(item) };
        }
        first.map(|item| item.out())
    }

    /// Labels a block that has just left the arena with its magazine.
    pub(crate) fn label(&self, _lock: &mut Locked, entry: &Entry) {
        let units = self.sizes.exact_units(entry.bytes());
        entry.set_label(MagazineIndex::of(units).label());
    }

    /// Takes a live block without recorded uses into the thread's magazines, and makes room for it: what has
    /// none goes to the depot, or is given to `each`. `false`, and nothing done, where the thread can have no
    /// magazine for it. A high-water mark that drifted is folded into `folded`.
    #[cold]
    pub(crate) fn put_slow(
        &self,
        lock: &mut Locked,
        (ptr, entry): (DevicePtr, &Entry),
        stream: &Stream,
        folded: &HighWater,
        mut each: impl FnMut(Cached),
    ) -> bool {
        let timeline = stream.timeline();
        // Relaxed: a setting.
        let limit = self.limit.load(Ordering::Relaxed);
        let (size, slack) = (entry.bytes(), entry.slack());
        let longest = self.sizes.longest_beside(size);
        if timeline.marking != Marking::WhenNeeded || longest > limit {
            return false;
        }
        let Some(cache) = self.join_slow(lock) else { return false };
        if cache.tally.drift() > limit / MOST_DRIFT {
            folded.raise(&self.counted(folded));
            cache.tally.reset_high();
        }
        // SAFETY: as in `restock`.
        let lanes = unsafe { cache.lanes_under_lock() };
        let at = MagazineIndex::of(self.sizes.exact_units(size));
        lanes.of_or_add(timeline, |of, item| each(Cached { item, of }));
        cache.open(lanes);
        let magazine = lanes.of_or_add(timeline, |_, _| ()).magazine(at);
        let full = magazine.is_full();
        let in_haste = self.is_in_haste();
        let may_grow =
            !self.sizes.is_large(size) || in_haste || (full && lanes.note_free(stream.key(), at, size));
        if full && !(may_grow && lanes.grant(stream.key(), at, longest, (limit, in_haste))) {
            let given_up: Few<Item> =
                lanes.of_or_add(timeline, |_, _| ()).magazine(at).give_up_half().collect();
            if given_up.is_empty() && !may_grow {
                return false;
            }
            if given_up.is_empty() {
                self.grant(lanes, stream, (at, size), &mut each);
            }
            self.put_away(timeline.id, given_up, &mut each);
        }
        let magazine = lanes.of_or_add(timeline, |_, _| ()).magazine(at);
        if magazine.is_full() {
            return false;
        }
        entry.make_cached(entry.offset(), timeline.now());
        cache.tally.count_free(size - slack, size);
        // SAFETY: it is not full.
        unsafe { magazine.push(Item::new(ptr, entry)) };
        true
    }

    /// Lets a magazine hold more blocks of about `size`. Where others have all that may be held, begins anew: the
    /// thread gives up what it caches, and every magazine its room.
    fn grant(
        &self,
        lanes: &mut Lanes,
        stream: &Stream,
        (at, size): (MagazineIndex, u64),
        each: &mut impl FnMut(Cached),
    ) {
        let longest = self.sizes.longest_beside(size);
        // Relaxed: a setting.
        let limit = self.limit.load(Ordering::Relaxed);
        let limit = (limit, self.is_in_haste());
        if longest <= limit.0 && !lanes.grant(stream.key(), at, longest, limit) {
            lanes.drain(|size| self.sizes.longest_if_large(size), |of, item| each(Cached { item, of }));
            lanes.revoke_grants();
            lanes.grant(stream.key(), at, longest, limit);
        }
    }

    /// Brings blocks that a magazine gave up to the depot, if there are several of a length, which makes it
    /// likely that they are wanted again; gives the others to `each`.
    fn put_away(&self, of: TimelineId, mut items: Few<Item>, each: &mut impl FnMut(Cached)) {
        // Relaxed: a setting.
        let limit = self.limit.load(Ordering::Relaxed);
        // Stable: the youngest of a length stay the last ones.
        items.sort_by_key(Item::bytes);
        for alike in items.chunk_by(|a, b| a.bytes() == b.bytes()) {
            let bytes = alike[0].bytes();
            if alike.len() < 2 || !self.depot.put(of, bytes, alike, limit) {
                alike.iter().for_each(|&item| each(Cached { item, of }));
            }
        }
    }

    /// Counts a block that the arena gave to the program, of which it asked for `requested` bytes.
    pub(crate) fn count_alloc(&self, lock: &mut Locked, requested: u64, bytes: u64) {
        self.tally_slow(lock).count_alloc(requested, bytes);
    }

    /// Counts a block that the program freed to the arena.
    pub(crate) fn count_free(&self, lock: &mut Locked, requested: u64, bytes: u64) {
        self.tally_slow(lock).count_free(requested, bytes);
    }

    /// The tally that the calling thread may write under the lock.
    fn tally_slow(&self, lock: &mut Locked) -> &Tally {
        self.join_slow(lock).map_or(&self.others, |cache| &cache.tally)
    }

    // ---- taking back -----------------------------------------------------------------------------------

    fn nobody(&self) -> *mut ThreadCache {
        // Relaxed: never written.
        self.threads[MOST_THREADS].load(Ordering::Relaxed)
    }

    fn all(&self) -> impl Iterator<Item = &ThreadCache> + Clone {
        // Relaxed: an index beyond it has nothing to tell yet.
        let used = self.used.load(Ordering::Relaxed);
        let nobody = self.nobody();
        // Acquire: as in `mine`.
        let all = self.threads[..used].iter().map(|place| place.load(Ordering::Acquire));
        // SAFETY: as in `mine`.
        all.filter(move |cache| *cache != nobody).map(|cache| unsafe { &*cache })
    }

    /// Takes back everything that any thread caches, and the depot: gives it to `each`. The high-water marks
    /// are folded into `folded`.
    #[cold]
    pub(crate) fn revoke(&self, lock: &mut Locked, folded: &HighWater, mut each: impl FnMut(Cached)) {
        self.depot.close(|of, item| each(Cached { item, of }));
        self.for_all(lock, Some(folded), |cache, lanes| {
            lanes.drain(|size| self.sizes.longest_if_large(size), |of, item| each(Cached { item, of }));
            cache.tally.note_emptied();
        });
        self.depot.open();
    }

    /// Takes back everything, as [`revoke`](Self::revoke) does, and caches nothing from now on.
    pub(crate) fn shut(&self, lock: &mut Locked, folded: &HighWater, each: impl FnMut(Cached)) {
        // Relaxed: under the lock.
        self.is_shut.store(true, Ordering::Relaxed);
        self.close_all(lock, folded, each);
    }

    /// As [`shut`](Self::shut), until [`resume`](Self::resume): every request goes the slow way.
    pub(crate) fn pause(&self, lock: &mut Locked, folded: &HighWater, each: impl FnMut(Cached)) {
        // Relaxed: under the lock.
        self.is_paused.store(true, Ordering::Relaxed);
        self.close_all(lock, folded, each);
    }

    /// Caches again: a thread's gate opens when it next goes the slow way.
    pub(crate) fn resume(&self, _lock: &mut Locked) {
        // Relaxed: under the lock.
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// Whether no gate may be opened. Under the lock.
    fn is_closed(&self) -> bool {
        self.is_shut.load(Ordering::Relaxed) || self.is_paused.load(Ordering::Relaxed)
    }

    fn close_all(&self, lock: &mut Locked, folded: &HighWater, each: impl FnMut(Cached)) {
        // Also those that look empty: they stay closed.
        self.all().for_each(|cache| cache.tally.note_filled());
        self.revoke(lock, folded, each);
    }

    /// Notes the high-water marks so far in `folded`, and lets them start again from now.
    pub(crate) fn fold(&self, lock: &mut Locked, folded: &HighWater) {
        self.for_all(lock, Some(folded), |_, _| ());
    }

    /// Calls `each` with the lanes of every cache that has something in it or to tell, while all their owners are
    /// kept out. With `folded`, also [folds](Self::fold).
    fn for_all(
        &self,
        _lock: &mut Locked,
        folded: Option<&HighWater>,
        mut each: impl FnMut(&ThreadCache, &mut Lanes),
    ) {
        let is_concerned = |cache: &&ThreadCache| self.is_mine(cache) || cache.tally.is_of_note();
        let concerned: Few<_> = self.all().filter(is_concerned).collect();
        self.keep_out(&concerned);
        if let Some(folded) = folded {
            folded.raise(&self.counted(folded));
            self.others.reset_high();
        }
        for cache in &concerned {
            // SAFETY: the lock is held (`lock`), and owners are kept out.
            let lanes = unsafe { cache.lanes_under_lock() };
            each(cache, lanes);
            if folded.is_some() {
                cache.tally.reset_high();
            }
        }
        self.let_in(&concerned);
    }

    /// Whether the cache is the calling thread's own.
    fn is_mine(&self, cache: &ThreadCache) -> bool {
        std::ptr::eq(cache, self.mine())
    }

    /// Closes the caches to their owners, and waits until none is inside. Under the lock.
    fn keep_out(&self, caches: &[&ThreadCache]) {
        caches.iter().for_each(|cache| cache.gate().close());
        // The calling thread is not inside, and needs no barrier to see its own writes.
        if caches.iter().any(|cache| !self.is_mine(cache)) {
            heavy_barrier();
            caches.iter().for_each(|cache| cache.gate().wait_until_left());
        }
    }

    /// Opens caches that [`keep_out`](Self::keep_out) closed; those without an owner stay closed.
    fn let_in(&self, caches: &[&ThreadCache]) {
        if self.is_closed() {
            return;
        }
        for cache in caches.iter().filter(|cache| cache.is_owned()) {
            // SAFETY: the lock is held, and owners are kept out until here.
            cache.open(unsafe { cache.lanes_under_lock() });
        }
    }

    /// Whether anything is cached, as far as can be seen in passing.
    pub(crate) fn holds_any(&self) -> bool {
        self.depot.held() > 0 || self.all().any(|cache| cache.tally.may_hold())
    }

    /// The thread with this index, the calling one, ends: takes back what it caches. Its high-water mark is noted
    /// in `folded`: kept, it would be added to what threads that come later allocate.
    pub(crate) fn end_thread(
        &self,
        _lock: &mut Locked,
        index: usize,
        folded: &HighWater,
        mut each: impl FnMut(Cached),
    ) {
        // Relaxed: under the lock, where it was written.
        // SAFETY: as in `mine`.
        let cache = unsafe { &*self.threads[index].load(Ordering::Relaxed) };
        cache.disown();
        // SAFETY: the calling thread owned the cache, is not inside, and holds the lock.
        let lanes = unsafe { cache.lanes_under_lock() };
        lanes.drain(|size| self.sizes.longest_if_large(size), |of, item| each(Cached { item, of }));
        lanes.revoke_grants();
        cache.tally.note_emptied();
        folded.raise(&self.counted(folded));
        cache.tally.reset_high();
    }

    /// Adapts the bytes that a thread may cache to what the pool holds and how many threads use it: all of it
    /// together. That is much, but nothing is lost by it: whoever finds too little elsewhere takes it back. With
    /// anything to spare, the pool is in haste.
    pub(crate) fn adapt(&self, reserved: u64, spare: u64) {
        let threads = self.all().filter(|cache| cache.is_owned()).count().max(1) as u64;
        // With the eighth that magazines of mixed sizes count on top.
        let share = (reserved + reserved / 8 + spare) / threads;
        // Relaxed: settings.
        self.limit.store(share.max(LEAST_LIMIT), Ordering::Relaxed);
        let most_slack = if spare > 0 { SLACK_IN_HASTE } else { self.sizes.bytes(1) };
        self.most_slack.store(most_slack, Ordering::Relaxed);
    }

    fn is_in_haste(&self) -> bool {
        // Relaxed: a setting.
        self.most_slack.load(Ordering::Relaxed) == SLACK_IN_HASTE
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// What all threads counted.
    pub(crate) fn counted(&self, folded: &HighWater) -> Counted {
        sum(self.all().map(|cache| &cache.tally).chain(std::iter::once(&self.others)), folded)
    }

    /// Recounts what the caches hold, and calls `recount` with the number of blocks in them while every owner is
    /// kept out.
    pub(crate) fn check(
        &self,
        lock: &mut Locked,
        recount: impl FnOnce(u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let all: Few<_> = self.all().collect();
        self.keep_out(&all);
        let result = self.check_kept_out(lock, &all).and_then(recount);
        self.let_in(&all);
        result
    }

    /// Recounts what caches whose owners are kept out hold: returns the number of blocks in them and the depot.
    fn check_kept_out(&self, _lock: &mut Locked, caches: &[&ThreadCache]) -> Result<u64, String> {
        let bytes = |items: &[Item]| items.iter().map(Item::bytes).sum::<u64>();
        let mut items = self.depot.items();
        let held = self.depot.held();
        if bytes(&items) != held {
            return Err(format!("the depot has {} bytes and counted {held}", bytes(&items)));
        }
        for cache in caches {
            // SAFETY: the lock is held (`lock`), and owners are kept out.
            let lanes = unsafe { cache.lanes_under_lock() };
            let held: Vec<_> = lanes.iter().copied().collect();
            if bytes(&held) > lanes.granted() {
                return Err(format!("a thread caches {}, more than {}", bytes(&held), lanes.granted()));
            }
            if !held.is_empty() && !cache.tally.may_hold() {
                return Err("a thread caches blocks and looks empty".to_owned());
            }
            items.extend(held);
        }
        if let Some(item) = items.iter().find(|item| item.entry().is_live()) {
            return Err(format!("{} is cached, and is {:?}", item.ptr, item.entry()));
        }
        let blocks = items.len();
        items.sort_unstable_by_key(|item| item.ptr);
        items.dedup_by_key(|item| item.ptr);
        if items.len() == blocks { Ok(blocks as u64) } else { Err("a block is cached twice".to_owned()) }
    }
}

/// What is dealt with together: caches, or blocks.
type Few<T> = SmallVec<[T; 32]>;

impl Drop for Caches {
    fn drop(&mut self) {
        let nobody = self.nobody();
        let (_, others) = self.threads.split_last_mut().expect("there are many");
        for place in others {
            let cache = *place.get_mut();
            if cache != nobody {
                // SAFETY: the cache came from `Box::into_raw`. The pool is going, so no thread is inside.
                drop(unsafe { Box::from_raw(cache) });
            }
        }
        // SAFETY: it came from `Box::into_raw`, and no place that is looked at again names it.
        drop(unsafe { Box::from_raw(nobody) });
    }
}
