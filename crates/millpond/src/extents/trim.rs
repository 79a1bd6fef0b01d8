//! Giving memory back: old mappings, pages that hold no live byte, and at the end the address space.

use super::extent::{Extent, ExtentState};
use super::index::FreeIndex;
use super::regions::RegionOrigin;
use super::{Arena, ExtentId, Zone};
use crate::device::DeviceError;
use crate::order::Fence;
use crate::physical::PageId;

impl Arena {
    /// Removes the old mappings whose work is complete. Never waits; a mapping that cannot be removed stays
    /// pending unmap.
    pub(crate) fn reap(&mut self) {
        if self.pending_unmap.is_empty() {
            return;
        }
        self.poll_quietly(&self.fence_of(self.pending_unmap.iter().copied()));
        let mut pending_unmap = std::mem::take(&mut self.pending_unmap);
        let (mut complete, mut unmapped) = (None, None);
        pending_unmap.retain(|&id| {
            // What one donor gave has one fence, and lies side by side.
            if !self.is_complete_too(id, &mut complete) || !self.unmap_pending(id) {
                return true;
            }
            unmapped = Some(match unmapped.filter(|unmapped| self.are_neighbours(*unmapped, id)) {
                Some(unmapped) => self.extents.join(unmapped, id),
                None => {
                    unmapped.into_iter().for_each(|unmapped| self.make_unmapped(unmapped));
                    id
                }
            });
            false
        });
        unmapped.into_iter().for_each(|unmapped| self.make_unmapped(unmapped));
        self.pending_unmap = pending_unmap;
    }

    /// Whether an extent's work is complete, where `known` is one that was found to be so before.
    fn is_complete_too(&self, id: ExtentId, known: &mut Option<Fence>) -> bool {
        let fence = &self.extents[id].fence;
        if known.as_ref() == Some(fence) {
            return true;
        }
        let complete = self.timelines.is_complete(fence);
        if complete {
            *known = Some(fence.clone());
        }
        complete
    }

    fn are_neighbours(&self, a: ExtentId, b: ExtentId) -> bool {
        self.extents[a].next == Some(b) || self.extents[a].prev == Some(b)
    }

    /// Unmaps one extent pending unmap, whose work is complete. It is unmapped then, and on no index.
    fn unmap_pending(&mut self, id: ExtentId) -> bool {
        let ExtentState::PendingUnmap(page) = self.extents[id].state else { return false };
        let at = self.address_of(id);
        // SAFETY: the page was mapped here when it was remapped; the work that used the range is complete, and later
        // work cannot: the program holds no pointer into a free extent.
        if let Err(error) = unsafe { self.pages.unmap(page, at) } {
            tracing::warn!(%error, %at, "an old mapping could not be removed; it is tried again");
            return false;
        }
        let extent = &mut self.extents[id];
        (extent.state, extent.fence) = (ExtentState::Unmapped, Fence::empty());
        true
    }

    /// Makes an extent unmapped, and joins it with the unmapped ones beside it.
    pub(super) fn make_unmapped(&mut self, id: ExtentId) {
        let mut id = id;
        let zone = self.extents[id].zone as usize;
        self.extents[id].state = ExtentState::Unmapped;
        self.extents[id].fence = Fence::empty();
        for neighbour in [self.extents[id].prev, self.extents[id].next].into_iter().flatten() {
            if self.extents.is(neighbour, ExtentState::Unmapped) {
                self.unmapped[zone].remove(&self.extents[neighbour]);
                id = self.extents.join(id, neighbour);
            }
        }
        self.unmapped[zone].insert(&self.extents[id], id);
    }

    /// The fence of all these extents; without host memory, of the first of them. Callers ask again for each extent.
    pub(super) fn fence_of(&self, ids: impl IntoIterator<Item = ExtentId>) -> Fence {
        let mut all = Fence::empty();
        let mut last = None;
        for id in ids {
            let fence = &self.extents[id].fence;
            // Pieces of one extent have its fence.
            if last.replace(fence) != Some(fence) && !all.try_join(fence) {
                break;
            }
        }
        all
    }

