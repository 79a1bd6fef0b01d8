//! `extents/`: addresses: where a block lies, which page backs which address, and what is free.
//!
//! Uses `physical/`, `order/` and `device/`. One arena belongs to one pool and is used under its lock.
//!
//! **Base pages and extents.** Address space comes in *regions*, cut into *base pages*, as long as the smallest page.
//! Every byte of a region belongs to one *extent*: allocated (a *block*, live or in a magazine of `cache/`), free
//! (backed by pages), unmapped, or pending unmap (an old mapping of a remapped page, until its work is complete).
//! Extents are cut at the pool's minimum alignment and linked in address order. Free ones carry a fence.
//!
//! **Zones.** Small blocks live in regions of their own, over the smallest pages, so that a long-lived small
//! block cannot pin a large page, and large blocks leave no crumbs among the small ones. Physical pages pass
//! freely between the zones.
//!
//! **How one allocation passes through** ([`Arena::alloc`]):
//! 1. the best fit among the free extents that the stream may use; where a better one might be ready by now, the
//!    device is asked (*opportunistic*); where the best fit leaves much over, the lowest instead;
//! 2. the same by making the stream wait (*internal dependencies*);
//! 3. the same after joining neighbours that were kept apart because different streams freed them;
//! 4. a *miss* (`mapping`): choose the place that lacks the fewest pages (`placement`), back it with parked
//!    pages, with pages remapped from free extents elsewhere (`donors`), and only then with new ones; where that
//!    takes more memory than ever before, free pages that are too long are given back first.
//!
//! Blocks lie close together: a miss grows what is free rather than begin elsewhere, so best fit finds room for most
//! requests. What is free on a page that a live block shares is *pinned*: it can be neither moved nor given back.
//! Short pages pin less and take more calls. Their length depends on the time there is (`policy/ledger.rs`). Long ones
//! are exchanged for short ones where that saves memory (`shorten`).
//!
//! **How one free passes through** ([`Arena::free`]): the block, found through the `page_map`, becomes
//! free behind the fence given, and coalesces with its neighbours.
//!
//! Best fit with coalescing is Knuth's (TAOCP 2.5), with address order as the tie-break; boundary tags are
//! kept out of band, since the memory is the device's.

mod bin;
mod check;
mod coalescing;
mod donors;
mod extent;
mod index;
mod layout;
mod lookup;
mod mapping;
mod page_map;
mod placement;
mod ranges;
mod regions;
mod reserving;
mod search;
mod segments;
mod shorten;
mod sparse;
#[cfg(test)]
mod tests;
mod trim;

use std::sync::Arc;

pub(crate) use extent::{ExtentId, Zone};
use extent::{ExtentState, Extents};
use index::{FreeIndex, UnmappedIndex};
pub(crate) use layout::Layout;
#[cfg(test)]
pub(crate) use lookup::LOOKS;
pub(crate) use lookup::Pointer;
use mapping::PageOrigin;
use page_map::Descriptors;
pub(crate) use page_map::{BlockDescriptor, DescriptorRef, MOST_UNITS, PageMap, Place};
pub(crate) use ranges::{Owner, Ranges};
use regions::Regions;

use crate::counters::Counters;
use crate::device::{Device, DeviceError, DevicePtr};
use crate::order::{Fence, ReusePolicies, Stream, Timelines};
use crate::physical::{NoPage, PageId, Pages, Shortage};
use crate::policy::ledger::Balance;

/// Why an allocation was refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Memory for a page of this many bytes is lacking.
    Short {
        /// What stood in the way.
        what: Shortage,
        /// Bytes that were asked of the device.
        bytes: u64,
    },
    /// The host has no memory, or no addresses, left for what describes the device's.
    Host {
        /// What it is needed for, or the call that failed.
        what: &'static str,
        /// Bytes that were asked of the host.
        bytes: u64,
    },
    /// The device refused for another reason.
    Device(DeviceError),
}

impl Refusal {
    fn of_host(what: &'static str, bytes: u64) -> Self {
        Self::Host { what, bytes }
    }

    fn of_page(error: NoPage, bytes: u64) -> Self {
        match error {
            NoPage::Short(what) => Self::Short { what, bytes },
            NoPage::Host(bytes) => Self::of_host("a list of pages", bytes),
            NoPage::Device(error) => Self::Device(error),
        }
    }
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// Extents that a request may add: to cut one out of another makes two more.
const ROOM: usize = 4;

/// A block that the arena allocates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocation {
    pub(crate) ptr: DevicePtr,
    pub(crate) descriptor: DescriptorRef,
    pub(crate) bytes: u64,
    /// 1 where something had to be mapped, else 0. A number, since a `bool` is copied with the bytes beside it.
    pub(crate) misses: u64,
}

