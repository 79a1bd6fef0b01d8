//! The blocks: neighbours in a list for each segment, free ones in order of size for each stream and pool.
//! Knows nothing of devices.

use std::collections::BTreeSet;

use millpond::device::DevicePtr;
use slab::Slab;

use super::segment::SegmentId;
use super::sizes::Size;
use crate::streams::StreamNumber;

/// Names a block. Names of blocks that were merged away are used again.
pub(super) type BlockId = usize;

/// Where the blocks of one stream and size are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolId {
    pub(super) stream: StreamNumber,
    pub(super) size: Size,
}

impl PoolId {
    fn index(self) -> usize {
        2 * self.stream.index() + self.size as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockState {
    /// In use.
    Live,
    /// Freed, but this many streams may still use it.
    Pending(u32),
    /// In its pool's list of free blocks.
    Free,
    /// Addresses of an expandable segment without memory, in its pool's list of those.
    Unmapped,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) start: DevicePtr,
    pub(super) bytes: u64,
    pub(super) pool: PoolId,
    pub(super) state: BlockState,
    /// The neighbours in the segment.
    pub(super) before: Option<BlockId>,
    pub(super) after: Option<BlockId>,
    /// The expandable segment that it lies in, if that is what it lies in.
    pub(super) segment: Option<SegmentId>,
    /// How many searches its pool had seen when it was last listed as free.
    listed_at: u64,
}

impl Block {
    /// Whether it is less than a whole segment.
    pub(super) fn is_split(&self) -> bool {
        self.before.is_some() || self.after.is_some()
    }
}

/// The lists of one stream and size.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// By size, then address: the first that is large enough is the best fit.
    pub(super) free: BTreeSet<(u64, DevicePtr, BlockId)>,
    /// By address.
    pub(super) unmapped: BTreeSet<(DevicePtr, BlockId)>,
}

#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Slab<Block>,
    pools: Vec<Pool>,
    /// Searches of small and of large blocks so far: the clock by which garbage collection tells age.
    searches: [u64; 2],
}

impl Blocks {
    pub(super) fn get(&self, id: BlockId) -> &Block {
        &self.blocks[id]
    }

    /// Makes room for a pool's lists. To be called before anything else is asked about the pool.
    pub(super) fn open(&mut self, pool: PoolId) {
        if pool.index() >= self.pools.len() {
            self.pools.resize_with(pool.index() + 1, Pool::default);
        }
    }

    /// The pool's lists.
    pub(super) fn pool(&self, pool: PoolId) -> &Pool {
        &self.pools[pool.index()]
    }

    pub(super) fn pools(&self) -> &[Pool] {
        &self.pools
    }

    fn pool_mut(&mut self, pool: PoolId) -> &mut Pool {
        &mut self.pools[pool.index()]
    }

