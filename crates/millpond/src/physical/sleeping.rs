//! Pages that sleep: their memory goes back to the device, and their place in the table stays.
//!
//! A page goes down and up step by step. A step that fails leaves it where it was, so that the call can be made again.

use super::{Page, PageId, Pages, Refusal};
use crate::device::{DevicePtr, DeviceResult, PeerSet};

/// How much of a page is there, at one of its addresses. Less than all of it only while its pool sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Presence {
    /// Its memory is the device's again. The handle names nothing.
    Gone,
    /// It has memory, and is not mapped there.
    Unmapped,
    /// It is mapped there, and the device may not use it.
    WithoutAccess,
    /// All of it.
    Whole,
}

/// Where else than at home a page is mapped, for graphs that were captured. While the page sleeps, these mappings are away.
#[derive(Debug, Default)]
pub(crate) struct OtherMappings(Vec<(DevicePtr, Presence)>);

impl OtherMappings {
    /// Adds one. `false` where the host has no memory for it.
    pub(crate) fn add(&mut self, at: DevicePtr) -> bool {
        let has_room = self.0.try_reserve(1).is_ok();
        if has_room {
            self.0.push((at, Presence::Whole));
        }
        has_room
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

impl Pages {
    /// Removes a mapping of a page, as far as it is there.
    ///
    /// # Safety
    /// The page is mapped at `at`, as far as `there` says, and no pending or later work uses the range.
    pub(super) unsafe fn take_away(
        &self,
        id: PageId,
        at: DevicePtr,
        there: &mut Presence,
    ) -> DeviceResult<()> {
        let bytes = self.bytes_of(id);
        if *there == Presence::Whole {
            self.tell(at, bytes, false);
        }
        if *there > Presence::Unmapped {
            // SAFETY: the caller's promise.
            let unmapped = unsafe { self.device.unmap(at, bytes) };
            unmapped.inspect_err(|_| {
                if *there == Presence::Whole {
                    self.tell(at, bytes, true);
                }
            })?;
            self.counters.calls.unmap.add(1);
            *there = Presence::Unmapped;
        }
        Ok(())
    }

    /// Maps a page that has memory, and lets the device and these peers use it there, as far as that was not done.
    ///
    /// # Safety
    /// The range is the page's, reserved from this device. Nothing is mapped there but what `there` says.
    pub(super) unsafe fn bring_back(
        &self,
        id: PageId,
        at: DevicePtr,
        there: &mut Presence,
        peers: PeerSet,
    ) -> DeviceResult<()> {
        let (handle, bytes) = self.handle(id);
        if *there == Presence::Unmapped {
            // SAFETY: the page is in the table, so not released. The range is the caller's promise.
            unsafe { self.device.map(at, bytes, handle) }?;
            self.counters.calls.map.add(1);
            *there = Presence::WithoutAccess;
        }
        if *there == Presence::WithoutAccess {
            // SAFETY: just this range is mapped.
            unsafe { self.device.set_access(at, bytes) }?;
            self.counters.calls.set_access.add(1);
            if peers != PeerSet::NONE {
                // SAFETY: likewise, and it has access now.
                unsafe { self.device.set_peer_access(at, bytes, peers, true) }?;
                self.counters.calls.set_access.add(1);
            }
            *there = Presence::Whole;
            self.tell(at, bytes, true);
        }
        Ok(())
    }

    /// Removes the other mappings of a page that is to sleep. After an error it can be called again, as its counterpart can.
    ///
    /// # Safety
    /// The page is mapped there, and no work uses it until it is awake.
    pub(crate) unsafe fn lay_down(&mut self, id: PageId, others: &mut OtherMappings) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        others.0.iter_mut().try_for_each(|(at, there)| unsafe { self.take_away(id, *at, there) })
    }

    /// Undoes [`lay_down`](Self::lay_down), once the page is awake at home.
    ///
    /// # Safety
    /// The page has been mapped there, and nothing else has since.
    pub(crate) unsafe fn get_up(&mut self, id: PageId, others: &mut OtherMappings) -> DeviceResult<()> {
        let peers = self.get(id).peers;
        // SAFETY: the page has memory. The addresses are its own, and empty while it is away.
        others.0.iter_mut().try_for_each(|(at, there)| unsafe { self.bring_back(id, *at, there, peers) })
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
        let (bytes, mut there) = (self.bytes_of(id), self.get(id).presence);
        // SAFETY: the caller's promise.
        let unmapped = unsafe { self.take_away(id, at, &mut there) };
        self.get_mut(id).presence = there;
        unmapped?;
        if there == Presence::Unmapped {
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
    pub(crate) unsafe fn wake(&mut self, id: PageId, at: DevicePtr) -> Result<(), Refusal> {
        if self.get(id).presence == Presence::Gone {
            let bytes = self.bytes_of(id);
            let backing = self.take_memory(bytes, Self::create_page)?;
            self.counters.calls.create.add(1);
            self.counters.asleep.lower(bytes);
            let page = self.get_mut(id);
            (page.backing, page.presence) = (backing, Presence::Unmapped);
        }
        let Page { presence: mut there, peers, .. } = *self.get(id);
        // SAFETY: the page has memory. Its home is reserved, and empty while it is away.
        let mapped = unsafe { self.bring_back(id, at, &mut there, peers) };
        self.get_mut(id).presence = there;
        Ok(mapped?)
    }
}
