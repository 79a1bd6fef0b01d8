//! The blocks that are live.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::clock::{StreamKey, Uses};
use super::memory::{BlockId, Extents, What, Who};
use crate::device::DevicePtr;

#[derive(Debug)]
pub(super) struct Block {
    pub(super) at: DevicePtr,
    pub(super) bytes: u64,
    pub(super) stream: StreamKey,
    pub(super) extents: Extents,
    pub(super) uses: Uses,
    /// Streams whose work up to the free is ordered by the pool (`record_use`), not by the program.
    pub(super) recorded: SmallVec<[StreamKey; 2]>,
}

impl Block {
    /// Who it is, or was.
    pub(super) fn who(&self, id: BlockId, freed: Option<StreamKey>) -> Who {
        Who { at: self.at, bytes: self.bytes, stream: self.stream, what: What::Block(id, freed) }
    }
}

/// A free that was announced, for taking it back where the pool refuses.
#[derive(Debug)]
#[must_use = "hand it to `free_refused` if the pool refuses the free"]
pub struct Freeing(pub(super) Option<(BlockId, Block)>);

#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub(super) live: FxHashMap<BlockId, Block>,
    pub(super) by_address: BTreeMap<u64, BlockId>,
    pub(super) made: u64,
}

impl Blocks {
    /// A live block that has an address in the range.
    pub(super) fn overlapping(&self, at: DevicePtr, bytes: u64) -> Option<BlockId> {
        let (_, id) = self.by_address.range(..at.raw().saturating_add(bytes)).next_back()?;
        let block = &self.live[id];
        (block.at.raw() + block.bytes > at.raw()).then_some(*id)
    }

    /// Whether a live block has an address between `at` and the start of `last`.
    pub(super) fn is_before(&self, at: DevicePtr, last: BlockId) -> bool {
        let last = self.live[&last].at;
        last > at && self.overlapping(at, last.raw() - at.raw()).is_some()
    }

    pub(super) fn live(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.live.keys().copied()
    }
}