/// The address space of one pool. See the [module](self).
#[derive(Debug)]
pub(crate) struct Arena {
    device: Arc<dyn Device>,
    timelines: Arc<Timelines>,
    counters: Arc<Counters>,
    layout: Layout,
    policies: ReusePolicies,
    pages: Pages,
    /// Whether pages stay where they were first mapped, free or not: unknown work uses them. See
    /// [`Arena::that_keeps`].
    keeps: bool,
    regions: Regions,
    extents: Extents,
    free: [FreeIndex; 2],
    unmapped: [UnmappedIndex; 2],
    shortener: shorten::Shortener,
    /// Memory for the next miss.
    spare_donors: donors::Donors,
    /// Pages that the request under way created, to be given back if it fails.
    created: Vec<PageId>,
    /// Extents pending unmap, in no order.
    pending_unmap: Vec<ExtentId>,
    /// Of each pair of free neighbours with different fences, at least one. Each id once; some extents are gone.
    unmerged: Vec<ExtentId>,
    /// Memory for the next join of those.
    kept_apart: Vec<ExtentId>,
    /// Counts frees, to tell old free extents from young ones.
    frees: u64,
    /// Allocated blocks, by zone, and their units.
    allocated_blocks: [u64; 2],
    allocated_units: u64,
    page_map: Arc<PageMap>,
    /// Of all blocks, once there is a region.
    descriptors: Option<Arc<Descriptors>>,
}

impl Arena {
    pub(crate) fn new(
        timelines: Arc<Timelines>,
        counters: Arc<Counters>,
        layout: Layout,
        policies: ReusePolicies,
        pages: Pages,
    ) -> Self {
        Self {
            device: timelines.device().clone(),
            timelines,
            counters,
            layout,
            policies,
            pages,
            keeps: false,
            regions: Regions::new(&layout),
            extents: Extents::default(),
            free: Default::default(),
            unmapped: Default::default(),
            shortener: shorten::Shortener::default(),
            spare_donors: donors::Donors::default(),
            created: Vec::new(),
            pending_unmap: Vec::new(),
            unmerged: Vec::new(),
            kept_apart: Vec::new(),
            frees: 0,
            allocated_blocks: [0; 2],
            allocated_units: 0,
            page_map: Arc::default(),
            descriptors: None,
        }
    }

    /// Another arena with the same layout, limits and counters, whose pages stay where they are: what was free is
    /// neither remapped, trimmed nor exchanged, until it [lets go](Self::let_go). It makes no stream wait, so
    /// that what different streams freed stays apart.
    pub(crate) fn that_keeps(&self) -> Self {
        let policies = ReusePolicies { internal_dependencies: false, ..self.policies };
        let (device, limits) = (self.device.clone(), self.pages.limits.clone());
        let pages = Pages::new(device, self.counters.clone(), limits, self.layout.base_page_bytes);
        let new = Self::new(self.timelines.clone(), self.counters.clone(), self.layout, policies, pages);
        Self { keeps: true, ..new }
    }

    /// From now on `ranges` says that this arena's addresses are `owner`'s. It has none yet.
    pub(crate) fn publish(&mut self, ranges: &Arc<Ranges>, owner: Owner) {
        self.regions.publish(ranges, owner);
    }

    /// Whose an address is, of all that are published where this arena's are.
    pub(crate) fn owner_of(&self, ptr: DevicePtr) -> Option<Owner> {
        self.regions.owner_of(ptr)
    }

    pub(crate) fn set_policies(&mut self, policies: ReusePolicies) {
        self.policies = policies;
    }

    /// From now on what is free may go back to the device, as in any arena.
    pub(crate) fn let_go(&mut self) {
        self.keeps = false;
    }

    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Leads from an address to its block without the lock.
    pub(crate) fn page_map(&self) -> &Arc<PageMap> {
        &self.page_map
    }

