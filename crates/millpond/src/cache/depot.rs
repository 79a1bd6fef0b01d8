//! What no magazine has room for: blocks on shelves by size and stream, under the pool's lock.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::lane::Item;
use crate::order::TimelineId;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Depot {
    /// By the blocks' length in bytes. None is empty.
    shelves: FxHashMap<u64, SmallVec<[Shelf; 2]>>,
    /// Bytes on all shelves.
    held: u64,
}

/// Blocks of one length that were freed on one stream.
#[derive(Debug)]
struct Shelf {
    of: TimelineId,
    /// Never empty.
    items: Vec<Item>,
}

impl Depot {
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Puts blocks of this stream and length on their shelf.
    pub(super) fn put(&mut self, of: TimelineId, bytes: u64, items: &[Item]) {
        debug_assert!(!items.is_empty() && items.iter().all(|item| item.bytes() == bytes));
        self.held += bytes * items.len() as u64;
        let shelves = self.shelves.entry(bytes).or_default();
        match shelves.iter_mut().find(|shelf| shelf.of == of) {
            Some(shelf) => shelf.items.extend_from_slice(items),
            None => shelves.push(Shelf { of, items: items.to_vec() }),
        }
    }

    /// Whether there is a block of this stream and length.
    pub(super) fn has(&self, of: TimelineId, bytes: u64) -> bool {
        self.shelves.get(&bytes).is_some_and(|shelves| shelves.iter().any(|shelf| shelf.of == of))
    }

    /// Another stream that has blocks of this length here: the one with most.
    pub(super) fn other_with(&self, of: TimelineId, bytes: u64) -> Option<TimelineId> {
        let shelves = self.shelves.get(&bytes)?;
        let others = shelves.iter().filter(|shelf| shelf.of != of);
        others.max_by_key(|shelf| shelf.items.len()).map(|shelf| shelf.of)
    }

    /// Takes up to `most` blocks of this stream and length, the youngest; gives them to `each`, oldest first.
    pub(super) fn take(&mut self, of: TimelineId, bytes: u64, most: usize, each: impl FnMut(Item)) {
        let Some(shelves) = self.shelves.get_mut(&bytes) else { return };
        let Some(at) = shelves.iter().position(|shelf| shelf.of == of) else { return };
        let items = &mut shelves[at].items;
        let from = items.len().saturating_sub(most);
        self.held -= bytes * (items.len() - from) as u64;
        items.drain(from..).for_each(each);
        if items.is_empty() {
            shelves.swap_remove(at);
        }
        if shelves.is_empty() {
            self.shelves.remove(&bytes);
        }
    }

    /// Empties all shelves.
    pub(super) fn drain(&mut self, mut each: impl FnMut(TimelineId, Item)) {
        self.held = 0;
        for shelf in self.shelves.drain().flat_map(|(_, shelves)| shelves) {
            shelf.items.into_iter().for_each(|item| each(shelf.of, item));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.shelves.values().flatten().flat_map(|shelf| &shelf.items)
    }
}
