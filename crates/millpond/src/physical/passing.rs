//! Pages that pass to another pool of the same memory, while work may still use them where they are.
//!
//! The mapping that such a page has stays until the fence of that work is reached. The pool that received the page removes it.
//! Until then the page is *arriving*: whoever takes it comes behind the fence. The pool that it left keeps its place, as that of
//! a page that sleeps.

use std::sync::Arc;

use super::handover::{Handover, MappingElsewhere};
use super::page::{Backing, LENGTHS, Page, PageId, Presence};
use super::pages::Pages;
use super::parked::ParkedCursor;
use crate::device::{DeviceError, DevicePtr, DeviceResult, PageHandle};
use crate::order::{Fence, Reached};

/// A page between two pools.
#[derive(Debug)]
#[must_use = "a page that nobody receives is lost"]
pub(crate) struct Passing {
    handle: PageHandle,
    pub(crate) base_pages: u32,
    elsewhere: Option<MappingElsewhere>,
    /// Whether it has the bytes that it had when it left: nobody has mapped it since.
    pub(crate) is_intact: bool,
}

/// Gives a page away that [may pass](Page::may_pass). Its place stays, and so does its mapping there, until the fence is reached.
///
/// # Safety
/// The page's home is `at`, and all work that uses it there is behind the fence.
pub(crate) unsafe fn pass_on(
    pages: &mut Pages,
    id: PageId,
    at: DevicePtr,
    handover: &Arc<Handover>,
) -> Passing {
    let ((handle, bytes), page) = (pages.handle(id), pages.get_mut(id));
    handover.add();
    (page.presence, page.left, page.has_new_peers) = (Presence::Gone, Some(handover.clone()), false);
    let elsewhere = Some(MappingElsewhere { at, handover: handover.clone() });
    let passing = Passing { handle, base_pages: page.base_pages, elsewhere, is_intact: true };
    pages.counters.reserved.lower(bytes);
    pages.counters.asleep.raise(bytes);
    passing
}

/// Ensures the host's memory to receive so many pages.
pub(crate) fn make_room(pages: &mut Pages, more: usize) -> DeviceResult<()> {
    let all = pages.table.len() + more;
    let has_room = pages.table.try_reserve(more).is_ok()
        && pages.vacant.try_reserve(all - pages.vacant.len()).is_ok()
        && pages.arriving.try_reserve(more).is_ok();
    let bytes = (all * size_of::<Option<Page>>()) as u64;
    if has_room { Ok(()) } else { Err(DeviceError::HostMemory { what: "a list of pages", bytes }) }
}

/// Receives a page of another pool under the same limits, and parks it. There is [room](make_room). Returns its id, and its number,
/// which no other page has.
pub(crate) fn receive(pages: &mut Pages, passing: Passing) -> (PageId, u64) {
    let Passing { handle, base_pages, elsewhere, is_intact } = passing;
    let is_mapped = elsewhere.is_some();
    let id = pages.enter(Backing::Handle(handle), base_pages);
    let page = pages.get_mut(id);
    (page.elsewhere, page.is_intact, page.mappings) = (elsewhere, is_intact, u32::from(is_mapped));
    let number = page.number;
    pages.counters.reserved.raise(pages.bytes_of(id));
    if is_mapped {
        pages.arriving.push(id);
    }
    pages.park(id);
    (id, number)
}

/// Gives a page away again that was received with this number, if nobody has mapped it since. One that is still mapped where it was,
/// only if that mapping `is_of_use`.
pub(crate) fn give_back(pages: &mut Pages, (id, number): (PageId, u64), is_of_use: bool) -> Option<Passing> {
    let is_it = |page: &&Page| {
        page.number == number
            && page.is_intact
            && page.parked.is_some()
            && page.mappings == u32::from(page.elsewhere.is_some())
            && (is_of_use || page.elsewhere.is_none())
    };
    pages.table.get(id.0 as usize)?.as_ref().filter(is_it)?;
    pages.unpark(id);
    // The mapping becomes its page's again.
    let page = pages.get_mut(id);
    (page.mappings, page.is_intact) = (0, false);
    let elsewhere = page.elsewhere.take();
    Some(Passing { elsewhere, is_intact: true, ..give(pages, id) })
}

/// Gives away a parked page of so many base pages, which is mapped nowhere.
pub(crate) fn give_parked(pages: &mut Pages, base_pages: u32) -> Option<Passing> {
    let mut parked = ParkedCursor::of(pages).of_length(base_pages);
    let id = parked.find(|id| pages.get(*id).mappings == 0)?;
    drop(parked);
    Some(give(pages, id))
}

/// Gives all parked pages that are mapped nowhere to another pool under the same limits, as far as the host has memory for it.
/// Returns their bytes.
pub(crate) fn pass_parked(pages: &mut Pages, there: &mut Pages) -> u64 {
    let mut bytes = 0;
    for base_pages in (0..LENGTHS).map(|length| 1 << length) {
        while make_room(there, 1).is_ok()
            && let Some(page) = give_parked(pages, base_pages)
        {
            let (id, _) = receive(there, page);
            bytes += there.bytes_of(id);
        }
    }
    bytes
}

