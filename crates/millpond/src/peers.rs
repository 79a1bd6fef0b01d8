//! Which other devices may use a pool's memory.
//!
//! A pool whose memory is for a peer gives it access to each page as it is mapped. Kernels of the peer may then use every
//! block. Other pools give access on demand: to the pages of a block that somebody [names](crate::Pool::allow_access_to), or copies
//! from. That costs once for each page, about as much as the device's own access. While no page has the peer, it costs
//! twenty times as much.
//!
//! Access belongs to a mapping. So a page keeps it where it lies, and loses it when it is remapped: a new mapping has the
//! access that all pages have, and no more. A page with a live block is not remapped. Neither is a page in
//! the memory of captures that was given to a peer by itself. What is given with all of the pool reaches the mappings that stay
//! for graphs, too.

use std::ops::Range;

use crate::core::{Core, freeing};
use crate::device::{DeviceError, DevicePtr, DeviceResult, PeerId, PeerSet};
use crate::error::{Error, Result};
use crate::extents::{Arena, ExtentId};
use crate::log::log;
use crate::order::{Stream, Timelines};
use crate::system::lock::{RwLock, RwLockReadGuard};
use crate::system::process::OfProcess;

/// The copies of a pool's memory to other devices. Held for reading while one is given to the device, and for writing while access is
/// taken back.
#[derive(Debug, Default)]
pub(crate) struct PeerCopies(OfProcess<RwLock<()>>);

/// See [`Pool::allow_access`](crate::Pool::allow_access).
pub(crate) fn allow_access(core: &Core, peer: Option<PeerId>) -> Result<()> {
    let Some(peer) = reachable_peer(core, peer)? else { return Ok(()) };
    share_all(core, PeerSet::of(peer))
}

/// See [`Pool::is_accessible_from`](crate::Pool::is_accessible_from).
pub(crate) fn is_accessible_from(core: &Core, ptr: DevicePtr, peer: &Timelines) -> Result<bool> {
    let Some(peer) = peer_of(core, peer.device().peer_id())? else { return Ok(true) };
    core.with_live(ptr, |arena, id| is_shared_with(arena, id, PeerSet::of(peer)))
}

/// Notes that work on a stream uses a live block, or none at null; also on a stream of another device that works together with the pool's.
pub(crate) fn record_use(core: &Core, ptr: DevicePtr, stream: &Stream) -> Result<()> {
    if ptr.is_null() {
        return Ok(());
    }
    if core.check_stream(stream).is_ok() {
        return freeing::record_use(core, ptr, stream);
    }
    check_beside(core, stream)?;
    freeing::record_use(core, ptr, &stream.stand_in(&core.timelines)?)
}

/// Refuses a stream of a device that does not work together with the pool's.
pub(crate) fn check_beside(core: &Core, stream: &Stream) -> Result<()> {
    core.check_process()?;
    match is_beside(core, stream.device().peer_id()) {
        true => Ok(()),
        false => Err(Error::WrongDevice { what: "stream", pool: core.name_of() }),
    }
}

fn is_beside(core: &Core, peer: Option<PeerId>) -> bool {
    core.device.peer_id().zip(peer).is_some_and(|(own, peer)| own.is_beside(peer))
}

/// A device, which has to work together with the pool's; `None` for the pool's own.
fn peer_of(core: &Core, peer: Option<PeerId>) -> Result<Option<PeerId>> {
    core.check_process()?;
    if !is_beside(core, peer) {
        let what = "working together with that device: both have to be GPUs, or both host devices";
        return Err(unsupported(core, what));
    }
    Ok(peer.filter(|_| core.device.peer_id() != peer))
}

fn unsupported(core: &Core, what: &'static str) -> Error {
    DeviceError::Unsupported { device: core.device.properties().name.clone(), what }.into()
}

/// Likewise of one that has to reach the pool's memory.
fn reachable_peer(core: &Core, peer: Option<PeerId>) -> Result<Option<PeerId>> {
    match peer_of(core, peer)? {
        Some(peer) if !core.device.can_be_reached_from(peer)? => {
            Err(unsupported(core, "direct access from that GPU: copies between them go by way of the host"))
        }
        peer => Ok(peer),
    }
}

/// Lets these devices use all memory of the pool, what there is and what comes.
pub(crate) fn share_all(core: &Core, peers: PeerSet) -> Result<()> {
    let mut state = core.state.lock();
    // First: also after an error, the pool is for these peers from now on.
    state.arenas.iter_mut().for_each(|(_, arena)| arena.set_peers(arena.pages.peers.with(peers)));
    // SAFETY: nothing is taken away.
    Ok(state.arenas.iter_mut().try_for_each(|(_, arena)| unsafe { set_access(arena, peers, true) })?)
}

