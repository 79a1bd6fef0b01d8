//! One allocation and one free, composed of the steps that other files do.

use super::arena::Arena;
use super::coalescing;
use super::commit::Commit;
use super::map::block_descriptor::{BlockDescriptor, MOST_UNITS, Place};
use super::map::extent::{ExtentId, ExtentState};
use super::map::layout::Zone;
use super::map::page_map::DescriptorRef;
use super::planning::Planner;
use super::search::{Effort, Found, Request, Search, find};
use super::segments;
use crate::device::{DeviceError, DevicePtr, DeviceResult};
use crate::log::log;
use crate::order::{Fence, Stream};
use crate::physical::{PageId, Pages, Refusal, release_parked};
use crate::policy::addresses::LONGEST_REGION;
use crate::policy::growth;

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

impl Arena {
    /// Allocates a block of `units` for work on `stream`, as far as `effort` goes; `None` where that is not far enough. Its
    /// address is a multiple of `align` bytes, a power of two that is at most a base page.
    pub(crate) fn alloc(
        &mut self,
        (units, align): (u64, u64),
        stream: &Stream,
        effort: Effort,
    ) -> Result<Option<Allocation>, Refusal> {
        let request = self.request((units, align), stream, effort)?;
        let free = match effort {
            Effort::Ready | Effort::Grow => Search { arena: self, request: &request }.ready(),
            Effort::Map(_) | Effort::MapNew(_) | Effort::TakeSegment => find(self, &request)?,
        };
        let (found, units) = match (free, effort) {
            (Some(found), _) => (found, units),
            (None, Effort::Ready) => return Ok(None),
            (None, _) => self.back_with_room(request)?,
        };
        let (extent, at) = found;
        if self.map[extent].start != at {
            // What is left before the block, and behind it, has the fence.
            self.map.make_room(0, self.map[extent].fence.len())?;
        }
        Ok(Some(self.carve(found, units, u64::from(free.is_none()))))
    }

    /// Allocates a block in a segment of its own, of as many whole base pages as it needs, which `take` takes.
    pub(crate) fn alloc_as_segment(
        &mut self,
        units: u64,
        take: impl FnOnce() -> DeviceResult<DevicePtr>,
    ) -> Result<Allocation, Refusal> {
        self.map.make_room(0, 0)?;
        let layout = &self.map.layout;
        let (zone, base_pages) = (layout.zone_of(units), layout.base_pages_for(units));
        let whole = segments::add(self, (zone, base_pages), |_, _| take())?;
        Ok(self.carve((whole, 0), units, 1))
    }

    /// Allocates the block of `units` at `ptr`, all of which is free, whatever work still uses it. Pages come back to their old
    /// mappings there. `None`, and nothing allocated, where it is not free; then some may have come back.
    pub(crate) fn alloc_at(&mut self, ptr: DevicePtr, units: u64) -> Option<Allocation> {
        let (region, at) = self.map.regions.find(ptr).filter(|_| self.map.make_room(0, 0).is_ok())?;
        let start = at >> self.map.layout.unit_shift;
        let (first, end) = (self.map.extent_at(region, start), start + units);
        let (mut last, mut fence) = (first, Fence::empty());
        loop {
            let dormant = match self.map[last].state {
                ExtentState::Dormant(page) => Some(page),
                ExtentState::Idle(mapping) => Some(mapping.page()),
                _ => None,
            };
            if let Some(page) = dormant {
                self.bring_back_from_outside((page, last), (region, (start, end)))?;
            }
            if !self.map.is(last, ExtentState::Free) || !fence.try_join(&self.map[last].fence) {
                return None;
            }
            if end <= self.map[last].end() {
                break;
            }
            last = self.map[last].next?;
        }
        let whole = self.map.join_free(first, (start, end), fence);
        self.map.make_room(0, self.map[whole].fence.len()).ok()?;
        Some(self.carve((whole, start), units, 0))
    }

