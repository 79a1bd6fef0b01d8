//! Free extents: on and off the index, and joined with their neighbours.
//!
//! An extent that becomes free is joined at once with neighbours that the same streams freed, or whose work is
//! complete. Others stay apart, listed as unmerged, until a join costs no stream its reuse. So does what a stream
//! frees while it is captured: nobody else can use that before the capture ends, nor what it was joined with.

use super::extent::{Extent, ExtentState};
use super::{Arena, ExtentId};

impl Arena {
    pub(super) fn index_free(&mut self, id: ExtentId) {
        let extent = &mut self.extents[id];
        extent.whole = None;
        self.free[extent.zone as usize].insert(extent, id);
    }

    pub(super) fn remove_free(&mut self, id: ExtentId) {
        let extent = &self.extents[id];
        self.free[extent.zone as usize].remove(extent);
    }

    /// Puts an extent that has just become free on the index, joined with neighbours that are free behind the same
    /// streams, or for all.
    pub(super) fn insert_free(&mut self, id: ExtentId) {
        self.timelines.prune_several(&mut self.extents[id].fence, self.policies);
        let Extent { prev, next, .. } = self.extents[id];
        let id = self.join_if_ready(id, prev);
        let id = self.join_if_ready(id, next);
        self.index_free(id);
        self.list_if_unmerged(id);
    }

    /// Joins a free extent, which is on no index, with a neighbour that is free behind the same streams, or for
    /// anybody.
    #[inline]
    fn join_if_ready(&mut self, id: ExtentId, neighbour: Option<ExtentId>) -> ExtentId {
        match neighbour {
            Some(neighbour) if self.extents.is(neighbour, ExtentState::Free) => {
                self.join_if_alike(id, neighbour)
            }
            _ => id,
        }
    }

    fn join_if_alike(&mut self, id: ExtentId, neighbour: ExtentId) -> ExtentId {
        self.timelines.prune_several(&mut self.extents[neighbour].fence, self.policies);
        let is_alike = self.are_alike(id, neighbour) || self.is_alike_or_complete_slow(id, neighbour);
        if !is_alike || self.is_one_of_a_capture(id, neighbour) {
            return id;
        }
        self.remove_free(neighbour);
        self.extents.join(id, neighbour)
    }

    /// Whether the same streams freed both.
    #[inline]
    fn are_alike(&self, a: ExtentId, b: ExtentId) -> bool {
        self.extents[a].fence.same_streams(&self.extents[b].fence)
    }

    /// Whether the device says now that a neighbour's work is complete, or only the same streams are left. Neighbours
    /// that stay apart serve nothing longer than either, and would become more and more. But what is free for all
    /// must not wait for a shorter one, unless that is complete too.
    #[cold]
    fn is_alike_or_complete_slow(&mut self, id: ExtentId, neighbour: ExtentId) -> bool {
        if !self.is_free_for_all(neighbour) {
            return self.are_alike(id, neighbour);
        }
        self.extents[neighbour].units <= self.extents[id].units || self.is_free_for_all(id)
    }

    /// Whether a free extent's work is complete, by what the device says now.
    fn is_free_for_all(&mut self, id: ExtentId) -> bool {
        self.timelines.prune(&mut self.extents[id].fence, self.policies);
        if !self.extents[id].fence.is_empty() && self.policies.opportunistic {
            self.poll_quietly(&self.extents[id].fence);
            self.timelines.prune(&mut self.extents[id].fence, self.policies);
        }
        self.extents[id].fence.is_empty()
    }

    /// Whether a stream that is being captured freed one of two extents, and not the other.
    #[inline]
    fn is_one_of_a_capture(&self, a: ExtentId, b: ExtentId) -> bool {
        let can_be_reached = |id: ExtentId| self.timelines.can_be_reached(&self.extents[id].fence);
        self.timelines.is_capturing() && can_be_reached(a) != can_be_reached(b)
    }

    /// Remembers a free extent that has a free neighbour.
    pub(super) fn list_if_unmerged(&mut self, id: ExtentId) {
        if self.is_free(self.extents[id].prev) || self.is_free(self.extents[id].next) {
            self.list_unmerged(id);
        }
    }

    pub(super) fn list_unmerged(&mut self, id: ExtentId) {
        if !self.extents.set_listed(id, true) {
            self.unmerged.push(id);
        }
    }

    pub(super) fn is_free(&self, neighbour: Option<ExtentId>) -> bool {
        neighbour.is_some_and(|id| self.extents.is(id, ExtentState::Free))
    }

    /// As [`join_unmerged`](Self::join_unmerged), after asking the device where that matters.
    #[cold]
    pub(super) fn join_what_is_complete(&mut self) -> bool {
        if self.policies.opportunistic && !self.policies.internal_dependencies {
            let is_free = |id: &ExtentId| self.extents.is(*id, ExtentState::Free);
            let free = self.unmerged.iter().copied().filter(is_free);
            let around = free.flat_map(|id| [self.extents[id].prev, Some(id), self.extents[id].next]);
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
            self.extents.set_listed(id, false);
            if !self.extents.is(id, ExtentState::Free) {
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

    /// Joins a free extent with all free neighbours, one after the other, that it may be joined with. `None` where
    /// there are none.
    fn join_around(&mut self, id: ExtentId) -> Option<ExtentId> {
        let (mut whole, mut joined) = (id, false);
        while let Some(neighbour) = self.joinable(whole) {
            if !joined {
                self.remove_free(whole);
            }
            self.remove_free(neighbour);
            whole = self.extents.join(whole, neighbour);
            joined = true;
        }
        if joined {
            // Once for all: with many streams, each join would look at every stream again.
            self.timelines.prune_several(&mut self.extents[whole].fence, self.policies);
            self.index_free(whole);
        }
        joined.then_some(whole)
    }

    /// A free neighbour that the extent may be joined with.
    fn joinable(&mut self, id: ExtentId) -> Option<ExtentId> {
        let neighbours = [self.extents[id].prev, self.extents[id].next].into_iter().flatten();
        neighbours
            .into_iter()
            .find(|other| self.extents.is(*other, ExtentState::Free) && self.may_join(id, *other))
    }

    fn may_join(&mut self, a: ExtentId, b: ExtentId) -> bool {
        if self.is_one_of_a_capture(a, b) {
            return false;
        }
        if self.are_alike(a, b) {
            return true;
        }
        if self.policies.internal_dependencies {
            return self.extents.make_room_to_join(a, b);
        }
        for id in [a, b] {
            let mut fence = std::mem::take(&mut self.extents[id].fence);
            self.timelines.prune(&mut fence, self.policies);
            self.extents[id].fence = fence;
        }
        self.are_alike(a, b)
    }
}
