//! The extent map: every extent of a pool's address space, the index of the holes between blocks, and the lists of free extents.
//! It also leads from an address to its block.
//!
//! It knows nothing of time: which free extents may be joined, and which one a stream may use, others decide by the
//! fences in it. Each change leaves every free extent on a list, but for the extents that a method says are *on no list*.

use std::ops::Index;
use std::sync::Arc;

use super::extent::{Extent, ExtentId, ExtentState, Extents, Link, NoRoom};
use super::extent_list::ExtentList;
use super::index::{Hole, HoleIndex};
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
pub(in crate::extents) struct ExtentMap {
    pub(in crate::extents) layout: Layout,
    pub(in crate::extents) regions: Regions,
    /// The descriptors of allocated blocks, by id and by address.
    pub(in crate::extents) page_map: Arc<PageMap>,
    pub(in crate::extents) extents: Extents,
    pub(in crate::extents) index: HoleIndex,
    /// The free extents that have a whole base page, and the others.
    free: [ExtentList; 2],
    /// The segments that leave, and that nobody has taken yet to give them back.
    pub(in crate::extents) leaving: ExtentList,
    /// Whether there may be free neighbours that were not joined.
    pub(in crate::extents) has_unmerged: bool,
    /// Counts frees, to tell old free extents from young ones.
    pub(in crate::extents) frees: u64,
    /// Allocated blocks.
    pub(in crate::extents) blocks: u64,
}

impl Index<ExtentId> for ExtentMap {
    type Output = Extent;
    #[inline]
    fn index(&self, id: ExtentId) -> &Extent {
        &self.extents[id]
    }
}

