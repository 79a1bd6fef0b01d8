//! The arena: the address space of one pool, and the pages behind it. It composes the parts; each owns its state.

use std::ops::Range;
use std::sync::Arc;

use super::address_space::AddressSpace;
use super::block_descriptor::{BlockDescriptor, MOST_UNITS};
use super::check;
use super::coalescing;
use super::commit::{Commit, Committed};
use super::donors::Donors;
use super::extent::{ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::layout::{Layout, Zone};
use super::mapper::Mapper;
use super::old_mappings::OldMappings;
use super::page_map::{DescriptorRef, PageMap};
use super::page_table::Home;
use super::planning::{PageOrigin, Planner};
use super::pointers::{self, Pointer};
use super::ranges::{Owner, Published};
use super::refusal::Refusal;
use super::reuse_rules::ReuseRules;
use super::search::{Found, Request, Search, find};
use super::segments;
use super::shorten;
use super::trim;
use crate::device::{DeviceError, DevicePtr, DeviceResult, PeerSet};
use crate::order::{Fence, ReusePolicies, Stream, Timelines};
use crate::physical::{PageId, Pages};
use crate::policy::ledger::{Balance, Ledger};
use crate::policy::shortening::Shortening;

#[cfg(test)]
thread_local! {
    /// The steps of the last plan that was carried out on this thread, whether the stream had to wait, and how many mappings had
    /// been removed when it was made.
    pub(super) static CARRIED_OUT: std::cell::Cell<Option<(Vec<super::plan::Step>, bool, u64)>> =
        const { std::cell::Cell::new(None) };
}

/// A block that the arena allocates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocation {
    pub(crate) ptr: DevicePtr,
    pub(crate) descriptor: DescriptorRef,
    pub(crate) bytes: u64,
    /// 1 where something had to be mapped, else 0. A number, since a `bool` is copied with the bytes beside it.
    pub(crate) misses: u64,
}

/// How far the arena goes to allocate a block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Effort {
    /// It takes what is ready.
    Ready,
    /// The same, wherever that lies; else new pages. Nothing is taken from anybody.
    Grow,
    /// All steps: those that map nothing come first. The balance decides how long new pages are.
    Map(Balance),
    /// The same, but where no free range is long enough, the block gets a segment of its own.
    TakeSegment,
}

impl Effort {
    fn balance(self) -> Balance {
        match self {
            Self::Ready | Self::TakeSegment => Balance::Even,
            Self::Grow => Balance::Overdrawn,
            Self::Map(balance) => balance,
        }
    }
}

/// A page, and where the arena uses it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageAtHome {
    pub(crate) id: PageId,
    pub(crate) at: DevicePtr,
    pub(crate) bytes: u64,
}

/// The address space of one pool, used under its lock. See the [folder](super).
#[derive(Debug)]
pub(crate) struct Arena {
    pub(super) map: ExtentMap,
    rules: ReuseRules,
    pub(super) mapper: Mapper,
    donors: Donors,
    shortening: Shortening,
}

impl Arena {
    pub(crate) fn new(
        timelines: Arc<Timelines>,
        layout: Layout,
        policies: ReusePolicies,
        pages: Pages,
        published: Published,
    ) -> Self {
        let counters = pages.counters.clone();
        let addresses = AddressSpace::new(pages.device().clone(), counters.clone(), layout);
        Self {
            map: ExtentMap::new(layout, addresses, published),
            rules: ReuseRules::new(timelines, policies, counters.clone()),
            mapper: Mapper::new(pages),
            donors: Donors::default(),
            shortening: Shortening::default(),
        }
    }

    /// The arena of this memory of captures, with the same layout, limits and counters, which keeps its pages. Free ones are neither trimmed nor
    /// exchanged, until it [lets go](Self::let_go). They are mapped at other addresses, too, where what was freed lies apart: a
    /// replay uses both, in the order of the capture. It makes no stream wait, so that what different streams freed stays apart.
    pub(crate) fn that_keeps(&self, memory: u64) -> Self {
        let policies = ReusePolicies { internal_dependencies: false, ..self.rules.policies };
        let published = self.map.regions.published.for_memory(memory);
        let (timelines, pages) = (self.rules.timelines.clone(), self.mapper.pages.none_yet());
        let mut new = Self::new(timelines, self.map.layout, policies, pages, published);
        new.mapper.old_mappings = OldMappings::that_stay();
        new
    }

    /// Where each page was mapped before, and still is, by the page: where old mappings stay.
    pub(crate) fn staying(&self) -> impl Iterator<Item = (PageId, DevicePtr)> {
        self.mapper.old_mappings.staying(&self.map)
    }