/// A parked page of so many base pages that arrives, and the work that it comes behind.
pub(crate) fn find_arriving(pages: &Pages, base_pages: u32) -> Option<(PageId, &Fence)> {
    let mut parked = ParkedCursor::of_arriving(pages).of_length(base_pages);
    let id = parked.find(|id| pages.get(*id).mappings == 1)?;
    Some((id, pages.get(id).arrives_behind()?))
}

/// Gives away a page that lies nowhere. Its mappings stay as they are, and with them its record, until they are
/// removed as those of any page. Whoever gets it comes behind the work on them.
pub(crate) fn give(pages: &mut Pages, id: PageId) -> Passing {
    pages.unpark(id);
    let (handle, bytes) = pages.handle(id);
    let page = pages.get_mut(id);
    debug_assert!(page.home.is_none(), "the page lies nowhere");
    let passing = Passing { handle, base_pages: page.base_pages, elsewhere: None, is_intact: false };
    page.backing = Backing::Given;
    pages.counters.reserved.lower(bytes);
    pages.forget_given(id);
    passing
}

/// A page that [has gone](Page::has_gone) gets this memory, which is its own again, or another page's if nothing is mapped at its
/// home. It is awake where its old mapping is still there. Else it has to [wake](Pages::wake).
pub(crate) fn return_home(pages: &mut Pages, id: PageId, passing: Passing) {
    let (bytes, Passing { handle, elsewhere, .. }) = (pages.bytes_of(id), passing);
    let page = pages.get_mut(id);
    debug_assert!(page.has_gone() && (elsewhere.is_none() || page.leaves_behind().is_some()));
    page.backing = Backing::Handle(handle);
    page.presence = if elsewhere.is_some() { Presence::Whole } else { Presence::Unmapped };
    page.left = None;
    if let Some(MappingElsewhere { handover, .. }) = elsewhere {
        handover.remove();
    }
    pages.counters.asleep.lower(bytes);
    pages.counters.reserved.raise(bytes);
}

/// The work that pages come behind, which were received, or that their mappings wait for, which left. As far as the host has
/// memory.
pub(crate) fn join_handovers(pages: &Pages, fence: &mut Fence) {
    if pages.arriving.is_empty() && pages.counters.asleep.current() == 0 {
        return;
    }
    let mut last = None;
    for (_, page) in pages.iter() {
        let elsewhere = page.elsewhere.as_ref().map(|elsewhere| &elsewhere.handover);
        let Some(handover) = elsewhere.or(page.left.as_ref()) else { continue };
        // Pages beside each other passed together.
        if last.replace(Arc::as_ptr(handover)) != Some(Arc::as_ptr(handover)) {
            _ = fence.try_join(&handover.fence);
        }
    }
}

/// Removes the mappings elsewhere of pages that were received, as far as `reached` says that their fence is. One that cannot be
/// removed is tried again at the next call, and this one says what the device said.
pub(crate) fn reap_arriving(
    pages: &mut Pages,
    reached: impl Fn(&Fence) -> Option<Reached>,
) -> DeviceResult<()> {
    if pages.arriving.is_empty() {
        return Ok(());
    }
    let mut all_removed = Ok(());
    let mut arriving = std::mem::take(&mut pages.arriving);
    let mut last = None;
    arriving.retain(|id| {
        // Where the page went back, another one may have its id.
        let known = pages.table[id.0 as usize].as_ref().and_then(|page| page.elsewhere.as_ref());
        let Some(MappingElsewhere { handover, .. }) = known else { return false };
        let reached = match last {
            Some((of, reached)) if of == Arc::as_ptr(handover) => reached,
            _ => reached(&handover.fence),
        };
        last = Some((Arc::as_ptr(handover), reached));
        let Some(reached) = reached else { return true };
        let removed = remove_elsewhere(pages, *id, reached);
        let stays = removed.is_err();
        if stays {
            all_removed = removed;
        }
        stays
    });
    pages.arriving = arriving;
    all_removed
}

fn remove_elsewhere(pages: &mut Pages, id: PageId, reached: Reached) -> DeviceResult<()> {
    let is_parked = pages.is_parked(id);
    pages.unpark(id);
    let elsewhere = pages.get_mut(id).elsewhere.take();
    let removed = elsewhere.map_or(Ok(()), |elsewhere| {
        // SAFETY: the page is mapped there since before it passed. The fence is that of the work on it, as who gave it
        // promised, and no later work uses the addresses until the page has left.
        let idle = unsafe { pages.lay_aside(id, elsewhere.at, reached) };
        // SAFETY: it is that mapping.
        let unmapped = unsafe { pages.unmap(idle, elsewhere.at) };
        match unmapped {
            Ok(()) => elsewhere.handover.remove(),
            Err(_) => pages.get_mut(id).elsewhere = Some(elsewhere),
        }
        unmapped
    });
    if is_parked {
        pages.park(id);
    }
    removed
}
