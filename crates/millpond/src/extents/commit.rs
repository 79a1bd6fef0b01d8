//! A plan is carried out: all device calls first. If one fails, the mappings before it go as old ones do. Then it is noted
//! what lies where, which cannot fail, since the host's memory for it was ensured before.

use super::arena::Arena;
use super::map::extent::ExtentState;
use super::placement::Placement;
use super::plan::{Plan, Step};
use super::search::{Found, Request};
use crate::budgets::Shortage;
use crate::physical::{MapFailure, PageId, Refusal};

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
        // The host's memory to note what lies where, whether the plan succeeds or not. Each step may cut a donor's extent in three,
        // and what is unmapped.
        let map = &mut self.arena.map;
        map.make_room(4 * plan.steps.len(), plan.fence.len())?;
        let end = map.layout.base_pages_for(plan.place.end);
        let has_room = map.regions.make_room_to_back(plan.place.region, end);
        map.ensure(has_room)?;
        if !self.clear(plan) {
            return Ok(None);
        }
        if !plan.waits.is_empty() && !self.arena.rules.wait_for(&plan.waits, self.request.stream)? {
            self.request.may_wait = false;
            return Ok(None);
        }
        let has_created = self.create(plan);
        if !matches!(has_created, Ok(true)) {
            // What was created so far serves the next plan, or goes with the request.
            self.park_new(plan);
        }
        if !has_created? {
            return Ok(None);
        }
        self.map(plan).inspect_err(|_| self.park_new(plan))?;
        Ok(Some(self.enter(plan)))
    }

    /// Parks the pages that were created and lie nowhere.
    #[cold]
    fn park_new(&mut self, plan: &Plan) {
        for step in &plan.steps {
            if let Step::MapNew { page, .. } = *step {
                self.arena.pages.park(page);
            }
        }
    }

    /// Removes old mappings whose addresses are needed. `false` where one cannot be removed.
    fn clear(&mut self, plan: &mut Plan) -> bool {
        let Plan { place, steps, .. } = plan;
        steps.iter().all(|step| {
            let Step::Clear { mapping, of } = *step else { return true };
            let Arena { map, old_mappings, pages, .. } = &mut *self.arena;
            let unmapped = old_mappings.clear(map, pages, (mapping, of));
            // It was joined with what is unmapped before it.
            place.first = unmapped.filter(|_| mapping == place.first).unwrap_or(place.first);
            unmapped.is_some()
        })
    }

    /// Creates the new pages. `false` where memory is short for long ones: shorter ones may do.
    fn create(&mut self, plan: &mut Plan) -> Result<bool, Refusal> {
        let pages = &mut self.arena.pages;
        for step in &mut plan.steps {
            let Step::Create { base_pages, at } = *step else { continue };
            match pages.create(base_pages) {
                Ok(page) => *step = Step::MapNew { page, at },
                Err(Refusal::Short { what, .. }) if base_pages > 1 && what != Shortage::Headroom => {
                    self.request.longest = base_pages / 2;
                    return Ok(false);
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(true)
    }

    /// Maps all pages at the place. If one fails, all mappings are pending unmap.
    fn map(&mut self, plan: &Plan) -> Result<(), Refusal> {
        for (done, (page, at)) in plan.mapped().enumerate() {
            let address = self.arena.map.address_of_base_page(plan.place.region, at);
            // SAFETY: the region is reserved. A hole of the place is unmapped, and has one step for each base page.
            let (mapped, error) = match unsafe { self.arena.pages.map(page, address) } {
                Ok(()) => continue,
                Err(MapFailure::Clean(error)) => (done, error),
                Err(MapFailure::Stuck(error)) => (done + 1, error),
            };
            plan.mapped().take(mapped).for_each(|mapped| self.leave_pending(&plan.place, mapped));
            return Err(error.into());
        }
        Ok(())
    }

    /// Notes that a page is mapped at the place, and does not back it: the mapping is removed as old ones are.
    #[cold]
    fn leave_pending(&mut self, place: &Placement, (page, at): (PageId, u64)) {
        let Arena { map, pages, old_mappings, .. } = &mut *self.arena;
        let range = map.layout.units_of((at, at + u64::from(pages.get(page).base_pages)));
        let vain = map.cut(map.piece_at(place.first, range.0), range);
        old_mappings.push(map, pages, vain, ExtentState::PendingUnmap(page));
    }

    /// Notes where the pages lie now; returns the free extent that the place became, and the unit to start at.
    fn enter(&mut self, plan: &mut Plan) -> Found {
        let (arena, place) = (&mut *self.arena, plan.place);
        for step in &plan.steps {
            match *step {
                Step::Move { page, from, .. } => {
                    arena.move_out(page, from);
                    arena.pages.counters.pages_remapped.add(1);
                }
                Step::Unpark { page, .. } => arena.pages.unpark(page),
                Step::BringBack { page, from, to } => arena.bring_back(page, from, to),
                Step::Clear { .. } | Step::Create { .. } | Step::MapNew { .. } => {}
            }
        }
        // What is unmapped in the place is free now.
        let mut at = Some(arena.map.piece_at(place.first, place.start));
        while let Some(mut id) = at.filter(|id| arena.map[*id].start < place.end) {
            if arena.map.is(id, ExtentState::Unmapped) {
                let base_pages = arena.map.base_pages_in(id, (place.start, place.end));
                id = arena.map.cut(id, arena.map.layout.units_of(base_pages));
                arena.map.enter(id);
            }
            at = arena.map[id].next;
        }
        for (page, at) in plan.mapped() {
            arena.move_in(page, (place.region, at));
        }
        let fence = std::mem::take(&mut plan.fence);
        (arena.map.join_free(place.first, (place.start, place.end), fence), place.start)
    }
}