    /// Allocates a block of `units` at an address that is a multiple of `align` bytes (a power of two, at most a base
    /// page), for work on `stream`, if one is ready: the first step only. With `closely`, only one that is not much
    /// longer: what the caches hold may fit better.
    pub(crate) fn alloc_ready(
        &mut self,
        units: u64,
        align: u64,
        stream: &Stream,
        closely: bool,
    ) -> Result<Option<Allocation>, Refusal> {
        let request = self.request(units, align, Balance::Even)?;
        let found = if closely {
            self.find_best_ready(&request, stream)?.filter(|(free, _)| self.is_close(&request, *free))
        } else {
            self.find_ready(&request, stream)?
        };
        Ok(found.map(|(free, at)| self.carve(free, at, units, 0)))
    }

    /// Allocates a block as [`alloc_ready`](Self::alloc_ready) does, by all steps: what maps nothing comes first.
    /// `balance` decides how long new pages are.
    pub(crate) fn alloc(
        &mut self,
        units: u64,
        align: u64,
        stream: &Stream,
        balance: Balance,
    ) -> Result<Allocation, Refusal> {
        let request = self.request(units, align, balance)?;
        if let Some((free, at)) = self.find(&request, stream)? {
            return Ok(self.carve(free, at, units, 0));
        }
        let (free, at) = self.back_or_undo(&request, stream, PageOrigin::All)?;
        Ok(self.carve(free, at, units, 1))
    }

    /// Allocates a block as [`alloc_ready`](Self::alloc_ready) does, wherever it lies, or else from new pages: nothing
    /// is taken from anybody.
    pub(crate) fn alloc_growing(
        &mut self,
        units: u64,
        align: u64,
        stream: &Stream,
    ) -> Result<Allocation, Refusal> {
        let request = self.request(units, align, Balance::Overdrawn)?;
        if let Some((free, at)) = self.find_ready(&request, stream)? {
            return Ok(self.carve(free, at, units, 0));
        }
        let (free, at) = self.back_or_undo(&request, stream, PageOrigin::Growth)?;
        Ok(self.carve(free, at, units, 1))
    }

    /// Whether blocks of this length lie in the large zone.
    pub(crate) fn is_large(&self, units: u64) -> bool {
        self.layout.zone_of(units) == Zone::Large
    }

    /// Makes the request, and reserves the host's memory to cut it and free it again, before anything changes.
    fn request(&mut self, units: u64, align: u64, balance: Balance) -> Result<search::Request, Refusal> {
        debug_assert!(0 < units && units < MOST_UNITS);
        if !self.extents.make_room(ROOM) || !self.make_room_beside_extents() {
            return Err(Refusal::of_host("a list of blocks", self.host_bytes()));
        }
        let zone = self.layout.zone_of(units);
        Ok(search::Request { zone, units, align: align.max(self.layout.unit_bytes), balance })
    }

    /// The host's memory for extents.
    fn host_bytes(&self) -> u64 {
        (self.extents.capacity() * size_of::<extent::Extent>()) as u64
    }

    /// What a free may need: room in the list of unmerged extents, and a descriptor for each record. And the place in
    /// the index that an earlier free was refused.
    #[inline]
    fn make_room_beside_extents(&mut self) -> bool {
        // Nearly always true.
        self.unmerged.capacity() >= self.extents.capacity()
            && !self.free.iter().chain(&self.unmapped).any(FreeIndex::lacks)
            || self.make_room_for_records() && self.complete_indexes()
    }

    /// The first two.
    #[cold]
    fn make_room_for_records(&mut self) -> bool {
        let all = self.extents.capacity();
        self.descriptors.as_ref().is_none_or(|descriptors| descriptors.back(all))
            && self.unmerged.try_reserve_exact(all - self.unmerged.len()).is_ok()
    }

    /// Indexes every extent that is missing there, since the host refused memory. `false` where it still does. Called
    /// between requests, when none is missing for another reason.
    #[cold]
    fn complete_indexes(&mut self) -> bool {
        if !self.free.iter().chain(&self.unmapped).any(FreeIndex::lacks) {
            return true;
        }
        self.free.iter_mut().chain(&mut self.unmapped).for_each(FreeIndex::complete);
        for (id, extent) in self.extents.iter() {
            match extent.state {
                ExtentState::Free => self.free[extent.zone as usize].insert_missing(extent, id),
                ExtentState::Unmapped => self.unmapped[extent.zone as usize].insert_missing(extent, id),
                _ => {}
            }
        }
        !self.free.iter().chain(&self.unmapped).any(FreeIndex::lacks)
    }

