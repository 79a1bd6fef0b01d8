//! Pages that sleep: their memory goes back to the device, and their place in the table stays.
//!
//! A page goes down and up step by step. A step that fails leaves it where it was, so that the call can be made again.

use super::page::{Page, PageId, Presence, Refusal};
use super::pages::Pages;
use crate::device::{DevicePtr, DeviceResult};

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
