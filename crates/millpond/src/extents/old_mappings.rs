//! Old mappings: the addresses that pages had before they were remapped.
//!
//! An old mapping cannot go before the work on it is complete, and nobody waits for that. Most stay longer: they are
//! *dormant*. A program that repeats its steps needs the same addresses again. Its pages then come back to them without a
//! device call. A dormant mapping goes where its addresses are needed for other pages, or where its page is given back.
//!
//! **Only what is idle goes.** A mapping becomes idle in one place ([`OldMappings::sort_out`]): its fence is reached, and whoever
//! watches mappings is told. The page gives an [`IdleMapping`] for that, and nothing else can be unmapped.
//!
//! What a graph was captured with stays, whatever moves: at each replay its work uses the addresses that it was given, in the
//! order of the capture. So where captures allocate, all old mappings *stay*, until [`OldMappings::let_go`].

use super::map::extent::{ExtentId, ExtentState};
use super::map::extent_list::ExtentList;
use super::map::extent_map::ExtentMap;
use super::reuse_rules::ReuseRules;
use crate::device::DevicePtr;
use crate::log::log;
use crate::order::{Fence, Reached};
use crate::physical::{IdleMapping, PageId, Pages};
use crate::policy::donating::{MOST_PENDING_LOOKED_AT, most_dormant};

/// The extents that are old mappings. Each change costs the same however many there are.
#[derive(Debug, Default)]
pub(super) struct OldMappings {
    /// Those whose work may be under way, dormant ones too, and those that could not be removed. The next to be asked about
    /// comes first.
    pending: ExtentList,
    /// The idle ones, the oldest first.
    idle: ExtentList,
    /// The dormant ones that stay.
    staying: ExtentList,
    /// Whether dormant ones stay.
    stay: bool,
}

impl OldMappings {
    /// Old mappings that stay.
    pub(super) fn that_stay() -> Self {
        Self { stay: true, ..Self::default() }
    }

    /// From now on they may go: no replay can come, and none is under way.
    pub(super) fn let_go(&mut self, map: &mut ExtentMap) {
        self.stay = false;
        while let Some(id) = self.staying.first() {
            self.staying.remove(&mut map.extents, id);
            self.pending.push(&mut map.extents, id);
        }
        self.let_none_come_back(map);
    }

    pub(super) fn stay(&self) -> bool {
        self.stay
    }

    /// Where each page was mapped before, and stays mapped, by the page.
    pub(super) fn staying(&self, map: &ExtentMap) -> impl Iterator<Item = (PageId, DevicePtr)> {
        let page = |id| match map[id].state {
            ExtentState::Dormant(page) => Some((page, map.address_of(id))),
            _ => None,
        };
        self.staying.iter(&map.extents).filter_map(page)
    }

