//! The extent map: every extent of a pool's address space, and the index of free and unmapped ones. It also leads
//! from an address to its block.
//!
//! It knows nothing of time: which free extents may be joined, and which one a stream may use, others decide by the
//! fences in it. Each change leaves every free and unmapped extent in the index, but for the extents that a method says
//! are *on no index*.

use std::ops::Index;
use std::sync::Arc;

use super::extent::{Extent, ExtentId, ExtentState, Extents, NoRoom};
use super::index::ExtentIndex;
use super::layout::{Layout, Zone};
use super::page_map::{DescriptorRef, PageMap};
use super::regions::{Region, Regions};
use crate::device::{DeviceError, DevicePtr, DeviceResult};
use crate::order::Fence;
use crate::policy::size_classes::class_of;

/// Extents that a request may add: to cut one out of another makes two more.
const ROOM: usize = 4;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct ExtentMap {
    pub(super) layout: Layout,
    pub(super) regions: Regions,
    /// The descriptors of allocated blocks, by id and by address.
    pub(super) page_map: Arc<PageMap>,
    pub(super) extents: Extents,
    pub(super) index: ExtentIndex,
    /// Whether there may be free neighbours that were not joined.
    pub(super) has_unmerged: bool,
    /// Counts frees, to tell old free extents from young ones.
    pub(super) frees: u64,
    /// Allocated blocks.
    pub(super) blocks: u64,
}

impl Index<ExtentId> for ExtentMap {
    type Output = Extent;
    #[inline]
    fn index(&self, id: ExtentId) -> &Extent {
        &self.extents[id]
    }
}

impl ExtentMap {
    pub(super) fn new(layout: Layout, regions: Regions) -> Self {
        Self {
            layout,
            regions,
            page_map: Arc::default(),
            extents: Extents::default(),
            index: ExtentIndex::default(),
            has_unmerged: false,
            frees: 0,
            blocks: 0,
        }
    }

    // ---- the host's memory -----------------------------------------------------------------------

    /// Reserves the host's memory to cut an extent and free it again, and to cut so many more out of others, before anything
    /// changes. Their fences are of at most so many streams. That is extents, and a descriptor for each. And the place in the
    /// index that an earlier free was refused.
    #[inline]
    pub(super) fn make_room(&mut self, cuts: usize, streams: usize) -> DeviceResult<()> {
        let more = cuts + ROOM;
        // Nearly always.
        if self.extents.has_room(more, streams) && !self.index.lacks() {
            return Ok(());
        }
        self.make_room_slow(more, streams)
    }

    #[cold]
    fn make_room_slow(&mut self, more: usize, streams: usize) -> DeviceResult<()> {
        let Self { extents, page_map, index, .. } = &mut *self;
        if !extents.has_begun()
            && let Some(records) = page_map.begin()
        {
            extents.begin(records);
        }
        match extents.make_room(more, streams, |end| page_map.back(end)) {
            Ok(()) => {
                let is_complete = index.complete(extents);
                self.ensure(is_complete)
            }
            Err(NoRoom::HostMemory) => self.ensure(false),
            Err(NoRoom::MostExtents(most)) => {
                let what = format!(
                    "the pool has {most} blocks and free ranges, as many as it can. Take larger blocks, or several pools"
                );
                Err(DeviceError::Invalid { call: "alloc", what })
            }
        }
    }

    /// Refuses a request if the host refused memory for it.
    pub(super) fn ensure(&self, has_memory: bool) -> DeviceResult<()> {
        let bytes = self.extents.host_bytes();
        if has_memory { Ok(()) } else { Err(DeviceError::HostMemory { what: "a list of blocks", bytes }) }
    }

    /// Gives back the host's memory for extents and blocks behind the last that is in use, where that is much of it.
    pub(super) fn shrink(&mut self) {
        if let Some(used) = self.extents.shrink() {
            self.page_map.shrink(used);
        }
    }

    // ---- regions ---------------------------------------------------------------------------------

    /// Enters a region with one extent, for which there is [room](Regions::make_room_for_one). Returns that.
    pub(super) fn enter_region(
        &mut self,
        (base, bytes): (DevicePtr, u64),
        zone: Zone,
        state: ExtentState,
        backing: Vec<u32>,
    ) -> ExtentId {
        let units = bytes / self.layout.unit_bytes;
        let head = self.extents.add(Extent::whole(self.regions.next_id(), zone, units, state));
        self.regions.add(Region { base, bytes, head, backing });
        self.index(head);
        head
    }

    /// Forgets a region that is one extent, free or unmapped, and has `give_back` give its addresses back. On an error
    /// it stays.
    pub(super) fn remove_region(
        &mut self,
        id: u32,
        give_back: impl FnOnce(&Region) -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let head = self.regions.get(id).head;
        self.regions.remove(id, give_back)?;
        self.unindex(head);
        self.extents.remove_alone(head);
        Ok(())
    }

    // ---- extents ---------------------------------------------------------------------------------

