//! Old mappings: the addresses that pages had before they were remapped.
//!
//! An old mapping cannot go before the work on it is complete, and nobody waits for that. Most stay longer: they are
//! *dormant*. A program that repeats its steps needs the same addresses again. Its pages then come back to them without a
//! device call. A dormant mapping goes where its addresses are needed for other pages, or where its page is given back.

use super::extent::{ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::reuse_rules::ReuseRules;
use crate::order::Fence;
use crate::physical::{PageId, Pages};
use crate::policy::donating::most_dormant;

/// The extents that are old mappings.
#[derive(Debug, Default)]
pub(super) struct OldMappings {
    /// Those whose work may be incomplete, dormant ones too, in no order.
    pending: Vec<ExtentId>,
    /// The dormant ones that are idle, the oldest first.
    idle: Vec<ExtentId>,
}

impl OldMappings {
    pub(super) fn ids(&self) -> impl Iterator<Item = ExtentId> {
        self.pending.iter().chain(&self.idle).copied()
    }

    /// Whether any is dormant, or may be.
    pub(super) fn has_dormant(&self) -> bool {
        !self.pending.is_empty() || !self.idle.is_empty()
    }

    /// Reserves the host's memory for one more; `false` where it is refused.
    pub(super) fn make_room(&mut self) -> bool {
        let all = self.pending.len() + self.idle.len() + 1;
        let mut lists = [&mut self.pending, &mut self.idle].into_iter();
        // Each may come to hold all of them.
        lists.all(|list| list.try_reserve(all - list.len()).is_ok())
    }

    /// Lists an old mapping that a page may come back to.
    pub(super) fn push_dormant(&mut self, map: &mut ExtentMap, id: ExtentId, page: PageId) {
        map.make_dormant(id, page);
        self.pending.push(id);
    }

    /// Lists an old mapping that is to be removed.
    pub(super) fn push_leaving(&mut self, map: &mut ExtentMap, id: ExtentId, page: PageId) {
        map.make_pending_unmap(id, page);
        self.pending.push(id);
    }

    /// Takes a dormant mapping off the lists.
    pub(super) fn take(&mut self, id: ExtentId) {
        for list in [&mut self.pending, &mut self.idle] {
            if let Some(at) = list.iter().rposition(|other| *other == id) {
                list.remove(at);
            }
        }
    }

    /// The work on all of them.
    pub(super) fn fence(&self, map: &ExtentMap) -> Fence {
        map.fence_of(self.pending.iter().copied())
    }

    /// Removes the old mappings whose work is complete, the dormant ones too. Never waits; a mapping that cannot be
    /// removed stays pending unmap.
    pub(super) fn reap(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages) {
        self.retire(map);
        self.sort_out(map, rules, pages);
    }

    /// All of them are pending unmap from now on.
    pub(super) fn retire(&mut self, map: &mut ExtentMap) {
        self.pending.append(&mut self.idle);
        for &id in &self.pending {
            if let ExtentState::Dormant(page) = map[id].state {
                map.make_pending_unmap(id, page);
            }
        }
    }

    /// Removes those pending unmap whose work is complete, and finds out which of the dormant ones are idle. Of these, the
    /// oldest go where there are too many.
    pub(super) fn settle(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages) {
        let too_many = self.idle.len().saturating_sub(most_dormant(pages.records()));
        self.retire_idle(map, too_many);
        self.sort_out(map, rules, pages);
    }

    /// The first so many idle ones are pending unmap from now on.
    fn retire_idle(&mut self, map: &mut ExtentMap, count: usize) {
        for id in self.idle.drain(..count) {
            if let ExtentState::Dormant(page) = map[id].state {
                map.make_pending_unmap(id, page);
            }
            self.pending.push(id);
        }
    }

    /// Of those whose work is complete, removes what is pending unmap; the dormant ones are idle.
    fn sort_out(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages) {
        if self.pending.is_empty() {
            return;
        }
        rules.poll(&self.fence(map));
        let Self { pending, idle } = self;
        let (mut complete, mut unmapped) = (None, None);
        pending.retain(|&id| {
            // What one donor gave has one fence, and lies side by side.
            if complete.as_ref() != Some(&map[id].fence) && !rules.is_complete(&map[id].fence) {
                return true;
            }
            complete = Some(std::mem::take(map.fence_mut(id)));
            if let ExtentState::Dormant(_) = map[id].state {
                idle.push(id);
                return false;
            }
            if !unmap(map, pages, id) {
                return true;
            }
            unmapped = Some(match unmapped.filter(|unmapped| are_neighbours(map, *unmapped, id)) {
                Some(unmapped) => map.join(unmapped, id),
                None => {
                    unmapped.into_iter().for_each(|unmapped| _ = map.make_unmapped(unmapped));
                    id
                }
            });
            false
        });
        unmapped.into_iter().for_each(|unmapped| _ = map.make_unmapped(unmapped));
    }

    /// Removes a dormant mapping, whose addresses are needed. Returns the unmapped extent that they are in now. `None` where
    /// it is not idle or cannot be removed: it is pending unmap.
    pub(super) fn clear(
        &mut self,
        map: &mut ExtentMap,
        pages: &mut Pages,
        (id, page): (ExtentId, PageId),
    ) -> Option<ExtentId> {
        self.take(id);
        if map[id].fence.is_empty() && unmap(map, pages, id) {
            return Some(map.make_unmapped(id));
        }
        self.push_leaving(map, id, page);
        None
    }
}

fn are_neighbours(map: &ExtentMap, a: ExtentId, b: ExtentId) -> bool {
    map[a].next == Some(b) || map[a].prev == Some(b)
}

/// Unmaps an old mapping whose work is complete. It is unmapped then, and on no index.
fn unmap(map: &mut ExtentMap, pages: &mut Pages, id: ExtentId) -> bool {
    let (ExtentState::PendingUnmap(page) | ExtentState::Dormant(page)) = map[id].state else { return false };
    let at = map.address_of(id);
    // SAFETY: the page was mapped here when it was remapped. The work that used the range is complete. Later work
    // cannot use it, since the program holds no pointer into a free extent.
    if let Err(error) = unsafe { pages.unmap(page, at) } {
        tracing::warn!(%error, %at, "an old mapping could not be removed; it is tried again");
        return false;
    }
    map.make_bare(id);
    true
}
