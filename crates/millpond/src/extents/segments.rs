//! Segments, which the driver allocates whole. Devices without virtual memory management have nothing else. Pinned memory
//! that is taken in advance is one, too, and so is what another process shared.
//!
//! A segment is a region of one page, which never moves. It goes back to the driver when all of it is free.

use super::arena::Arena;
use super::extent::{ExtentId, ExtentState};
use super::layout::Zone;
use super::search::{Found, Request};
use crate::device::{Device, DevicePtr, DeviceResult};
use crate::log::log;
use crate::physical::Refusal;
use crate::policy::addresses::segment_length;

/// Takes a segment with room for the request. It is no longer than that where memory is short, and longer only for an alignment
/// that the device did not give.
pub(super) fn back(arena: &mut Arena, request: Request<'_>) -> Result<Found, Refusal> {
    let layout = arena.map.layout;
    let exact = request.units * layout.unit_bytes;
    let [least, aligned] = [exact, exact + request.align].map(|bytes| bytes.div_ceil(layout.base_page_bytes));
    let ample = match request.zone {
        Zone::Small => least,
        Zone::Large => segment_length(least, u64::from(layout.largest_page)),
    };
    let alloc = |device: &dyn Device, bytes| device.alloc_segment(bytes);
    let id = match add(arena, (request.zone, ample), alloc) {
        Err(Refusal::Short { .. }) if ample > least => add(arena, (request.zone, least), alloc)?,
        other => other?,
    };
    if let Some(at) = place_in(arena, id, request) {
        return Ok((id, at));
    }
    give_back(arena, id);
    let id = add(arena, (request.zone, aligned), alloc)?;
    let at = place_in(arena, id, request).expect("there is room for the alignment");
    Ok((id, at))
}

/// Where the request lies in a new segment, if it has room for the alignment.
fn place_in(arena: &Arena, id: ExtentId, request: Request<'_>) -> Option<u64> {
    let at = arena.map.align_up(arena.map[id].region, 0, request.align);
    (at + request.units <= arena.map[id].end()).then_some(at)
}

/// Gives a new segment back. Where the driver refuses, it stays a free one, which a trim gives back.
#[cold]
fn give_back(arena: &mut Arena, id: ExtentId) {
    let Arena { map, pages, .. } = arena;
    let region = map[id].region;
    let page = map.regions.page_at(region, 0).expect("a segment is one page");
    // SAFETY: nobody knows the segment. The region goes with it.
    let given_back = map.remove_region(region, |_| unsafe { pages.free_segment(page) });
    if let Err(error) = given_back {
        log!(WARN, "a segment could not be given back; it is tried again", error);
    }
}

/// Has `take` take a segment of so many base pages, which need not be aligned. Returns the free extent that it is.
pub(super) fn add(
    arena: &mut Arena,
    (zone, base_pages): (Zone, u64),
    take: impl FnOnce(&dyn Device, u64) -> DeviceResult<DevicePtr>,
) -> Result<ExtentId, Refusal> {
    let bytes = base_pages * arena.map.layout.base_page_bytes;
    let length = u32::try_from(base_pages).expect("a segment has fewer than 2^32 base pages");
    // First, since nothing is held yet that would have to be given back.
    let backing = arena.map.regions.make_room_for_one(base_pages)?;
    let (page, base) = arena.pages.take_segment(length, take)?;
    let id = arena.map.enter_region((base, bytes), zone, ExtentState::Free, backing);
    arena.set_home(page, (arena.map[id].region, 0));
    let peers = arena.pages.peers;
    // SAFETY: a whole segment.
    if let Err(error) = unsafe { arena.pages.set_peer_access(page, base, peers, true) } {
        give_back(arena, id);
        return Err(error.into());
    }
    Ok(id)
}
