//! A plan is carried out: all device calls first, each undone if a later one fails. Then it is noted what lies where, which
//! cannot fail, since the host's memory for it was ensured before.

use super::address_space;
use super::arena::Arena;
use super::extent::ExtentState;
use super::placement::Placement;
use super::plan::{Plan, Step};
use super::refusal::Refusal;
use super::search::{Found, Request};
use crate::physical::{MapFailure, NoPage, PageId, Shortage};

/// What a plan is carried out with.
#[derive(Debug)]
pub(super) struct Commit<'a, 'r> {
    pub(super) arena: &'a mut Arena,
    pub(super) request: &'a mut Request<'r>,
}

impl Commit<'_, '_> {
    /// Carries the plan out: there is a free extent that fits. `None` where the request has to be planned anew: it asks for less
    /// now, or an old mapping that could not be removed is pending unmap, so that no later plan clears it. On an error everything is
    /// as it was, but for old mappings that went, a stream that waited, a region that was reserved, and new pages, which are parked.
    pub(super) fn carry_out(mut self, plan: &mut Plan) -> Result<Option<Found>, Refusal> {
        let mut place = match plan.place {
            Some(place) => place,
            None => self.add_region()?,
        };
        self.ensure_host_memory(plan, &place)?;
        if !self.clear(plan, &mut place) {
            return Ok(None);
        }
        if !plan.waits.is_empty() && !self.arena.rules.wait_for(&plan.waits, self.request.stream)? {
            self.request.may_wait = false;
            return Ok(None);
        }
        if !self.create(plan)? {
            return Ok(None);
        }
        self.map(plan, &place)?;
        Ok(Some(self.enter(plan, &place)))
    }

    fn add_region(&mut self) -> Result<Placement, Refusal> {
        let (Request { zone, units, .. }, is_short) = (*self.request, self.arena.keeps());
        let Arena { map, pages, .. } = &mut *self.arena;
        let missing = map.layout.base_pages_for(units);
        map.regions.make_room_for_one()?;
        let least = missing * map.layout.base_page_bytes;
        let addresses = address_space::reserve(pages, &map.layout, least, is_short)?;
        let first = map.enter_region(addresses, zone, ExtentState::Unmapped);
        Ok(Placement { region: map[first].region, start: 0, end: units, first, missing })
    }

    /// All that is needed to note what lies where, whether the plan succeeds or not.
    fn ensure_host_memory(&mut self, plan: &Plan, place: &Placement) -> Result<(), Refusal> {
        let Arena { map, table, old_mappings, pages, .. } = &mut *self.arena;
        let base_pages = (map.layout.base_page_of(place.start), map.layout.base_pages_for(place.end));
        let has_room = map.make_room_for(plan.cuts, plan.fence.len())
            && old_mappings.make_room(plan.steps.len())
            && table.make_room(place.region, base_pages, pages.records());
        map.ensure(has_room)
    }

    /// Removes old mappings whose addresses are needed. `false` where one cannot be removed.
    fn clear(&mut self, plan: &Plan, place: &mut Placement) -> bool {
        plan.steps.iter().all(|step| {
            let Step::Clear { mapping, of } = *step else { return true };
            let Arena { map, old_mappings, pages, .. } = &mut *self.arena;
            let unmapped = old_mappings.clear(map, pages, (mapping, of));
            // It was joined with what is unmapped before it.
            place.first = unmapped.filter(|_| mapping == place.first).unwrap_or(place.first);
            unmapped.is_some()
        })
    }