    /// Asks the device about a fence. An error only means that nothing is learned.
    pub(super) fn poll_quietly(&self, fence: &Fence) {
        if let Err(error) = self.timelines.poll(fence) {
            tracing::warn!(%error, "the device could not be asked what is complete");
        }
    }

    fn free_ids(&self) -> impl Iterator<Item = ExtentId> {
        Zone::BOTH.iter().flat_map(|zone| self.free[*zone as usize].at_least(0))
    }

    /// A list that has room for every free extent; or the host refuses it.
    pub(super) fn list_for_free<T>(&self) -> Result<Vec<T>, DeviceError> {
        let mut list = Vec::new();
        let most = self.free.iter().map(FreeIndex::len).sum();
        match list.try_reserve_exact(most) {
            Ok(()) => Ok(list),
            Err(_) => Err(DeviceError::HostMemory {
                what: "a list of free blocks",
                bytes: (most * size_of::<T>()) as u64,
            }),
        }
    }

    /// The work that must be complete before everything free can be given back.
    pub(crate) fn fence_of_all_free(&self) -> Fence {
        let mut all = self.fence_of(self.free_ids());
        // Host memory may be short, as there.
        let _ = all.try_join(&self.fence_of(self.pending_unmap.iter().copied()));
        self.timelines.prune(&mut all, self.policies);
        all
    }

    /// Gives memory that holds no live byte, and whose work is complete, back to the device until at most
    /// `keep` bytes are reserved. Never waits for the device (but on one without virtual memory, where the
    /// driver's free does). Returns the bytes given back.
    pub(crate) fn trim(&mut self, keep: u64) -> Result<u64, DeviceError> {
        let before = self.counters.reserved.current();
        if before <= keep {
            return Ok(0);
        }
        if self.keeps {
            // No graph uses what is mapped nowhere.
            self.reap();
            self.release_parked(keep)?;
            return Ok(before - self.counters.reserved.current());
        }
        // Without memory for the indexes, a later trim gets what is missing there.
        let _ = self.complete_indexes();
        self.poll_quietly(&self.fence_of_all_free());
        self.reap();
        self.join_unmerged();
        self.join_complete();
        // One failure is no reason to keep the rest.
        let parked = self.release_parked(keep);
        let pages = self.trim_pages(keep);
        let segments = self.trim_segments(keep);
        let released = before - self.counters.reserved.current();
        if released > 0 {
            let end = self.extents.shrink();
            // Some are of extents that are gone.
            self.unmerged.retain(|id| id.0 < end.0);
            self.let_go_of_descriptors();
        }
        parked.and(pages).and(segments)?;
        Ok(released)
    }

    /// Gives back the host's memory for where blocks lie, wherever nothing is mapped any more, and for blocks that
    /// are gone.
    fn let_go_of_descriptors(&self) {
        for id in self.unmapped.iter().flat_map(|unmapped| unmapped.at_least(1)) {
            let extent = &self.extents[id];
            let bytes = extent.start * self.layout.unit_bytes..extent.end() * self.layout.unit_bytes;
            self.regions.get(extent.region).map.let_go(bytes);
        }
        let Some(descriptors) = &self.descriptors else { return };
        let mut first = 0;
        for (ExtentId(id), _) in
            self.extents.iter().filter(|(_, extent)| extent.state == ExtentState::Allocated)
        {
            descriptors.let_go(first..id as usize);
            first = id as usize + 1;
        }
        descriptors.let_go(first..self.extents.capacity());
    }

