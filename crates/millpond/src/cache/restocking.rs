//! The slow path of an allocation or a free: under the pool's lock, between the thread's magazines, the depot and
//! the arena.

use std::sync::atomic::Ordering;

use super::Locked;
use super::caches::{Cached, Caches};
use super::magazine::{Few, Item};
use super::sizes::MagazineIndex;
use super::stream_cache::{Known, StreamCaches};
use super::thread::ThreadCache;
use super::thread_index::visit;
use crate::extents::{Allocation, BlockDescriptor, Place};
use crate::host::try_box;
use crate::order::{Marking, Stream, Tick, TimelineId};

impl Caches {
    /// The calling thread's cache, made if need be; `None` where it can have none.
    #[inline]
    pub(super) fn join_slow(&self, lock: &mut Locked) -> Option<&ThreadCache> {
        if self.is_closed() {
            return None;
        }
        let mine = self.mine();
        if mine.is_owned() { Some(mine) } else { self.join_anew(lock) }
    }

    /// Makes the calling thread the owner of a cache. Under the lock.
    #[cold]
    fn join_anew(&self, lock: &mut Locked) -> Option<&ThreadCache> {
        let index = visit(&self.ended)?;
        // What the index's last owner cached is this thread's from now on.
        self.ended.forget(index);
        let place = &self.threads[index];
        // Relaxed: written under the lock.
        if place.load(Ordering::Relaxed) == self.sentinel() {
            // Without memory for it, the thread keeps the sentinel.
            let cache = try_box(ThreadCache::new(self.strays.clone(), self.totals.clone()))?;
            // Release: see `mine`.
            place.store(cache.as_ptr(), Ordering::Release);
            self.used.fetch_max(index + 1, Ordering::Relaxed);
        }
        // One of a thread that ended may be its own still.
        if !self.mine().is_owned() {
            self.note_owner(lock);
        }
        self.mine().own();
        Some(self.mine())
    }

    /// A block of `units` for work on `stream`, from the thread's magazines or the depot; brings more of the
    /// same from there. Blocks of streams that are gone are given to `each`.
    pub(crate) fn restock(
        &self,
        lock: &mut Locked,
        units: u64,
        stream: &Stream,
        mut each: impl FnMut(Cached),
    ) -> Option<Allocation> {
        let timeline = stream.timeline();
        if timeline.marking != Marking::WhenNeeded {
            return None;
        }
        let cache = self.join_slow(lock)?;
        // SAFETY: the calling thread owns the cache, is not inside, and holds the lock.
        let stream_caches = unsafe { cache.stream_caches_under_lock() };
        stream_caches.of_or_add(timeline, |of, item| each(Cached { item, of }))?;
        cache.open(stream_caches, stream.key(), self.has_lock_entries());
        let (at, size) = (MagazineIndex::of(units), self.sizes.bytes(units));
        let Known { mut magazine, .. } = stream_caches.of(stream.key())?.known(at)?;
        if let Some(found) = magazine.take_alike(size) {
            return Some(found.out());
        }
        let is_large = self.sizes.is_large(size);
        magazine.unstow();
        let has_room = magazine.restock_by() > 0;
        // What other threads free again and again is worth room, too.
        let wants_room =
            !has_room && (is_large && self.in_throughput_mode() || self.depot.has(timeline.id, size));
        if wants_room {
            self.grant(stream_caches, stream, (at, size), &mut each);
            cache.note_granted(stream_caches);
        }
        if self.depot.held() == 0 {
            return None;
        }
        let Known { mut magazine, .. } = stream_caches.of(stream.key())?.known(at)?;
        let (mut first, mut count) = (None, 0);
        let most = 1 + magazine.restock_by();
        self.depot.take((timeline.id, Tick::MAX), size, most, |item| match first {
            None => first = Some(item),
            Some(_) => {
                cache.tally.note_filled();
                count += 1;
                // SAFETY: it is not full: no more come than half of what it may hold.
                unsafe { magazine.push(item) };
            }
        });
        magazine.claim_top(count);
        let mut out = None;
        if let Some(item) = first {
            self.strays.sort_out(item, Place::BETWEEN, |item| out = Some(item.out()));
        }
        out
    }

    /// Lets the thread's magazine for blocks of `units` hold more, if it may.
    #[cold]
    pub(crate) fn widen(&self, _lock: &mut Locked, units: u64, stream: &Stream) {
        let cache = self.mine();
        if !cache.is_owned() {
            return;
        }
        // SAFETY: the calling thread owns the cache, is not inside, and holds the lock.
        let stream_caches = unsafe { cache.stream_caches_under_lock() };
        stream_caches.grant(stream.key(), MagazineIndex::of(units), &self.bounds(self.sizes.bytes(units)));
        cache.note_granted(stream_caches);
    }