    /// Every free block of this size, whatever its stream.
    pub(super) fn free_of(&self, size: Size) -> impl Iterator<Item = BlockId> + '_ {
        let pools = self.pools.iter().skip(size as usize).step_by(2);
        pools.flat_map(|pool| pool.free.iter().map(|&(_, _, id)| id))
    }

    /// The smallest free block of at least `bytes`.
    pub(super) fn best_fit(&mut self, pool: PoolId, bytes: u64) -> Option<BlockId> {
        self.searches[pool.size as usize] += 1;
        self.pool(pool).free.range((bytes, DevicePtr::NULL, 0)..).next().map(|&(_, _, id)| id)
    }

    /// How many searches of its pool a free block has seen unused.
    pub(super) fn age(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        self.searches[block.pool.size as usize] - block.listed_at
    }

    /// Adds a segment as one block in a state that is listed.
    pub(super) fn add(
        &mut self,
        (start, bytes): (DevicePtr, u64),
        pool: PoolId,
        segment: Option<SegmentId>,
    ) -> BlockId {
        let state = if segment.is_some() { BlockState::Unmapped } else { BlockState::Free };
        let block = Block { start, bytes, pool, state, before: None, after: None, segment, listed_at: 0 };
        let id = self.blocks.insert(block);
        self.list(id);
        id
    }

    /// Forgets a block that is listed and a whole segment.
    pub(super) fn remove(&mut self, id: BlockId) -> Block {
        debug_assert!(!self.blocks[id].is_split());
        self.unlist(id);
        self.blocks.remove(id)
    }

    /// Makes a free block live, and gives what is left beyond `bytes` back to the pool.
    pub(super) fn take(&mut self, id: BlockId, bytes: u64) {
        self.set_aside(id);
        if bytes < self.blocks[id].bytes {
            let rest = self.cut(id, bytes);
            self.settle(rest, BlockState::Free);
        }
    }

    /// Makes a live block pending until `streams` streams are past it.
    pub(super) fn hold(&mut self, id: BlockId, streams: u32) {
        self.blocks[id].state = BlockState::Pending(streams);
    }

    /// One of the streams that a pending block waited for is past it; the last one frees it.
    pub(super) fn passed(&mut self, id: BlockId) {
        match self.blocks[id].state {
            BlockState::Pending(streams) if streams > 1 => self.hold(id, streams - 1),
            _ => self.settle(id, BlockState::Free),
        }
    }

    /// Puts a block in use into the list of `state`, merged with its neighbours in that state.
    pub(super) fn settle(&mut self, id: BlockId, state: BlockState) {
        self.blocks[id].state = state;
        if let Some(before) = self.blocks[id].before.filter(|&before| self.blocks[before].state == state) {
            self.unlist(before);
            let gone = self.blocks.remove(before);
            self.blocks[id].start = gone.start;
            self.blocks[id].bytes += gone.bytes;
            self.join(gone.before, Some(id));
            self.blocks[id].before = gone.before;
        }
        if let Some(after) = self.blocks[id].after.filter(|&after| self.blocks[after].state == state) {
            self.unlist(after);
            let gone = self.blocks.remove(after);
            self.blocks[id].bytes += gone.bytes;
            self.join(Some(id), gone.after);
            self.blocks[id].after = gone.after;
        }
        self.list(id);
    }

    /// Cuts a block in use after `bytes`. What follows becomes a block of its own, in use too.
    pub(super) fn cut(&mut self, id: BlockId, bytes: u64) -> BlockId {
        let block = &mut self.blocks[id];
        let rest = Block {
            start: block.start.offset(bytes),
            bytes: block.bytes - bytes,
            before: Some(id),
            ..*block
        };
        block.bytes = bytes;
        let after = rest.after;
        let rest = self.blocks.insert(rest);
        self.join(Some(id), Some(rest));
        self.join(Some(rest), after);
        rest
    }

    /// Takes a block out of its list; it is in use then.
    pub(super) fn set_aside(&mut self, id: BlockId) {
        self.unlist(id);
        self.blocks[id].state = BlockState::Live;
    }

    fn unlist(&mut self, id: BlockId) {
        let &Block { start, bytes, pool, state, .. } = &self.blocks[id];
        let listed = match state {
            BlockState::Free => self.pool_mut(pool).free.remove(&(bytes, start, id)),
            BlockState::Unmapped => self.pool_mut(pool).unmapped.remove(&(start, id)),
            BlockState::Live | BlockState::Pending(_) => false,
        };
        debug_assert!(listed, "block {id} is in no list");
    }

    fn list(&mut self, id: BlockId) {
        let &Block { start, bytes, pool, state, .. } = &self.blocks[id];
        self.blocks[id].listed_at = self.searches[pool.size as usize];
        let unknown = match state {
            BlockState::Free => self.pool_mut(pool).free.insert((bytes, start, id)),
            BlockState::Unmapped => self.pool_mut(pool).unmapped.insert((start, id)),
            BlockState::Live | BlockState::Pending(_) => false,
        };
        debug_assert!(unknown, "block {id} cannot be listed");
    }

    fn join(&mut self, left: Option<BlockId>, right: Option<BlockId>) {
        if let Some(left) = left {
            self.blocks[left].after = right;
        }
        if let Some(right) = right {
            self.blocks[right].before = left;
        }
    }
}