    pub(super) fn ids<'a>(&self, map: &'a ExtentMap) -> impl Iterator<Item = ExtentId> + use<'a> {
        let lists = [&self.pending, &self.idle, &self.staying];
        lists.map(|list| list.iter(&map.extents)).into_iter().flatten()
    }

    /// One that is on another list than its state says, or idle without an empty fence, for recounts.
    pub(super) fn misplaced(&self, map: &ExtentMap) -> Option<ExtentId> {
        let is_idle =
            |id: &ExtentId| matches!(map[*id].state, ExtentState::Idle(_)) && map[*id].fence.is_empty();
        let stays = |id: &ExtentId| self.stay && matches!(map[*id].state, ExtentState::Dormant(_));
        let is_pending = |id: &ExtentId| match map[*id].state {
            ExtentState::PendingUnmap(_) => true,
            ExtentState::Dormant(_) => !self.stay && !map[*id].fence.is_empty(),
            _ => false,
        };
        let wrong = self.idle.iter(&map.extents).find(|id| !is_idle(id));
        let wrong = wrong.or_else(|| self.staying.iter(&map.extents).find(|id| !stays(id)));
        wrong.or_else(|| self.pending.iter(&map.extents).find(|id| !is_pending(id)))
    }

    /// The list that an old mapping is on, or is to be on.
    fn list_of(&mut self, state: ExtentState) -> &mut ExtentList {
        match state {
            ExtentState::Idle(_) => &mut self.idle,
            ExtentState::Dormant(_) if self.stay => &mut self.staying,
            _ => &mut self.pending,
        }
    }

    fn enter(&mut self, map: &mut ExtentMap, id: ExtentId, state: ExtentState) {
        map.extents[id].state = state;
        self.list_of(state).push(&mut map.extents, id);
    }

    fn leave(&mut self, map: &mut ExtentMap, id: ExtentId) {
        let state = map[id].state;
        self.list_of(state).remove(&mut map.extents, id);
    }

    /// Lists an extent, which is on no index: it is dormant, or pending unmap.
    pub(super) fn push(&mut self, map: &mut ExtentMap, pages: &Pages, id: ExtentId, state: ExtentState) {
        match (state, map[id].fence.reached()) {
            (ExtentState::Dormant(page), Some(reached)) if !self.stay => {
                let idle = lay_aside(map, pages, (id, page), reached);
                self.enter(map, id, ExtentState::Idle(idle));
            }
            _ => self.enter(map, id, state),
        }
    }

    /// A dormant mapping is no longer one: its page comes back, or goes elsewhere.
    pub(super) fn take_up(&mut self, map: &mut ExtentMap, pages: &Pages, id: ExtentId) {
        if let ExtentState::Idle(mapping) = map[id].state {
            pages.take_up(mapping, map.address_of(id));
        }
        self.leave(map, id);
    }

    /// The work on those that may go.
    pub(super) fn fence(&self, map: &ExtentMap) -> Fence {
        map.fence_of(self.pending.iter(&map.extents))
    }

    /// Removes those that may go and whose work is complete; all others that may go are pending unmap from now on.
    pub(super) fn reap(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages) {
        self.retire(map, pages);
        self.sort_out(map, rules, pages, usize::MAX);
    }

    /// Removes those that are idle; all others that may go are pending unmap from now on.
    pub(super) fn retire(&mut self, map: &mut ExtentMap, pages: &mut Pages) {
        self.remove_idle(map, pages, self.idle.len());
        self.let_none_come_back(map);
    }

    /// Removes those pending unmap whose work is complete, and finds out which of the dormant ones are idle. Of those that were
    /// before, the oldest go where there are too many. Looks at a few only: at others the next time.
    pub(super) fn settle(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages) {
        let too_many = self.idle.len().saturating_sub(most_dormant(map.layout.policy, pages.records()));
        self.remove_idle(map, pages, too_many);
        self.sort_out(map, rules, pages, MOST_PENDING_LOOKED_AT);
    }

    /// Removes an idle mapping, whose addresses are needed. Returns the unmapped extent that they are in now. `None` where it
    /// cannot be removed: it is pending unmap.
    pub(super) fn clear(
        &mut self,
        map: &mut ExtentMap,
        pages: &mut Pages,
        (id, mapping): (ExtentId, IdleMapping),
    ) -> Option<ExtentId> {
        debug_assert_eq!(map[id].state, ExtentState::Idle(mapping));
        self.leave(map, id);
        self.remove(map, pages, (id, mapping))
    }

    /// No page that was given away comes back: its mappings are pending unmap.
    pub(super) fn let_none_of_given_come_back(&mut self, map: &mut ExtentMap, pages: &Pages) {
        let mut next = self.idle.first();
        while let Some(id) = next {
            next = map[id].link.next;
            if let ExtentState::Idle(mapping) = map[id].state
                && pages.get(mapping.page()).is_given()
            {
                self.take_up(map, pages, id);
                self.enter(map, id, ExtentState::PendingUnmap(mapping.page()));
            }
        }
        let mut next = self.pending.first();
        while let Some(id) = next {
            let extent = &mut map.extents[id];
            next = extent.link.next;
            if let ExtentState::Dormant(page) = extent.state
                && pages.get(page).is_given()
            {
                extent.state = ExtentState::PendingUnmap(page);
            }
        }
    }

    fn let_none_come_back(&mut self, map: &mut ExtentMap) {
        let mut next = self.pending.first();
        while let Some(id) = next {
            let extent = &mut map.extents[id];
            next = extent.link.next;
            if let ExtentState::Dormant(page) = extent.state {
                extent.state = ExtentState::PendingUnmap(page);
            }
        }
    }

    /// Removes so many idle ones, the oldest.
    fn remove_idle(&mut self, map: &mut ExtentMap, pages: &mut Pages, count: usize) {
        for _ in 0..count {
            let Some(oldest) = self.idle.first() else { return };
            let ExtentState::Idle(mapping) = map[oldest].state else { return };
            self.clear(map, pages, (oldest, mapping));
        }
    }

    /// Asks about the first `most` that are pending, and goes on where most of them are complete. Dormant ones become idle, others
    /// are removed. What is not complete, or cannot be removed, is asked about again after all others.
    fn sort_out(&mut self, map: &mut ExtentMap, rules: &ReuseRules, pages: &mut Pages, most: usize) {
        let mut left = self.pending.len();
        while left > 0 {
            let looked_at = left.min(most);
            rules.poll(&map.fence_of(self.pending.iter(&map.extents).take(looked_at)));
            let mut gone = 0;
            for _ in 0..looked_at {
                let Some(id) = self.pending.first() else { return };
                self.leave(map, id);
                gone += usize::from(self.sort_out_one(map, rules, pages, id));
            }
            left -= looked_at;
            if 2 * gone < looked_at {
                return;
            }
        }
    }

    /// Sorts out one that was pending, and is on no list. `false` where it is pending again.
    fn sort_out_one(
        &mut self,
        map: &mut ExtentMap,
        rules: &ReuseRules,
        pages: &mut Pages,
        id: ExtentId,
    ) -> bool {
        let state = map[id].state;
        match (state, rules.timelines.reached(&map[id].fence)) {
            (ExtentState::Dormant(page), Some(reached)) => {
                let idle = lay_aside(map, pages, (id, page), reached);
                self.enter(map, id, ExtentState::Idle(idle));
                true
            }
            (ExtentState::PendingUnmap(page), Some(reached)) => {
                let idle = lay_aside(map, pages, (id, page), reached);
                self.remove(map, pages, (id, idle)).is_some()
            }
            _ => {
                self.enter(map, id, state);
                false
            }
        }
    }

    /// Removes an idle mapping, which is on no list. Returns the unmapped extent that its addresses are in now. `None` where it
    /// cannot be removed: it is pending unmap.
    fn remove(
        &mut self,
        map: &mut ExtentMap,
        pages: &mut Pages,
        (id, mapping): (ExtentId, IdleMapping),
    ) -> Option<ExtentId> {
        let at = map.address_of(id);
        // SAFETY: the page was mapped here before it was remapped.
        if let Err(error) = unsafe { pages.unmap(mapping, at) } {
            log!(WARN, "an old mapping could not be removed; it is tried again", error, at);
            self.enter(map, id, ExtentState::PendingUnmap(mapping.page()));
            return None;
        }
        Some(map.make_unmapped(id))
    }
}