    /// What the next page of a miss may need: extents for the pieces on both sides, and room in the lists.
    pub(super) fn make_room_for_page(&mut self) -> bool {
        self.extents.make_room(2 * ROOM)
            && (self.unmerged.capacity() >= self.extents.capacity() || self.make_room_for_records())
            && self.pending_unmap.try_reserve(1).is_ok()
            && self.created.try_reserve(1).is_ok()
    }

    /// Backs a place for `request`, or gives back what was created for it before it failed.
    fn back_or_undo(
        &mut self,
        request: &search::Request,
        stream: &Stream,
        origin: PageOrigin,
    ) -> Result<(ExtentId, u64), Refusal> {
        self.created.clear();
        self.back(request, stream, origin).inspect_err(|_| {
            if let Err(error) = self.undo_created() {
                tracing::warn!(%error, "pages for a request that failed could not be given back");
            }
        })
    }

    /// Takes back a descriptor's block, which nobody holds ([`Place::BETWEEN`]), as [`free`](Self::free) does.
    /// `false`, and nothing changed, where the block is not allocated or somebody holds it: then it was freed twice.
    #[must_use]
    pub(crate) fn take_back(&mut self, descriptor: &BlockDescriptor, fence: Fence) -> bool {
        let is_allocated = descriptor.is_between();
        debug_assert!(
            !is_allocated || self.is_allocated_at(descriptor.id(), descriptor.ptr()),
            "an open descriptor is that of its block"
        );
        is_allocated && self.free(descriptor.id(), fence)
    }

    /// Takes back an allocated block, to be used after the work that `fence` names and the uses that were recorded.
    /// `false`, and nothing changed, where it is none.
    #[must_use]
    pub(crate) fn free(&mut self, id: ExtentId, mut fence: Fence) -> bool {
        let extent = &mut self.extents[id];
        if extent.state != ExtentState::Allocated {
            return false;
        }
        self.timelines.add_uses(&mut fence, &mut extent.fence);
        self.frees += 1;
        (extent.state, extent.freed, extent.fence) = (ExtentState::Free, self.frees, fence);
        self.allocated_blocks[extent.zone as usize] -= 1;
        self.allocated_units -= extent.units;
        self.regions.get(extent.region).map.close(extent.start * self.layout.unit_bytes);
        self.insert_free(id);
        true
    }

    /// Notes that the stream uses a live block, so that its free waits for the stream's work too. `false`, and nothing
    /// noted, where the host has no memory for it.
    #[must_use]
    pub(crate) fn record_use(&mut self, id: ExtentId, stream: &Stream) -> bool {
        let is_noted = self.timelines.add_use(&mut self.extents[id].fence, stream);
        if is_noted && let Some(descriptor) = self.descriptor_of(id) {
            descriptor.note_uses();
        }
        is_noted
    }

    /// Cuts `units` at `at` out of a free extent, and allocates them. What is left stays free.
    // Inlined: else the result is copied in other pieces than it is stored in, and each copy waits for the last
    // store.
    #[inline(always)]
    fn carve(&mut self, id: ExtentId, at: u64, units: u64, misses: u64) -> Allocation {
        let (ptr, descriptor) = self.allocate(id, at, units);
        Allocation { ptr, descriptor, bytes: units * self.layout.unit_bytes, misses }
    }

    fn allocate(&mut self, id: ExtentId, at: u64, units: u64) -> (DevicePtr, DescriptorRef) {
        let extent = &self.extents[id];
        let (zone, region) = (extent.zone, extent.region);
        self.allocated_blocks[zone as usize] += 1;
        self.allocated_units += units;
        if extent.start == at && units < extent.units {
            // Nearly always.
            self.remove_free(id);
            let cut = self.cut_front(id, units);
            let opened = self.open(cut, region);
            self.index_front_rest(id);
            return opened;
        }
        let cut = self.cut_free(id, at, at + units);
        self.open(cut, region)
    }

    /// Opens the descriptor of a block that was cut. Its cache line is rarely at hand: the sooner it is written, the
    /// shorter the wait when the lock is released.
    #[inline]
    fn open(&mut self, id: ExtentId, region: u32) -> (DevicePtr, DescriptorRef) {
        let extent = &mut self.extents[id];
        extent.state = ExtentState::Allocated;
        extent.fence = Fence::empty();
        let (start, bytes) = (extent.start * self.layout.unit_bytes, extent.units * self.layout.unit_bytes);
        let region = self.regions.get(region);
        (region.base.offset(start), region.map.open(start, id, bytes))
    }
}
