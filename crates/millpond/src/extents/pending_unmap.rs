//! Old mappings of pages that were remapped. Each stays until the work on it is complete: so nobody waits.

use super::extent::{ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::reuse_rules::ReuseRules;
use crate::order::Fence;
use crate::physical::Pages;

/// The extents pending unmap, in no order.
#[derive(Debug, Default)]
pub(super) struct PendingUnmap(Vec<ExtentId>);

impl PendingUnmap {
    pub(super) fn ids(&self) -> &[ExtentId] {
        &self.0
    }

    /// Reserves the host's memory for one more; `false` where it is refused.
    pub(super) fn make_room(&mut self) -> bool {
        self.0.try_reserve(1).is_ok()
    }

    pub(super) fn push(&mut self, id: ExtentId) {
        self.0.push(id);
    }

    /// The work on all of them.
    pub(super) fn fence(&self, map: &ExtentMap) -> Fence {
        map.fence_of(self.0.iter().copied())
    }

    /// Removes the old mappings whose work is complete. Never waits; a mapping that cannot be removed stays pending
    /// unmap.
    pub(super) fn reap(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages) {
        if self.0.is_empty() {
            return;
        }
        rules.poll(&self.fence(map));
        let (mut complete, mut unmapped) = (None, None);
        self.0.retain(|&id| {
            // What one donor gave has one fence, and lies side by side.
            if !is_complete_too(&map[id].fence, rules, &mut complete) || !unmap(map, pages, id) {
                return true;
            }
            unmapped = Some(match unmapped.filter(|unmapped| are_neighbours(map, *unmapped, id)) {
                Some(unmapped) => map.join(unmapped, id),
                None => {
                    unmapped.into_iter().for_each(|unmapped| map.make_unmapped(unmapped));
                    id
                }
            });
            false
        });
        unmapped.into_iter().for_each(|unmapped| map.make_unmapped(unmapped));
    }
}

/// Whether a fence's work is complete, where `known` is one whose work was found to be so before.
fn is_complete_too(fence: &Fence, rules: &ReuseRules, known: &mut Option<Fence>) -> bool {
    if known.as_ref() == Some(fence) {
        return true;
    }
    let complete = rules.is_complete(fence);
    if complete {
        *known = Some(fence.clone());
    }
    complete
}

fn are_neighbours(map: &ExtentMap, a: ExtentId, b: ExtentId) -> bool {
    map[a].next == Some(b) || map[a].prev == Some(b)
}

/// Unmaps one extent pending unmap, whose work is complete. It is unmapped then, and on no index.
fn unmap(map: &mut ExtentMap, pages: &mut Pages, id: ExtentId) -> bool {
    let ExtentState::PendingUnmap(page) = map[id].state else { return false };
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
