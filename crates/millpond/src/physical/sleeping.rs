//! Pages that sleep: their memory goes back to the device, and their place in the table stays.
//!
//! A page goes down and up step by step. A step that fails leaves it where it was, so that the call can be made again.

use super::{Backing, NoPage, PageId, Pages, Shortage};
use crate::device::{Device, DeviceError, DevicePtr, DeviceResult, PeerSet};

/// How much of a page is there. Less than all of it only while its pool sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Presence {
    /// Its memory is the device's again. The handle names nothing.
    Gone,
    /// It has memory, and is mapped nowhere.
    Unmapped,
    /// It is mapped at home, and the device may not use it there.
    WithoutAccess,
    /// All of it.
    Whole,
}

/// Where else than at home a page is mapped, for graphs that were captured. While the page sleeps, these mappings are away.
#[derive(Debug, Default)]
pub(crate) struct OtherMappings {
    at: Vec<DevicePtr>,
    /// How many are away, the first ones.
    away: usize,
    /// Whether the last one that is away is mapped, and the device may not use it there.
    lacks_access: bool,
}

impl OtherMappings {
    /// Adds one. `false` where the host has no memory for it.
    pub(crate) fn add(&mut self, at: DevicePtr) -> bool {
        let has_room = self.at.try_reserve(1).is_ok();
        if has_room {
            self.at.push(at);
        }
        has_room
    }

    pub(crate) fn count(&self) -> usize {
        self.at.len()
    }
}

impl Pages {
    /// Removes the other mappings of a page that is to sleep. After an error it can be called again, as its counterpart can.
    ///
    /// # Safety
    /// The page is mapped there, and no work uses it until it is awake.
    pub(crate) unsafe fn lay_down(&mut self, id: PageId, others: &mut OtherMappings) -> DeviceResult<()> {
        let bytes = self.bytes_of(id);
        if others.lacks_access {
            // SAFETY: it is mapped there; the rest is the caller's promise.
            unsafe { self.device.unmap(others.at[others.away - 1], bytes) }?;
            self.counters.calls.unmap.add(1);
            others.lacks_access = false;
        }
        while let Some(&at) = others.at.get(others.away) {
            self.tell(at, bytes, false);
            // SAFETY: likewise.
            unsafe { self.device.unmap(at, bytes) }.inspect_err(|_| self.tell(at, bytes, true))?;
            self.counters.calls.unmap.add(1);
            others.away += 1;
        }
        Ok(())
    }

    /// Undoes [`lay_down`](Self::lay_down), once the page is awake at home.
    ///
    /// # Safety
    /// The page has been mapped there, and nothing else has since.
    pub(crate) unsafe fn get_up(&mut self, id: PageId, others: &mut OtherMappings) -> DeviceResult<()> {
        let bytes = self.bytes_of(id);
        while others.away > 0 {
            let at = others.at[others.away - 1];
            if !others.lacks_access {
                // SAFETY: the page has memory. The addresses are its own, and empty while it is away.
                unsafe { self.device.map(at, bytes, self.handle(id).0) }?;
                self.counters.calls.map.add(1);
                others.lacks_access = true;
            }
            // SAFETY: just this range is mapped.
            unsafe { self.give_access(id, at) }?;
            (others.away, others.lacks_access) = (others.away - 1, false);
            self.tell(at, bytes, true);
        }
        Ok(())
    }

    /// Lets the device, and those that may use the page, use a mapping of it.
    ///
    /// # Safety
    /// The page is mapped at `at`.
    unsafe fn give_access(&self, id: PageId, at: DevicePtr) -> DeviceResult<()> {
        let (bytes, peers) = (self.bytes_of(id), self.get(id).peers);
        // SAFETY: the caller's promise.
        unsafe { self.device.set_access(at, bytes) }?;
        self.counters.calls.set_access.add(1);
        if peers != PeerSet::NONE {
            // SAFETY: likewise, and it has access now.
            unsafe { self.device.set_peer_access(at, bytes, peers, true) }?;
            self.counters.calls.set_access.add(1);
        }
        Ok(())
    }