    /// Gives back the pages that a request created before it failed. Nobody used them, whatever fence their extents
    /// have now. One that cannot be given back stays as free memory.
    #[cold]
    pub(super) fn undo_created(&mut self) -> Result<(), DeviceError> {
        let mut created = std::mem::take(&mut self.created);
        if created.is_empty() {
            return Ok(());
        }
        created.sort_unstable();
        // Those that could not be mapped.
        self.reap();
        let mut result = Ok(());
        created.retain(|page| {
            let is_bare = self.pages.mappings(*page) == 0;
            if is_bare && self.pages.unpark(*page) {
                result = std::mem::replace(&mut result, Ok(())).and(self.pages.release(*page).map(drop));
            }
            !is_bare
        });
        // Without memory for the list, they stay as free memory too.
        let mut free = self.list_for_free()?;
        free.extend(self.free_ids());
        for id in free {
            result = result.and(self.trim_extent(id, |_, page| Some(created.binary_search(&page).is_ok())));
        }
        created.clear();
        self.created = created;
        result
    }

    /// Joins complete neighbours that the policies keep apart, so that pages across them can go.
    fn join_complete(&mut self) {
        for at in 0..self.unmerged.len() {
            let id = self.unmerged[at];
            if self.extents.is(id, ExtentState::Free) && self.timelines.is_complete(&self.extents[id].fence) {
                self.extents[id].fence = Fence::empty();
                for neighbour in [self.extents[id].prev, self.extents[id].next].into_iter().flatten() {
                    if self.extents.is(neighbour, ExtentState::Free)
                        && self.timelines.is_complete(&self.extents[neighbour].fence)
                    {
                        self.extents[neighbour].fence = Fence::empty();
                    }
                }
            }
        }
        self.join_unmerged();
    }

    fn release_parked(&mut self, keep: u64) -> Result<(), DeviceError> {
        let mut at = self.pages.parked().len();
        let mut result = Ok(());
        while result.is_ok() && at > 0 && self.counters.reserved.current() > keep {
            at -= 1;
            let page = self.pages.parked()[at];
            if self.pages.mappings(page) == 0 {
                self.pages.unpark_at(at);
                result = self.pages.release(page).map(drop);
            }
        }
        // Those that were looked at last are the last to be used again.
        self.pages.reverse_parked(at);
        result
    }

    /// Unmaps and releases whole pages of free extents, those that have been free for longest first.
    fn trim_pages(&mut self, keep: u64) -> Result<(), DeviceError> {
        let mut idle = self.list_for_free()?;
        let free = self
            .free_ids()
            .filter(|id| self.extents[*id].units >= self.layout.units_per_base_page())
            .filter(|id| self.timelines.is_complete(&self.extents[*id].fence));
        idle.extend(free.map(|id| (self.extents[id].freed, id)));
        idle.sort_unstable();
        let mut result = Ok(());
        for (_, id) in idle {
            result = result.and(
                self.trim_extent(id, |arena, _| (arena.counters.reserved.current() > keep).then_some(true)),
            );
        }
        result
    }

    /// Gives back the pages of a free and complete extent for which `goes` is true; ends when it is `None`.
    fn trim_extent(
        &mut self,
        id: ExtentId,
        goes: impl Fn(&Self, PageId) -> Option<bool>,
    ) -> Result<(), DeviceError> {
        let region = self.extents[id].region;
        let (start, mut end) = self.base_pages_within(id);
        let mut result = Ok(());
        // From the end, so that `id` keeps naming the part that is left.
        while let Some((page, base_page, base_pages)) = self.regions.last_whole(region, (start, end))
            && let Some(goes) = goes(self, page)
        {
            if goes {
                result = result.and(self.trim_page(id, page, (base_page, base_pages)));
            }
            end = base_page;
        }
        result
    }

    /// Gives back a page that lies wholly in a free and complete extent.
    fn trim_page(
        &mut self,
        id: ExtentId,
        page: PageId,
        (base_page, base_pages): (u64, u32),
    ) -> Result<(), DeviceError> {
        let per_base_page = self.layout.units_per_base_page();
        let region = self.extents[id].region;
        if !self.make_room_for_page() || !self.extents.make_room_to_split(id) {
            return Err(DeviceError::HostMemory { what: "a list of blocks", bytes: self.host_bytes() });
        }
        let at = self.regions.address(region, base_page * per_base_page, &self.layout);
        // SAFETY: the page is mapped here and lies wholly in a free extent whose fence is complete; the
        // program holds no pointer into it.
        unsafe { self.pages.unmap(page, at) }?;
        let unmapped =
            self.cut_free(id, base_page * per_base_page, (base_page + u64::from(base_pages)) * per_base_page);
        self.regions.set_page(region, base_page, base_pages, None);
        self.make_unmapped(unmapped);
        if self.pages.mappings(page) > 0 {
            // An older mapping is still waiting for its work; the page goes when that has gone.
            self.pages.park(page);
            return Ok(());
        }
        self.pages.release(page).map(drop)
    }

