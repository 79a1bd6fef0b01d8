//! Segments, which the driver allocates whole. Devices without virtual memory management have nothing else. Pinned memory
//! that is taken in advance is one, too, and so is what another process shared.
//!
//! A segment is a region of one page, which never moves. It goes back to the driver when all of it is free.
//!
//! **How a segment goes.** The driver's free waits for the device, and the device may be waiting for a function of the host that asks
//! the pool. So a segment goes in three steps. Under the pool's lock it [leaves](leave): nobody is given it any more, and its addresses
//! are nobody's. It is [taken](take_leaving), and the driver frees it without the lock. Then it is [settled](settle) under the
//! lock. Until then its bytes count as reserved. What the driver refuses is a free segment again.

use std::sync::Arc;

use super::arena::Arena;
use super::map::extent::{ExtentId, ExtentState};
use super::map::layout::Zone;
use super::search::{Found, Request};
use crate::device::{Device, DevicePtr, DeviceResult};
use crate::physical::{PageId, Refusal};
use crate::policy::addresses::segment_length;

const ALIGNED: &str = "there is room for the alignment";

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
    if arena.never_aligned.is_some_and(|never| request.align >= never) {
        let id = add(arena, (request.zone, aligned), alloc)?;
        return Ok((id, place_in(arena, id, request).expect(ALIGNED)));
    }
    let id = match add(arena, (request.zone, ample), alloc) {
        Err(Refusal::Short { .. }) if ample > least => add(arena, (request.zone, least), alloc)?,
        other => other?,
    };
    if let Some(at) = place_in(arena, id, request) {
        return Ok((id, at));
    }
    // It counts until it is given back. Where a limit forbids the next one now, the request comes again, and takes that at once.
    arena.never_aligned = Some(request.align);
    let region = arena.map[id].region;
    leave(arena, region);
    back(arena, request)
}

/// Where the request lies in a new segment, if it has room for the alignment.
fn place_in(arena: &Arena, id: ExtentId, request: Request<'_>) -> Option<u64> {
    let at = arena.map.align_up(arena.map[id].region, 0, request.align);
    (at + request.units <= arena.map[id].end()).then_some(at)
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
        let region = arena.map[id].region;
        leave(arena, region);
        return Err(error.into());
    }
    Ok(id)
}

/// A segment that left, and that the driver is to free.
#[derive(Debug)]
#[must_use = "its bytes count until it is settled"]
pub(crate) struct Leaving {
    device: Arc<dyn Device>,
    at: DevicePtr,
    page: PageId,
    extent: ExtentId,
    /// The memory of captures that it belongs to, where it is not the pool's own.
    pub(crate) memory: Option<u64>,
}

/// One that the driver freed, or refused to.
#[derive(Debug)]
#[must_use = "its bytes count until it is settled"]
pub(crate) struct Gone {
    pub(crate) leaving: Leaving,
    freed: DeviceResult<()>,
}

impl Leaving {
    /// Has the driver free it, which may wait for the device: call this without a lock.
    pub(crate) fn go(self) -> Gone {
        // SAFETY: it was wholly free, and the work on it complete. Nobody was given it since. The device had it from `alloc_segment`,
        // and is asked once: this consumes it.
        let freed = unsafe { self.device.free_segment(self.at) };
        Gone { leaving: self, freed }
    }
}

/// A region that is one segment, free and complete, is given to nobody from now on.
pub(super) fn leave(arena: &mut Arena, region: u32) {
    let page = arena.map.regions.page_at(region, 0).expect("a segment is one page");
    arena.leave(page);
    let extent = arena.map.withdraw_region(region);
    stay_away(arena, extent, page);
}

fn stay_away(arena: &mut Arena, extent: ExtentId, page: PageId) {
    let Arena { map, pages, .. } = arena;
    map.extents[extent].state = ExtentState::Leaving(page);
    map.leaving.push(&mut map.extents, extent);
    pages.counters.leaving.raise(pages.bytes_of(page));
}

/// Takes the segments that left since the last call, to be given back, as far as the host has memory for a list.
pub(crate) fn take_leaving(arena: &mut Arena, taken: &mut Vec<Leaving>) {
    let Arena { map, pages, .. } = arena;
    let memory = map.regions.owner.memory;
    while let Some(extent) = map.leaving.first()
        && let ExtentState::Leaving(page) = map[extent].state
        && let Some(at) = pages.segment_at(page)
        && taken.try_reserve(1).is_ok()
    {
        map.leaving.remove(&mut map.extents, extent);
        taken.push(Leaving { device: pages.device().clone(), at, page, extent, memory });
    }
}

/// Forgets a segment that the driver freed, and counts it. Returns its bytes. One that it refused to free is free again. Where not all
/// devices may use it that should, it stays away, and is tried again.
pub(crate) fn settle(arena: &mut Arena, gone: Gone) -> DeviceResult<u64> {
    let Gone { leaving: Leaving { page, extent, .. }, freed } = gone;
    let bytes = arena.pages.bytes_of(page);
    arena.pages.counters.leaving.lower(bytes);
    match &freed {
        Ok(()) => {
            arena.pages.forget_segment(page);
            arena.map.forget_region(extent);
        }
        Err(_) if arena.pages.has_usual_peers(page) => {
            let region = arena.map[extent].region;
            arena.set_home(page, (region, 0));
            arena.map.extents[extent].state = ExtentState::Free;
            arena.map.publish_region(extent);
        }
        Err(_) => stay_away(arena, extent, page),
    }
    freed.map(|()| bytes)
}
