//! Segments, which the driver allocates whole. Devices without virtual memory management have nothing else. Pinned memory
//! that is taken in advance is one, too.
//!
//! A segment is a region that is always backed. Nothing can be remapped from it; it goes back to the driver when all
//! of it is free.

use std::sync::Arc;

use super::extent::{Extent, ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::layout::Zone;
use super::refusal::Refusal;
use super::regions::RegionOrigin;
use super::reuse_rules::ReuseRules;
use super::search::{Found, Request};
use crate::counters::Counters;
use crate::device::{Device, DeviceError, DevicePtr, DeviceResult, PeerSet};
use crate::physical::{Limits, Shortage};
use crate::policy::page_length::PAGES_IN_SEGMENT;

/// Where segments come from, and go to.
#[derive(Debug)]
pub(super) struct Segments {
    device: Arc<dyn Device>,
    counters: Arc<Counters>,
    limits: Limits,
}

impl Segments {
    pub(super) fn new(device: Arc<dyn Device>, counters: Arc<Counters>, limits: Limits) -> Self {
        Self { device, counters, limits }
    }

    /// Allocates a segment with room for the request, within reach of these peers.
    pub(super) fn back(
        &self,
        map: &mut ExtentMap,
        request: Request<'_>,
        peers: PeerSet,
    ) -> Result<Found, Refusal> {
        let base_page_bytes = map.layout.base_page_bytes;
        let least = request.units * map.layout.unit_bytes + request.align;
        let exact = least.next_multiple_of(base_page_bytes);
        let ample = match request.zone {
            Zone::Small => exact,
            Zone::Large => {
                exact.max(u64::from(map.layout.largest_page).min(PAGES_IN_SEGMENT) * base_page_bytes)
            }
        };
        let add = |map: &mut ExtentMap, bytes| {
            self.add(map, request.zone, bytes, || self.share(self.device.alloc_segment(bytes)?, bytes, peers))
        };
        let id = match add(map, ample) {
            Err(Refusal::Short { .. }) if ample > exact => add(map, exact)?,
            other => other?,
        };
        let Extent { region, start, .. } = map[id];
        let at = map.align_up(region, start, request.align);
        debug_assert!(at + request.units <= map[id].end(), "there is room for the alignment");
        Ok((id, at))
    }

    /// Allocates a segment of the base pages that the request needs, which need not be aligned.
    /// `take` takes it from where it comes.
    pub(super) fn back_exactly(
        &self,
        map: &mut ExtentMap,
        request: Request<'_>,
        take: impl FnOnce() -> DeviceResult<DevicePtr>,
    ) -> Result<Found, Refusal> {
        let bytes = (request.units * map.layout.unit_bytes).next_multiple_of(map.layout.base_page_bytes);
        let id = self.add(map, request.zone, bytes, take)?;
        Ok((id, map[id].start))
    }

    fn add(
        &self,
        map: &mut ExtentMap,
        zone: Zone,
        bytes: u64,
        take: impl FnOnce() -> DeviceResult<DevicePtr>,
    ) -> Result<ExtentId, Refusal> {
        let short = |what| Refusal::Short { what, bytes };
        // First, since nothing is held yet that would have to be given back.
        let blank = map.make_room_for_segment(zone, bytes)?;
        self.limits.admit(bytes, self.device.as_ref()).map_err(short)?;
        let base = match take() {
            Ok(base) => base,
            Err(error) => {
                self.limits.refuse(bytes);
                return Err(match error {
                    DeviceError::OutOfMemory { .. } => short(Shortage::Device),
                    other => Refusal::Device(other),
                });
            }
        };
        self.limits.count(bytes, &self.counters);
        self.counters.calls.alloc.add(1);
        Ok(map.add_segment(base, bytes, zone, blank))
    }

    /// Lets peers use a segment that was just allocated. Where that fails, it goes back.
    fn share(&self, base: DevicePtr, bytes: u64, peers: PeerSet) -> DeviceResult<DevicePtr> {
        if peers.is_empty() {
            return Ok(base);
        }
        // SAFETY: a whole segment.
        if let Err(error) = unsafe { self.device.set_peer_access(base, bytes, peers, true) } {
            // SAFETY: nobody knows it.
            unsafe { self.device.free_segment(base) }?;
            return Err(error);
        }
        Ok(base)
    }

    /// Gives back segments that are wholly free and complete, the oldest first, until at most `keep` bytes
    /// are reserved.
    pub(super) fn trim(&self, map: &mut ExtentMap, rules: &ReuseRules, keep: u64) -> Result<(), DeviceError> {
        // Each of them is free.
        let mut idle = map.list_for_free()?;
        idle.extend(
            map.regions
                .iter()
                .filter(|(_, region)| region.origin == RegionOrigin::Segment)
                .map(|(id, region)| (&map[region.head], region.bytes, id))
                .filter(|(extent, bytes, _)| {
                    extent.state == ExtentState::Free
                        && extent.units * map.layout.unit_bytes == *bytes
                        && rules.is_complete(&extent.fence)
                })
                .map(|(extent, _, id)| (extent.freed, id)),
        );
        idle.sort_unstable();
        let mut result = Ok(());
        for (_, id) in idle {
            if self.counters.reserved.current() <= keep {
                break;
            }
            result = result.and(self.free(map, id));
        }
        result
    }

    fn free(&self, map: &mut ExtentMap, id: u32) -> Result<(), DeviceError> {
        map.remove_region(id, |_, base, bytes| {
            // SAFETY: the segment is one free extent whose fence is complete: no pending work uses it, and no
            // program holds a pointer into it. The region goes with it.
            unsafe { self.device.free_segment(base) }?;
            self.counters.calls.free.add(1);
            self.limits.withdraw(bytes, &self.counters);
            Ok(())
        })
    }
}
