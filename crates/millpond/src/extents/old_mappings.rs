//! Old mappings: the addresses that pages had before they were remapped.
//!
//! An old mapping cannot go before the work on it is complete, and nobody waits for that. Most stay longer: they are
//! *dormant*. A program that repeats its steps needs the same addresses again. Its pages then come back to them without a
//! device call. A dormant mapping goes where its addresses are needed for other pages, or where its page is given back.
//!
//! What a graph was captured with stays, whatever moves: at each replay its work uses the addresses that it was given, in the
//! order of the capture. So where captures allocate, all old mappings *stay*, until [`OldMappings::let_go`].

use super::extent::{ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::reuse_rules::ReuseRules;
use crate::device::DevicePtr;
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
    /// The dormant ones that stay. `None` where none has to.
    staying: Option<Vec<ExtentId>>,
}

impl OldMappings {
    /// Old mappings that stay.
    pub(super) fn that_stay() -> Self {
        Self { staying: Some(Vec::new()), ..Self::default() }
    }

    /// From now on they may go: no replay can come, and none is under way.
    pub(super) fn let_go(&mut self) {
        // Those of one donor lie side by side there, too.
        self.pending.append(&mut self.staying.take().unwrap_or_default());
    }

    pub(super) fn stay(&self) -> bool {
        self.staying.is_some()
    }

    /// Where each page was mapped before, and still is, by the page.
    pub(super) fn staying(&self, map: &ExtentMap) -> impl Iterator<Item = (PageId, DevicePtr)> {
        let page = |id: &ExtentId| match map[*id].state {
            ExtentState::Dormant(page) => Some((page, map.address_of(*id))),
            _ => None,
        };
        self.staying.iter().flatten().filter_map(page)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ExtentId> {
        self.pending.iter().chain(&self.idle).chain(self.staying.iter().flatten()).copied()
    }

    /// Whether there is none that may go.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.idle.is_empty()
    }

    /// Reserves the host's memory for so many more; `false` where it is refused.
    pub(super) fn make_room(&mut self, more: usize) -> bool {
        let all = self.pending.len() + self.idle.len() + self.staying.as_ref().map_or(0, Vec::len) + more;
        let mut lists = [&mut self.pending, &mut self.idle].into_iter().chain(&mut self.staying);
        // Each may come to hold all of them.
        lists.all(|list| list.try_reserve(all - list.len()).is_ok())
    }

    /// Lists an extent, which is on no index: a page may come back to it, or it is to be removed.
    pub(super) fn push(&mut self, map: &mut ExtentMap, (id, page): (ExtentId, PageId), may_come_back: bool) {
        if may_come_back {
            map.set_state(id, ExtentState::Dormant(page));
            self.staying.as_mut().unwrap_or(&mut self.pending).push(id);
        } else {
            map.set_state(id, ExtentState::PendingUnmap(page));
            self.pending.push(id);
        }
    }

    /// Takes a dormant mapping off the lists; returns whether it was idle.
    fn take(&mut self, id: ExtentId) -> bool {
        let Self { pending, idle, staying } = self;
        if let Some(at) = idle.iter().rposition(|other| *other == id) {
            idle.remove(at);
            return true;
        }
        staying.as_mut().unwrap_or(pending).retain(|other| *other != id);
        false
    }

    /// A page comes back to a dormant mapping.
    pub(super) fn take_up(&mut self, map: &ExtentMap, pages: &Pages, (id, page): (ExtentId, PageId)) {
        if self.take(id) {
            pages.take_up(page, map.address_of(id));
        }
    }

    /// The work on all of them.
    pub(super) fn fence(&self, map: &ExtentMap) -> Fence {
        map.fence_of(self.pending.iter().copied())
    }

    /// Removes the old mappings whose work is complete, the dormant ones too. Never waits; a mapping that cannot be
    /// removed stays pending unmap.
    pub(super) fn reap(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages) {
        self.retire(map, pages);
        self.sort_out(map, rules, pages);
    }

    /// Removes those that are idle; all others are pending unmap from now on.
    pub(super) fn retire(&mut self, map: &mut ExtentMap, pages: &mut Pages) {
        self.remove_idle(map, pages, self.idle.len());
        for &id in &self.pending {
            if let ExtentState::Dormant(page) = map[id].state {
                map.set_state(id, ExtentState::PendingUnmap(page));
            }
        }
    }

    /// Removes those pending unmap whose work is complete, and finds out which of the dormant ones are idle. Of these, the
    /// oldest go where there are too many.
    pub(super) fn settle(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages) {
        let too_many = self.idle.len().saturating_sub(most_dormant(map.layout.policy, pages.records()));
        self.remove_idle(map, pages, too_many);
        self.sort_out(map, rules, pages);
    }

    /// Removes so many idle ones, the oldest.
    fn remove_idle(&mut self, map: &mut ExtentMap, pages: &mut Pages, count: usize) {
        let Self { pending, idle, .. } = self;
        pending.extend(idle.drain(..count).filter(|id| remove(map, pages, *id).is_none()));
    }

    /// Of those whose work is complete, removes what is pending unmap; the dormant ones are idle.
    fn sort_out(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages) {
        if self.pending.is_empty() {
            return;
        }
        rules.poll(&self.fence(map));
        let Self { pending, idle, .. } = self;
        let mut complete = None;
        pending.retain(|&id| {
            // What one donor gave has one fence, and lies side by side.
            if complete.as_ref() != Some(&map[id].fence) && !rules.timelines.is_complete(&map[id].fence) {
                return true;
            }
            complete = Some(std::mem::take(map.fence_mut(id)));
            if let ExtentState::Dormant(page) = map[id].state {
                pages.lay_aside(page, map.address_of(id));
                idle.push(id);
                return false;
            }
            remove(map, pages, id).is_none()
        });
    }

    /// Removes a dormant mapping, whose addresses are needed. Returns the unmapped extent that they are in now. `None` where
    /// it is not idle or cannot be removed: it is pending unmap.
    pub(super) fn clear(
        &mut self,
        map: &mut ExtentMap,
        pages: &mut Pages,
        (id, page): (ExtentId, PageId),
    ) -> Option<ExtentId> {
        let unmapped = if self.take(id) { remove(map, pages, id) } else { None };
        if unmapped.is_none() {
            self.push(map, (id, page), false);
        }
        unmapped
    }
}

/// Removes a mapping that is idle, or pending unmap and complete; returns the unmapped extent that its addresses are in now. `None`
/// where it cannot be removed: it is pending unmap.
fn remove(map: &mut ExtentMap, pages: &mut Pages, id: ExtentId) -> Option<ExtentId> {
    let at = map.address_of(id);
    let (page, removed) = match map[id].state {
        // SAFETY: the page was mapped here before it was remapped. The work that used the range is complete. Later work cannot
        // use it, since the program holds no pointer into it.
        ExtentState::Dormant(page) => (page, unsafe { pages.unmap_laid_aside(page, at) }),
        // SAFETY: likewise.
        ExtentState::PendingUnmap(page) => (page, unsafe { pages.unmap(page, at) }),
        _ => return None,
    };
    if let Err(error) = removed {
        tracing::warn!(%error, %at, "an old mapping could not be removed; it is tried again");
        map.set_state(id, ExtentState::PendingUnmap(page));
        return None;
    }
    Some(map.make_unmapped(id))
}
