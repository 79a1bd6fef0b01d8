//! All pages of one pool: each is created, mapped, laid aside, parked and released here.

use std::cell::Cell;
use std::sync::Arc;

use super::page::{Backing, Home, MapFailure, Page, PageId, Parked, ParkedLink, Presence, Refusal};
use super::watch::{self, Mapping};
use crate::budgets::Limits;
use crate::device::{Device, DeviceError, DevicePtr, DeviceResult, PageHandle, PeerSet};
use crate::figures::counters::Counters;
use crate::order::Reached;

/// A mapping of this page that is *idle*: the work on it is complete, no later work can use it, and whoever watches mappings
/// was told so. Only such a mapping is removed. [`Pages::lay_aside`] makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdleMapping(PageId);

impl IdleMapping {
    /// Whose mapping it is.
    pub(crate) fn page(self) -> PageId {
        self.0
    }
}

/// All pages of one pool.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(super) device: Arc<dyn Device>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) limits: Limits,
    base_page_bytes: u64,
    pub(super) table: Vec<Option<Page>>,
    pub(super) vacant: Vec<u32>,
    pub(super) parked: Parked,
    /// Those parked that are mapped elsewhere, too.
    pub(super) parked_arriving: Parked,
    /// All that are mapped elsewhere, and some that were.
    pub(super) arriving: Vec<PageId>,
    /// Base pages of all pages.
    pub(crate) base_pages: u64,
    /// How many pages were ever created.
    taken: u64,
    /// How many places pages were ever claimed for.
    marks: Cell<u32>,
    /// The other devices that may use every page, as soon as it is mapped.
    pub(crate) peers: PeerSet,
}

