//! A plan is carried out: all device calls first, each undone if a later one fails. Then it is noted what lies where, which
//! cannot fail, since the host's memory for it was ensured before.

use super::extent::{ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::mapper::Mapper;
use super::placement::Placement;
use super::plan::{Plan, Step};
use super::refusal::Refusal;
use super::reuse_rules::ReuseRules;
use super::search::{Found, Request};
use crate::device::PeerSet;
use crate::physical::{MapFailure, NoPage, PageId, Shortage};
use crate::policy::shortening::Shortening;

/// What became of a plan.
#[derive(Debug)]
pub(super) enum Committed {
    /// It was carried out: there is a free extent that fits.
    Found(Found),
    /// An old mapping could not be removed. It is pending unmap now, so that no later plan clears it.
    NotCleared,
    /// The stream cannot be made to wait now.
    NotWaiting,
}

/// A page that is mapped at the place.
#[derive(Debug)]
struct Arrival {
    page: PageId,
    /// Its first base page there.
    at: u64,
    /// The free extent that it leaves.
    from: Option<ExtentId>,
    /// Whether it was created for this plan.
    is_new: bool,
    /// The devices that may use it where it was.
    peers: PeerSet,
}

/// What a plan is carried out with.
#[derive(Debug)]
pub(super) struct Commit<'a> {
    pub(super) map: &'a mut ExtentMap,
    pub(super) rules: &'a ReuseRules,
    pub(super) mapper: &'a mut Mapper,
    pub(super) shortening: &'a mut Shortening,
    pub(super) request: Request<'a>,
    /// Whether a new region is as short as one can be.
    pub(super) is_short: bool,
}

