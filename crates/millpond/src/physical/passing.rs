//! Pages that pass to another pool of the same memory, while work may still use them where they are.
//!
//! The mapping that such a page has stays until the fence of that work is reached. The pool that received the page removes it.
//! Until then the page is *arriving*: whoever takes it comes behind the fence. The pool that it left keeps its place, as that of
//! a page that sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Backing, Page, PageId, Pages, Presence};
use crate::device::{DeviceError, DevicePtr, DeviceResult, PageHandle};
use crate::order::{Fence, Reached};

/// What pages pass behind, and how many of their mappings are still where they were.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) fence: Fence,
    mappings: AtomicU32,
}

impl Handover {
    /// Pages will pass behind the fence.
    pub(crate) fn behind(fence: Fence) -> Arc<Self> {
        Arc::new(Self { fence, mappings: AtomicU32::new(0) })
    }

    /// Whether all mappings are gone.
    fn is_over(&self) -> bool {
        // Acquire: pairs with the Release of who removed the last. Others may be mapped there from now on.
        self.mappings.load(Ordering::Acquire) == 0
    }
}

/// A mapping of a page in the addresses of the pool that the page comes from.
#[derive(Debug)]
pub(super) struct MappingElsewhere {
    at: DevicePtr,
    handover: Arc<Handover>,
}

/// A page between two pools.
#[derive(Debug)]
#[must_use = "a page that nobody receives is lost"]
pub(crate) struct Passing {
    handle: PageHandle,
    base_pages: u32,
    elsewhere: Option<MappingElsewhere>,
    /// Whether it has the bytes that it had when it left: nobody has mapped it since.
    pub(crate) is_intact: bool,
}

impl Pages {
    /// Whether the page is one that can pass: all of it is there, at home and nowhere else.
    pub(crate) fn may_pass(&self, id: PageId) -> bool {
        let page = self.get(id);
        page.presence == Presence::Whole && page.mappings == 1 && page.elsewhere.is_none()
    }

    /// Gives a page that [may pass](Self::may_pass) away. Its place stays, and so does its mapping there, until the fence is
    /// reached.
    ///
    /// # Safety
    /// The page's home is `at`, and all work that uses it there is behind the fence.
    pub(crate) unsafe fn pass_on(&mut self, id: PageId, at: DevicePtr, handover: &Arc<Handover>) -> Passing {
        let ((handle, bytes), page) = (self.handle(id), self.get_mut(id));
        // Relaxed: nobody else knows the mapping yet.
        handover.mappings.fetch_add(1, Ordering::Relaxed);
        (page.presence, page.left) = (Presence::Gone, Some(handover.clone()));
        let elsewhere = Some(MappingElsewhere { at, handover: handover.clone() });
        let passing = Passing { handle, base_pages: page.base_pages, elsewhere, is_intact: true };
        self.counters.reserved.lower(bytes);
        self.counters.asleep.raise(bytes);
        passing
    }

    /// Ensures the host's memory to receive so many pages.
    pub(crate) fn make_room_to_receive(&mut self, pages: usize) -> DeviceResult<()> {
        let all = self.table.len() + pages;
        let has_room = self.table.try_reserve(pages).is_ok()
            && self.vacant.try_reserve(all - self.vacant.len()).is_ok()
            && self.arriving.try_reserve(pages).is_ok();
        let bytes = (all * size_of::<Option<Page>>()) as u64;
        if has_room { Ok(()) } else { Err(DeviceError::HostMemory { what: "a list of pages", bytes }) }
    }

    /// Receives a page of another pool under the same limits, and parks it. There is [room](Self::make_room_to_receive). Returns
    /// its id, and its number, which no other page has.
    pub(crate) fn receive(&mut self, passing: Passing) -> (PageId, u64) {
        let Passing { handle, base_pages, elsewhere, is_intact } = passing;
        let is_mapped = elsewhere.is_some();
        let id = self.enter(Backing::Handle(handle), base_pages);
        let page = self.get_mut(id);
        (page.elsewhere, page.is_intact, page.mappings) = (elsewhere, is_intact, u32::from(is_mapped));
        let number = page.number;
        self.counters.reserved.raise(self.bytes(base_pages));
        if is_mapped {
            self.arriving.push(id);
        }
        self.park(id);
        (id, number)
    }

    /// Gives a page away again that was received with this number, if nobody has mapped it since.
    pub(crate) fn give_back(&mut self, (id, number): (PageId, u64)) -> Option<Passing> {
        let is_it = |page: &&Page| {
            page.number == number
                && page.is_intact
                && page.parked.is_some()
                && page.mappings == u32::from(page.elsewhere.is_some())
        };
        self.table.get(id.0 as usize)?.as_ref().filter(is_it)?;
        Some(self.give(id))
    }

    /// Gives away a parked page of so many base pages, which is mapped nowhere.
    pub(crate) fn give_parked(&mut self, base_pages: u32) -> Option<Passing> {
        let id = self.parked.of_length(base_pages, self).find(|id| self.get(*id).mappings == 0)?;
        Some(self.give(id))
    }