    /// Labels a block of so many bytes that has just left the arena with its magazine. Its descriptor is only written: to read
    /// it is to wait for it.
    pub(crate) fn label(&self, _lock: &mut Locked, descriptor: &BlockDescriptor, bytes: u64) {
        let units = self.sizes.exact_units(bytes);
        descriptor.set_label(MagazineIndex::of(units).label());
    }

    /// Takes a block that the program has just freed, without recorded uses, into the thread's magazines, and makes
    /// room for it. Blocks without room go to the depot, or to `each`. `false`, and nothing done, where the thread can
    /// have no magazine for it.
    pub(crate) fn put_slow(
        &self,
        lock: &mut Locked,
        descriptor: &BlockDescriptor,
        stream: &Stream,
        mut each: impl FnMut(Cached),
    ) -> bool {
        let timeline = stream.timeline();
        let size = descriptor.bytes();
        let bounds = self.bounds(size);
        if timeline.marking != Marking::WhenNeeded || bounds.longest > bounds.limit {
            return false;
        }
        let Some(cache) = self.join_slow(lock) else { return false };
        // SAFETY: as in `restock`.
        let stream_caches = unsafe { cache.stream_caches_under_lock() };
        let at = MagazineIndex::of(self.sizes.exact_units(size));
        let magazines = stream_caches.of_or_add(timeline, |of, item| each(Cached { item, of }));
        let Some(known) = magazines.and_then(|magazines| magazines.known(at)) else { return false };
        let mut magazine = known.magazine;
        magazine.unstow();
        if magazine.is_full() {
            let may_grow = !bounds.is_large || bounds.in_throughput_mode;
            if !may_grow && magazine.is_empty() {
                // Nearly always, of large blocks, while a program does not repeat itself.
                return false;
            }
            if !(may_grow && stream_caches.grant(stream.key(), at, &bounds)) {
                self.make_room(stream_caches, stream, (at, size), &mut each);
            }
            cache.note_granted(stream_caches);
        }
        cache.open(stream_caches, stream.key(), self.has_lock_entries());
        let Some(magazines) = stream_caches.of(stream.key()) else { return false };
        if magazines.magazine(at).is_full() {
            return false;
        }
        descriptor.make_cached(magazines.magazine(at).place(), timeline.now());
        cache.tally.count_free_outside(descriptor.requested(), size);
        // SAFETY: it is not full.
        unsafe { magazines.magazine(at).push(Item::new(descriptor.ptr(), descriptor)) };
        true
    }

    /// Makes room in a full magazine that may not grow: gives up its older half. One without any room gets some.
    #[cold]
    fn make_room(
        &self,
        stream_caches: &mut StreamCaches,
        stream: &Stream,
        (at, size): (MagazineIndex, u64),
        each: &mut impl FnMut(Cached),
    ) {
        let timeline = stream.timeline();
        let known = stream_caches.of(stream.key()).and_then(|magazines| magazines.known(at));
        let Some(Known { mut magazine, .. }) = known else { return };
        if magazine.len() <= 2 {
            // Nearly always: one goes, if there is one.
            let (place, given_up) = (magazine.place(), magazine.give_up_half().pop());
            match given_up {
                Some(item) => {
                    self.strays.sort_out(item, place, |item| each(Cached { item, of: timeline.id }))
                }
                None => self.grant(stream_caches, stream, (at, size), each),
            }
            return;
        }
        let (place, mut given_up) = (magazine.place(), magazine.give_up_half());
        given_up.retain(|item| {
            let mut is_here = false;
            self.strays.sort_out(*item, place, |_| is_here = true);
            is_here
        });
        self.give_to_depot(timeline.id, given_up, each);
    }

    /// Lets a magazine hold more blocks of about `size`. Where others have all that may be held, begins anew: the
    /// thread gives up what it caches, and every magazine its room.
    fn grant(
        &self,
        stream_caches: &mut StreamCaches,
        stream: &Stream,
        (at, size): (MagazineIndex, u64),
        each: &mut impl FnMut(Cached),
    ) {
        let bounds = self.bounds(size);
        if bounds.longest <= bounds.limit && !stream_caches.grant(stream.key(), at, &bounds) {
            self.drain(stream_caches, each);
            stream_caches.revoke_grants();
            stream_caches.grant(stream.key(), at, &bounds);
        }
    }

    /// Brings blocks that a magazine gave up to the depot, where several are of one length: those are likely to be
    /// wanted again. Gives the others to `each`.
    fn give_to_depot(&self, of: TimelineId, mut items: Few<Item>, each: &mut impl FnMut(Cached)) {
        // Relaxed: a setting.
        let limit = self.depot_limit.load(Ordering::Relaxed);
        // Stable: the youngest of a length stay the last ones.
        items.sort_by_key(Item::bytes);
        for alike in items.chunk_by(|a, b| a.bytes() == b.bytes()) {
            let bytes = alike[0].bytes();
            if alike.len() < 2 || !self.depot.put(of, bytes, alike, limit) {
                alike.iter().for_each(|&item| each(Cached { item, of }));
            }
        }
    }
}
