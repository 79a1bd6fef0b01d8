//! The caches of all threads in one pool, and the ways to them that take no lock of the pool.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use super::depot::Depot;
use super::lane::{Item, Magazine};
use super::sizes::{MagazineIndex, Sizes};
use super::tally::{Tally, sum};
use super::thread::{Own, ThreadCache};
use super::thread_index::{MOST_THREADS, NO_THREAD, ThreadEnd, thread_index};
use crate::arena::{Entry, Views};
use crate::counters::{Counted, HighWater};
use crate::device::DevicePtr;
use crate::order::{Fence, Stream, TimelineId};

/// See the [module](super).
#[derive(Debug)]
pub(crate) struct Caches {
    /// By thread index. The first one is *nobody's*, for whoever has none: it never has an owner, and its gate is
    /// always closed. Threads without a cache here have that one. A raw pointer owns it, since a `Box` that moves
    /// with this struct would claim that there are no others to it.
    pub(super) threads: [AtomicPtr<ThreadCache>; MOST_THREADS + 1],
    pub(super) views: Arc<Views>,
    pub(super) sizes: Sizes,
    pub(super) depot: Depot,
    /// Bytes that one thread may cache.
    pub(super) limit: AtomicU64,
    /// Bytes that the depot may hold.
    pub(super) depot_limit: AtomicU64,
    /// A block serves a request of a large size if it has less than this to spare, in bytes: one unit, or in haste
    /// anything, since what lies in one magazine differs by an eighth at most.
    pub(super) most_slack: AtomicU64,
    /// Entries of `threads` that may be in use.
    pub(super) used: AtomicUsize,
    /// What threads without a cache count. Written under the pool's lock.
    pub(super) others: Tally,
    pub(super) pool: Weak<dyn ThreadEnd>,
    /// Whether nothing is cached any more. Written under the pool's lock.
    pub(super) is_shut: AtomicBool,
    /// Whether nothing is cached for the time being. Written under the pool's lock.
    pub(super) is_paused: AtomicBool,
}