impl Commit<'_> {
    /// Carries the plan out. On an error everything is as it was, but for old mappings that went, a stream that waited, and a
    /// region that was reserved.
    pub(super) fn carry_out(mut self, plan: &Plan) -> Result<Committed, Refusal> {
        let mut place = match plan.place {
            Some(place) => place,
            None => self.add_region()?,
        };
        self.ensure_host_memory(plan, &place)?;
        if !self.clear(plan, &mut place) {
            return Ok(Committed::NotCleared);
        }
        if !plan.waits.is_empty() && !self.rules.wait_for(&plan.waits, self.request.stream)? {
            return Ok(Committed::NotWaiting);
        }
        let mut arrivals = Vec::new();
        let mapped = self.collect(plan, &mut arrivals).and_then(|()| self.map_all(&place, &mut arrivals));
        if let Err(refusal) = mapped {
            self.give_back(&arrivals);
            return Err(refusal);
        }
        Ok(Committed::Found(self.enter(plan, &place, &arrivals)))
    }

    fn add_region(&mut self) -> Result<Placement, Refusal> {
        let Request { zone, units, .. } = self.request;
        let missing = self.map.layout.base_pages_for(units);
        let first = self.map.add_region(zone, missing, self.is_short)?;
        Ok(Placement { region: self.map[first].region, start: 0, end: units, first, missing })
    }

    /// All that is needed to note what lies where, whether the plan succeeds or not.
    fn ensure_host_memory(&mut self, plan: &Plan, place: &Placement) -> Result<(), Refusal> {
        let layout = self.map.layout;
        let base_pages = (layout.base_page_of(place.start), layout.base_pages_for(place.end));
        let has_room = self.map.make_room_for(plan.cuts, plan.streams)
            && self.mapper.make_room_for(plan.steps.len(), place.region, base_pages);
        self.map.ensure(has_room)
    }

    /// Removes old mappings whose addresses are needed. `false` where one cannot be removed.
    fn clear(&mut self, plan: &Plan, place: &mut Placement) -> bool {
        plan.steps.iter().all(|step| {
            let Step::Clear { mapping, of } = *step else { return true };
            let Mapper { old_mappings, pages, .. } = &mut *self.mapper;
            let unmapped = old_mappings.clear(self.map, pages, (mapping, of));
            // It was joined with what is unmapped before it.
            place.first = unmapped.filter(|_| mapping == place.first).unwrap_or(place.first);
            unmapped.is_some()
        })
    }

    /// Lists the pages that are to be mapped. New ones are created.
    fn collect(&mut self, plan: &Plan, arrivals: &mut Vec<Arrival>) -> Result<(), Refusal> {
        for step in &plan.steps {
            let (page, at, from) = match *step {
                Step::Clear { .. } | Step::BringBack { .. } => continue,
                Step::Create { base_pages, at } => {
                    self.create(base_pages, at, arrivals)?;
                    continue;
                }
                Step::Unpark { page, at } => (page, at, None),
                Step::Move { page, from, at } => (page, at, Some(from)),
            };
            self.map.ensure(arrivals.try_reserve(1).is_ok())?;
            arrivals.push(Arrival { page, at, from, is_new: false, peers: PeerSet::NONE });
        }
        Ok(())
    }

    /// Creates a page for so many base pages; shorter ones where memory is short.
    fn create(&mut self, base_pages: u32, mut at: u64, arrivals: &mut Vec<Arrival>) -> Result<(), Refusal> {
        let base_page_bytes = self.map.layout.base_page_bytes;
        let reserved = self.mapper.pages.counters.reserved.level();
        if reserved.current + u64::from(base_pages) * base_page_bytes > reserved.high {
            self.shortening.note_growth();
        }
        let end = at + u64::from(base_pages);
        let mut length = base_pages;
        while at < end {
            self.map.ensure(arrivals.try_reserve(1).is_ok())?;
            match self.mapper.pages.create(length) {
                Ok(page) => {
                    arrivals.push(Arrival { page, at, from: None, is_new: true, peers: PeerSet::NONE });
                    at += u64::from(length);
                }
                Err(NoPage::Short(what)) if length > 1 && what != Shortage::Headroom => length /= 2,
                Err(error) => return Err(Refusal::of_page(error, u64::from(length) * base_page_bytes)),
            }
        }
        Ok(())
    }

    /// Maps all pages at the place; none if one fails.
    fn map_all(&mut self, place: &Placement, arrivals: &mut [Arrival]) -> Result<(), Refusal> {
        for next in 0..arrivals.len() {
            let Arrival { page, at, .. } = arrivals[next];
            let address = self.map.address_of_base_page(place.region, at);
            // SAFETY: the region is reserved. A hole of the place is unmapped, and has one step for each base page.
            match unsafe { self.mapper.pages.map(page, address) } {
                Ok(peers) => arrivals[next].peers = peers,
                Err(failure) => {
                    let error = match failure {
                        MapFailure::Clean(error) => error,
                        MapFailure::Stuck(error) => {
                            self.note_stuck(place, &arrivals[next]);
                            error
                        }
                    };
                    self.unmap_all(place, &arrivals[..next]);
                    return Err(Refusal::of_mapping(error));
                }
            }
        }
        Ok(())
    }

    /// Undoes [`map_all`](Self::map_all) for these pages.
    #[cold]
    fn unmap_all(&mut self, place: &Placement, arrivals: &[Arrival]) {
        for arrival in arrivals {
            let address = self.map.address_of_base_page(place.region, arrival.at);
            // SAFETY: it was mapped here just now, and nobody was told the address.
            if let Err(error) = unsafe { self.mapper.pages.unmap(arrival.page, address) } {
                tracing::warn!(%error, %address, "a mapping could not be removed; it is tried again");
                self.note_stuck(place, arrival);
            }
            self.mapper.pages.get_mut(arrival.page).peers = arrival.peers;
        }
    }

    /// Notes that a page stays mapped at the place, which it does not back: the mapping is removed later.
    #[cold]
    fn note_stuck(&mut self, place: &Placement, arrival: &Arrival) {
        let base_pages = self.mapper.pages.get(arrival.page).base_pages;
        let range = self.map.layout.units_of((arrival.at, arrival.at + u64::from(base_pages)));
        let stuck = self.map.cut(self.map.piece_at(place.first, range.0), range);
        self.mapper.leave(self.map, (stuck, arrival.page), false);
    }

    /// Gives back the pages that were created.
    #[cold]
    fn give_back(&mut self, arrivals: &[Arrival]) {
        for Arrival { page, .. } in arrivals.iter().filter(|arrival| arrival.is_new) {
            if self.mapper.pages.get(*page).mappings > 0 {
                self.mapper.pages.park(*page);
            } else if let Err(error) = self.mapper.pages.release(*page) {
                tracing::warn!(%error, "a page for a request that failed could not be given back");
            }
        }
    }

    /// Notes where the pages lie now; returns the free extent that the place became, and the unit to start at.
    fn enter(&mut self, plan: &Plan, place: &Placement, arrivals: &[Arrival]) -> Found {
        let mut freed = 0;
        for arrival in arrivals {
            match arrival.from {
                Some(from) => {
                    let may_come_back = arrival.peers == self.mapper.pages.peers;
                    freed = freed.max(self.mapper.move_out(self.map, (arrival.page, from), may_come_back));
                    self.mapper.pages.counters.pages_remapped.add(1);
                }
                None => {
                    freed = self.map.frees;
                    if !arrival.is_new {
                        self.mapper.pages.unpark(arrival.page);
                    }
                }
            }
        }
        for step in &plan.steps {
            if let Step::BringBack { page, from, to } = *step {
                let may_come_back = self.mapper.pages.has_usual_peers(page);
                let freed = self.mapper.move_out(self.map, (page, from), may_come_back);
                self.mapper.come_back(self.map, (to, page), freed);
            }
        }
        self.back_holes(place, freed);
        for arrival in arrivals {
            self.mapper.set_home(arrival.page, (place.region, arrival.at));
        }
        // The stream comes after all of it, by waiting where it must. One tick of it needs no memory.
        let fence = if plan.fence.is_long() { self.request.stream.fence() } else { plan.fence.clone() };
        (self.map.join_free(place.first, (place.start, place.end), fence), place.start)
    }

    /// Makes what is unmapped in the place free.
    fn back_holes(&mut self, place: &Placement, freed: u64) {
        let mut at = Some(self.map.piece_at(place.first, place.start));
        while let Some(mut id) = at.filter(|id| self.map[*id].start < place.end) {
            if self.map[id].state == ExtentState::Unmapped {
                let base_pages = self.map.base_pages_in(id, (place.start, place.end));
                id = self.map.cut(id, self.map.layout.units_of(base_pages));
                self.map.make_backed(id, freed);
            }
            at = self.map[id].next;
        }
    }
}