    /// Has a page come back to an old mapping of its own from where it is free, outside of a range of a region's units. `None`, and
    /// nothing done, where that is not so.
    fn bring_back_from_outside(
        &mut self,
        (page, to): (PageId, ExtentId),
        (region, (start, end)): (u32, (u64, u64)),
    ) -> Option<()> {
        let (at, base_pages) = self.pages.home(page)?;
        let units = self.map.layout.units_of(base_pages);
        let is_outside = at != region || units.1 <= start || end <= units.0;
        let from = self.map.extent_at(at, units.0);
        let is_free = self.map.is(from, ExtentState::Free) && units.1 <= self.map[from].end();
        let mut fence = Fence::empty();
        if !is_outside
            || !is_free
            || !fence.try_join(&self.map[from].fence)
            || self.map.make_room(2, fence.len()).is_err()
        {
            return None;
        }
        self.bring_back(page, from, to);
        let to_units = (self.map[to].start, self.map[to].end());
        self.map.join_free(to, to_units, fence);
        Some(())
    }

    /// Makes the request, and reserves the host's memory for it, before anything changes.
    fn request<'a>(
        &mut self,
        (units, align): (u64, u64),
        stream: &'a Stream,
        effort: Effort,
    ) -> Result<Request<'a>, Refusal> {
        debug_assert!(0 < units && units < MOST_UNITS);
        self.map.make_room(0, 0)?;
        let (zone, align) = (self.map.layout.zone_of(units), align.max(self.map.layout.unit_bytes));
        let may_wait = self.rules.policies.internal_dependencies;
        // A small block that lives long pins no more than a base page.
        let longest = if zone == Zone::Small { 1 } else { self.map.layout.largest_page };
        Ok(Request { zone, units, align, stream, effort, may_wait, longest })
    }

    /// As [`back`](Self::back), and the units of the block there: more than were asked for where blocks grow, if memory is left.
    #[cold]
    fn back_with_room(&mut self, request: Request<'_>) -> Result<(Found, u64), Refusal> {
        let units = if self.grows(&request) { growth::with_room(request.units) } else { request.units };
        if units > request.units
            && let Ok(found) = self.back(Request { units, ..request })
        {
            return Ok((found, units));
        }
        Ok((self.back(request)?, request.units))
    }

    /// Whether a free range is nearly as long as the request: the last block was that long. Notes the miss.
    fn grows(&mut self, request: &Request<'_>) -> bool {
        let Request { zone, units, .. } = *request;
        let maps = self.pages.device().properties().virtual_memory
            && matches!(request.effort, Effort::Map(_) | Effort::MapNew(_));
        if zone == Zone::Small || !maps {
            return false;
        }
        let nearly = self.map.index.at_least(zone, growth::least_before(units)).next();
        let grows = nearly.is_some_and(|hole| hole.units() < units);
        self.growth.note(grows);
        grows
    }

    /// A miss: no free extent fits. Backs a place for the request, by a plan that is carried out. Returns the free extent there,
    /// and the unit in it to start at.
    #[cold]
    fn back(&mut self, request: Request<'_>) -> Result<Found, Refusal> {
        let has_pages = self.pages.device().properties().virtual_memory;
        if !has_pages || matches!(request.effort, Effort::TakeSegment) {
            return segments::back(self, request);
        }
        _ = self.reap_arriving();
        self.old_mappings.settle(&mut self.map, &self.rules, &mut self.pages);
        let taken = self.pages.taken();
        let found = self.back_as_planned(request);
        if found.is_err() {
            // Removes what was mapped in vain.
            self.old_mappings.settle(&mut self.map, &self.rules, &mut self.pages);
            let is_new = |pages: &Pages, page| pages.is_younger(page, taken);
            if let Err(error) = release_parked(&mut self.pages, 0, is_new) {
                log!(WARN, "a page for a request that failed could not be given back", error);
            }
        }
        found
    }

    fn back_as_planned(&mut self, mut request: Request<'_>) -> Result<Found, Refusal> {
        #[cfg(test)]
        let unmapped = self.pages.counters.calls.unmap.get();
        // Each plan in vain leaves one dormant mapping less, makes no stream wait any more, or has shorter pages.
        loop {
            let Some(mut plan) = Planner::new(self, request).plan()? else {
                self.add_region(request.zone, request.units)?;
                continue;
            };
            log!(TRACE, "a miss", plan);
            #[cfg(test)]
            let planned = (plan.steps.clone(), !plan.waits.is_empty(), unmapped);
            let found = Commit { arena: self, request: &mut request }.carry_out(&mut plan)?;
            if let Some(found) = found {
                #[cfg(test)]
                CARRIED_OUT.set(Some(planned));
                return Ok(found);
            }
        }
    }

    /// Reserves addresses with room for so many units. Nothing is mapped there.
    fn add_region(&mut self, zone: Zone, units: u64) -> DeviceResult<()> {
        let Self { map, pages, old_mappings, .. } = self;
        let backing = map.regions.make_room_for_one(0)?;
        let (device, base_page) = (pages.device(), map.layout.base_page_bytes);
        // Far more than the device has, since address space is free. But where captures allocate, as little as a region has.
        let total = if old_mappings.stay() { 0 } else { device.properties().total_memory };
        let least = map.layout.base_pages_for(units) * base_page;
        let wanted = total.saturating_mul(8).clamp(LONGEST_REGION / 32, LONGEST_REGION).max(least);
        let mut bytes = wanted.checked_next_multiple_of(base_page).unwrap_or(least);
        let base = loop {
            match device.reserve(bytes) {
                Ok(base) => break base,
                Err(_) if bytes / 2 >= least => bytes = (bytes / 2).next_multiple_of(base_page),
                // The process runs out of addresses, not the device.
                Err(DeviceError::OutOfMemory { call, requested }) => {
                    return Err(DeviceError::HostMemory { what: call, bytes: requested });
                }
                Err(other) => return Err(other),
            }
        };
        pages.counters.calls.reserve.add(1);
        map.enter_region((base, bytes), zone, ExtentState::Unmapped, backing);
        Ok(())
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
        let request = self.request((units, 1), stream, Effort::Map(0)).expect("there is host memory");
        self.old_mappings.settle(&mut self.map, &self.rules, &mut self.pages);
        let plan = Planner::new(self, request).plan().expect("there is host memory");
        plan.expect("there is a region").to_string()
    }

    /// Takes back a descriptor's block, which nobody holds (`Place::BETWEEN`), as [`free`](Self::free) does.
    /// `false`, and nothing changed, where the block is not allocated or somebody holds it: then it was freed twice.
    #[must_use]
    pub(crate) fn take_back(&mut self, descriptor: &BlockDescriptor, fence: Fence) -> bool {
        descriptor.is_in(Place::BETWEEN, descriptor.ptr()) && self.free(descriptor.id(), fence)
    }

    /// Takes back an allocated block, to be used after the work that `fence` names and the uses that were recorded.
    /// `false`, and nothing changed, where it is none.
    #[must_use]
    pub(crate) fn free(&mut self, id: ExtentId, mut fence: Fence) -> bool {
        let is_allocated = self.map.is(id, ExtentState::Allocated);
        if is_allocated {
            self.rules.timelines.add_uses(&mut fence, &mut self.map.extents[id].fence);
            self.map.close(id, fence);
            coalescing::insert_free(self, id);
        }
        is_allocated
    }

    /// Notes that the stream uses a live block, so that its free waits for the stream's work too. `false`, and nothing
    /// noted, where the host has no memory for it.
    #[must_use]
    pub(crate) fn record_use(&mut self, id: ExtentId, stream: &Stream) -> bool {
        let is_noted = self.rules.timelines.add_use(&mut self.map.extents[id].fence, stream);
        if is_noted && let Some(descriptor) = self.map.page_map.of_block(id) {
            descriptor.note_uses();
        }
        is_noted
    }

    /// Notes that the stream uses all that pages back, free or not: nobody is given it before, and no page goes. `false` where the
    /// host has no memory to note all.
    #[must_use]
    pub(crate) fn record_use_of_all(&mut self, stream: &Stream) -> bool {
        let mut backed = Vec::new();
        for state in [ExtentState::Free, ExtentState::Allocated] {
            for (id, _) in self.map.in_state(state) {
                if backed.try_reserve(1).is_err() {
                    return false;
                }
                backed.push(id);
            }
        }
        // Two that are free and side by side may have the same streams now.
        self.map.has_unmerged = true;
        let work = stream.fence();
        backed.into_iter().all(|id| match self.map.is(id, ExtentState::Free) {
            true => self.map.extents[id].fence.try_join(&work),
            false => self.record_use(id, stream),
        })
    }

    /// The work that was noted to use a live block, on other streams than its own, up to now. `None` where the host has no
    /// memory for the list.
    pub(crate) fn uses(&mut self, id: ExtentId) -> Option<Fence> {
        let mut uses = self.map.extents[id].fence.try_clone_to_raise()?;
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
}
