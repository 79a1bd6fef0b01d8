//! Devices without virtual memory management: blocks are cut from segments that the driver allocates whole.
//!
//! A segment is a region that is always backed. Nothing can be remapped from it; it goes back to the driver when all
//! of it is free.

use std::sync::Arc;

use super::extent::{Extent, ExtentState};
use super::page_map::RegionMap;
use super::regions::{NewRegion, RegionOrigin};
use super::search::Request;
use super::{Arena, ExtentId, Refusal, Zone};
use crate::device::{DeviceError, DevicePtr};
use crate::physical::Shortage;

impl Arena {
    /// Allocates a segment with room for `request`.
    pub(super) fn back_by_segment(&mut self, request: &Request) -> Result<(ExtentId, u64), Refusal> {
        let least = request.units * self.layout.unit_bytes + request.align;
        let exact = least.next_multiple_of(self.layout.base_page_bytes);
        let ample = match request.zone {
            Zone::Small => exact,
            Zone::Large => {
                exact.max(u64::from(self.layout.largest_page).min(10) * self.layout.base_page_bytes)
            }
        };
        let id = match self.add_segment(request.zone, ample) {
            Err(Refusal::Short { .. }) if ample > exact => self.add_segment(request.zone, exact)?,
            other => other?,
        };
        let Extent { region, start, .. } = self.extents[id];
        let at = self.align_up(region, start, request.align);
        debug_assert!(at + request.units <= self.extents[id].end(), "there is room for the alignment");
        Ok((id, at))
    }

    fn add_segment(&mut self, zone: Zone, bytes: u64) -> Result<ExtentId, Refusal> {
        let short = |what| Refusal::Short { what, bytes };
        let granule = self.layout.granule(zone);
        // First, since nothing is held yet that would have to be given back.
        if !self.regions.make_room_for_one() {
            return Err(Refusal::of_host("a list of segments", self.regions.host_bytes()));
        }
        let no_map = || Refusal::of_host("where blocks lie", RegionMap::bytes_of_numbers(bytes, granule));
        let descriptors = self.descriptors()?;
        let numbers = RegionMap::numbers(bytes, granule).ok_or_else(no_map)?;
        if !numbers.back(0..bytes.div_ceil(granule) as usize) {
            return Err(no_map());
        }
        let limits = &self.pages.limits;
        limits.admit(bytes, self.device.as_ref(), &self.counters).map_err(short)?;
        let base = match self.device.alloc_segment(bytes) {
            Ok(base) => base,
            Err(error) => {
                limits.refuse(bytes);
                return Err(match error {
                    DeviceError::OutOfMemory { .. } => short(Shortage::Device),
                    other => Refusal::Device(other),
                });
            }
        };
        limits.count(bytes, &self.counters);
        self.counters.calls.alloc.add(1);
        let units = bytes / self.layout.unit_bytes;
        let extents = &mut self.extents;
        let map = Arc::new(RegionMap::new(base, granule, numbers, descriptors));
        let new = NewRegion { base, bytes, zone, origin: RegionOrigin::Segment, map };
        let region = self
            .regions
            .add(new, |region| extents.add(Extent::whole(region, zone, units, ExtentState::Free)));
        let free = self.regions.get(region).head;
        self.index_free(free);
        Ok(free)
    }

    /// Gives back segments that are wholly free and complete, the oldest first, until at most `keep` bytes
    /// are reserved.
    pub(super) fn trim_segments(&mut self, keep: u64) -> Result<(), DeviceError> {
        let segments = self
            .regions
            .iter()
            .filter(|(_, region)| region.origin == RegionOrigin::Segment)
            .filter(|(_, region)| {
                let extent = &self.extents[region.head];
                extent.state == ExtentState::Free
                    && extent.units * self.layout.unit_bytes == region.bytes
                    && self.timelines.is_complete(&extent.fence)
            })
            .map(|(id, region)| (self.extents[region.head].freed, id));
        // Each of them is free.
        let mut idle = self.list_for_free()?;
        idle.extend(segments);
        idle.sort_unstable();
        let mut result = Ok(());
        for (_, id) in idle {
            if self.counters.reserved.current() <= keep {
                break;
            }
            result = result.and(self.free_segment(id));
        }
        result
    }

    fn free_segment(&mut self, id: u32) -> Result<(), DeviceError> {
        let (base, bytes, head): (DevicePtr, u64, ExtentId) = {
            let region = self.regions.get(id);
            (region.base, region.bytes, region.head)
        };
        // First: another pool may get the addresses at once.
        self.regions.hide(id);
        // SAFETY: the segment is one free extent whose fence is complete: no pending work uses it, and no
        // program holds a pointer into it. The region goes below.
        if let Err(error) = unsafe { self.device.free_segment(base) } {
            self.regions.show(id);
            return Err(error);
        }
        self.counters.calls.free.add(1);
        self.pages.limits.withdraw(bytes, &self.counters);
        self.remove_free(head);
        self.extents.remove_alone(head);
        self.regions.remove(id);
        Ok(())
    }
}
