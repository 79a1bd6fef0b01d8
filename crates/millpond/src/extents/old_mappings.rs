//! Old mappings: the addresses that pages had before they were remapped.
//!
//! An old mapping cannot go before the work on it is complete, and nobody waits for that. Most stay longer: they are
//! *dormant*. A program that repeats its steps needs the same addresses again. Its pages then come back to them without a
//! device call. A dormant mapping goes where its addresses are needed for other pages, or where its page is given back.
//!
//! What a graph was captured with stays, whatever moves: at each replay its work uses the addresses that it was given, in the
//! order of the capture. So where captures allocate, all old mappings *stay*, until [`OldMappings::let_go`].

use super::extent::{Extent, ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::reuse_rules::ReuseRules;
use crate::device::DevicePtr;
use crate::log::log;
use crate::order::Fence;
use crate::physical::{PageId, Pages};
use crate::policy::donating::most_dormant;

/// The extents that are old mappings.
#[derive(Debug, Default)]
pub(super) struct OldMappings {
    /// The oldest first. A dormant one that need not stay is *idle*, and laid aside, once its fence is empty.
    list: Vec<ExtentId>,
    /// Whether dormant ones stay.
    pub(super) stay: bool,
}

impl OldMappings {
    /// From now on they go: no replay can come, and none is under way.
    pub(super) fn let_go(&mut self, map: &mut ExtentMap) {
        self.stay = false;
        for id in self.ids() {
            if let ExtentState::Dormant(page) = map[id].state {
                map.extents[id].state = ExtentState::PendingUnmap(page);
            }
        }
    }

    /// Where each page was mapped before, and stays mapped, by the page.
    pub(super) fn staying(&self, map: &ExtentMap) -> impl Iterator<Item = (PageId, DevicePtr)> {
        let page = |id| match map[id].state {
            ExtentState::Dormant(page) if self.stay => Some((page, map.address_of(id))),
            _ => None,
        };
        self.ids().filter_map(page)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ExtentId> {
        self.list.iter().copied()
    }

    /// Those that may go.
    fn to_go(&self, map: &ExtentMap) -> impl Iterator<Item = ExtentId> {
        self.ids().filter(|id| !self.stay || !matches!(map[*id].state, ExtentState::Dormant(_)))
    }

    /// Whether there is none that may go.
    pub(super) fn is_empty(&self, map: &ExtentMap) -> bool {
        self.to_go(map).next().is_none()
    }

    /// Whether a dormant mapping is idle.
    fn is_idle(&self, map: &ExtentMap, id: ExtentId) -> bool {
        !self.stay && map[id].fence.is_empty()
    }

    /// Reserves the host's memory for so many more; `false` where it is refused.
    pub(super) fn make_room(&mut self, more: usize) -> bool {
        self.list.try_reserve(more).is_ok()
    }

    /// Lists an extent, which is on no index: it is dormant, or pending unmap.
    pub(super) fn push(&mut self, map: &mut ExtentMap, pages: &Pages, id: ExtentId, state: ExtentState) {
        map.extents[id].state = state;
        self.list.push(id);
        if let ExtentState::Dormant(page) = state
            && self.is_idle(map, id)
        {
            pages.lay_aside(page, map.address_of(id));
        }
    }

    /// A page comes back to a dormant mapping.
    pub(super) fn take_up(&mut self, map: &ExtentMap, pages: &Pages, (id, page): (ExtentId, PageId)) {
        self.list.retain(|other| *other != id);
        if self.is_idle(map, id) {
            pages.take_up(page, map.address_of(id));
        }
    }

    /// The work on those that may go.
    pub(super) fn fence(&self, map: &ExtentMap) -> Fence {
        map.fence_of(self.to_go(map))
    }

    /// Removes those that are idle; all others are pending unmap from now on. But those that stay.
    pub(super) fn retire(&mut self, map: &mut ExtentMap, pages: &mut Pages) {
        if self.stay {
            return;
        }
        self.list.retain(|&id| match map[id].state {
            ExtentState::Dormant(_) if map[id].fence.is_empty() => remove(map, pages, id).is_none(),
            ExtentState::Dormant(page) => {
                map.extents[id].state = ExtentState::PendingUnmap(page);
                true
            }
            _ => true,
        });
    }

    /// Removes those pending unmap whose work is complete, and finds out which of the dormant ones are idle. Of those that were
    /// before, the oldest go where there are too many.
    pub(super) fn settle(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages) {
        rules.poll(&self.fence(map));
        let idle = self.to_go(map).filter(|id| map[*id].fence.is_empty()).count();
        let mut too_many = idle.saturating_sub(most_dormant(map.layout.policy, pages.records()));
        let (mut complete, stay) = (Fence::empty(), self.stay);
        self.list.retain(|&id| {
            let Extent { state, ref fence, .. } = map[id];
            match state {
                ExtentState::Dormant(_) if stay => return true,
                ExtentState::Dormant(_) if fence.is_empty() => {
                    if too_many == 0 {
                        return true;
                    }
                    too_many -= 1;
                }
                // What one donor gave has one fence, and lies side by side.
                _ if *fence != complete && !rules.timelines.is_complete(fence) => return true,
                _ => {
                    complete = std::mem::take(&mut map.extents[id].fence);
                    if let ExtentState::Dormant(page) = state {
                        pages.lay_aside(page, map.address_of(id));
                        return true;
                    }
                }
            }
            remove(map, pages, id).is_none()
        });
    }

    /// Removes an idle mapping, whose addresses are needed. Returns the unmapped extent that they are in now. `None` where it
    /// cannot be removed: it is pending unmap.
    pub(super) fn clear(&mut self, map: &mut ExtentMap, pages: &mut Pages, id: ExtentId) -> Option<ExtentId> {
        let unmapped = remove(map, pages, id)?;
        self.list.retain(|other| *other != id);
        Some(unmapped)
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
        log!(WARN, "an old mapping could not be removed; it is tried again", error, at);
        map.extents[id].state = ExtentState::PendingUnmap(page);
        return None;
    }
    Some(map.make_unmapped(id))
}