impl Pages {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        counters: Arc<Counters>,
        limits: Limits,
        base_page_bytes: u64,
    ) -> Self {
        Self {
            device,
            counters,
            limits,
            base_page_bytes,
            table: Vec::new(),
            vacant: Vec::new(),
            parked: Parked::default(),
            parked_arriving: Parked::default(),
            arriving: Vec::new(),
            base_pages: 0,
            taken: 0,
            marks: Cell::new(0),
            peers: PeerSet::NONE,
        }
    }

    /// Where they come from.
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// No pages yet, of the same device, limits, counters and peers.
    pub(crate) fn none_yet(&self) -> Self {
        let (device, counters, limits) = (self.device.clone(), self.counters.clone(), self.limits.clone());
        Self { peers: self.peers, ..Self::new(device, counters, limits, self.base_page_bytes) }
    }

    pub(crate) fn get(&self, id: PageId) -> &Page {
        self.table[id.0 as usize].as_ref().expect("a page id in use names a page")
    }

    pub(crate) fn get_mut(&mut self, id: PageId) -> &mut Page {
        self.table[id.0 as usize].as_mut().expect("a page id in use names a page")
    }

    /// Where the page with this id lies, if there is one and it lies somewhere.
    #[inline]
    pub(crate) fn home(&self, id: PageId) -> Option<Home> {
        let page = self.table.get(id.0 as usize)?.as_ref()?;
        page.home.map(|(range, first)| (range, (first, first + u64::from(page.base_pages))))
    }

    /// What pages are marked with that are claimed for one more place. It comes again after 2^32 places: a page that nobody marked
    /// since is passed over then, once.
    pub(crate) fn next_mark(&self) -> u32 {
        self.marks.set(self.marks.get().wrapping_add(1));
        self.marks.get()
    }

    /// Every page that is held, for recounts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PageId, &Page)> {
        self.table.iter().zip(0..).filter_map(|(page, id)| Some((PageId(id), page.as_ref()?)))
    }

    /// All ids that may name a page.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PageId> + use<> {
        (0..self.table.len() as u32).map(PageId)
    }

    /// Pages that were ever held at once, at most.
    pub(crate) fn records(&self) -> usize {
        self.table.len()
    }

    fn bytes(&self, base_pages: u32) -> u64 {
        u64::from(base_pages) * self.base_page_bytes
    }

    /// Creates a page of `base_pages`, mapped nowhere: map or park it.
    pub(crate) fn create(&mut self, base_pages: u32) -> Result<PageId, Refusal> {
        let id = self.add(base_pages, Self::create_page)?;
        self.counters.calls.create.add(1);
        Ok(id)
    }

    pub(super) fn create_page(device: &dyn Device, bytes: u64) -> DeviceResult<Backing> {
        device.create_page(bytes).map(Backing::Handle)
    }

    /// Has `take` take a segment of `base_pages`, which is a page that never moves: it is mapped where it lies from the start. The
    /// usual peers have no access to it yet. Returns where.
    pub(crate) fn take_segment(
        &mut self,
        base_pages: u32,
        take: impl FnOnce(&dyn Device, u64) -> DeviceResult<DevicePtr>,
    ) -> Result<(PageId, DevicePtr), Refusal> {
        let mut at = DevicePtr::NULL;
        let id = self.add(base_pages, |device, bytes| {
            at = take(device, bytes)?;
            Ok(Backing::Segment(at))
        })?;
        self.counters.calls.alloc.add(1);
        self.get_mut(id).mappings = 1;
        Ok((id, at))
    }

    /// Where a segment lies; `None` for other pages.
    pub(crate) fn segment_at(&self, id: PageId) -> Option<DevicePtr> {
        match self.get(id).backing {
            Backing::Segment(at) => Some(at),
            Backing::Handle(_) | Backing::Given => None,
        }
    }

    /// Forgets a segment that the driver has again.
    pub(crate) fn forget_segment(&mut self, id: PageId) {
        self.counters.calls.free.add(1);
        self.limits.withdraw(self.bytes_of(id), &self.counters);
        self.forget(id);
    }

    /// Takes memory for a page of `base_pages` from the device.
    fn add(
        &mut self,
        base_pages: u32,
        take: impl FnOnce(&dyn Device, u64) -> DeviceResult<Backing>,
    ) -> Result<PageId, Refusal> {
        let bytes = self.bytes(base_pages);
        if !self.make_room() {
            let bytes = (self.table.len() * size_of::<Option<Page>>()) as u64;
            return Err(DeviceError::HostMemory { what: "a list of pages", bytes }.into());
        }
        let backing = self.take_memory(bytes, take)?;
        Ok(self.enter(backing, base_pages))
    }

    /// Enters a page, for which there is [room](Self::make_room). It is mapped nowhere.
    pub(super) fn enter(&mut self, backing: Backing, base_pages: u32) -> PageId {
        self.base_pages += u64::from(base_pages);
        self.taken += 1;
        let page = Page {
            backing,
            base_pages,
            mappings: 0,
            presence: Presence::Whole,
            home: None,
            peers: PeerSet::NONE,
            parked: None,
            left: None,
            elsewhere: None,
            is_intact: false,
            has_new_peers: false,
            number: self.taken - 1,
            mark: Cell::new(0),
        };
        match self.vacant.pop() {
            Some(id) => {
                self.table[id as usize] = Some(page);
                PageId(id)
            }
            None => {
                self.table.push(Some(page));
                PageId(u32::try_from(self.table.len() - 1).expect("fewer than 2^32 pages"))
            }
        }
    }

    /// How many pages were ever created. So whoever asks before it creates some can tell them from others.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether the page was created when so many [had been](Self::taken), or later.
    pub(crate) fn is_younger(&self, id: PageId, taken: u64) -> bool {
        self.get(id).number >= taken
    }

    /// Takes memory from the device within the limits, and counts it.
    pub(super) fn take_memory(
        &self,
        bytes: u64,
        take: impl FnOnce(&dyn Device, u64) -> DeviceResult<Backing>,
    ) -> Result<Backing, Refusal> {
        self.limits.admit(bytes, self.device.as_ref()).map_err(|what| Refusal::Short { what, bytes })?;
        let taken = take(self.device.as_ref(), bytes).inspect_err(|_| self.limits.refuse(bytes))?;
        self.limits.count(bytes, &self.counters);
        Ok(taken)
    }

    /// Forgets a page whose memory is the device's again.
    pub(super) fn forget(&mut self, id: PageId) {
        self.base_pages -= u64::from(self.get(id).base_pages);
        self.table[id.0 as usize] = None;
        self.vacant.push(id.0);
    }

    /// Forgets a page that was given away, once it has no mapping here.
    pub(super) fn forget_given(&mut self, id: PageId) {
        if self.get(id).is_given() && self.get(id).mappings == 0 {
            self.forget(id);
        }
    }

    /// Reserves the host's memory for one more page, and to release any; `false` where it is refused.
    fn make_room(&mut self) -> bool {
        if !self.vacant.is_empty() {
            return true;
        }
        let all = |table: &Vec<_>, list: usize| table.capacity() - list;
        self.table.try_reserve(1).is_ok()
            && self.vacant.try_reserve_exact(all(&self.table, self.vacant.len())).is_ok()
    }

    /// Maps the page at `at` and makes it accessible there, also to the usual peers. The mapping in use is still the one before.
    ///
    /// # Safety
    /// The range is the caller's, reserved from this device, and nothing is mapped there.
    pub(crate) unsafe fn map(&mut self, id: PageId, at: DevicePtr) -> Result<(), MapFailure> {
        let mut there = Presence::Unmapped;
        self.get_mut(id).is_intact = false;
        // SAFETY: the caller's promise.
        let Err(error) = (unsafe { self.bring_back(id, at, &mut there, self.peers) }) else {
            self.get_mut(id).mappings += 1;
            return Ok(());
        };
        // SAFETY: nobody was told of the mapping, if there is one.
        Err(match unsafe { self.take_away(id, at, &mut there) } {
            Ok(()) => MapFailure::Clean(error),
            Err(_) => {
                self.get_mut(id).mappings += 1;
                MapFailure::Stuck(error)
            }
        })
    }

    /// Lets other devices use the page through the mapping in use, which is at `at`, or no longer. Those that have what is
    /// asked for cost nothing.
    ///
    /// # Safety
    /// The page is mapped there by [`map`](Self::map). Where access is taken away, no work of the peers uses the range.
    pub(crate) unsafe fn set_peer_access(
        &mut self,
        id: PageId,
        at: DevicePtr,
        peers: PeerSet,
        allowed: bool,
    ) -> DeviceResult<()> {
        let had = self.get(id).peers;
        let has = if allowed { had.with(peers) } else { had.without(peers) };
        if has != had {
            let change = if allowed { has.without(had) } else { had.without(has) };
            // All are one thing for the device, of which it keeps a list.
            let change = if peers == PeerSet::ALL { peers } else { change };
            // SAFETY: the caller's promise.
            unsafe { self.set_peer_access_elsewhere(id, at, change, allowed) }?;
            let page = self.get_mut(id);
            (page.peers, page.has_new_peers) = (has, true);
        }
        Ok(())
    }

    /// As [`set_peer_access`](Self::set_peer_access), through a mapping that is not in use, and stays for graphs. Asks the device
    /// each time.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn set_peer_access_elsewhere(
        &self,
        id: PageId,
        at: DevicePtr,
        peers: PeerSet,
        allowed: bool,
    ) -> DeviceResult<()> {
        // A page that sleeps has no mapping now, and gets one for its peers when it wakes.
        if !self.sleeps(id) {
            // SAFETY: the caller's promise.
            unsafe { self.device.set_peer_access(at, self.bytes_of(id), peers, allowed) }?;
            self.counters.calls.set_access.add(1);
        }
        Ok(())
    }

    fn tell(&self, at: DevicePtr, bytes: u64, is_mapped: bool) {
        watch::tell(Mapping { device: &*self.device, at, bytes, is_mapped });
    }

    /// Lays the page's mapping at `at` aside, on which the work is complete. Whoever watches mappings is told that it is gone.
    ///
    /// # Safety
    /// The page is mapped there by [`map`](Self::map). What was reached is the fence of the work on the mapping, and no later work
    /// uses it, until it is [taken up](Self::take_up).
    pub(crate) unsafe fn lay_aside(&self, id: PageId, at: DevicePtr, _: Reached) -> IdleMapping {
        self.tell(at, self.bytes_of(id), false);
        IdleMapping(id)
    }

    /// The mapping at its home of a page that sleeps: no work has used it since. Whoever watches was told then.
    pub(crate) fn asleep(&self, id: PageId) -> Option<IdleMapping> {
        self.sleeps(id).then_some(IdleMapping(id))
    }

    /// Takes the idle mapping at `at` in use again.
    pub(crate) fn take_up(&self, mapping: IdleMapping, at: DevicePtr) {
        self.tell(at, self.bytes_of(mapping.0), true);
    }

    /// Removes the idle mapping at `at`: this is the only way in which a mapping goes that was in use, but for sleep. After an
    /// error it no longer is laid aside.
    ///
    /// # Safety
    /// It is the mapping at `at`.
    pub(crate) unsafe fn unmap(&mut self, mapping: IdleMapping, at: DevicePtr) -> DeviceResult<()> {
        let IdleMapping(id) = mapping;
        let mut there = self.get(id).presence.min(Presence::WithoutAccess);
        // SAFETY: the page is mapped there, as far as it is awake. The mapping is idle.
        unsafe { self.take_away(id, at, &mut there) }.inspect_err(|_| {
            if !self.sleeps(id) {
                self.take_up(mapping, at);
            }
        })?;
        self.get_mut(id).mappings -= 1;
        self.forget_given(id);
        Ok(())
    }

    /// Gives a page that is mapped nowhere and in nobody's hands back to the device. On an error it is
    /// parked. One that sleeps is forgotten.
    pub(crate) fn release(&mut self, id: PageId) -> DeviceResult<u64> {
        let page = self.get(id);
        debug_assert_eq!(page.mappings, 0, "a page is released only once it is mapped nowhere");
        let presence = page.presence;
        let (handle, bytes) = self.handle(id);
        if presence == Presence::Gone {
            self.counters.asleep.lower(bytes);
        } else {
            // SAFETY: the page leaves the table below, and with it every trace of the handle.
            if let Err(error) = unsafe { self.device.release_page(handle) } {
                self.get_mut(id).presence = Presence::Whole;
                self.park(id);
                return Err(error);
            }
            self.counters.calls.release.add(1);
            self.limits.withdraw(bytes, &self.counters);
        }
        self.forget(id);
        Ok(bytes)
    }

    /// Whether the page is a segment.
    pub(crate) fn is_segment(&self, id: PageId) -> bool {
        self.segment_at(id).is_some()
    }

    /// The device's name of a page that is no segment, and its bytes.
    pub(crate) fn handle(&self, id: PageId) -> (PageHandle, u64) {
        let Backing::Handle(handle) = self.get(id).backing else {
            unreachable!("neither a segment nor a page of another pool has a handle")
        };
        (handle, self.bytes_of(id))
    }

    /// Whether the devices that may use a page, through the mapping in use, are those that may use every page.
    pub(crate) fn has_usual_peers(&self, id: PageId) -> bool {
        self.get(id).peers == self.peers
    }

    /// The memory held in pages, in bytes, by recount.
    pub(crate) fn recount_bytes(&self) -> u64 {
        let held = self.iter().filter(|(_, page)| page.presence > Presence::Gone && !page.is_given());
        held.map(|(_, page)| self.bytes(page.base_pages)).sum()
    }

    /// Length of a page in bytes.
    pub(crate) fn bytes_of(&self, id: PageId) -> u64 {
        self.bytes(self.get(id).base_pages)
    }

    /// Whether the page sleeps, be it in part.
    pub(crate) fn sleeps(&self, id: PageId) -> bool {
        self.get(id).presence < Presence::Whole
    }

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

    /// Whether the page is parked.
    pub(crate) fn is_parked(&self, id: PageId) -> bool {
        self.get(id).parked.is_some()
    }

    /// Parks a page that lies nowhere.
    pub(crate) fn park(&mut self, id: PageId) {
        debug_assert!(self.get(id).home.is_none() && !self.is_parked(id));
        let first = self.first_parked(id);
        let behind = first.replace(id);
        self.get_mut(id).parked = Some(ParkedLink { before: None, behind });
        if let Some(link) = behind.and_then(|behind| self.get_mut(behind).parked.as_mut()) {
            link.before = Some(id);
        }
    }

    /// Takes this page, if it is parked.
    pub(crate) fn unpark(&mut self, id: PageId) {
        let Some(ParkedLink { before, behind }) = self.get_mut(id).parked.take() else { return };
        match before.and_then(|before| self.get_mut(before).parked.as_mut()) {
            Some(link) => link.behind = behind,
            None => *self.first_parked(id) = behind,
        }
        if let Some(link) = behind.and_then(|behind| self.get_mut(behind).parked.as_mut()) {
            link.before = before;
        }
    }

    fn first_parked(&mut self, id: PageId) -> &mut Option<PageId> {
        let Page { base_pages, elsewhere, .. } = self.get(id);
        debug_assert!(base_pages.is_power_of_two());
        let (length, is_arriving) = (base_pages.ilog2() as usize, elsewhere.is_some());
        let list = if is_arriving { &mut self.parked_arriving } else { &mut self.parked };
        &mut list.first[length]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fixtures::Bench;

    #[test]
    fn pages_created_since_are_told_from_others() {
        let Bench { pool, .. } = Bench::new(|pool| pool);
        let mut state = pool.inner().state.lock();
        let pages = &mut state.arenas.own.pages;
        let first = pages.create(1).unwrap();
        let taken = pages.taken();
        let second = pages.create(1).unwrap();
        assert!(!pages.is_younger(first, taken) && pages.is_younger(second, taken));
        [first, second].into_iter().for_each(|page| pages.park(page));
    }

    #[test]
    fn memory_of_captures_is_for_the_same_peers() {
        let Bench { pool, .. } = Bench::new(|pool| pool);
        let mut state = pool.inner().state.lock();
        let pages = &mut state.arenas.own.pages;
        pages.peers = PeerSet::ALL;
        assert_eq!(pages.none_yet().peers, PeerSet::ALL);
        pages.peers = PeerSet::NONE;
    }
}
