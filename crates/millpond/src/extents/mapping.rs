//! The miss path: where no free extent fits, choose a place in address space and put pages behind it.

use std::time::Duration;

use super::donors::Donors;
use super::extent::ExtentState;
use super::page_map::RegionMap;
use super::placement::Placement;
use super::regions::Region;
use super::search::Request;
use super::{Arena, ExtentId, Refusal, Zone};
use crate::device::{DeviceError, DevicePtr};
use crate::order::{Fence, Stream};
use crate::physical::{MapFailure, NoPage, PageId, Shortage};
use crate::policy::ledger::Balance;

/// Pages enough for a large block, and where much was saved.
const PAGES_IN_BLOCK: u64 = 12;
const MORE_PAGES_IN_BLOCK: u64 = 24;

/// What is much: some five hundred pages on an H200.
const MUCH_SAVED: Duration = Duration::from_millis(20);

/// Pages that are enough for all that is held, while there is time and when there is none.
const MANY_PAGES: u64 = 512;
const FEW_PAGES: u64 = 96;

/// Where pages for a place may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageOrigin {
    /// From free extents elsewhere, as long as there are some; else from the device.
    All,
    /// From the device only.
    Growth,
}

/// Base pages of an unmapped extent that are being backed. They are on no index meanwhile: each page would enter it
/// only to leave it for the next.
#[derive(Debug)]
pub(super) struct MapCursor {
    region: u32,
    /// The next base page to be backed.
    base_page: u64,
    end: u64,
    /// What is backed already.
    pub(super) backed: Option<ExtentId>,
    /// What is unmapped from `base_page` on, if anything is.
    pub(super) unmapped: Option<ExtentId>,
}

impl MapCursor {
    /// All base pages of an unmapped extent, which is on no index.
    pub(super) fn over(region: u32, (base_page, end): (u64, u64), unmapped: ExtentId) -> Self {
        Self { region, base_page, end, backed: None, unmapped: Some(unmapped) }
    }

    /// Base pages that are still to be backed.
    pub(super) fn room(&self) -> u32 {
        u32::try_from(self.end - self.base_page).unwrap_or(u32::MAX)
    }
}

impl Arena {
    /// Backs a place for `request`; returns the free extent there and the unit in it to start at.
    #[cold]
    pub(super) fn back(
        &mut self,
        request: &Request,
        stream: &Stream,
        origin: PageOrigin,
    ) -> Result<(ExtentId, u64), Refusal> {
        if !self.device.properties().virtual_memory {
            return self.back_by_segment(request);
        }
        self.reap();
        let place = self.choose_place(request, stream)?;
        let mut donors = match origin {
            PageOrigin::All => self.donors(&place, stream),
            PageOrigin::Growth => Donors::default(),
        };
        let filled = self.fill(request, &place, &mut donors, stream);
        self.close_donor(&mut donors);
        let whole = filled.map(|()| self.join_window(&place));
        // Last, since it joins extents that the place or the donors may name.
        for id in &donors.emptied {
            self.make_unmapped(*id);
        }
        donors.clear();
        self.spare_donors = donors;
        Ok((whole?, place.start))
    }

    /// Puts pages behind every base page of the place. On an error, what was backed so far is free memory.
    fn fill(
        &mut self,
        request: &Request,
        place: &Placement,
        donors: &mut Donors,
        stream: &Stream,
    ) -> Result<(), Refusal> {
        self.back_entries(place)?;
        let mut at = Some(place.first);
        while let Some(id) = at.filter(|id| self.extents[*id].start < place.end) {
            let next = self.extents[id].next;
            if self.extents[id].state == ExtentState::Unmapped {
                let (first, end) = self.unmapped_base_pages(id, (place.start, place.end));
                self.fill_unmapped(request, id, (first, end), donors, stream)?;
            }
            at = next;
        }
        Ok(())
    }

    /// Lets blocks start wherever pages are about to be put. Comes first, since the host may refuse the memory.
    fn back_entries(&mut self, place: &Placement) -> Result<(), Refusal> {
        let base_pages = (self.layout.base_page_of(place.start), self.layout.base_pages_for(place.end));
        if !self.regions.make_room(place.region, base_pages, self.pages.records()) {
            return Err(Refusal::of_host("a list of pages", 16 * base_pages.1));
        }
        let (first, end) =
            (base_pages.0 * self.layout.base_page_bytes, base_pages.1 * self.layout.base_page_bytes);
        let Region { zone, ref map, .. } = *self.regions.get(place.region);
        if map.back(first..end) {
            return Ok(());
        }
        let bytes = RegionMap::bytes_of_numbers(end - first, self.layout.granule(zone));
        Err(Refusal::of_host("memory for where blocks lie", bytes))
    }

    /// Backs the base pages `base_pages.0..base_pages.1`, which lie in the unmapped extent `unmapped`.
    fn fill_unmapped(
        &mut self,
        request: &Request,
        unmapped: ExtentId,
        base_pages: (u64, u64),
        donors: &mut Donors,
        stream: &Stream,
    ) -> Result<(), Refusal> {
        let mut cursor = self.open_cursor(unmapped, base_pages);
        let filled = self.fill_at_cursor(request, &mut cursor, donors, stream);
        self.close_cursor(&cursor);
        filled
    }