    /// Whether the id names an extent in this state now.
    #[inline]
    pub(super) fn is(&self, id: ExtentId, state: ExtentState) -> bool {
        self.extents[id].state == state
    }

    pub(super) fn in_state(&self, state: ExtentState) -> impl Iterator<Item = (ExtentId, &Extent)> {
        self.extents.iter().filter(move |(_, extent)| extent.state == state)
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

    // ---- geometry --------------------------------------------------------------------------------

    pub(super) fn address_of(&self, id: ExtentId) -> DevicePtr {
        let extent = &self.extents[id];
        self.regions.address(extent.region, extent.start, &self.layout)
    }

    /// Length of an extent in bytes.
    pub(super) fn bytes(&self, id: ExtentId) -> u64 {
        self.extents[id].units * self.layout.unit_bytes
    }

    /// Where a base page of a region lies.
    pub(super) fn address_of_base_page(&self, region: u32, base_page: u64) -> DevicePtr {
        self.regions.address(region, base_page << self.layout.base_page_shift, &self.layout)
    }

    /// The base pages that lie wholly in an extent: the first, and the first behind them.
    pub(super) fn base_pages_within(&self, id: ExtentId) -> (u64, u64) {
        let extent = &self.extents[id];
        (self.layout.base_pages_for(extent.start), self.layout.base_page_of(extent.end()))
    }

    /// The first unit of the region from `unit` on whose address is a multiple of `align` bytes.
    #[inline]
    pub(super) fn align_up(&self, region: u32, unit: u64, align: u64) -> u64 {
        if align <= self.layout.unit_bytes {
            return unit;
        }
        let base = self.regions.get(region).base.raw();
        let address = (base + unit * self.layout.unit_bytes).next_multiple_of(align);
        (address - base) >> self.layout.unit_shift
    }

    /// The last such unit up to `unit`, if there is one.
    pub(super) fn align_down(&self, region: u32, unit: u64, align: u64) -> Option<u64> {
        let up = self.align_up(region, unit, align);
        if up == unit { Some(unit) } else { up.checked_sub(align >> self.layout.unit_shift) }
    }

    /// The piece that holds the unit, of an extent that was cut up and is linked from `first` on.
    pub(super) fn piece_at(&self, first: ExtentId, unit: u64) -> ExtentId {
        let mut at = first;
        while self.extents[at].end() <= unit {
            at = self.extents[at].next.expect("the pieces of an extent cover what it covered");
        }
        at
    }

    /// The extent of a region that holds the unit.
    pub(super) fn extent_at(&self, region: u32, unit: u64) -> ExtentId {
        self.piece_at(self.regions.get(region).head, unit)
    }

    /// The extents from `first` on that begin before unit `end`.
    pub(super) fn until(&self, first: ExtentId, end: u64) -> impl Iterator<Item = ExtentId> {
        std::iter::successors(Some(first), |id| self.extents[*id].next)
            .take_while(move |id| self.extents[*id].start < end)
    }

    // ---- cutting and joining ---------------------------------------------------------------------

    /// Puts a free or unmapped extent on the index.
    #[inline]
    pub(super) fn index(&mut self, id: ExtentId) {
        self.index.insert(&self.extents[id], id);
    }

    /// Takes a free or unmapped extent off the index.
    #[inline]
    pub(super) fn unindex(&mut self, id: ExtentId) {
        self.index.remove(&self.extents[id], id);
    }

    /// Cuts a range out of a free or unmapped extent, to be on no index; what is left on either side stays as it was.
    pub(super) fn cut(&mut self, id: ExtentId, (start, end): (u64, u64)) -> ExtentId {
        self.unindex(id);
        let mut cut = id;
        if self.extents[id].start < start {
            cut = self.extents.split(id, start);
            self.index(id);
        }
        if end < self.extents[cut].end() {
            let rest = self.extents.split(cut, end);
            self.index(rest);
        }
        cut
    }

    /// Joins the free and the entered extents from the one at `start` to `end` behind one fence.
    pub(super) fn join_free(&mut self, first: ExtentId, (start, end): (u64, u64), fence: Fence) -> ExtentId {
        let take = |map: &mut Self, id| {
            if map.is(id, ExtentState::Free) {
                map.unindex(id);
            }
            map.extents[id].fence = Fence::empty();
        };
        let mut whole = self.piece_at(first, start);
        take(self, whole);
        while self.extents[whole].end() < end {
            let next = self.extents[whole].next.expect("a place is covered by extents");
            take(self, next);
            whole = self.extents.join(whole, next);
        }
        let extent = &mut self.extents[whole];
        (extent.state, extent.fence) = (ExtentState::Free, fence);
        self.index(whole);
        // Its neighbours may be free too; whoever needs a longer extent joins them.
        self.note_if_unmerged(whole);
        whole
    }

    /// The ranges of the extents of which `counts` is true, in the order of their addresses: first address and bytes of each.
    /// Between two parts of one range lie at most `gap` bytes.
    pub(super) fn ranges(
        &self,
        gap: u64,
        counts: impl Fn(ExtentState) -> bool,
    ) -> DeviceResult<Vec<(DevicePtr, u64)>> {
        let mut ranges: Vec<(DevicePtr, u64)> = Vec::new();
        for (_, region) in self.regions.iter() {
            let of_others = ranges.len();
            for id in self.until(region.head, u64::MAX).filter(|id| counts(self.extents[*id].state)) {
                let (at, bytes) = (self.address_of(id), self.bytes(id));
                match ranges[of_others..].last_mut() {
                    Some((first, length)) if at.raw() - first.raw() <= *length + gap => {
                        *length = at.raw() - first.raw() + bytes;
                    }
                    _ => {
                        self.ensure(ranges.try_reserve(1).is_ok())?;
                        ranges.push((at, bytes));
                    }
                }
            }
        }
        ranges.sort_unstable();
        Ok(ranges)
    }

    // ---- blocks ----------------------------------------------------------------------------------

    /// Cuts `units` at `at` out of a free extent, and allocates them. What is left stays free.
    pub(super) fn allocate(&mut self, id: ExtentId, at: u64, units: u64) -> (DevicePtr, DescriptorRef) {
        self.blocks += 1;
        let extent = &mut self.extents[id];
        let (is_first, end) = (extent.start == at, extent.end());
        // What is left behind the block takes the fence over: a copy might take memory of the host's. Only what is left before
        // the block, which is rare, needs one.
        let fence = if is_first { std::mem::take(&mut extent.fence) } else { Fence::empty() };
        let cut = self.cut(id, (at, at + units));
        if is_first
            && at + units < end
            && let Some(rest) = self.extents[cut].next
        {
            self.extents[rest].fence = fence;
        }
        self.open(cut)
    }

    /// Opens the descriptor of a block that was cut. Its cache line is rarely at hand: the sooner it is written, the
    /// shorter the wait when the lock is released.
    #[inline]
    fn open(&mut self, id: ExtentId) -> (DevicePtr, DescriptorRef) {
        let extent = &mut self.extents[id];
        extent.state = ExtentState::Allocated;
        extent.fence = Fence::empty();
        let ptr = self.address_of(id);
        (ptr, self.page_map.open(ptr, id, self.bytes(id), class_of(self.extents[id].units)))
    }

    /// Takes back an allocated block: it is free behind the fence, and on no index.
    pub(super) fn close(&mut self, id: ExtentId, fence: Fence) {
        self.frees += 1;
        self.blocks -= 1;
        let extent = &mut self.extents[id];
        (extent.state, extent.freed, extent.fence) = (ExtentState::Free, self.frees, fence);
        self.page_map.close(id);
    }

    // ---- free extents ----------------------------------------------------------------------------

    /// A list of the free extents that have at least so many units; or the host refuses it.
    pub(super) fn list_free(&self, units: u64) -> DeviceResult<Vec<ExtentId>> {
        let mut list = Vec::new();
        self.ensure(list.try_reserve_exact(self.index.len()).is_ok())?;
        list.extend(self.index.free_of(units));
        Ok(list)
    }

    #[inline]
    pub(super) fn has_free_neighbour(&self, id: ExtentId) -> bool {
        let Extent { prev, next, .. } = self.extents[id];
        [prev, next].into_iter().flatten().any(|other| self.is(other, ExtentState::Free))
    }

    /// Remembers that a free extent may have a free neighbour.
    pub(super) fn note_if_unmerged(&mut self, id: ExtentId) {
        self.has_unmerged |= self.has_free_neighbour(id);
    }

    // ---- unmapped extents ------------------------------------------------------------------------

    /// The base pages of an extent without blocks that a window covers, also in part.
    pub(super) fn base_pages_in(&self, id: ExtentId, window: (u64, u64)) -> (u64, u64) {
        let extent = &self.extents[id];
        (
            self.layout.base_page_of(extent.start.max(window.0)),
            self.layout.base_pages_for(extent.end().min(window.1)),
        )
    }

    /// Makes an extent that is on no index unmapped, joins it with the unmapped ones beside it, and indexes it. Returns the
    /// id that keeps the whole.
    pub(super) fn make_unmapped(&mut self, id: ExtentId) -> ExtentId {
        let extent = &mut self.extents[id];
        (extent.state, extent.fence) = (ExtentState::Unmapped, Fence::empty());
        let mut id = id;
        for neighbour in [self.extents[id].prev, self.extents[id].next].into_iter().flatten() {
            if self.is(neighbour, ExtentState::Unmapped) {
                self.unindex(neighbour);
                id = self.extents.join(id, neighbour);
            }
        }
        self.index(id);
        id
    }

    // ---- mapping ---------------------------------------------------------------------------------

    /// Notes that an extent on no index is backed. It stays on none until it is [joined](Self::join_free).
    pub(super) fn enter(&mut self, id: ExtentId) {
        let extent = &mut self.extents[id];
        (extent.state, extent.fence, extent.freed) = (ExtentState::Entered, Fence::empty(), self.frees);
    }
}