    /// Whose an address is, of all that are published where this arena's are.
    pub(crate) fn owner_of(&self, ptr: DevicePtr) -> Option<Owner> {
        self.map.regions.published.owner_of(ptr)
    }

    pub(crate) fn set_policies(&mut self, policies: ReusePolicies) {
        self.rules.policies = policies;
    }

    /// From now on what is free may go back to the device, as in any arena.
    pub(crate) fn let_go(&mut self) {
        self.mapper.old_mappings.let_go();
    }

    /// Whether pages stay, free or not, at all addresses where they were ever mapped: unknown work uses them. See
    /// [`Arena::that_keeps`].
    pub(crate) fn keeps(&self) -> bool {
        self.mapper.old_mappings.stay()
    }

    /// Whether it holds pages that no block can lie on: parked ones, and old mappings.
    pub(crate) fn has_loose_pages(&self) -> bool {
        !self.mapper.pages.parked.is_empty() || !self.mapper.old_mappings.is_empty()
    }

    /// Leads from an address to its block without the lock.
    pub(crate) fn page_map(&self) -> &Arc<PageMap> {
        &self.map.page_map
    }

    // ---- one allocation --------------------------------------------------------------------------

    /// Allocates a block of `units` for work on `stream`, as far as `effort` goes; `None` where that is not far enough. Its
    /// address is a multiple of `align` bytes, a power of two that is at most a base page.
    pub(crate) fn alloc(
        &mut self,
        (units, align): (u64, u64),
        stream: &Stream,
        effort: Effort,
    ) -> Result<Option<Allocation>, Refusal> {
        let request = self.request((units, align), stream, effort.balance())?;
        let free = match effort {
            Effort::Ready | Effort::Grow => self.search(request).ready()?,
            Effort::Map(_) | Effort::TakeSegment => find(&mut self.map, &self.rules, request)?,
        };
        let found = match (free, effort) {
            (Some(found), _) => found,
            (None, Effort::Ready) => return Ok(None),
            (None, Effort::Grow) => self.back(request, PageOrigin::Growth)?,
            (None, Effort::Map(_)) => self.back(request, PageOrigin::All)?,
            (None, Effort::TakeSegment) => segments::back(&mut self.map, &mut self.mapper, request)?,
        };
        self.make_room_to_carve(found)?;
        Ok(Some(self.carve(found, units, u64::from(free.is_none()))))
    }

    /// Allocates a block in a segment of its own, of as many whole base pages as it needs, which `take` takes.
    pub(crate) fn alloc_as_segment(
        &mut self,
        units: u64,
        stream: &Stream,
        take: impl FnOnce() -> DeviceResult<DevicePtr>,
    ) -> Result<Allocation, Refusal> {
        let request = self.request((units, 1), stream, Balance::Even)?;
        let found = segments::back_exactly(&mut self.map, &mut self.mapper, request, take)?;
        Ok(self.carve(found, units, 1))
    }

    /// The units of the whole base pages that so many need.
    pub(crate) fn whole_pages(&self, units: u64) -> u64 {
        self.map.layout.base_pages_for(units) * self.map.layout.units_per_base_page()
    }

    /// Whether blocks of this length lie in the large zone.
    pub(crate) fn is_large(&self, units: u64) -> bool {
        self.map.layout.zone_of(units) == Zone::Large
    }

    /// Allocates the block of `units` at `ptr`, all of which is free, whatever work still uses it. `None`, and nothing
    /// allocated, where it is not free.
    pub(crate) fn alloc_at(&mut self, ptr: DevicePtr, units: u64) -> Option<Allocation> {
        if !self.map.make_room() {
            return None;
        }
        self.bring_back(ptr, units)?;
        let found = self.map.free_at(ptr, units)?;
        Some(self.carve(found, units, 0))
    }

    /// Has the pages come back to the old mappings in a range of addresses, from where they are free. `None` where one of them
    /// is not: then some have come back.
    fn bring_back(&mut self, ptr: DevicePtr, units: u64) -> Option<()> {
        let Self { map, mapper, .. } = self;
        while let Some((id, page)) = map.dormant_at(ptr, units)? {
            let home = mapper.table.home(page)?;
            let from = map.free_over(home.region, map.layout.units_of(home.span()))?;
            let mut fence = Fence::empty();
            if !fence.try_join(&map[from].fence)
                || !map.make_room_for(2, fence.len())
                || !mapper.old_mappings.make_room(1)
            {
                return None;
            }
            let freed = mapper.move_out(map, (page, from), true);
            mapper.come_back(map, (id, page), freed);
            *map.fence_mut(id) = fence;
            map.list_if_unmerged(id);
        }
        Some(())
    }

