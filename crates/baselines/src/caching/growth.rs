//! How expandable segments change what is a best fit, and where they grow and shrink: the blocks' side of it.

use millpond::device::DevicePtr;

use super::blocks::{BlockId, BlockState, Blocks, PoolId};

impl Blocks {
    /// The smallest free block of at least `bytes`, where a block that its segment can grow counts as large as
    /// it can become. So the end of the segment is used last.
    pub(super) fn best_fit_growing(&mut self, pool: PoolId, bytes: u64) -> Option<BlockId> {
        let mut best = self.best_fit(pool, bytes)?;
        let block = self.get(best);
        let larger = (block.bytes, block.start, best + 1)..;
        for &(_, _, next) in self.pool(pool).free.range(larger) {
            if self.room_at(next) >= self.room_at(best) {
                break;
            }
            best = next;
        }
        Some(best)
    }

    /// Bytes that a free block could grow to.
    fn room_at(&self, id: BlockId) -> u64 {
        let block = self.get(id);
        let after = block.after.map(|after| self.get(after));
        let grows = after.filter(|after| after.state == BlockState::Unmapped);
        block.bytes + grows.map_or(0, |after| after.bytes)
    }

    /// The lowest place where `bytes` can be had by mapping: an unmapped block, or a free one before it.
    pub(super) fn place_to_grow(&self, pool: PoolId, bytes: u64) -> Option<BlockId> {
        self.pool(pool).unmapped.iter().find_map(|&(_, unmapped)| {
            let before =
                self.get(unmapped).before.filter(|&before| self.get(before).state == BlockState::Free);
            let first = before.unwrap_or(unmapped);
            self.has_room(first, bytes).then_some(first)
        })
    }

    /// Whether `bytes` lie from this block on without a block in use.
    fn has_room(&self, first: BlockId, bytes: u64) -> bool {
        let mut found = 0;
        let mut next = Some(first);
        while let Some(id) = next {
            let block = self.get(id);
            if !matches!(block.state, BlockState::Free | BlockState::Unmapped) {
                return false;
            }
            found += block.bytes;
            if found >= bytes {
                return true;
            }
            next = block.after;
        }
        false
    }

    /// Notes that the first `bytes` of an unmapped block have memory now, and so are free.
    pub(super) fn mapped(&mut self, id: BlockId, bytes: u64) {
        self.set_aside(id);
        if bytes < self.get(id).bytes {
            let rest = self.cut(id, bytes);
            self.settle(rest, BlockState::Unmapped);
        }
        self.settle(id, BlockState::Free);
    }

    /// Notes that `bytes` from `start` on, inside a free block, lost their memory.
    pub(super) fn unmapped(&mut self, id: BlockId, start: DevicePtr, bytes: u64) {
        self.set_aside(id);
        let head = start.raw() - self.get(id).start.raw();
        let hole = if head > 0 { self.cut(id, head) } else { id };
        let tail = (bytes < self.get(hole).bytes).then(|| self.cut(hole, bytes));
        self.settle(hole, BlockState::Unmapped);
        if head > 0 {
            self.settle(id, BlockState::Free);
        }
        if let Some(tail) = tail {
            self.settle(tail, BlockState::Free);
        }
    }

    /// The blocks of unmapped addresses that are whole segments.
    pub(super) fn empty_segments(&self) -> Vec<BlockId> {
        let unmapped = self.pools().iter().flat_map(|pool| pool.unmapped.iter().map(|&(_, id)| id));
        unmapped.filter(|&id| !self.get(id).is_split()).collect()
    }
}
