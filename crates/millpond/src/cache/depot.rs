//! The depot: what no magazine has room for, on shelves by size and stream, where other threads find it.
//!
//! A thread exchanges up to half a magazine at a time with the depot. It is inside its own cache then, and does not
//! hold the pool's lock. The shelves have several locks, each held for one exchange only. Whoever takes everything
//! back, under the pool's lock, closes the depot first. Until it is open again nobody gets or brings anything: so no
//! block moves between a shelf and a magazine that was emptied already.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use super::magazine::Item;
use crate::extents::Place;
use crate::order::{Tick, TimelineId};
use crate::policy::caching::DEPOT_LOCKS;
use crate::system::lock::{Mutex, MutexGuard};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Depot {
    shards: [Shard; DEPOT_LOCKS],
    /// Bytes on all shelves.
    held: AtomicU64,
    is_closed: AtomicBool,
}

/// A lock on cache lines of its own, and the shelves behind it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Shelves>);

/// By the blocks' length in bytes and stream. The youngest block of a shelf is its last.
type Shelves = FxHashMap<(u64, TimelineId), Vec<Item>>;

impl Depot {
    /// Bytes held. A glance.
    pub(super) fn held(&self) -> u64 {
        // Acquire: who sees that blocks were taken also sees that whoever took them may hold some
        // (`Tally::note_filled`): so blocks on their way are never overlooked.
        self.held.load(Ordering::Acquire)
    }

    /// The shard with the shelf for blocks of this stream and length. Streams that were made one after the other have
    /// theirs side by side.
    fn shard_of(of: TimelineId, bytes: u64) -> usize {
        // Sizes often differ in their upper bits only: these are what a product with an odd number has below, too.
        let spread = (bytes >> 8).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
        (u64::from(of.slot) + spread) as usize % DEPOT_LOCKS
    }

    /// The shelves of a shard; `None` while the depot is closed.
    fn shelves(&self, shard: usize) -> Option<MutexGuard<'_, Shelves>> {
        let shelves = self.shards[shard].0.lock();
        // Relaxed: who closed it has had this lock since.
        (!self.is_closed.load(Ordering::Relaxed)).then_some(shelves)
    }

    /// Puts blocks of this stream and length, which leave their magazine, on their shelf. It does nothing and returns `false` if the
    /// depot is closed, or the host has no memory.
    pub(super) fn put(&self, of: TimelineId, bytes: u64, items: &[Item]) -> bool {
        debug_assert!(!items.is_empty() && items.iter().all(|item| item.bytes() == bytes));
        let Some(mut shelves) = self.shelves(Self::shard_of(of, bytes)) else { return false };
        if shelves.try_reserve(1).is_err() {
            return false;
        }
        let shelf = shelves.entry((bytes, of)).or_default();
        if shelf.try_reserve(items.len()).is_err() {
            return false;
        }
        items.iter().for_each(|item| item.descriptor().move_to(Place::BETWEEN));
        shelf.extend_from_slice(items);
        // Relaxed: a sum.
        self.held.fetch_add(bytes * items.len() as u64, Ordering::Relaxed);
        true
    }

    /// Another stream that has blocks of this length here, and the tick at which the last of them came. Looks at
    /// the shelves of streams made about then first: so threads that look at the same time find different ones.
    pub(super) fn other_with(&self, of: TimelineId, bytes: u64) -> Option<(TimelineId, Tick)> {
        if self.held() == 0 {
            return None;
        }
        let first = Self::shard_of(of, bytes);
        (first..first + DEPOT_LOCKS).find_map(|shard| {
            let shelves = self.shelves(shard % DEPOT_LOCKS)?;
            let mut others = shelves.iter().filter(|((length, other), _)| *length == bytes && *other != of);
            others.find_map(|((_, other), shelf)| Some((*other, shelf.last()?.descriptor().tick())))
        })
    }

    /// Takes up to `most` blocks of this length that the stream freed up to the tick, the youngest; gives them to
    /// `each`, oldest first.
    pub(super) fn take(
        &self,
        (of, tick): (TimelineId, Tick),
        bytes: u64,
        most: usize,
        each: impl FnMut(Item),
    ) {
        let Some(mut shelves) = self.shelves(Self::shard_of(of, bytes)) else { return };
        let Some(shelf) = shelves.get_mut(&(bytes, of)) else { return };
        let is_early = |item: &Item| tick == Tick::MAX || item.descriptor().tick() <= tick;
        let end = shelf.iter().rposition(is_early).map_or(0, |last| last + 1);
        let count = shelf[..end].iter().rev().take(most).take_while(|item| is_early(item)).count();
        // Release: see `held`.
        self.held.fetch_sub(bytes * count as u64, Ordering::Release);
        shelf.drain(end - count..end).for_each(each);
        if shelf.is_empty() {
            shelves.remove(&(bytes, of));
        }
    }

    /// Gives up everything, and is closed until it is [opened](Self::open). Under the pool's lock.
    pub(super) fn close(&self, mut each: impl FnMut(TimelineId, Item)) {
        // Relaxed: every lock is taken after this and before anything else is done under the pool's lock.
        self.is_closed.store(true, Ordering::Relaxed);
        for shard in &self.shards {
            for ((bytes, of), shelf) in std::mem::take(&mut *shard.0.lock()) {
                // Release: see `held`.
                self.held.fetch_sub(bytes * shelf.len() as u64, Ordering::Release);
                shelf.into_iter().for_each(|item| each(of, item));
            }
        }
    }

    /// Under the pool's lock.
    pub(super) fn open(&self) {
        // Relaxed: who sees it late takes the slow path.
        self.is_closed.store(false, Ordering::Relaxed);
    }

    /// What it holds.
    pub(super) fn items(&self) -> Vec<Item> {
        let items = |shard: &Shard| shard.0.lock().values().flatten().copied().collect::<Vec<_>>();
        self.shards.iter().flat_map(items).collect()
    }
}

#[cfg(test)]
impl Depot {
    /// Whether each shelf has blocks of its own length only.
    pub(super) fn shelves_are_sorted(&self) -> bool {
        self.shards.iter().all(|shard| {
            let shelves = shard.0.lock();
            shelves.iter().all(|((bytes, _), shelf)| shelf.iter().all(|item| item.bytes() == *bytes))
        })
    }
}