/// Lays an old mapping aside whose fence is reached. The fence is empty from then on.
fn lay_aside(
    map: &mut ExtentMap,
    pages: &Pages,
    (id, page): (ExtentId, PageId),
    reached: Reached,
) -> IdleMapping {
    map.extents[id].fence = Fence::empty();
    // SAFETY: the page was mapped here before it was remapped. The extent's fence is that of the work that used the range. Later
    // work cannot use it, since the program holds no pointer into it.
    unsafe { pages.lay_aside(page, map.address_of(id), reached) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::sim::Call;
    use crate::fixtures::{Bench, Freeing, MIB};

    #[test]
    fn a_miss_asks_about_a_few_pending_mappings_only() {
        const STREAMS: u64 = 300;
        let Bench { sim, context, pool, stream } = Bench::new(|pool| pool.page_sizes(2 * MIB, 2 * MIB));
        let streams: Vec<_> = (0..STREAMS).map(|_| context.create_stream().unwrap()).collect();
        let blocks: Vec<_> = streams.iter().map(|of| pool.alloc(2 * MIB, of).unwrap()).collect();
        streams.iter().for_each(|of| sim.launch(of.handle(), Duration::from_secs(100)).unwrap());
        // Every other one, so that their pages have to move for a long block.
        let freed = |at: &usize| at.is_multiple_of(2);
        (0..blocks.len()).filter(freed).for_each(|at| pool.free_block(blocks[at], &streams[at]).unwrap());
        _ = pool.alloc(STREAMS * MIB, &stream).unwrap();
        assert_eq!(pool.reserved().current, STREAMS * 2 * MIB, "all pages moved");
        let asked = || sim.calls()[Call::QueryEvent] + sim.calls()[Call::StreamIsIdle];
        let before = asked();
        _ = pool.alloc(32 * MIB, &stream).unwrap();
        let asked = asked() - before;
        assert!((1..=MOST_PENDING_LOOKED_AT as u64).contains(&asked), "{asked}");
    }
}
