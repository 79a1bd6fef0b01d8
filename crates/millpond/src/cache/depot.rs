//! What no magazine has room for: blocks on shelves by size and stream, where other threads find them.
//!
//! A thread exchanges up to half a magazine at a time with the depot, while it is inside its own gate and without
//! the pool's lock: the shelves are spread over several locks, each held for that exchange only. Whoever takes
//! everything back, under the pool's lock, closes the depot first: until it is open again nobody gets or brings
//! anything, so that nothing slips from a shelf into a magazine that was emptied already, or back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use super::lane::Item;
use crate::order::TimelineId;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Depot {
    parts: [Part; PARTS],
    /// Bytes on all shelves.
    held: AtomicU64,
    is_closed: AtomicBool,
}

/// Locks that the shelves are spread over.
const PARTS: usize = 16;

/// A lock on cache lines of its own, and the shelves behind it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part(Mutex<Shelves>);

/// By the blocks' length in bytes and stream. The youngest block of a shelf is its last; no shelf is empty.
type Shelves = FxHashMap<(u64, TimelineId), Vec<Item>>;

impl Depot {
    /// Bytes held. A glance.
    pub(super) fn held(&self) -> u64 {
        // Acquire: who sees that blocks were taken also sees that whoever took them may hold some
        // (`Tally::note_filled`), so that nobody looks empty-handed meanwhile.
        self.held.load(Ordering::Acquire)
    }

    /// The shelves with that for blocks of this stream and length; `None` while the depot is closed.
    fn shelves(&self, of: TimelineId, bytes: u64) -> Option<MutexGuard<'_, Shelves>> {
        // Sizes often differ in their upper bits only: these are what a product with an odd number has below, too.
        let spread = (bytes >> 8).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
        let part = (u64::from(of.slot) + spread) as usize % PARTS;
        let shelves = self.parts[part].0.lock();
        // Relaxed: who closed it has had this lock since.
        (!self.is_closed.load(Ordering::Relaxed)).then_some(shelves)
    }

    /// Puts blocks of this stream and length on their shelf; `false`, and nothing done, where the depot would hold
    /// more than `limit` bytes then, or is closed.
    pub(super) fn put(&self, of: TimelineId, bytes: u64, items: &[Item], limit: u64) -> bool {
        debug_assert!(!items.is_empty() && items.iter().all(|item| item.bytes() == bytes));
        let more = bytes * items.len() as u64;
        // Several threads at once may exceed it by what they bring.
        if self.held() + more > limit {
            return false;
        }
        let Some(mut shelves) = self.shelves(of, bytes) else { return false };
        shelves.entry((bytes, of)).or_default().extend_from_slice(items);
        // Relaxed: a sum.
        self.held.fetch_add(more, Ordering::Relaxed);
        true
    }

    /// Whether there is a block of this stream and length.
    pub(super) fn has(&self, of: TimelineId, bytes: u64) -> bool {
        self.held() > 0 && self.shelves(of, bytes).is_some_and(|shelves| shelves.contains_key(&(bytes, of)))
    }

    /// Another stream that has blocks of this length here. Looks at every shelf.
    pub(super) fn other_with(&self, of: TimelineId, bytes: u64) -> Option<TimelineId> {
        let parts = self.parts.iter().filter(|_| self.held() > 0);
        parts.map(|part| part.0.lock()).find_map(|shelves| {
            shelves.keys().find(|(length, other)| *length == bytes && *other != of).map(|(_, other)| *other)
        })
    }

    /// Takes up to `most` blocks of this stream and length, the youngest; gives them to `each`, oldest first.
    pub(super) fn take(&self, of: TimelineId, bytes: u64, most: usize, each: impl FnMut(Item)) {
        if self.held() == 0 {
            return;
        }
        let Some(mut shelves) = self.shelves(of, bytes) else { return };
        let Some(shelf) = shelves.get_mut(&(bytes, of)) else { return };
        let from = shelf.len().saturating_sub(most);
        // Release: see `held`.
        self.held.fetch_sub(bytes * (shelf.len() - from) as u64, Ordering::Release);
        shelf.drain(from..).for_each(each);
        if shelf.is_empty() {
            shelves.remove(&(bytes, of));
        }
    }

    /// Takes everything, and is closed until it is [opened](Self::open). Under the pool's lock.
    pub(super) fn close(&self, mut each: impl FnMut(TimelineId, Item)) {
        // Relaxed: every lock is taken after this and before anything else is done under the pool's lock.
        self.is_closed.store(true, Ordering::Relaxed);
        for part in &self.parts {
            let shelves = std::mem::take(&mut *part.0.lock());
            for ((bytes, of), shelf) in shelves {
                self.held.fetch_sub(bytes * shelf.len() as u64, Ordering::Relaxed);
                shelf.into_iter().for_each(|item| each(of, item));
            }
        }
    }

    /// Under the pool's lock.
    pub(super) fn open(&self) {
        // Relaxed: who sees it late goes the slow way.
        self.is_closed.store(false, Ordering::Relaxed);
    }

    /// What it holds.
    pub(super) fn items(&self) -> Vec<Item> {
        self.parts
            .iter()
            .flat_map(|part| part.0.lock().values().flatten().copied().collect::<Vec<_>>())
            .collect()
    }
}