    fn give(&mut self, id: PageId) -> Passing {
        self.unpark(id);
        let (handle, bytes) = self.handle(id);
        let page = self.get_mut(id);
        let (elsewhere, base_pages) = (page.elsewhere.take(), page.base_pages);
        let passing = Passing { handle, base_pages, elsewhere, is_intact: page.is_intact };
        self.counters.reserved.lower(bytes);
        self.forget(id);
        passing
    }

    /// Whether the page's memory is another pool's now, and its mapping may still be at its home.
    pub(crate) fn is_leaving(&self, id: PageId) -> bool {
        self.handover_of(id).is_some()
    }

    /// What the page leaves behind, where its mapping may still be at its home.
    pub(crate) fn handover_of(&self, id: PageId) -> Option<&Arc<Handover>> {
        self.get(id).left.as_ref().filter(|handover| !handover.is_over())
    }

    /// Whether all of the page's memory is elsewhere.
    pub(crate) fn has_gone(&self, id: PageId) -> bool {
        self.get(id).presence == Presence::Gone
    }

    /// A page that [has gone](Self::has_gone) gets this memory. It is awake where its old mapping is still there. Else it
    /// [leaves](Self::is_leaving) no more, and has to [wake](Self::wake).
    pub(crate) fn return_home(&mut self, id: PageId, passing: Passing) {
        let (bytes, Passing { handle, elsewhere, .. }) = (self.bytes_of(id), passing);
        debug_assert!(self.has_gone(id) && elsewhere.is_some() == self.is_leaving(id));
        let page = self.get_mut(id);
        page.backing = Backing::Handle(handle);
        page.presence = if elsewhere.is_some() { Presence::Whole } else { Presence::Unmapped };
        page.left = None;
        if let Some(MappingElsewhere { handover, .. }) = elsewhere {
            // Release: as where one is removed.
            handover.mappings.fetch_sub(1, Ordering::Release);
        }
        self.counters.asleep.lower(bytes);
        self.counters.reserved.raise(bytes);
    }

    /// What a page that was received comes behind.
    pub(crate) fn arrives_behind(&self, id: PageId) -> Option<&Fence> {
        self.get(id).elsewhere.as_ref().map(|elsewhere| &elsewhere.handover.fence)
    }

    /// Whether mappings elsewhere are to be [reaped](Self::reap_arriving).
    #[inline]
    pub(crate) fn any_arriving(&self) -> bool {
        !self.arriving.is_empty()
    }

    /// The work that pages come behind, which were received, or that their mappings wait for, which left. As far as the host has
    /// memory.
    pub(crate) fn join_handovers(&self, fence: &mut Fence) {
        if !self.any_arriving() && self.counters.asleep.current() == 0 {
            return;
        }
        let mut last = None;
        for (_, page) in self.iter() {
            let elsewhere = page.elsewhere.as_ref().map(|elsewhere| &elsewhere.handover);
            let Some(handover) = elsewhere.or(page.left.as_ref()) else { continue };
            // Pages beside each other passed together.
            if last.replace(Arc::as_ptr(handover)) != Some(Arc::as_ptr(handover)) {
                _ = fence.try_join(&handover.fence);
            }
        }
    }

    /// Removes the mappings elsewhere of pages that were received, as far as `reached` says that their fence is. One that cannot
    /// be removed is tried again.
    pub(crate) fn reap_arriving(&mut self, reached: impl Fn(&Fence) -> Option<Reached>) {
        let mut arriving = std::mem::take(&mut self.arriving);
        let mut last = None;
        arriving.retain(|id| {
            // Where the page went back, another one may have its id.
            let known = self.table[id.0 as usize].as_ref().and_then(|page| page.elsewhere.as_ref());
            let Some(MappingElsewhere { handover, .. }) = known else { return false };
            let reached = match last {
                Some((of, reached)) if of == Arc::as_ptr(handover) => reached,
                _ => reached(&handover.fence),
            };
            last = Some((Arc::as_ptr(handover), reached));
            !reached.is_some_and(|reached| self.remove_elsewhere(*id, reached))
        });
        self.arriving = arriving;
    }

    /// `false` where the device refuses.
    fn remove_elsewhere(&mut self, id: PageId, reached: Reached) -> bool {
        let is_parked = self.is_parked(id);
        self.unpark(id);
        let elsewhere = self.get_mut(id).elsewhere.take();
        let is_gone = elsewhere.is_none_or(|elsewhere| {
            // SAFETY: the page is mapped there since before it passed. The fence is that of the work on it, as who gave it
            // promised, and no later work uses the addresses until the page has left.
            let idle = unsafe { self.lay_aside(id, elsewhere.at, reached) };
            // SAFETY: it is that mapping.
            let unmapped = unsafe { self.unmap(idle, elsewhere.at) };
            match unmapped {
                Ok(()) => _ = elsewhere.handover.mappings.fetch_sub(1, Ordering::Release),
                Err(_) => self.get_mut(id).elsewhere = Some(elsewhere),
            }
            unmapped.is_ok()
        });
        if is_parked {
            self.park(id);
        }
        is_gone
    }
}
