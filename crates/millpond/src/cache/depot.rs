//! What no magazine has room for: blocks on shelves by stream and size, under the pool's lock.

use rustc_hash::FxHashMap;

use super::lane::Item;
use crate::order::TimelineId;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Depot {
    shelves: FxHashMap<(TimelineId, u64), Vec<Item>>,
    /// Bytes on all shelves.
    held: u64,
}

impl Depot {
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    pub(super) fn put(&mut self, of: TimelineId, item: Item) {
        self.held += item.bytes();
        self.shelves.entry((of, item.bytes())).or_default().push(item);
    }

    /// Whether there is a block of this stream and length.
    pub(super) fn has(&self, of: TimelineId, bytes: u64) -> bool {
        self.shelves.contains_key(&(of, bytes))
    }

    /// Takes up to `most` blocks of this stream and length.
    pub(super) fn take(&mut self, of: TimelineId, bytes: u64, most: usize) -> Vec<Item> {
        let Some(shelf) = self.shelves.get_mut(&(of, bytes)) else { return Vec::new() };
        let taken = shelf.split_off(shelf.len().saturating_sub(most));
        self.held -= bytes * taken.len() as u64;
        if shelf.is_empty() {
            self.shelves.remove(&(of, bytes));
        }
        taken
    }

    /// Empties all shelves.
    pub(super) fn drain(&mut self, mut each: impl FnMut(TimelineId, Item)) {
        self.held = 0;
        for ((of, _), shelf) in self.shelves.drain() {
            shelf.into_iter().for_each(|item| each(of, item));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.shelves.values().flatten()
    }
}