/// Whether these devices may use a live block.
fn is_shared_with(arena: &Arena, id: ExtentId, peers: PeerSet) -> bool {
    let mut pages = arena.pages_under(arena.range_of(id));
    pages.all(|page| peers.without(arena.pages.get(page.id).peers).is_empty())
}

/// Lets devices use a live block, and what else lies on its pages.
fn share(arena: &mut Arena, id: ExtentId, peers: PeerSet) -> DeviceResult<()> {
    let Range { mut start, end } = arena.range_of(id);
    while let Some(page) = arena.page_at(start).filter(|_| start < end) {
        // SAFETY: the page is mapped there.
        unsafe { arena.pages.set_peer_access(page.id, page.at, peers, true) }?;
        start = page.at.offset(page.bytes);
    }
    Ok(())
}

/// Gives devices access to all pages that are mapped now, or takes it away. Segments stay within their reach.
///
/// # Safety
/// Where nothing is `allowed`, no work of these devices uses the memory.
unsafe fn set_access(arena: &mut Arena, peers: PeerSet, allowed: bool) -> DeviceResult<()> {
    for id in arena.pages.ids() {
        if let Some(page) = arena.home_of(id)
            && (allowed || !arena.pages.is_segment(id))
        {
            // SAFETY: the page is mapped there. The rest is the caller's promise.
            unsafe { arena.pages.set_peer_access(id, page.at, peers, allowed) }?;
        }
    }
    for (id, at) in arena.staying() {
        // SAFETY: likewise.
        unsafe { arena.pages.set_peer_access_elsewhere(id, at, peers, allowed) }?;
    }
    Ok(())
}

/// See [`Pool::allow_access_to`](crate::Pool::allow_access_to).
pub(crate) fn allow_access_to(core: &Core, ptr: DevicePtr, peer: &Timelines) -> Result<()> {
    match reachable_peer(core, peer.device().peer_id())? {
        Some(peer) if !ptr.is_null() => {
            Ok(core.with_live(ptr, |arena, id| share(arena, id, PeerSet::of(peer)))??)
        }
        _ => Ok(()),
    }
}

impl PeerCopies {
    /// See [`Pool::take_back_access`](crate::Pool::take_back_access).
    pub(crate) fn take_back_access(&self, core: &Core, peer: &Timelines) -> Result<()> {
        let Some(id) = peer_of(core, peer.device().peer_id())? else { return Ok(()) };
        if core.state.lock().arenas.own.pages.peers == PeerSet::ALL {
            let why = format!(
                "pool '{}' is for all peers: build it with accessible_from, for those that need it",
                core.name
            );
            return Err(Error::BadOption { option: "accessible_from_all", why });
        }
        let _no_copies = self.0.write();
        if !peer.synchronize_device_unless_capturing()? {
            let what = "a stream of the other GPU is being captured: end the capture first".to_owned();
            return Err(DeviceError::Invalid { call: "Pool::take_back_access", what }.into());
        }
        let peers = PeerSet::of(id);
        let mut state = core.state.lock();
        state.arenas.iter_mut().for_each(|(_, arena)| arena.set_peers(arena.pages.peers.without(peers)));
        // SAFETY: the peer has done all its work. Copies of safe code come later than this, and ask for access again; who
        // launches kernels vouches for the memory that they use.
        Ok(state.arenas.iter_mut().try_for_each(|(_, arena)| unsafe { set_access(arena, peers, false) })?)
    }

    /// A copy from a live block is about to be given to another device: gives that access, where it reaches the memory. Until
    /// the guard goes, access is not taken back. Returns whether the device has access.
    pub(crate) fn begin(
        &self,
        core: &Core,
        ptr: DevicePtr,
        to: PeerId,
    ) -> Result<(RwLockReadGuard<'_, ()>, bool)> {
        let guard = self.0.read();
        let peers = PeerSet::of(to);
        let is_own = core.device.peer_id() == Some(to);
        if is_own || core.with_live(ptr, |arena, id| is_shared_with(arena, id, peers))? {
            return Ok((guard, true));
        }
        if !core.device.can_be_reached_from(to)? {
            return Ok((guard, false));
        }
        let shared = core.with_live(ptr, |arena, id| share(arena, id, peers))?;
        if let Err(error) = &shared {
            log!(
                DEBUG,
                "a copy goes by way of the host: its source got no access for the other device",
                error
            );
        }
        Ok((guard, shared.is_ok()))
    }
}
