//! Segments, which the driver allocates whole. Devices without virtual memory management have nothing else. Pinned memory
//! that is taken in advance is one, too, and so is what another process shared.
//!
//! A segment is a region of one page, which never moves. It goes back to the driver when all of it is free.

use super::extent::{Extent, ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::layout::Zone;
use super::mapper::Mapper;
use super::refusal::Refusal;
use super::search::{Found, Request};
use crate::device::{Device, DevicePtr, DeviceResult};
use crate::policy::page_length::PAGES_IN_SEGMENT;

/// Takes a segment with room for the request.
pub(super) fn back(map: &mut ExtentMap, mapper: &mut Mapper, request: Request<'_>) -> Result<Found, Refusal> {
    let least = (request.units * map.layout.unit_bytes + request.align).div_ceil(map.layout.base_page_bytes);
    let ample = match request.zone {
        Zone::Small => least,
        Zone::Large => least.max(u64::from(map.layout.largest_page).min(PAGES_IN_SEGMENT)),
    };
    let alloc = |device: &dyn Device, bytes| device.alloc_segment(bytes);
    let id = match add(map, mapper, (request.zone, ample), alloc) {
        Err(Refusal::Short { .. }) if ample > least => add(map, mapper, (request.zone, least), alloc)?,
        other => other?,
    };
    let Extent { region, start, .. } = map[id];
    let at = map.align_up(region, start, request.align);
    debug_assert!(at + request.units <= map[id].end(), "there is room for the alignment");
    Ok((id, at))
}

/// Has `take` take a segment of the base pages that the request needs, which need not be aligned.
pub(super) fn back_exactly(
    map: &mut ExtentMap,
    mapper: &mut Mapper,
    request: Request<'_>,
    take: impl FnOnce() -> DeviceResult<DevicePtr>,
) -> Result<Found, Refusal> {
    let base_pages = map.layout.base_pages_for(request.units);
    let id = add(map, mapper, (request.zone, base_pages), |_, _| take())?;
    Ok((id, map[id].start))
}

fn add(
    map: &mut ExtentMap,
    mapper: &mut Mapper,
    (zone, base_pages): (Zone, u64),
    take: impl FnOnce(&dyn Device, u64) -> DeviceResult<DevicePtr>,
) -> Result<ExtentId, Refusal> {
    let bytes = base_pages * map.layout.base_page_bytes;
    let length = u32::try_from(base_pages).expect("a segment has fewer than 2^32 base pages");
    // First, since nothing is held yet that would have to be given back.
    map.regions.make_room_for_one()?;
    map.ensure(mapper.make_room_for(0, map.regions.next_id(), (0, base_pages)))?;
    let (page, base) =
        mapper.pages.take_segment(length, take).map_err(|error| Refusal::of_page(error, bytes))?;
    let id = map.enter_region((base, bytes), zone, ExtentState::Free);
    mapper.set_home(page, (map[id].region, 0));
    Ok(id)
}