    fn fill_at_cursor(
        &mut self,
        request: &Request,
        cursor: &mut MapCursor,
        donors: &mut Donors,
        stream: &Stream,
    ) -> Result<(), Refusal> {
        while cursor.base_page < cursor.end {
            if !self.make_room_for_page() {
                return Err(Refusal::of_host("a list of blocks", self.host_bytes()));
            }
            let room = cursor.room();
            if let Some(page) = self.pages.take_parked(room) {
                self.map_at_cursor(page, cursor, &Fence::empty(), self.frees)?;
            } else if !self.remap_from_donor(cursor, donors, stream)? {
                let page = self.create(request, room, donors)?;
                self.map_at_cursor(page, cursor, &Fence::empty(), self.frees)?;
            }
        }
        Ok(())
    }

    /// Creates a page of at most `room` base pages, of the size that suits the block; smaller ones where memory
    /// is short.
    fn create(&mut self, request: &Request, room: u32, donors: &mut Donors) -> Result<PageId, Refusal> {
        let mut base_pages = self.page_length(request, room);
        let reserved = self.counters.reserved.level();
        let after = reserved.current + u64::from(base_pages) * self.layout.base_page_bytes;
        if after > reserved.high {
            self.note_growth(self.pages.base_pages() + u64::from(base_pages), request.units);
        }
        // Any free pages left are too long here. That is no reason to hold more than ever before.
        self.exchange(after.saturating_sub(reserved.high), donors);
        loop {
            match self.pages.create(base_pages) {
                Ok(page) => {
                    self.created.push(page);
                    return Ok(page);
                }
                Err(NoPage::Short(what)) if base_pages > 1 && what != Shortage::Headroom => base_pages /= 2,
                Err(NoPage::Short(_))
                    if self.exchange(u64::from(base_pages) * self.layout.base_page_bytes, donors) => {}
                Err(error) => {
                    return Err(Refusal::of_page(error, u64::from(base_pages) * self.layout.base_page_bytes));
                }
            }
        }
    }

    /// The length of a new page, `room` base pages being left to back: `min(room, largest page, max(block / 12, held
    /// / n))`. `n` is 512 with credit, else 96. Where much was saved, `block / 24` is the longest. About one page is
    /// pinned at the ends of a hole, and several blocks share a hole.
    fn page_length(&self, request: &Request, room: u32) -> u32 {
        if request.zone == Zone::Small {
            return 1;
        }
        let longest = room.min(self.layout.largest_page);
        let short = self.short_length(request);
        1 << longest.min(short).ilog2()
    }

    fn short_length(&self, request: &Request) -> u32 {
        let requested = request.units >> self.layout.base_page_shift();
        let held = self.counters.reserved.current() / self.layout.base_page_bytes;
        let short = match request.balance {
            Balance::Saving(saved) if saved >= MUCH_SAVED => requested / MORE_PAGES_IN_BLOCK,
            Balance::Saving(_) => (requested / PAGES_IN_BLOCK).max(held / MANY_PAGES),
            Balance::Even | Balance::Overdrawn => (requested / PAGES_IN_BLOCK).max(held / FEW_PAGES),
        };
        u32::try_from(short.max(1)).unwrap_or(u32::MAX)
    }

    // ---- moving pages ----------------------------------------------------------------------------

    /// Takes base pages of an unmapped extent off the index, to be backed in turn. Always [close](Self::close_cursor)
    /// it.
    pub(super) fn open_cursor(&mut self, unmapped: ExtentId, (base_page, end): (u64, u64)) -> MapCursor {
        let (zone, region) = (self.extents[unmapped].zone as usize, self.extents[unmapped].region);
        self.unmapped[zone].remove(&self.extents[unmapped]);
        let mut unmapped = unmapped;
        let start = base_page * self.layout.units_per_base_page();
        if self.extents[unmapped].start < start {
            let rest = self.extents.split(unmapped, start);
            self.unmapped[zone].insert(&self.extents[unmapped], unmapped);
            unmapped = rest;
        }
        MapCursor::over(region, (base_page, end), unmapped)
    }

    /// Puts what the cursor backed on the index, as one free extent, and the rest of the unmapped one.
    pub(super) fn close_cursor(&mut self, cursor: &MapCursor) {
        if let Some(unmapped) = cursor.unmapped {
            // Where nothing could be backed, what lies before it is unmapped too.
            self.make_unmapped(unmapped);
        }
        if let Some(backed) = cursor.backed {
            self.index_free(backed);
            // Its neighbours may be free too; whoever needs a longer extent joins them.
            self.list_if_unmerged(backed);
        }
    }

