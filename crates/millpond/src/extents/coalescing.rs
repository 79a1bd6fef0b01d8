//! Free blocks: on and off the index, and joined with their neighbours.
//!
//! A block that becomes free is joined at once with neighbours that the same streams freed, or whose work is complete.
//! Others stay apart, and listed as unmerged, until that would cost no stream its reuse. So does what a stream frees
//! while it is being captured: nobody else can have that before the capture has ended, nor what it was joined with.

use super::extent::{Block, State};
use super::{Arena, BlockId};

impl Arena {
    pub(super) fn index_free(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        block.whole = None;
        self.free[block.zone as usize].insert(block, id);
    }

    pub(super) fn remove_free(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.free[block.zone as usize].remove(block);
    }

    /// Enters a block that has just become free, joined with those of its neighbours that are free behind
    /// the same streams, or for anybody.
    pub(super) fn insert_free(&mut self, id: BlockId) {
        self.timelines.prune_several(&mut self.blocks[id].fence, self.policies);
        let Block { prev, next, .. } = self.blocks[id];
        let id = self.join_if_ready(id, prev);
        let id = self.join_if_ready(id, next);
        self.index_free(id);
        self.list_if_unmerged(id);
    }

    /// Joins a free block, which is on no index, with a neighbour that is free behind the same streams, or for anybody.
    #[inline]
    fn join_if_ready(&mut self, id: BlockId, neighbour: Option<BlockId>) -> BlockId {
        match neighbour {
            Some(neighbour) if self.blocks.is(neighbour, State::Free) => self.join_if_alike(id, neighbour),
            _ => id,
        }
    }

    fn join_if_alike(&mut self, id: BlockId, neighbour: BlockId) -> BlockId {
        self.timelines.prune_several(&mut self.blocks[neighbour].fence, self.policies);
        let is_alike = self.are_alike(id, neighbour) || self.is_alike_or_complete_slow(id, neighbour);
        if !is_alike || self.is_one_of_a_capture(id, neighbour) {
            return id;
        }
        self.remove_free(neighbour);
        self.blocks.join(id, neighbour)
    }

    /// Whether the same streams freed both.
    #[inline]
    fn are_alike(&self, a: BlockId, b: BlockId) -> bool {
        self.blocks[a].fence.same_streams(&self.blocks[b].fence)
    }

    /// Whether a neighbour's work is complete, by what the device says now, or what is left of it is of the same streams.
    /// Apart, neighbours that different streams freed serve nothing that is longer than either of them, and there would
    /// be more and more of them. But what is free for anybody is not to wait for something shorter, unless that is
    /// complete too.
    #[cold]
    fn is_alike_or_complete_slow(&mut self, id: BlockId, neighbour: BlockId) -> bool {
        if !self.is_free_for_all(neighbour) {
            return self.are_alike(id, neighbour);
        }
        self.blocks[neighbour].units <= self.blocks[id].units || self.is_free_for_all(id)
    }

    /// Whether a free block's work is complete, by what the device says now.
    fn is_free_for_all(&mut self, id: BlockId) -> bool {
        self.timelines.prune(&mut self.blocks[id].fence, self.policies);
        if !self.blocks[id].fence.is_empty() && self.policies.opportunistic {
            self.poll_quietly(&self.blocks[id].fence);
            self.timelines.prune(&mut self.blocks[id].fence, self.policies);
        }
        self.blocks[id].fence.is_empty()
    }

    /// Whether a stream that is being captured freed one of two blocks, and not the other.
    #[inline]
    fn is_one_of_a_capture(&self, a: BlockId, b: BlockId) -> bool {
        let can_be_reached = |id: BlockId| self.timelines.can_be_reached(&self.blocks[id].fence);
        self.timelines.is_capturing() && can_be_reached(a) != can_be_reached(b)
    }

    /// Remembers a free block that has a free neighbour.
    pub(super) fn list_if_unmerged(&mut self, id: BlockId) {
        if self.is_free(self.blocks[id].prev) || self.is_free(self.blocks[id].next) {
            self.list_unmerged(id);
        }
    }

    pub(super) fn list_unmerged(&mut self, id: BlockId) {
        if !self.blocks.set_listed(id, true) {
            self.unmerged.push(id);
        }
    }

    pub(super) fn is_free(&self, neighbour: Option<BlockId>) -> bool {
        neighbour.is_some_and(|id| self.blocks.is(id, State::Free))
    }

    /// As [`join_unmerged`](Self::join_unmerged), by what the device says now where that matters.
    #[cold]
    pub(super) fn join_what_is_complete(&mut self) -> bool {
        if self.policies.opportunistic && !self.policies.internal_dependencies {
            let is_free = |id: &BlockId| self.blocks.is(*id, State::Free);
            let free = self.unmerged.iter().copied().filter(is_free);
            let around = free.flat_map(|id| [self.blocks[id].prev, Some(id), self.blocks[id].next]);
            self.poll_quietly(&self.fence_of(around.flatten().filter(is_free)));
        }
        self.join_unmerged()
    }

    /// Joins free neighbours that were kept apart because different streams freed them, where that costs no
    /// stream its reuse: all of them where the pool may make streams wait, else those that are complete.
    /// Returns whether any were joined.
    pub(super) fn join_unmerged(&mut self) -> bool {
        let mut joined = false;
        let mut kept = std::mem::take(&mut self.kept_apart);
        while let Some(id) = self.unmerged.pop() {
            self.blocks.set_listed(id, false);
            if !self.blocks.is(id, State::Free) {
                continue;
            }
            match self.join_around(id) {
                // It has other neighbours now: look again.
                Some(whole) => {
                    self.list_if_unmerged(whole);
                    joined = true;
                }
                None if kept.try_reserve(1).is_ok() => kept.push(id),
                // Without memory for the list, the others stay apart for now.
                None => {
                    self.list_unmerged(id);
                    break;
                }
            }
        }
        for id in kept.drain(..) {
            self.list_if_unmerged(id);
        }
        self.kept_apart = kept;
        joined
    }

    /// Joins a free block with all free neighbours, one after the other, that it may be joined with. `None` where there
    /// are none.
    fn join_around(&mut self, id: BlockId) -> Option<BlockId> {
        let (mut whole, mut joined) = (id, false);
        while let Some(neighbour) = self.joinable(whole) {
            if !joined {
                self.remove_free(whole);
            }
            self.remove_free(neighbour);
            whole = self.blocks.join(whole, neighbour);
            joined = true;
        }
        if joined {
            // Once for all of them: of many streams' blocks, each join would look at every stream again.
            self.timelines.prune_several(&mut self.blocks[whole].fence, self.policies);
            self.index_free(whole);
        }
        joined.then_some(whole)
    }

    /// A free neighbour that the block may be joined with.
    fn joinable(&mut self, id: BlockId) -> Option<BlockId> {
        let neighbours = [self.blocks[id].prev, self.blocks[id].next].into_iter().flatten();
        neighbours.into_iter().find(|other| self.blocks.is(*other, State::Free) && self.may_join(id, *other))
    }

    fn may_join(&mut self, a: BlockId, b: BlockId) -> bool {
        if self.is_one_of_a_capture(a, b) {
            return false;
        }
        if self.are_alike(a, b) {
            return true;
        }
        if self.policies.internal_dependencies {
            return self.blocks.make_room_to_join(a, b);
        }
        for id in [a, b] {
            let mut fence = std::mem::take(&mut self.blocks[id].fence);
            self.timelines.prune(&mut fence, self.policies);
            self.blocks[id].fence = fence;
        }
        self.are_alike(a, b)
    }
}
