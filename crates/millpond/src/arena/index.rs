//! The indexes that answer "which free block fits best" and "which void fits best".

use std::collections::BTreeMap;

use super::blocks::{Block, BlockId};

/// Length, region, start: sorts by best fit, then by address.
type Key = (u64, u32, u64);

fn key(block: &Block) -> Key {
    (block.units, block.region, block.start)
}

/// The free blocks of a zone, by length.
#[derive(Debug, Default)]
pub(super) struct FreeIndex {
    by_fit: BTreeMap<Key, BlockId>,
}

impl FreeIndex {
    pub(super) fn insert(&mut self, block: &Block, id: BlockId) {
        let before = self.by_fit.insert(key(block), id);
        debug_assert!(before.is_none());
    }

    pub(super) fn remove(&mut self, block: &Block) {
        let before = self.by_fit.remove(&key(block));
        debug_assert!(before.is_some());
    }

    /// Blocks of at least `units`, the best fit first.
    pub(super) fn at_least(&self, units: u64) -> impl Iterator<Item = BlockId> + '_ {
        self.by_fit.range((units, 0, 0)..).map(|(_, id)| *id)
    }

    /// Blocks of less than `units`, the longest first.
    pub(super) fn below(&self, units: u64) -> impl Iterator<Item = BlockId> + '_ {
        self.by_fit.range(..(units, 0, 0)).rev().map(|(_, id)| *id)
    }

    /// The length of the longest block, in units.
    pub(super) fn longest(&self) -> u64 {
        self.by_fit.last_key_value().map_or(0, |(key, _)| key.0)
    }

    pub(super) fn len(&self) -> usize {
        self.by_fit.len()
    }

    pub(super) fn contains(&self, block: &Block, id: BlockId) -> bool {
        self.by_fit.get(&key(block)) == Some(&id)
    }
}

/// The voids of a zone, by length. The same structure: a void is found as a free block is.
pub(super) type VoidIndex = FreeIndex;