    /// Creates the new pages, and parks them. `false` where memory is short for long ones: shorter ones may do.
    fn create(&mut self, plan: &mut Plan) -> Result<bool, Refusal> {
        let Arena { map, pages, shortening, .. } = &mut *self.arena;
        for step in &mut plan.steps {
            let Step::Create { base_pages, at } = *step else { continue };
            let bytes = u64::from(base_pages) * map.layout.base_page_bytes;
            let reserved = pages.counters.reserved.level();
            if reserved.current + bytes > reserved.high {
                shortening.note_growth();
            }
            match pages.create(base_pages) {
                Ok(page) => {
                    pages.parked.push(page);
                    *step = Step::Unpark { page, at };
                }
                Err(NoPage::Short(what)) if base_pages > 1 && what != Shortage::Headroom => {
                    self.request.longest = base_pages / 2;
                    return Ok(false);
                }
                Err(error) => return Err(Refusal::of_page(error, bytes)),
            }
        }
        Ok(true)
    }

    /// Maps all pages at the place; none if one fails.
    fn map(&mut self, plan: &Plan, place: &Placement) -> Result<(), Refusal> {
        for (done, (page, at)) in plan.mapped().enumerate() {
            let address = self.arena.map.address_of_base_page(place.region, at);
            // SAFETY: the region is reserved. A hole of the place is unmapped, and has one step for each base page.
            if let Err(failure) = unsafe { self.arena.pages.map(page, address) } {
                let error = match failure {
                    MapFailure::Clean(error) => error,
                    MapFailure::Stuck(error) => {
                        self.note_stuck(place, (page, at));
                        error
                    }
                };
                plan.mapped().take(done).for_each(|mapped| self.unmap(place, mapped));
                return Err(Refusal::of_mapping(error));
            }
        }
        Ok(())
    }

    /// Undoes [`map`](Self::map) for a page.
    #[cold]
    fn unmap(&mut self, place: &Placement, (page, at): (PageId, u64)) {
        let address = self.arena.map.address_of_base_page(place.region, at);
        // SAFETY: it was mapped here just now, and nobody was told the address.
        if let Err(error) = unsafe { self.arena.pages.unmap(page, address) } {
            tracing::warn!(%error, %address, "a mapping could not be removed; it is tried again");
            self.note_stuck(place, (page, at));
        }
    }

    /// Notes that a page stays mapped at the place, which it does not back: the mapping is removed later.
    #[cold]
    fn note_stuck(&mut self, place: &Placement, (page, at): (PageId, u64)) {
        let Arena { map, pages, old_mappings, .. } = &mut *self.arena;
        let range = map.layout.units_of((at, at + u64::from(pages.get(page).base_pages)));
        let stuck = map.cut(map.piece_at(place.first, range.0), range);
        old_mappings.push(map, (stuck, page), false);
    }

    /// Notes where the pages lie now; returns the free extent that the place became, and the unit to start at.
    fn enter(&mut self, plan: &Plan, place: &Placement) -> Found {
        let Self { arena, request } = self;
        let mut freed = 0;
        for step in &plan.steps {
            match *step {
                Step::Move { page, from, .. } => {
                    freed = freed.max(arena.move_out(page, from));
                    arena.pages.counters.pages_remapped.add(1);
                }
                Step::Unpark { page, .. } => {
                    freed = arena.map.frees;
                    arena.pages.unpark(page);
                }
                Step::BringBack { page, from, to } => arena.bring_back(page, from, to),
                Step::Clear { .. } | Step::Create { .. } => {}
            }
        }
        // What is unmapped in the place is free now.
        let mut at = Some(arena.map.piece_at(place.first, place.start));
        while let Some(mut id) = at.filter(|id| arena.map[*id].start < place.end) {
            if arena.map.is(id, ExtentState::Unmapped) {
                let base_pages = arena.map.base_pages_in(id, (place.start, place.end));
                id = arena.map.cut(id, arena.map.layout.units_of(base_pages));
                arena.map.make_backed(id, freed);
            }
            at = arena.map[id].next;
        }
        for (page, at) in plan.mapped() {
            arena.move_in(page, (place.region, at));
        }
        // The stream comes after all of it, by waiting where it must. One tick of it needs no memory.
        let fence = if plan.fence.is_long() { request.stream.fence() } else { plan.fence.clone() };
        (arena.map.join_free(place.first, (place.start, place.end), fence), place.start)
    }
}
