//! Reserving address space: a region, with the map from its addresses to its blocks.

use std::sync::Arc;

use super::extent::{Extent, ExtentState};
use super::page_map::{Descriptors, RegionMap};
use super::regions::{NewRegion, RegionOrigin};
use super::{Arena, ExtentId, Refusal, Zone};
use crate::device::{DeviceError, DevicePtr};

/// Bytes of the first region of small blocks.
const FIRST_SMALL: u64 = if cfg!(miri) { 1 << 26 } else { 1 << 33 };

impl Arena {
    /// How many bytes a new region should have that has at least as many base pages.
    fn region_bytes(&self, zone: Zone, base_pages: u64) -> u64 {
        // Far more than the device has: address space is free. Arenas that keep their pages may be hundreds, and grow
        // little.
        let total = if self.keeps { 0 } else { self.device.properties().total_memory };
        let is_first = self.regions.iter().all(|(_, region)| region.zone != zone);
        let (least_wanted, most) = match zone {
            // Maps of the small zone are long, and most programs have little there.
            Zone::Small if is_first => (FIRST_SMALL, FIRST_SMALL),
            Zone::Small => (1 << 36, 1 << 36),
            Zone::Large => (1 << 36, 1 << 40),
        };
        let least = base_pages * self.layout.base_page_bytes;
        let bytes = total.saturating_mul(8).clamp(least_wanted, most).max(least);
        bytes.checked_next_multiple_of(self.layout.base_page_bytes).unwrap_or(least)
    }

    /// Reserves address space. The process runs out of it, not the device.
    fn reserve_addresses(&self, bytes: u64) -> Result<DevicePtr, Refusal> {
        self.device.reserve(bytes).map_err(|error| match error {
            DeviceError::OutOfMemory { call, requested } => Refusal::of_host(call, requested),
            other => other.into(),
        })
    }

    /// The descriptors of blocks, made with the first region.
    pub(super) fn descriptors(&mut self) -> Result<Arc<Descriptors>, Refusal> {
        if let Some(descriptors) = &self.descriptors {
            return Ok(descriptors.clone());
        }
        let backed = Descriptors::new().filter(|descriptors| descriptors.back(self.extents.capacity()));
        let descriptors = backed.map(Arc::new).ok_or(Refusal::of_host("memory for blocks", 0))?;
        self.descriptors = Some(descriptors.clone());
        Ok(descriptors)
    }

    /// Reserves a region of at least `base_pages`; returns the unmapped extent that fills it.
    pub(super) fn add_region(&mut self, zone: Zone, base_pages: u64) -> Result<ExtentId, Refusal> {
        if !self.regions.make_room_for_one() {
            return Err(Refusal::of_host("a list of regions", self.regions.host_bytes()));
        }
        let least = base_pages * self.layout.base_page_bytes;
        let mut bytes = self.region_bytes(zone, base_pages);
        let granule = self.layout.granule(zone);
        let descriptors = self.descriptors()?;
        let (base, numbers) = loop {
            let no_map = || {
                Refusal::of_host(
                    "addresses for where blocks lie",
                    RegionMap::bytes_of_numbers(bytes, granule),
                )
            };
            let numbers = RegionMap::numbers(bytes, granule).ok_or_else(no_map);
            match numbers.and_then(|numbers| Ok((self.reserve_addresses(bytes)?, numbers))) {
                Ok(both) => break both,
                Err(_) if bytes / 2 >= least => {
                    bytes = (bytes / 2).next_multiple_of(self.layout.base_page_bytes);
                }
                Err(refusal) => return Err(refusal),
            }
        };
        self.counters.calls.reserve.add(1);
        let units = bytes / self.layout.unit_bytes;
        let map = Arc::new(RegionMap::new(base, granule, numbers, descriptors));
        self.page_map.publish(base, bytes, &map);
        let extents = &mut self.extents;
        let new = NewRegion { base, bytes, zone, origin: RegionOrigin::Reserved, map };
        let region = self
            .regions
            .add(new, |region| extents.add(Extent::whole(region, zone, units, ExtentState::Unmapped)));
        let unmapped = self.regions.get(region).head;
        self.unmapped[zone as usize].insert(&self.extents[unmapped], unmapped);
        Ok(unmapped)
    }
}
