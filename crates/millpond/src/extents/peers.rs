//! Which other devices may use the arena's memory.
//!
//! Access belongs to a mapping. So a page keeps it where it lies, and loses it when it is remapped: a new mapping has the
//! access that all pages have, and no more. A page with a live block is not remapped.

use super::arena::Arena;
use super::extent::ExtentId;
use super::pages_under::pages_of;
use crate::device::{DeviceResult, PeerSet};
use crate::physical::PageId;

impl Arena {
    /// The other devices that may use all memory, as soon as it is mapped.
    pub(crate) fn peers(&self) -> PeerSet {
        self.mapper.pages().peers
    }

    /// Lets these devices use all memory as soon as it is mapped, and no others.
    pub(crate) fn set_peers(&mut self, peers: PeerSet) {
        self.mapper.set_peers(&mut self.map, peers);
    }

    /// Whether these devices may use a live block.
    pub(crate) fn is_shared_with(&self, id: ExtentId, peers: PeerSet) -> bool {
        let mut pages = pages_of(&self.map, &self.mapper, id, self.map[id].start);
        pages.all(|(page, _)| peers.without(self.mapper.pages().peers_of(page)).is_empty())
    }

    /// Lets devices use a live block, and what else lies on its pages.
    pub(crate) fn share(&mut self, id: ExtentId, peers: PeerSet) -> DeviceResult<()> {
        let Self { map, mapper, .. } = self;
        let mut from = map[id].start;
        loop {
            let next = pages_of(map, mapper, id, from).next();
            let Some((page, home)) = next else { return Ok(()) };
            // SAFETY: the page is mapped there.
            unsafe { mapper.pages_mut().set_peer_access(page, map.address_of_home(home), peers, true) }?;
            from = map.layout.units_of(home.span()).1;
        }
    }

    /// Lets devices use all memory that is mapped now.
    pub(crate) fn share_all(&mut self, peers: PeerSet) -> DeviceResult<()> {
        // SAFETY: nothing is taken away.
        unsafe { self.set_access_to_pages(peers, true) }
    }

    /// Takes the access of devices to all pages away. Segments stay within their reach.
    ///
    /// # Safety
    /// No work of these devices uses the memory.
    pub(crate) unsafe fn take_back_all(&mut self, peers: PeerSet) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.set_access_to_pages(peers, false) }
    }

    /// # Safety
    /// As for [`take_back_all`](Self::take_back_all), where nothing is `allowed`.
    unsafe fn set_access_to_pages(&mut self, peers: PeerSet, allowed: bool) -> DeviceResult<()> {
        let Self { map, mapper, .. } = self;
        for number in 0..mapper.pages().records() {
            let page = PageId(number as u32);
            if let Some(home) = mapper.table().home(page)
                && (allowed || !mapper.pages().is_segment(page))
            {
                let at = map.address_of_home(home);
                // SAFETY: the page is mapped there. The rest is the caller's promise.
                unsafe { mapper.pages_mut().set_peer_access(page, at, peers, allowed) }?;
            }
        }
        Ok(())
    }
}
