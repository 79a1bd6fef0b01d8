//! Regions: ranges of address space, each cut into extents.

use super::extent::ExtentId;
use super::index::is_region;
use super::layout::{Layout, Zone};
use super::ranges::Published;
use super::refusal::Refusal;
use crate::device::DevicePtr;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Region {
    pub(super) base: DevicePtr,
    pub(super) bytes: u64,
    pub(super) zone: Zone,
    pub(super) head: ExtentId,
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

    /// Reserves the host's memory for one more region.
    pub(super) fn make_room_for_one(&mut self) -> Result<(), Refusal> {
        let has_room = self.list.try_reserve(1).is_ok() && self.published.make_room();
        let bytes = (self.list.len().max(1) * size_of::<Region>()) as u64;
        if has_room { Ok(()) } else { Err(Refusal::of_host("a list of regions", bytes)) }
    }

    /// The id of the region that is added next.
    pub(super) fn next_id(&self) -> u32 {
        let at = self.list.iter().position(Option::is_none).unwrap_or(self.list.len());
        u32::try_from(at).ok().filter(|id| is_region(*id)).expect("fewer than 2^24 regions")
    }

    /// Enters a region, under the [next id](Self::next_id).
    pub(super) fn add(&mut self, region: Region) {
        let id = self.next_id();
        match self.list.get_mut(id as usize) {
            Some(vacant) => *vacant = Some(region),
            None => self.list.push(Some(region)),
        }
        self.show(id);
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
}