/// A block that a cache gave up: the arena's to take back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cached {
    pub(super) item: Item,
    pub(super) of: TimelineId,
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
pub(super) const MOST_DRIFT: u64 = 8;

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
            depot_limit: AtomicU64::new(LEAST_LIMIT),
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
    pub(super) fn mine(&self) -> &ThreadCache {
        // SAFETY: an index is at most `MOST_THREADS`.
        let place = unsafe { self.threads.get_unchecked(thread_index()) };
        // Acquire: pairs with the Release in `join_slow`; another thread with this index may have made it.
        // SAFETY: caches are dropped with the pool only.
        unsafe { &*place.load(Ordering::Acquire) }
    }

    #[inline]
    fn enter<const WIDE: bool>(&self, stream: &Stream) -> Option<Own<'_>> {
        // SAFETY: the cache under a thread's index is that thread's own, or its gate is closed until it is
        // (`join_slow`, `end_thread`). This function's callers leave before they return.
        unsafe { self.mine().enter::<WIDE>(stream.key()) }
    }

    /// A block for work on `stream` from the calling thread's magazines, if the first look finds one that fits.
    // Always inlined: a call would have its caller keep in registers what only the slow way needs.
    #[inline(always)]
    pub(crate) fn alloc(&self, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
        if self.sizes.is_rounded(bytes) {
            let Own { lane, tally, _inside } = self.enter::<false>(stream)?;
            // SAFETY: asked above.
            let index = unsafe { self.sizes.magazine_for_rounded(bytes) };
            let magazine = lane.magazine(index);
            let item = *magazine.top()?;
            return Some(Self::take(magazine, item, bytes, tally));
        }
        let index = self.sizes.magazine_for_exact(bytes)?;
        let Own { lane, tally, _inside } = self.enter::<false>(stream)?;
        let magazine = lane.magazine(index);
        let item = *magazine.top()?;
        // Relaxed: a setting; any value that it ever had is safe.
        if item.bytes().wrapping_sub(bytes) >= self.most_slack.load(Ordering::Relaxed) {
            return None;
        }
        Some(Self::take(magazine, item, bytes, tally))
    }

    /// Hands out the block on top of the magazine: `item`, for a request of so many bytes.
    #[inline(always)]
    pub(super) fn take(magazine: &mut Magazine, item: Item, requested: u64, tally: &Tally) -> DevicePtr {
        magazine.drop_top();
        tally.count_alloc(requested, item.bytes());
        item.entry().make_live(item.ptr, requested);
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
        Some(Self::take(magazine, item, bytes, tally))
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
            || !self.depot.put(stream.timeline().id, bytes, half, self.depot_limit.load(Ordering::Relaxed))
        {
            return false;
        }
        drop(magazine.give_up_half());
        true
    }

    /// Takes a live block, freed on `stream`, into the calling thread's magazines. `false`, and nothing done,
    /// where there is no room, or it is not as simple as that.
    #[inline(always)]
    pub(crate) fn free(&self, ptr: DevicePtr, stream: &Stream) -> bool {
        self.put::<false>(ptr, stream).is_some()
    }

    /// As [`free`](Self::free), also where the kernel issues no barriers for the gate, and where the depot has room.
    #[cold]
    pub(crate) fn free_wide(&self, ptr: DevicePtr, stream: &Stream) -> bool {
        self.put::<true>(ptr, stream).is_some()
    }

    #[inline(always)]
    fn put<const WIDE: bool>(&self, ptr: DevicePtr, stream: &Stream) -> Option<()> {
        let Own { lane, tally, _inside } = self.enter::<WIDE>(stream)?;
        let entry = self.views.find(ptr)?;
        if !entry.is_plain(ptr) {
            return None;
        }
        // SAFETY: a block that is live was labelled when it left the arena (`label`).
        let index = unsafe { MagazineIndex::from_label(entry.label()) };
        let magazine = lane.magazine(index);
        if magazine.is_full() && !(WIDE && self.hand_on(magazine, tally, stream)) {
            return None;
        }
        // SAFETY: it is not full.
        unsafe { magazine.push(Item::new(ptr, entry)) };
        entry.make_cached(ptr, stream.timeline().now());
        tally.count_free(entry.requested(), entry.bytes());
        Some(())
    }

    pub(super) fn nobody(&self) -> *mut ThreadCache {
        // Relaxed: never written.
        self.threads[NO_THREAD].load(Ordering::Relaxed)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ThreadCache> + Clone {
        // Relaxed: an index beyond it has nothing to tell yet.
        let used = self.used.load(Ordering::Relaxed);
        let nobody = self.nobody();
        // Acquire: as in `mine`.
        let all = self.threads[..used].iter().map(|place| place.load(Ordering::Acquire));
        // SAFETY: as in `mine`.
        all.filter(move |cache| *cache != nobody).map(|cache| unsafe { &*cache })
    }

    /// Adapts the bytes that a thread may cache to what the pool holds and how many threads use it: all of it
    /// together. That is much, but nothing is lost by it: whoever finds too little elsewhere takes it back. With
    /// anything to spare, the pool is in haste.
    pub(crate) fn adapt(&self, reserved: u64, spare: u64) {
        let threads = self.all().filter(|cache| cache.is_owned()).count().max(1) as u64;
        // With the eighth that magazines of mixed sizes count on top.
        let all = (reserved + reserved / 8 + spare).max(LEAST_LIMIT);
        // Relaxed: settings.
        self.limit.store((all / threads).max(LEAST_LIMIT), Ordering::Relaxed);
        self.depot_limit.store(all, Ordering::Relaxed);
        let most_slack = if spare > 0 { SLACK_IN_HASTE } else { self.sizes.bytes(1) };
        self.most_slack.store(most_slack, Ordering::Relaxed);
    }

    pub(super) fn is_in_haste(&self) -> bool {
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
}

/// What is dealt with together: caches, or blocks.
pub(super) type Few<T> = SmallVec<[T; 32]>;

impl Drop for Caches {
    fn drop(&mut self) {
        let nobody = self.nobody();
        let (_, others) = self.threads.split_first_mut().expect("there are many");
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