    /// Maps a page that is mapped nowhere at the cursor's next base pages; it is parked again if that fails.
    pub(super) fn map_at_cursor(
        &mut self,
        page: PageId,
        cursor: &mut MapCursor,
        fence: &Fence,
        freed: u64,
    ) -> Result<(), Refusal> {
        let at = self.next_address(cursor);
        // SAFETY: the arena reserved the range, and the extent there says that nothing is mapped.
        if let Err(failure) = unsafe { self.pages.map(page, at) } {
            return Err(self.park_after_map_failure(page, cursor, failure));
        }
        self.attach(page, cursor, fence, freed);
        Ok(())
    }

    /// Where the cursor's next base pages lie.
    pub(super) fn next_address(&self, cursor: &MapCursor) -> DevicePtr {
        self.regions.address(
            cursor.region,
            cursor.base_page * self.layout.units_per_base_page(),
            &self.layout,
        )
    }

    /// Parks a page that could not be mapped at the cursor's next base pages.
    #[cold]
    pub(super) fn park_after_map_failure(
        &mut self,
        page: PageId,
        cursor: &mut MapCursor,
        failure: MapFailure,
    ) -> Refusal {
        let refusal = self.note_map_failure(page, cursor, failure);
        self.pages.park(page);
        refusal
    }

    /// Notes that a page could not be mapped at the cursor's next base pages. A mapping that could not be undone
    /// makes them pending unmap.
    #[cold]
    pub(super) fn note_map_failure(
        &mut self,
        page: PageId,
        cursor: &mut MapCursor,
        failure: MapFailure,
    ) -> Refusal {
        let error = match failure {
            MapFailure::Clean(error) => error,
            MapFailure::Stuck(error) => {
                let stuck = self.cut_unmapped(cursor, self.pages.get(page).base_pages);
                self.extents[stuck].state = ExtentState::PendingUnmap(page);
                self.pending_unmap.push(stuck);
                error
            }
        };
        map_refusal(error)
    }

    /// Notes that a page, mapped already, now backs the cursor's next base pages: they are free.
    pub(super) fn attach(&mut self, page: PageId, cursor: &mut MapCursor, fence: &Fence, freed: u64) {
        let (base_page, base_pages) = (cursor.base_page, self.pages.get(page).base_pages);
        self.set_home(page, cursor.region, base_page);
        if let Some((backed, unmapped)) = cursor.backed.zip(cursor.unmapped) {
            let units = u64::from(base_pages) << self.layout.base_page_shift();
            if units < self.extents[unmapped].units {
                cursor.base_page += u64::from(base_pages);
                self.extents.move_bound(backed, unmapped, units);
                let extent = &mut self.extents[backed];
                extent.freed = extent.freed.max(freed);
                extent.fence.join(fence);
                return;
            }
        }
        let new = self.cut_unmapped(cursor, base_pages);
        let extent = &mut self.extents[new];
        extent.state = ExtentState::Free;
        extent.fence.clone_from(fence);
        extent.freed = freed;
        cursor.backed = Some(match cursor.backed {
            Some(backed) => self.extents.join(backed, new),
            None => new,
        });
    }

    /// Notes that a page backs the base pages from `base_page` on.
    pub(super) fn set_home(&mut self, page: PageId, region: u32, base_page: u64) {
        let first = u32::try_from(base_page).expect("a region has fewer than 2^32 base pages");
        let known = self.pages.get_mut(page);
        known.home = Some((region, first));
        self.regions.set_page(region, base_page, known.base_pages, Some(page));
    }

    /// Cuts the next base pages off a cursor's unmapped extent.
    fn cut_unmapped(&mut self, cursor: &mut MapCursor, base_pages: u32) -> ExtentId {
        let cut = cursor.unmapped.expect("a cursor that is not at its end has an unmapped extent");
        cursor.base_page += u64::from(base_pages);
        let end = cursor.base_page * self.layout.units_per_base_page();
        cursor.unmapped = (end < self.extents[cut].end()).then(|| self.extents.split(cut, end));
        cut
    }

    /// The piece that holds the unit, of an extent that was cut up and is linked from `first` on.
    pub(super) fn piece_at(&self, first: ExtentId, unit: u64) -> ExtentId {
        let mut at = first;
        while self.extents[at].end() <= unit {
            at = self.extents[at].next.expect("the pieces of an extent cover what it covered");
        }
        at
    }

    /// Joins the free extents of a place, which is wholly backed now, into one.
    fn join_window(&mut self, place: &Placement) -> ExtentId {
        let mut whole = self.piece_at(place.first, place.start);
        // Off the index once and on it once, however many pieces there are.
        self.remove_free(whole);
        while self.extents[whole].end() < place.end {
            let next = self.extents[whole].next.expect("a place is covered by extents");
            self.remove_free(next);
            whole = self.extents.join(whole, next);
        }
        self.index_free(whole);
        whole
    }
}

/// A mapping that fails for lack of memory (the driver's own, for page tables) is a shortage too.
fn map_refusal(error: DeviceError) -> Refusal {
    match error {
        DeviceError::OutOfMemory { requested, .. } => {
            Refusal::Short { what: Shortage::Device, bytes: requested }
        }
        other => Refusal::Device(other),
    }
}
