//! Blocks: the pieces that address space is cut into, linked in address order.

use std::ops::{Index, IndexMut};

use crate::order::Fence;
use crate::pages::PageId;

/// Names a block of one arena. Recycled when the block is joined with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(pub(super) u32);

/// Which of the two kinds of region a block lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Zone {
    Small = 0,
    Large = 1,
}

impl Zone {
    pub(super) const BOTH: [Self; 2] = [Self::Small, Self::Large];
}

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// In the program's hands, or in a magazine; the region's table says which.
    Out,
    /// Backed by pages, ready for whom its fence allows.
    Free,
    /// Nothing is mapped. Starts and ends at slots.
    Void,
    /// An old mapping of a page that now backs another address. Starts and ends at slots.
    Stale(PageId),
    /// The record is unused.
    Unused,
}

/// A piece of a region.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) state: State,
    pub(super) zone: Zone,
    pub(super) region: u32,
    /// First unit, counted from the region's start.
    pub(super) start: u64,
    /// Length in units, never 0.
    pub(super) units: u64,
    pub(super) prev: Option<BlockId>,
    pub(super) next: Option<BlockId>,
    /// Free and stale blocks: the work to wait for. Blocks that are out: the streams of recorded uses.
    pub(super) fence: Fence,
    /// Free blocks: the count of frees when the youngest part of it was freed.
    pub(super) freed: u64,
    /// Free blocks of the large zone: the units at its start and at its end that lie on pages which are not
    /// wholly in the block.
    pub(super) pinned: (u64, u64),
    /// What it wastes to use those of either end (see `pins`).
    pub(super) edges: (i64, i64),
    /// Whether the id is in the arena's list of unmerged blocks. Stays with the id when the block goes.
    listed: bool,
}

impl Block {
    /// The one block of a new region.
    pub(super) fn whole(region: u32, zone: Zone, units: u64, state: State) -> Self {
        Self {
            state,
            zone,
            region,
            start: 0,
            units,
            prev: None,
            next: None,
            fence: Fence::empty(),
            freed: 0,
            pinned: (0, 0),
            edges: (0, 0),
            listed: false,
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.units
    }

    /// Free blocks of the large zone: the units that lie on pages which are not wholly in the block.
    pub(super) fn pinned_units(&self) -> u64 {
        self.pinned.0 + self.pinned.1
    }
}

/// All blocks of one arena.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    records: Vec<Block>,
    vacant: Vec<BlockId>,
}

impl Blocks {
    /// Enters a block.
    pub(super) fn add(&mut self, block: Block) -> BlockId {
        match self.vacant.pop() {
            Some(id) => {
                let record = &mut self[id];
                let listed = record.listed;
                *record = block;
                record.listed = listed;
                id
            }
            None => {
                self.records.push(block);
                BlockId(u32::try_from(self.records.len() - 1).expect("fewer than 2^32 blocks"))
            }
        }
    }

    /// Whether the id names a block in this state now.
    pub(super) fn is(&self, id: BlockId, state: State) -> bool {
        self[id].state == state
    }

    /// Notes that the id is listed as unmerged or no longer; returns whether it was.
    pub(super) fn set_listed(&mut self, id: BlockId, listed: bool) -> bool {
        std::mem::replace(&mut self[id].listed, listed)
    }

    /// Cuts a block in two at unit `at`, which lies inside it. The id keeps the left part; the right part,
    /// with the same state and fence, is returned. Indexes are the caller's.
    pub(super) fn split(&mut self, id: BlockId, at: u64) -> BlockId {
        let left = &mut self[id];
        debug_assert!(left.start < at && at < left.end());
        let right = Block {
            state: left.state,
            zone: left.zone,
            region: left.region,
            start: at,
            units: left.end() - at,
            prev: Some(id),
            next: left.next,
            fence: left.fence.clone(),
            freed: left.freed,
            pinned: (0, 0),
            edges: (0, 0),
            listed: false,
        };
        left.units = at - left.start;
        let next = right.next;
        let right = self.add(right);
        self[id].next = Some(right);
        if let Some(next) = next {
            self[next].prev = Some(right);
        }
        right
    }

    /// Joins two neighbours, in either order; the fences are joined too. Returns the id that keeps the whole;
    /// the other is vacant. Indexes are the caller's.
    pub(super) fn join(&mut self, a: BlockId, b: BlockId) -> BlockId {
        let (left, right) = if self[a].start < self[b].start { (a, b) } else { (b, a) };
        debug_assert_eq!(self[left].next, Some(right));
        let gone = &mut self[right];
        gone.state = State::Unused;
        let fence = std::mem::take(&mut gone.fence);
        let (units, next, freed) = (gone.units, gone.next, gone.freed);
        let kept = &mut self[left];
        kept.units += units;
        kept.next = next;
        kept.freed = kept.freed.max(freed);
        kept.fence.join(&fence);
        if let Some(next) = next {
            self[next].prev = Some(left);
        }
        self.vacant.push(right);
        left
    }

    /// Removes a block that is its region's only one.
    pub(super) fn remove_alone(&mut self, id: BlockId) {
        let gone = &mut self[id];
        debug_assert!(gone.prev.is_none() && gone.next.is_none());
        gone.state = State::Unused;
        gone.fence = Fence::empty();
        self.vacant.push(id);
    }

    /// Every block that is in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.records
            .iter()
            .zip(0..)
            .filter(|(block, _)| block.state != State::Unused)
            .map(|(block, id)| (BlockId(id), block))
    }
}

impl Index<BlockId> for Blocks {
    type Output = Block;
    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.records[id.0 as usize]
    }
}

impl IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.records[id.0 as usize]
    }
}
