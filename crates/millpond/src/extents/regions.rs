//! Regions: ranges of address space, each cut into extents.

use std::sync::Arc;

use super::extent::ExtentId;
use super::index::is_region;
use super::layout::Layout;
use super::ranges::{Owner, Range, Ranges};
use crate::device::{DeviceError, DevicePtr, DeviceResult};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Region {
    pub(super) base: DevicePtr,
    pub(super) bytes: u64,
    pub(super) head: ExtentId,
}

/// All regions of one arena.
#[derive(Debug)]
pub(super) struct Regions {
    list: Vec<Option<Region>>,
    /// Where they are published, and as whose.
    pub(super) ranges: Arc<Ranges>,
    pub(super) owner: Owner,
}

impl Regions {
    pub(super) fn new(ranges: Arc<Ranges>, owner: Owner) -> Self {
        Self { list: Vec::new(), ranges, owner }
    }

    /// Reserves the host's memory for one more region.
    pub(super) fn make_room_for_one(&mut self) -> DeviceResult<()> {
        let has_room = self.list.try_reserve(1).is_ok() && self.ranges.make_room();
        let bytes = (self.list.len().max(1) * size_of::<Region>()) as u64;
        if has_room { Ok(()) } else { Err(DeviceError::HostMemory { what: "a list of regions", bytes }) }
    }

    /// The id of the region that is added next.
    pub(super) fn next_id(&self) -> u32 {
        let at = self.list.iter().position(Option::is_none).unwrap_or(self.list.len());
        u32::try_from(at).ok().filter(|id| is_region(*id)).expect("fewer than 2^24 regions")
    }

    /// Enters a region, under the [next id](Self::next_id), and publishes it.
    pub(super) fn add(&mut self, region: Region) {
        let id = self.next_id();
        self.publish(&region, id);
        match self.list.get_mut(id as usize) {
            Some(vacant) => *vacant = Some(region),
            None => self.list.push(Some(region)),
        }
    }

    fn publish(&self, region: &Region, id: u32) {
        let Region { base, bytes, .. } = *region;
        self.ranges.enter(Range { base, bytes, owner: self.owner, region: id });
    }

    /// Forgets a region, and has `give_back` give its addresses back. On an error it stays.
    pub(super) fn remove(
        &mut self,
        id: u32,
        give_back: impl FnOnce(&Region) -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let region = self.get(id);
        // First: another pool may get the addresses at once.
        self.ranges.leave(|range| range.base == region.base);
        give_back(region).inspect_err(|_| self.publish(region, id))?;
        self.list[id as usize] = None;
        Ok(())
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> &Region {
        self.list[id as usize].as_ref().expect("a region id in use names a region")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.list.iter().zip(0..).filter_map(|(region, id)| Some((id, region.as_ref()?)))
    }

    /// The region that holds the address, and how far in it lies, in bytes.
    pub(super) fn find(&self, ptr: DevicePtr) -> Option<(u32, u64)> {
        let range = self.ranges.find(ptr).filter(|range| range.owner == self.owner)?;
        Some((range.region, ptr.raw() - range.base.raw()))
    }

    pub(super) fn address(&self, region: u32, unit: u64, layout: &Layout) -> DevicePtr {
        self.get(region).base.offset(unit * layout.unit_bytes)
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        // What could not be given back is nobody's from here on.
        self.ranges.leave(|range| range.owner == self.owner);
    }
}