    /// Makes the request, and reserves the host's memory for it, before anything changes.
    fn request<'a>(
        &mut self,
        (units, align): (u64, u64),
        stream: &'a Stream,
        balance: Balance,
    ) -> Result<Request<'a>, Refusal> {
        debug_assert!(0 < units && units < MOST_UNITS);
        let has_room = self.map.make_room();
        self.map.ensure(has_room)?;
        let zone = self.map.layout.zone_of(units);
        Ok(Request { zone, units, align: align.max(self.map.layout.unit_bytes), stream, balance })
    }

    #[inline]
    fn search<'a>(&'a self, request: Request<'a>) -> Search<'a> {
        Search { map: &self.map, rules: &self.rules, request }
    }

    /// A miss: no free extent fits. Backs a place for the request, by a plan that is carried out. Returns the free extent there,
    /// and the unit in it to start at.
    #[cold]
    fn back(&mut self, request: Request<'_>, origin: PageOrigin) -> Result<Found, Refusal> {
        let is_short = self.keeps();
        let Self { map, rules, mapper, donors, shortening } = self;
        if !mapper.pages.device().properties().virtual_memory {
            return segments::back(map, mapper, request);
        }
        mapper.old_mappings.settle(map, rules, &mut mapper.pages);
        #[cfg(test)]
        let unmapped = mapper.pages.counters.calls.unmap.get();
        let mut rules = rules.clone();
        // Each plan in vain leaves one dormant mapping less, or makes no stream wait any more.
        loop {
            let plan = Planner::new((map, &rules, mapper), donors, request).plan(origin)?;
            tracing::trace!(%plan, "a miss");
            let commit = Commit { map, rules: &rules, mapper, shortening, request, is_short };
            match commit.carry_out(&plan)? {
                Committed::Found(found) => {
                    #[cfg(test)]
                    CARRIED_OUT.set(Some((plan.steps, !plan.waits.is_empty(), unmapped)));
                    return Ok(found);
                }
                Committed::NotCleared => {}
                Committed::NotWaiting => rules.policies.internal_dependencies = false,
            }
        }
    }

    /// Reserves the host's memory to cut a block out of the middle of a free extent: both rests have its fence.
    #[inline]
    fn make_room_to_carve(&mut self, (id, at): Found) -> Result<(), Refusal> {
        let has_room = self.map[id].start == at || self.map.extents.make_room_to_split(id);
        self.map.ensure(has_room)
    }

    /// Cuts `units` out of a free extent, and allocates them. What is left stays free.
    // Inlined: else the result is copied in other pieces than it is stored in, and each copy waits for the last
    // store.
    #[inline(always)]
    fn carve(&mut self, (id, at): Found, units: u64, misses: u64) -> Allocation {
        let (ptr, descriptor) = self.map.allocate(id, at, units);
        Allocation { ptr, descriptor, bytes: units * self.map.layout.unit_bytes, misses }
    }

    /// What a miss of so many units would do now.
    #[cfg(test)]
    pub(crate) fn plan(&mut self, units: u64, stream: &Stream) -> String {
        let request = self.request((units, 1), stream, Balance::Even).expect("there is host memory");
        let Self { map, rules, mapper, donors, .. } = self;
        mapper.old_mappings.settle(map, rules, &mut mapper.pages);
        let plan = Planner::new((map, rules, mapper), donors, request).plan(PageOrigin::All);
        plan.expect("there is host memory").to_string()
    }

    // ---- one free --------------------------------------------------------------------------------

    /// Takes back a descriptor's block, which nobody holds (`Place::BETWEEN`), as [`free`](Self::free) does.
    /// `false`, and nothing changed, where the block is not allocated or somebody holds it: then it was freed twice.
    #[must_use]
    pub(crate) fn take_back(&mut self, descriptor: &BlockDescriptor, fence: Fence) -> bool {
        let is_allocated = descriptor.is_between();
        debug_assert!(
            !is_allocated || self.map.is_allocated_at(descriptor.id(), descriptor.ptr()),
            "an open descriptor is that of its block"
        );
        is_allocated && self.free(descriptor.id(), fence)
    }

    /// Takes back an allocated block, to be used after the work that `fence` names and the uses that were recorded.
    /// `false`, and nothing changed, where it is none.
    #[must_use]
    pub(crate) fn free(&mut self, id: ExtentId, mut fence: Fence) -> bool {
        let Self { map, rules, .. } = self;
        let is_closed = map.close(id, |uses| {
            rules.timelines.add_uses(&mut fence, uses);
            fence
        });
        if is_closed {
            coalescing::insert_free(map, rules, id);
        }
        is_closed
    }

    /// Notes that the stream uses a live block, so that its free waits for the stream's work too. `false`, and nothing
    /// noted, where the host has no memory for it.
    #[must_use]
    pub(crate) fn record_use(&mut self, id: ExtentId, stream: &Stream) -> bool {
        let is_noted = self.rules.timelines.add_use(self.map.fence_mut(id), stream);
        if is_noted && let Some(descriptor) = self.map.page_map.of_block(id) {
            descriptor.note_uses();
        }
        is_noted
    }

    /// The work that was noted to use a live block, on other streams than its own, up to now. `None` where the host has no
    /// memory for the list.
    pub(crate) fn uses(&mut self, id: ExtentId) -> Option<Fence> {
        let mut uses = self.map.fence_mut(id).try_clone_to_raise()?;
        let mut fence = Fence::empty();
        self.rules.timelines.add_uses(&mut fence, &mut uses);
        Some(fence)
    }

    /// From now on a live block is freed under the lock, as one with recorded uses is. `false`, and nothing changed, where
    /// it is not live.
    #[must_use]
    pub(crate) fn free_under_lock(&self, id: ExtentId) -> bool {
        self.map.page_map.of_block(id).is_some_and(BlockDescriptor::note_uses)
    }

    // ---- what there is ---------------------------------------------------------------------------

    /// Physical bytes held, by recount.
    pub(crate) fn held(&self) -> u64 {
        self.mapper.pages.recount_bytes()
    }

    /// Allocated blocks, and the bytes in them.
    pub(crate) fn allocated(&self) -> (u64, u64) {
        let (blocks, units) = self.map.allocated();
        (blocks.iter().sum(), units * self.map.layout.unit_bytes)
    }

    /// Bytes asked for in a live block.
    pub(crate) fn requested(&self, id: ExtentId) -> u64 {
        self.map.requested(id)
    }

    /// The addresses of a block.
    pub(crate) fn range_of(&self, id: ExtentId) -> Range<DevicePtr> {
        let start = self.map.address_of(id);
        start..start.offset(self.map.bytes(id))
    }

    /// Length of an extent in bytes.
    pub(crate) fn bytes(&self, id: ExtentId) -> u64 {
        self.map.bytes(id)
    }

    /// What the pointer is.
    pub(crate) fn look_up(&self, ptr: DevicePtr) -> Pointer {
        pointers::look_up(&self.map, ptr)
    }

    /// Every allocated block: its descriptor.
    pub(crate) fn iter_allocated(&self) -> impl Iterator<Item = (ExtentId, &BlockDescriptor)> {
        self.map.iter_allocated()
    }

    /// Every live block, as its start and the bytes asked for.
    pub(crate) fn live(&self) -> impl Iterator<Item = (DevicePtr, u64)> {
        let live = self.iter_allocated().filter(|(_, descriptor)| descriptor.is_live());
        live.map(|(id, _)| (self.map.address_of(id), self.requested(id)))
    }

    /// The ranges of live bytes, in the order of their addresses. Those with at most `gap` free bytes between them are one.
    pub(crate) fn live_ranges(&self, gap: u64) -> DeviceResult<Vec<(DevicePtr, u64)>> {
        self.map.ranges(gap, |state| match state {
            ExtentState::Allocated => Some(true),
            ExtentState::Free => Some(false),
            _ => None,
        })
    }

    /// The address ranges that pages back: first address and bytes of each.
    pub(crate) fn backed(&self) -> DeviceResult<Vec<(DevicePtr, u64)>> {
        self.map
            .ranges(0, |state| matches!(state, ExtentState::Allocated | ExtentState::Free).then_some(true))
    }

    /// Bytes of the longest free extent: the largest request that needs no page.
    pub(crate) fn largest_free(&self) -> u64 {
        self.map.largest_free()
    }

    /// Recounts everything; says what is wrong, if anything is.
    ///
    /// `reserved` is what was counted, less what other arenas that count together with this one hold.
    pub(crate) fn check(&self, reserved: u64) -> Result<(), String> {
        check::check(&self.map, &self.mapper, reserved)
    }

    // ---- pages -----------------------------------------------------------------------------------

    /// All pages, wherever they lie.
    pub(crate) fn pages(&self) -> &Pages {
        &self.mapper.pages
    }

    /// The same, to be changed in what does not concern where they lie.
    pub(crate) fn pages_mut(&mut self) -> &mut Pages {
        &mut self.mapper.pages
    }

    fn at_home(&self, (id, home): (PageId, Home)) -> PageAtHome {
        PageAtHome { id, at: self.map.address_of_home(home), bytes: self.pages().bytes_of(id) }
    }

    /// The page that backs an address. It stays the same while a block lies there.
    pub(crate) fn page_at(&self, ptr: DevicePtr) -> Option<PageAtHome> {
        let (region, at) = self.map.regions.find(ptr)?;
        let found = self.mapper.table.page_at(region, at / self.map.layout.base_page_bytes)?;
        Some(self.at_home(found))
    }

    /// The page with this id, if it lies somewhere.
    pub(crate) fn home_of(&self, id: PageId) -> Option<PageAtHome> {
        self.mapper.table.home(id).map(|home| self.at_home((id, home)))
    }

    /// Lets these devices use all memory as soon as it is mapped, and no others. What is mapped already stays as it is.
    pub(crate) fn set_peers(&mut self, peers: PeerSet) {
        self.mapper.set_peers(&mut self.map, peers);
    }

    /// Makes one page of two that have no memory now, are equally long, and lie side by side in the large zone. Of at most
    /// so many base pages.
    pub(crate) fn join_pages(&mut self, first: &mut PageAtHome, next: &PageAtHome, most: u32) -> bool {
        let Self { map, mapper, .. } = self;
        let Some((region, at)) = map.regions.find(first.at) else { return false };
        let most = u64::from(most.min(map.layout.largest_page)) * map.layout.base_page_bytes;
        let may_join = map.regions.get(region).zone == Zone::Large
            && map.regions.find(next.at) == Some((region, at + first.bytes))
            && first.bytes == next.bytes
            && first.bytes + next.bytes <= most;
        if !may_join || !mapper.pages.join_gone(first.id, next.id) {
            return false;
        }
        mapper.table.leave(next.id);
        mapper.table.leave(first.id);
        mapper.set_home(first.id, (region, at / map.layout.base_page_bytes));
        first.bytes *= 2;
        true
    }

    /// Whether long pages should be exchanged for [short](Self::shorten) ones now, if there is time.
    #[inline]
    pub(crate) fn is_shortening_due(&self) -> bool {
        self.shortening.is_due(self.map.frees) && !self.keeps()
    }

    /// Exchanges free long pages for short ones while the `ledger` has savings. It pays for them. Returns whether any was
    /// exchanged.
    #[cold]
    pub(crate) fn shorten(&mut self, ledger: &mut Ledger) -> bool {
        let Self { map, rules, mapper, shortening, .. } = self;
        shorten::shorten(map, rules, mapper, (shortening, ledger))
    }

    /// Removes the old mappings whose work is complete. Never waits; a mapping that cannot be removed stays
    /// pending unmap.
    pub(crate) fn reap(&mut self) {
        let Self { map, rules, mapper, .. } = self;
        mapper.old_mappings.reap(map, rules, &mut mapper.pages);
    }

    /// The work that must be complete before everything free can be given back.
    pub(crate) fn fence_of_all_free(&self) -> Fence {
        trim::fence_of_all_free(&self.map, &self.rules, &self.mapper)
    }

    /// Gives memory that holds no live byte, and whose work is complete, back to the device until at most
    /// `keep` bytes are reserved. Never waits for the device (but on one without virtual memory, where the
    /// driver's free does). Returns the bytes given back.
    pub(crate) fn trim(&mut self, keep: u64) -> Result<u64, DeviceError> {
        let before = self.mapper.reserved();
        if before <= keep {
            return Ok(0);
        }
        let keeps = self.keeps();
        let Self { map, rules, mapper, .. } = self;
        if keeps {
            // No graph uses what is mapped nowhere.
            mapper.old_mappings.reap(map, rules, &mut mapper.pages);
            mapper.pages.release_parked(keep)?;
        } else {
            trim::trim(map, rules, mapper, keep)?;
        }
        Ok(before - self.mapper.reserved())
    }

    /// Forgets the pages that have no memory now, and hold no live byte. Their addresses are free again.
    pub(crate) fn forget_gone(&mut self) -> Result<(), DeviceError> {
        trim::forget_gone(&mut self.map, &mut self.mapper)
    }

    /// Gives everything back whose work is complete, addresses too, for an arena that will not be used again. Does
    /// not wait, so that it can be called under the pool's lock: wait for [all that is free](Self::fence_of_all_free)
    /// before. What cannot be given back stays, and [`held`](Self::held) says so.
    pub(crate) fn tear_down(&mut self) -> Result<(), DeviceError> {
        let trimmed = self.forget_gone().and(self.trim(0));
        let unreserved = trim::unreserve_all(&mut self.map);
        trimmed.and(unreserved)
    }
}
