//! A miss: no free extent fits, so a place in address space is chosen, and pages are put behind it.

use super::cursor::MapCursor;
use super::donors::Donors;
use super::extent::ExtentState;
use super::extent_map::ExtentMap;
use super::layout::Zone;
use super::mapper::Mapper;
use super::page_map::RegionMap;
use super::placement::{Placement, choose_place};
use super::refusal::Refusal;
use super::regions::Region;
use super::reuse_rules::ReuseRules;
use super::search::{Found, Request};
use crate::physical::{NoPage, PageId, Shortage};
use crate::policy::page_length::{PageNeed, page_length};
use crate::policy::shortening::Shortening;

/// Where pages for a place may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageOrigin {
    /// From free extents elsewhere, as long as there are some; else from the device.
    All,
    /// From the device only.
    Growth,
}

/// What one miss works with.
#[derive(Debug)]
pub(super) struct Miss<'a> {
    pub(super) map: &'a mut ExtentMap,
    pub(super) rules: &'a ReuseRules,
    pub(super) mapper: &'a mut Mapper,
    pub(super) donors: &'a mut Donors,
    pub(super) shortening: &'a mut Shortening,
    pub(super) request: Request<'a>,
    /// Whether what is free stays where it is, in address space that grows little.
    pub(super) keeps: bool,
}

impl Miss<'_> {
    /// Backs a place for the request; returns the free extent there and the unit in it to start at. What was
    /// created for it is given back if it fails.
    #[cold]
    pub(super) fn back(mut self, origin: PageOrigin) -> Result<Found, Refusal> {
        self.mapper.begin_request();
        self.back_with_pages(origin).inspect_err(|_| {
            if let Err(error) = self.mapper.undo_created(self.map, self.rules) {
                tracing::warn!(%error, "pages for a request that failed could not be given back");
            }
        })
    }

    fn back_with_pages(&mut self, origin: PageOrigin) -> Result<Found, Refusal> {
        self.mapper.settle(self.map, self.rules);
        // Each turn in vain leaves one dormant mapping less, and there are no new ones.
        loop {
            if origin == PageOrigin::All && !self.keeps {
                let needs = (self.map.layout.base_pages_for(self.request.units), self.request.stream);
                self.donors.gather(self.map, self.rules, needs, self.mapper.ids_of_dormant());
            }
            let backed = self.back_a_place();
            self.donors.close(self.map);
            if let Some(place) = backed? {
                let joined = self.map.join_free(place.first, (place.start, place.end));
                return Ok((joined.ok_or_else(|| self.map.no_room())?, place.start));
            }
        }
    }

    /// Chooses a place and backs it. `None` where it turned out that it cannot be: another one is chosen next.
    fn back_a_place(&mut self) -> Result<Option<Placement>, Refusal> {
        let mut place = choose_place(self.map, self.rules, self.donors, self.request, self.keeps)?;
        let layout = &self.map.layout;
        let base_pages = (layout.base_page_of(place.start), layout.base_pages_for(place.end));
        self.donors.set_place((place.region, base_pages));
        if !self.bring_pages_back(&mut place)? {
            return Ok(None);
        }
        self.fill(&place)?;
        Ok(Some(place))
    }

    /// Has pages come back to the dormant mappings in the place, and removes the mappings of those that cannot. `false`
    /// where one could not be removed; it is pending unmap now.
    fn bring_pages_back(&mut self, place: &mut Placement) -> Result<bool, Refusal> {
        let mut at = Some(place.first);
        while let Some(mut id) = at.filter(|id| self.map[*id].start < place.end) {
            if let ExtentState::Dormant(page) = self.map[id].state
                && !self.donors.bring_back(
                    self.map,
                    self.rules,
                    self.mapper,
                    (id, page),
                    self.request.stream,
                )?
            {
                let Some(unmapped) = self.mapper.clear(self.map, (id, page)) else { return Ok(false) };
                if id == place.first {
                    place.first = unmapped;
                }
                id = unmapped;
            }
            at = self.map[id].next;
        }
        Ok(true)
    }

    /// Puts pages behind every base page of the place. On an error, what was backed so far is free memory.
    fn fill(&mut self, place: &Placement) -> Result<(), Refusal> {
        self.back_numbers(place)?;
        let mut at = Some(place.first);
        while let Some(id) = at.filter(|id| self.map[*id].start < place.end) {
            let next = self.map[id].next;
            if self.map[id].state == ExtentState::Unmapped {
                let base_pages = self.map.base_pages_in(id, (place.start, place.end));
                let mut cursor = MapCursor::open(self.map, id, base_pages);
                let filled = self.fill_at(&mut cursor);
                cursor.close(self.map);
                filled?;
            }
            at = next;
        }
        Ok(())
    }

    /// Lets blocks start wherever pages are about to be put. Comes first, since the host may refuse the memory.
    fn back_numbers(&mut self, place: &Placement) -> Result<(), Refusal> {
        let layout = self.map.layout;
        let base_pages = (layout.base_page_of(place.start), layout.base_pages_for(place.end));
        if !self.map.regions.make_room(place.region, base_pages, self.mapper.pages().records()) {
            return Err(Refusal::of_host("a list of pages", 16 * base_pages.1));
        }
        let bytes = base_pages.0 * layout.base_page_bytes..base_pages.1 * layout.base_page_bytes;
        let Region { zone, ref map, .. } = *self.map.regions.get(place.region);
        if map.back(bytes.clone()) {
            return Ok(());
        }
        let bytes = RegionMap::bytes_of_numbers(bytes.end - bytes.start, layout.granule(zone));
        Err(Refusal::of_host("memory for where blocks lie", bytes))
    }

    /// Puts pages behind the cursor's base pages: parked ones, then those of donors, then new ones.
    fn fill_at(&mut self, cursor: &mut MapCursor) -> Result<(), Refusal> {
        while cursor.room() > 0 {
            if !self.mapper.make_room_for_page(self.map) {
                return Err(self.map.no_room());
            }
            let parked = self.mapper.take_parked(cursor.room());
            if parked.is_none()
                && self.donors.remap(self.map, self.rules, self.mapper, cursor, self.request.stream)?
            {
                continue;
            }
            let page = match parked {
                Some(page) => page,
                None => self.create(cursor.room())?,
            };
            self.mapper.map_at(self.map, cursor, page)?;
        }
        Ok(())
    }

    /// Creates a page of at most `room` base pages, of the length that suits the block; shorter ones where memory
    /// is short.
    fn create(&mut self, room: u32) -> Result<PageId, Refusal> {
        let base_page_bytes = self.map.layout.base_page_bytes;
        let mut base_pages = self.page_length(room);
        let reserved = self.mapper.counters().reserved.level();
        let after = reserved.current + u64::from(base_pages) * base_page_bytes;
        if after > reserved.high {
            self.shortening.note_growth();
        }
        loop {
            let bytes = u64::from(base_pages) * base_page_bytes;
            match self.mapper.create(base_pages) {
                Ok(page) => return Ok(page),
                Err(NoPage::Short(what)) if base_pages > 1 && what != Shortage::Headroom => base_pages /= 2,
                Err(error) => return Err(Refusal::of_page(error, bytes)),
            }
        }
    }

    fn page_length(&self, room: u32) -> u32 {
        let layout = self.map.layout;
        if self.request.zone == Zone::Small {
            return 1;
        }
        page_length(PageNeed {
            room,
            longest: layout.largest_page,
            block: self.request.units >> layout.base_page_shift(),
            held: self.mapper.reserved() / layout.base_page_bytes,
            balance: self.request.balance,
        })
    }
}
