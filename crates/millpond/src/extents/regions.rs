//! Regions: ranges of address space, with the tables that lead from an address to its block and its page.

use std::sync::Arc;

use super::bin::is_region;
use super::block_descriptor::BlockDescriptor;
use super::extent::ExtentId;
use super::layout::{Layout, Zone};
use super::page_map::RegionMap;
use super::ranges::Published;
use crate::device::DevicePtr;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Region {
    pub(super) base: DevicePtr,
    pub(super) bytes: u64,
    pub(super) zone: Zone,
    pub(super) head: ExtentId,
    /// Where allocated blocks start.
    pub(super) map: Arc<RegionMap>,
}

/// A region to be entered.
#[derive(Debug)]
pub(super) struct NewRegion {
    pub(super) base: DevicePtr,
    pub(super) bytes: u64,
    pub(super) zone: Zone,
    pub(super) map: Arc<RegionMap>,
}

/// All regions of one arena.
#[derive(Debug)]
pub(super) struct Regions {
    list: Vec<Option<Region>>,
    pub(super) published: Published,
}

impl Regions {
    pub(super) fn new(published: Published) -> Self {
        Self { list: Vec::new(), published }
    }

    /// Publishes a region.
    pub(super) fn show(&self, id: u32) {
        let Region { base, bytes, .. } = *self.get(id);
        self.published.enter(base, bytes, id);
    }

    /// Takes back what [`show`](Self::show) published: before the device gets the addresses.
    pub(super) fn hide(&self, id: u32) {
        self.published.leave(self.get(id).base);
    }

    /// The host's memory for the list of them.
    pub(super) fn host_bytes(&self) -> u64 {
        (self.list.len().max(1) * size_of::<Region>()) as u64
    }

    /// Reserves the host's memory for one more region; `false` where it is refused.
    pub(super) fn make_room_for_one(&mut self) -> bool {
        self.list.try_reserve(1).is_ok() && self.published.make_room()
    }

    /// The id of the region that is added next.
    pub(super) fn next_id(&self) -> u32 {
        let at = self.list.iter().position(Option::is_none).unwrap_or(self.list.len());
        u32::try_from(at).ok().filter(|id| is_region(*id)).expect("fewer than 2^24 regions")
    }

    /// Enters a region. `head` makes its first extent, given the region's id.
    pub(super) fn add(&mut self, new: NewRegion, head: impl FnOnce(u32) -> ExtentId) -> u32 {
        let id = self.next_id();
        let head = head(id);
        let NewRegion { base, bytes, zone, map } = new;
        let region = Some(Region { base, bytes, zone, head, map });
        match self.list.get_mut(id as usize) {
            Some(vacant) => *vacant = region,
            None => self.list.push(region),
        }
        self.show(id);
        id
    }

    /// Forgets a region that is [hidden](Self::hide).
    pub(super) fn remove(&mut self, id: u32) {
        self.list[id as usize] = None;
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> &Region {
        self.list[id as usize].as_ref().expect("a region id in use names a region")
    }

    /// The region with this id, if there is one.
    pub(super) fn at(&self, id: u32) -> Option<&Region> {
        self.list.get(id as usize)?.as_ref()
    }

    /// All ids are below this.
    pub(super) fn ids(&self) -> u32 {
        self.list.len() as u32
    }

    fn get_mut(&mut self, id: u32) -> &mut Region {
        self.list[id as usize].as_mut().expect("a region id in use names a region")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.list.iter().zip(0..).filter_map(|(region, id)| Some((id, region.as_ref()?)))
    }

    /// Notes that another extent is the region's first.
    pub(super) fn set_head(&mut self, id: u32, head: ExtentId) {
        self.get_mut(id).head = head;
    }

    /// The region that holds the address, and how far in it lies, in bytes.
    pub(super) fn find(&self, ptr: DevicePtr) -> Option<(u32, u64)> {
        self.published.find(ptr)
    }

    pub(super) fn address(&self, region: u32, unit: u64, layout: &Layout) -> DevicePtr {
        self.get(region).base.offset(unit * layout.unit_bytes)
    }

    // ---- extents ----------------------------------------------------------------------------------

    /// What is known of the allocated block that starts `bytes` into the region.
    pub(super) fn allocated_at(&self, region: u32, bytes: u64) -> Option<&BlockDescriptor> {
        self.get(region).map.allocated_at(bytes)
    }
}