impl ExtentMap {
    pub(in crate::extents) fn new(layout: Layout, regions: Regions) -> Self {
        Self {
            layout,
            regions,
            page_map: Arc::default(),
            extents: Extents::default(),
            index: HoleIndex::default(),
            free: Default::default(),
            leaving: ExtentList::default(),
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
    pub(in crate::extents) fn make_room(&mut self, cuts: usize, streams: usize) -> DeviceResult<()> {
        let more = cuts + ROOM;
        // Nearly always.
        if self.extents.has_room(more, streams) && !self.index.lacks() {
            return Ok(());
        }
        self.make_room_slow(more, streams)
    }

    #[cold]
    fn make_room_slow(&mut self, more: usize, streams: usize) -> DeviceResult<()> {
        let Self { extents, page_map, .. } = &mut *self;
        if !extents.has_begun()
            && let Some(records) = page_map.begin()
        {
            extents.begin(records);
        }
        match extents.make_room(more, streams, |end| page_map.back(end)) {
            Ok(()) => {
                let is_complete = self.complete_index();
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
    pub(in crate::extents) fn ensure(&self, has_memory: bool) -> DeviceResult<()> {
        let bytes = self.extents.host_bytes();
        if has_memory { Ok(()) } else { Err(DeviceError::HostMemory { what: "a list of blocks", bytes }) }
    }

    /// Gives back the host's memory for extents and blocks behind the last that is in use, where that is much of it.
    pub(in crate::extents) fn shrink(&mut self) {
        if let Some(used) = self.extents.shrink() {
            self.page_map.shrink(used);
        }
    }

    // ---- regions ---------------------------------------------------------------------------------

    /// Enters a region with one extent, for which there is [room](Regions::make_room_for_one). Returns that.
    pub(in crate::extents) fn enter_region(
        &mut self,
        (base, bytes): (DevicePtr, u64),
        zone: Zone,
        state: ExtentState,
        backing: Vec<u32>,
    ) -> ExtentId {
        let units = bytes / self.layout.unit_bytes;
        let head = self.extents.add(Extent::whole(self.regions.next_id(), zone, units, state));
        self.regions.add(Region { base, bytes, head, first_block: None, backing });
        self.publish_region(head);
        head
    }

    /// Publishes a region that is one extent, free or unmapped, and enters it into what is looked through.
    pub(in crate::extents) fn publish_region(&mut self, head: ExtentId) {
        let Extent { region, zone, units, .. } = self.extents[head];
        self.regions.publish(region);
        self.index.insert(zone, Hole::new(region, (0, units), None));
        self.list(head);
    }

    /// Undoes [`publish_region`](Self::publish_region), before the addresses go: another pool may get them at once. Returns what the
    /// region is.
    pub(in crate::extents) fn withdraw_region(&mut self, region: u32) -> ExtentId {
        let head = self.regions.get(region).head;
        let Extent { zone, units, .. } = self.extents[head];
        self.unlist(head);
        self.index.remove(zone, Hole::new(region, (0, units), None));
        self.regions.withdraw(region);
        head
    }

    /// Forgets a region that was [withdrawn](Self::withdraw_region).
    pub(in crate::extents) fn forget_region(&mut self, head: ExtentId) {
        self.regions.forget(self.extents[head].region);
        self.extents.remove_alone(head);
    }

    // ---- extents ---------------------------------------------------------------------------------

    /// Whether the id names an extent in this state now.
    #[inline]
    pub(in crate::extents) fn is(&self, id: ExtentId, state: ExtentState) -> bool {
        self.extents[id].state == state
    }

    pub(in crate::extents) fn in_state(
        &self,
        state: ExtentState,
    ) -> impl Iterator<Item = (ExtentId, &Extent)> {
        self.extents.iter().filter(move |(_, extent)| extent.state == state)
    }

    /// The fence of all these extents; without host memory, of the first of them. Callers ask again for each extent.
    pub(in crate::extents) fn fence_of(&self, ids: impl IntoIterator<Item = ExtentId>) -> Fence {
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

    pub(in crate::extents) fn address_of(&self, id: ExtentId) -> DevicePtr {
        let extent = &self.extents[id];
        self.regions.address(extent.region, extent.start, &self.layout)
    }

    /// Length of an extent in bytes.
    pub(in crate::extents) fn bytes(&self, id: ExtentId) -> u64 {
        self.extents[id].units * self.layout.unit_bytes
    }

    /// Where a base page of a region lies.
    pub(in crate::extents) fn address_of_base_page(&self, region: u32, base_page: u64) -> DevicePtr {
        self.regions.address(region, base_page << self.layout.base_page_shift, &self.layout)
    }

    /// The base pages that lie wholly in an extent: the first, and the first behind them.
    pub(in crate::extents) fn base_pages_within(&self, id: ExtentId) -> (u64, u64) {
        let extent = &self.extents[id];
        (self.layout.base_pages_for(extent.start), self.layout.base_page_of(extent.end()))
    }

    /// The first unit of the region from `unit` on whose address is a multiple of `align` bytes.
    #[inline]
    pub(in crate::extents) fn align_up(&self, region: u32, unit: u64, align: u64) -> u64 {
        if align <= self.layout.unit_bytes {
            return unit;
        }
        let base = self.regions.get(region).base.raw();
        let address = (base + unit * self.layout.unit_bytes).next_multiple_of(align);
        (address - base) >> self.layout.unit_shift
    }

    /// The last such unit up to `unit`, if there is one.
    pub(in crate::extents) fn align_down(&self, region: u32, unit: u64, align: u64) -> Option<u64> {
        let up = self.align_up(region, unit, align);
        if up == unit { Some(unit) } else { up.checked_sub(align >> self.layout.unit_shift) }
    }

    /// The piece that holds the unit, of an extent that was cut up and is linked from `first` on.
    pub(in crate::extents) fn piece_at(&self, first: ExtentId, unit: u64) -> ExtentId {
        let mut at = first;
        while self.extents[at].end() <= unit {
            at = self.extents[at].next.expect("the pieces of an extent cover what it covered");
        }
        at
    }

    /// The extent of a region that holds the unit.
    pub(in crate::extents) fn extent_at(&self, region: u32, unit: u64) -> ExtentId {
        self.piece_at(self.regions.get(region).head, unit)
    }

    /// The extents from `first` on that begin before unit `end`.
    pub(in crate::extents) fn until(&self, first: ExtentId, end: u64) -> impl Iterator<Item = ExtentId> {
        std::iter::successors(Some(first), |id| self.extents[*id].next)
            .take_while(move |id| self.extents[*id].start < end)
    }

    // ---- cutting and joining ---------------------------------------------------------------------

    /// Puts a free extent on its list.
    #[inline]
    pub(in crate::extents) fn list(&mut self, id: ExtentId) {
        if self.is(id, ExtentState::Free) {
            self.free[self.list_of(id)].push(&mut self.extents, id);
        }
    }

    /// Takes a free extent off its list.
    #[inline]
    pub(in crate::extents) fn unlist(&mut self, id: ExtentId) {
        if self.is(id, ExtentState::Free) {
            self.free[self.list_of(id)].remove(&mut self.extents, id);
        }
    }

    #[inline]
    fn list_of(&self, id: ExtentId) -> usize {
        let (first, end) = self.base_pages_within(id);
        usize::from(first >= end)
    }

    /// Cuts a range out of a free or unmapped extent, to be on no list; what is left on either side stays as it was.
    pub(in crate::extents) fn cut(&mut self, id: ExtentId, (start, end): (u64, u64)) -> ExtentId {
        self.unlist(id);
        let mut cut = id;
        if self.extents[id].start < start {
            cut = self.extents.split(id, start);
            self.list(id);
        }
        if end < self.extents[cut].end() {
            let rest = self.extents.split(cut, end);
            self.list(rest);
        }
        cut
    }

    /// Joins the free and the entered extents from the one at `start` to `end` behind one fence.
    pub(in crate::extents) fn join_free(
        &mut self,
        first: ExtentId,
        (start, end): (u64, u64),
        fence: Fence,
    ) -> ExtentId {
        let take = |map: &mut Self, id| {
            map.unlist(id);
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
        self.list(whole);
        // Its neighbours may be free too; whoever needs a longer extent joins them.
        self.note_if_unmerged(whole);
        whole
    }

    // ---- blocks ----------------------------------------------------------------------------------

    /// Cuts `units` at `at` out of a free extent, and allocates them. What is left stays free.
    pub(in crate::extents) fn allocate(
        &mut self,
        id: ExtentId,
        at: u64,
        units: u64,
    ) -> (DevicePtr, DescriptorRef) {
        self.blocks += 1;
        let around = self.blocks_around(id);
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
        self.split_hole(cut, around);
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

    /// Takes back an allocated block: it is free behind the fence, and on no list.
    pub(in crate::extents) fn close(&mut self, id: ExtentId, fence: Fence) {
        self.frees += 1;
        self.blocks -= 1;
        self.join_holes(id);
        let extent = &mut self.extents[id];
        (extent.state, extent.freed, extent.fence) = (ExtentState::Free, self.frees, fence);
        self.page_map.close(id);
    }

    // ---- holes -----------------------------------------------------------------------------------

    /// The first extent of a hole.
    #[inline]
    pub(in crate::extents) fn first_of(&self, hole: &Hole) -> ExtentId {
        let behind = hole.before.map(|before| self.extents[before].next);
        behind.map_or_else(
            || self.regions.get(hole.place().0).head,
            |first| first.expect("a hole has an extent"),
        )
    }

    /// The blocks before and behind an extent that is none.
    #[inline]
    fn blocks_around(&self, id: ExtentId) -> Link {
        let mut prev = self.extents[id].prev;
        while let Some(before) = prev
            && !self.is(before, ExtentState::Allocated)
        {
            prev = self.extents[before].prev;
        }
        let first = || self.regions.get(self.extents[id].region).first_block;
        Link { prev, next: prev.map_or_else(first, |prev| self.extents[prev].link.next) }
    }

    /// The hole between two neighbouring blocks of a region.
    #[inline]
    pub(in crate::extents) fn hole_between(&self, region: u32, Link { prev, next }: Link) -> Hole {
        let start = prev.map_or(0, |prev| self.extents[prev].end());
        let end = || self.regions.get(region).bytes >> self.layout.unit_shift;
        Hole::new(region, (start, next.map_or_else(end, |next| self.extents[next].start)), prev)
    }

    /// Links a block, which was cut out of the hole between others, with these.
    #[inline]
    fn split_hole(&mut self, id: ExtentId, around: Link) {
        let Extent { region, zone, .. } = self.extents[id];
        let whole = self.hole_between(region, around);
        self.extents[id].link = around;
        *self.link_behind(region, around.prev) = Some(id);
        if let Some(next) = around.next {
            self.extents[next].link.prev = Some(id);
        }
        self.index.insert(zone, self.hole_between(region, Link { next: Some(id), ..around }));
        self.index.replace(zone, whole, self.hole_between(region, Link { prev: Some(id), ..around }));
    }

    /// Makes one hole of those before and behind a block, and of the block.
    fn join_holes(&mut self, id: ExtentId) {
        let Extent { region, zone, link, .. } = self.extents[id];
        self.index.remove(zone, self.hole_between(region, Link { next: Some(id), ..link }));
        let behind = self.hole_between(region, Link { prev: Some(id), ..link });
        *self.link_behind(region, link.prev) = link.next;
        if let Some(next) = link.next {
            self.extents[next].link.prev = link.prev;
        }
        self.index.replace(zone, behind, self.hole_between(region, link));
    }

    /// Where the block behind a block of a region is noted, or the region's first.
    fn link_behind(&mut self, region: u32, block: Option<ExtentId>) -> &mut Option<ExtentId> {
        match block {
            Some(block) => &mut self.extents[block].link.next,
            None => &mut self.regions.get_mut(region).first_block,
        }
    }

    /// All holes, by recount.
    pub(in crate::extents) fn holes(&self) -> impl Iterator<Item = (Zone, Hole)> {
        self.regions.iter().flat_map(move |(id, region)| {
            let zone = self.extents[region.head].zone;
            let first = Link { prev: None, next: region.first_block };
            let behind = |link: &Link| {
                link.next.map(|next| Link { prev: Some(next), next: self.extents[next].link.next })
            };
            let all = std::iter::successors(Some(first), behind);
            let all = all.filter(|_| !matches!(self.extents[region.head].state, ExtentState::Leaving(_)));
            all.map(move |link| (zone, self.hole_between(id, link))).filter(|(_, hole)| hole.units() > 0)
        })
    }

    /// Enters into the index the holes for which the host had no memory; `false` where it still has none. Called between
    /// requests.
    #[cold]
    pub(in crate::extents) fn complete_index(&mut self) -> bool {
        if !self.index.lacks() {
            return true;
        }
        let mut index = std::mem::replace(&mut self.index, HoleIndex::TAKEN);
        let is_complete = index.complete(self.holes());
        self.index = index;
        is_complete
    }

    // ---- free extents ----------------------------------------------------------------------------

    /// The free extents.
    pub(in crate::extents) fn free(&self) -> impl Iterator<Item = ExtentId> + use<'_> {
        self.free.iter().flat_map(|list| list.iter(&self.extents))
    }

    /// Those that have a whole base page.
    pub(in crate::extents) fn free_with_page(&self) -> impl Iterator<Item = ExtentId> + use<'_> {
        self.free[0].iter(&self.extents)
    }

    /// A list of free extents; or the host refuses it.
    pub(in crate::extents) fn list_of_free(
        &self,
        free: impl Iterator<Item = ExtentId>,
    ) -> DeviceResult<Vec<ExtentId>> {
        let mut list = Vec::new();
        self.ensure(list.try_reserve_exact(self.free.iter().map(ExtentList::len).sum()).is_ok())?;
        list.extend(free);
        Ok(list)
    }

    /// Changes the fences of all free extents.
    pub(in crate::extents) fn change_fences(&mut self, mut change: impl FnMut(&mut Fence)) {
        let Self { free, extents, .. } = self;
        for list in free {
            let mut next = list.first();
            while let Some(id) = next {
                change(&mut extents[id].fence);
                next = extents[id].link.next;
            }
        }
    }

    pub(in crate::extents) fn has_free_neighbour(&self, id: ExtentId) -> bool {
        let Extent { prev, next, .. } = self.extents[id];
        [prev, next].into_iter().flatten().any(|other| self.is(other, ExtentState::Free))
    }

    /// Remembers that a free extent may have a free neighbour.
    pub(in crate::extents) fn note_if_unmerged(&mut self, id: ExtentId) {
        self.has_unmerged |= self.has_free_neighbour(id);
    }

    // ---- unmapped extents ------------------------------------------------------------------------

    /// The base pages of an extent without blocks that a window covers, also in part.
    pub(in crate::extents) fn base_pages_in(&self, id: ExtentId, window: (u64, u64)) -> (u64, u64) {
        let extent = &self.extents[id];
        (
            self.layout.base_page_of(extent.start.max(window.0)),
            self.layout.base_pages_for(extent.end().min(window.1)),
        )
    }

    /// Makes an extent that is on no list unmapped, and joins it with the unmapped ones beside it. Returns the id that keeps the
    /// whole.
    pub(in crate::extents) fn make_unmapped(&mut self, id: ExtentId) -> ExtentId {
        let extent = &mut self.extents[id];
        (extent.state, extent.fence) = (ExtentState::Unmapped, Fence::empty());
        let mut id = id;
        for neighbour in [self.extents[id].prev, self.extents[id].next].into_iter().flatten() {
            if self.is(neighbour, ExtentState::Unmapped) {
                id = self.extents.join(id, neighbour);
            }
        }
        id
    }

    // ---- mapping ---------------------------------------------------------------------------------

    /// Notes that an extent on no list is backed. It stays on none until it is [joined](Self::join_free).
    pub(in crate::extents) fn enter(&mut self, id: ExtentId) {
        let extent = &mut self.extents[id];
        (extent.state, extent.fence, extent.freed) = (ExtentState::Entered, Fence::empty(), self.frees);
    }
}