    /// Cuts a range out of a free extent and takes it off the index; what is left on either side stays free.
    pub(super) fn cut_free(&mut self, id: ExtentId, start: u64, end: u64) -> ExtentId {
        self.remove_free(id);
        let mut cut = id;
        if self.extents[id].start < start {
            cut = self.extents.split(id, start);
            self.index_free(id);
        }
        if end < self.extents[cut].end() {
            self.index_rest(cut, end);
        }
        cut
    }

    /// Cuts the first units off a free extent. Both parts are on no index.
    pub(super) fn cut_front(&mut self, id: ExtentId, units: u64) -> ExtentId {
        let cut = self.extents.split_front(id, units);
        let Extent { region, prev, .. } = self.extents[cut];
        if prev.is_none() {
            self.regions.set_head(region, cut);
        }
        cut
    }

    /// Puts what [`cut_front`](Self::cut_front) left of an extent on the index.
    pub(super) fn index_front_rest(&mut self, id: ExtentId) {
        self.index_free(id);
        // If the two before it were listed as unmerged, it and its next may not be.
        if self.is_free(self.extents[id].next) {
            self.list_unmerged(id);
        }
    }

    /// Cuts what lies behind `end` off an extent that was free, as a free extent.
    pub(super) fn index_rest(&mut self, cut: ExtentId, end: u64) {
        let rest = self.extents.split(cut, end);
        self.index_free(rest);
        // If the extent and its next were listed as unmerged, these two are now.
        if self.is_free(self.extents[rest].next) {
            self.list_unmerged(rest);
        }
    }

    /// Gives everything back whose work is complete, addresses too, for an arena that will not be used again. Does
    /// not wait, so that it can be called under the pool's lock: wait for [all that is free](Self::fence_of_all_free)
    /// before. What cannot be given back stays, and [`held`](Self::held) says so.
    pub(crate) fn tear_down(&mut self) -> Result<(), DeviceError> {
        let trimmed = self.trim(0).map(drop);
        let is_bare = |arena: &Self, id| {
            arena.regions.at(id).is_some_and(|region| {
                let head = &arena.extents[region.head];
                let is_whole = head.units * arena.layout.unit_bytes == region.bytes;
                region.origin == RegionOrigin::Reserved && is_whole && head.state == ExtentState::Unmapped
            })
        };
        let mut done = trimmed;
        for id in 0..self.regions.ids() {
            // One that stays is no reason to keep the others.
            if is_bare(self, id) {
                done = done.and(self.unreserve(id));
            }
        }
        done
    }

    fn unreserve(&mut self, id: u32) -> Result<(), DeviceError> {
        let region = self.regions.get(id);
        let (base, bytes, head) = (region.base, region.bytes, region.head);
        // First: another pool may get the addresses at once.
        self.regions.hide(id);
        // SAFETY: the region is one unmapped extent: nothing is mapped in it, and the arena forgets it below.
        if let Err(error) = unsafe { self.device.unreserve(base, bytes) } {
            self.regions.show(id);
            return Err(error);
        }
        self.counters.calls.unreserve.add(1);
        self.unmapped[self.extents[head].zone as usize].remove(&self.extents[head]);
        self.extents.remove_alone(head);
        self.regions.remove(id);
        Ok(())
    }

    /// Bytes of the longest free extent: the largest request that needs no page.
    pub(crate) fn largest_free(&self) -> u64 {
        let longest = Zone::BOTH.iter().map(|zone| self.free[*zone as usize].longest()).max();
        longest.unwrap_or(0) * self.layout.unit_bytes
    }
}
