//! Regions: ranges of address space, with the tables that lead from an address to its block and its page.

use std::sync::Arc;

use super::bin::MOST_REGIONS;
use super::block_descriptor::BlockDescriptor;
use super::extent::ExtentId;
use super::layout::{Layout, Zone};
use super::page_map::RegionMap;
use super::ranges::{Owner, Published, Ranges};
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
#[derive(Debug, Default)]
pub(super) struct Regions {
    list: Vec<Option<Region>>,
    /// First address and id of each, in the order of the addresses.
    by_base: Vec<(u64, u32)>,
    published: Option<Published>,
}

impl Regions {
    /// Publishes the ranges of all regions to come.
    pub(super) fn publish(&mut self, ranges: &Arc<Ranges>, owner: Owner) {
        debug_assert!(self.by_base.is_empty(), "there are regions already");
        self.published = Some(Published::new(ranges.clone(), owner));
    }

    /// Whose the address is, of all that are published where these regions are.
    pub(super) fn owner_of(&self, ptr: DevicePtr) -> Option<Owner> {
        self.published.as_ref()?.owner_of(ptr)
    }

    /// Publishes a region.
    pub(super) fn show(&self, id: u32) {
        let Region { base, bytes, .. } = *self.get(id);
        if let Some(published) = &self.published {
            published.enter(base, bytes);
        }
    }

    /// Takes back what [`show`](Self::show) published: before the device gets the addresses.
    pub(super) fn hide(&self, id: u32) {
        let base = self.get(id).base;
        if let Some(published) = &self.published {
            published.leave(base);
        }
    }

    /// The host's memory for the list of them.
    pub(super) fn host_bytes(&self) -> u64 {
        (self.list.len().max(1) * size_of::<Region>()) as u64
    }

    /// Reserves the host's memory for one more region; `false` where it is refused.
    pub(super) fn make_room_for_one(&mut self) -> bool {
        self.list.try_reserve(1).is_ok()
            && self.by_base.try_reserve(1).is_ok()
            && self.published.as_ref().is_none_or(Published::make_room)
    }

    /// The id of the region that is added next.
    pub(super) fn next_id(&self) -> u32 {
        let at = self.list.iter().position(Option::is_none).unwrap_or(self.list.len());
        u32::try_from(at).ok().filter(|id| *id < MOST_REGIONS).expect("fewer than 2^24 regions")
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
        let place = self.by_base.partition_point(|(other, _)| *other < base.raw());
        self.by_base.insert(place, (base.raw(), id));
        self.show(id);
        id
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Region> {
        let region = self.list[id as usize].take()?;
        if let Ok(at) = self.by_base.binary_search_by_key(&region.base.raw(), |(base, _)| *base) {
            self.by_base.remove(at);
        }
        Some(region)
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

    pub(super) fn head(&self, id: u32) -> Option<ExtentId> {
        Some(self.get(id).head)
    }

    /// The region that holds the address, and how far in it lies, in bytes.
    pub(super) fn find(&self, ptr: DevicePtr) -> Option<(u32, u64)> {
        let behind = self.by_base.partition_point(|(base, _)| *base <= ptr.raw());
        let (base, id) = self.by_base[behind.checked_sub(1)?];
        let offset = ptr.raw() - base;
        (offset < self.get(id).bytes).then_some((id, offset))
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