    /// Whether there is a page with this id.
    pub(crate) fn knows(&self, id: PageId) -> bool {
        self.table.get(id.0 as usize).is_some_and(Option::is_some)
    }

    /// Whether the page sleeps, be it in part.
    pub(crate) fn sleeps(&self, id: PageId) -> bool {
        self.get(id).presence < Presence::Whole
    }

    /// Makes one page of two that have gone, the second of which lies behind the first.
    pub(crate) fn join_gone(&mut self, first: PageId, next: PageId) -> bool {
        let has_gone = |id| self.knows(id) && self.get(id).presence == Presence::Gone;
        if !has_gone(first) || !has_gone(next) {
            return false;
        }
        let (base_pages, peers) = (self.get(next).base_pages, self.get(next).peers);
        let joined = self.get_mut(first);
        joined.base_pages += base_pages;
        joined.peers = joined.peers.with(peers);
        self.table[next.0 as usize] = None;
        self.vacant.push(next.0);
        true
    }

    /// Length of a page in bytes.
    pub(crate) fn bytes_of(&self, id: PageId) -> u64 {
        self.bytes(self.get(id).base_pages)
    }

    /// Unmaps a page from its home, and gives its memory back. Where it sleeps already, nothing is done.
    ///
    /// # Safety
    /// The page is mapped at `at`, and elsewhere only where [others](OtherMappings) say so, and no work uses the range until it is awake.
    pub(crate) unsafe fn put_to_sleep(&mut self, id: PageId, at: DevicePtr) -> DeviceResult<()> {
        let bytes = self.bytes_of(id);
        if self.get(id).presence > Presence::Unmapped {
            self.tell(at, bytes, false);
            // SAFETY: it is mapped there; the rest is the caller's promise.
            unsafe { self.device.unmap(at, bytes) }?;
            self.counters.calls.unmap.add(1);
            self.get_mut(id).presence = Presence::Unmapped;
        }
        if self.get(id).presence == Presence::Unmapped {
            // SAFETY: the handle is forgotten below.
            unsafe { self.device.release_page(self.handle(id).0) }?;
            self.counters.calls.release.add(1);
            self.get_mut(id).presence = Presence::Gone;
            self.limits.withdraw(bytes, &self.counters);
            self.counters.asleep.raise(bytes);
        }
        Ok(())
    }

    /// Gives a page memory again, and maps it at its home. Where it is awake already, nothing is done.
    ///
    /// # Safety
    /// The page's home is `at`.
    pub(crate) unsafe fn wake(&mut self, id: PageId, at: DevicePtr) -> Result<(), NoPage> {
        let bytes = self.bytes_of(id);
        if self.get(id).presence == Presence::Gone {
            let create = |device: &dyn Device, bytes| device.create_page(bytes).map(Backing::Handle);
            let backing = self.take_memory(bytes, create)?;
            self.counters.calls.create.add(1);
            self.counters.asleep.lower(bytes);
            let page = self.get_mut(id);
            (page.backing, page.presence) = (backing, Presence::Unmapped);
        }
        if self.get(id).presence == Presence::Unmapped {
            // SAFETY: the page has memory and is mapped nowhere. Its home is reserved, and empty while it is away.
            unsafe { self.device.map(at, bytes, self.handle(id).0) }?;
            self.counters.calls.map.add(1);
            self.get_mut(id).presence = Presence::WithoutAccess;
        }
        if self.get(id).presence == Presence::WithoutAccess {
            // SAFETY: just this range is mapped.
            unsafe { self.give_access(id, at) }?;
            self.get_mut(id).presence = Presence::Whole;
            self.tell(at, bytes, true);
        }
        Ok(())
    }
}

impl From<DeviceError> for NoPage {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::OutOfMemory { .. } => Self::Short(Shortage::Device),
            other => Self::Device(other),
        }
    }
}
