//! A miss is planned: no free extent fits, so a place is chosen, and for each of its base pages the page that will back it.
//! Nothing changes before the plan is carried out (`commit`).

use super::arena::Arena;
use super::donors::{DonorPage, Donors};
use super::placement::{Part, Placement, Placer, walk};
use super::plan::{Plan, Step};
use super::search::{Effort, Request};
use crate::order::Fence;
use crate::physical::{Home, ParkedCursor, Refusal};
use crate::policy::page_length::{PageNeed, page_length};

/// What is read for a plan.
#[derive(Debug)]
pub(super) struct Planner<'a> {
    arena: &'a Arena,
    donors: Donors,
    request: Request<'a>,
    /// The parked pages that the plan has no step for.
    parked: ParkedCursor<'a>,
    /// Those of them that another pool gave, and that work may still use elsewhere.
    arriving: ParkedCursor<'a>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(arena: &'a Arena, request: Request<'a>) -> Self {
        let is_new = matches!(request.effort, Effort::Grow | Effort::MapNew(_));
        let donors = if is_new { Donors::default() } else { Donors::gather(arena, &request) };
        let (parked, arriving) = (ParkedCursor::of(&arena.pages), ParkedCursor::of_arriving(&arena.pages));
        Self { arena, donors, request, parked, arriving }
    }

    /// The plan that maps the fewest pages. Of these, parked ones come first, then those of donors, then those that arrive, then
    /// new ones. `None` where only a new region has room.
    pub(super) fn plan(mut self) -> Result<Option<Plan>, Refusal> {
        let layout = &self.arena.map.layout;
        let found = Placer::new(self.arena, &mut self.donors, self.request).choose();
        let Some(place) = found else { return Ok(None) };
        let (waits, fence) = (Fence::empty(), Fence::empty());
        let mut plan = Plan { place, steps: Vec::new(), waits, fence };
        let window = (place.region, (layout.base_page_of(place.start), layout.base_pages_for(place.end)));
        for hole in self.bring_back(&mut plan, &place)? {
            self.fill(&mut plan, window, hole)?;
        }
        Ok(Some(plan))
    }

    /// Has pages come back to the dormant mappings in the place. Returns the base pages that have to be mapped.
    fn bring_back(&mut self, plan: &mut Plan, place: &Placement) -> Result<Vec<(u64, u64)>, Refusal> {
        let Self { arena, donors, request, .. } = self;
        let (map, mut holes): (_, Vec<(u64, u64)>) = (&arena.map, Vec::new());
        for (id, part) in walk(arena, donors, place) {
            match part.expect("a place has only what a plan may use") {
                Part::Free => {
                    plan.take_over(arena, request, id)?;
                    continue;
                }
                Part::ComesBack(DonorPage { page, extent: from, .. }) => {
                    plan.take_over(arena, request, from)?;
                    plan.push(&arena.map, Step::BringBack { page, from, to: id })?;
                    continue;
                }
                Part::Idle(of) => plan.push(map, Step::Clear { mapping: id, of })?,
                Part::Unmapped => {}
            }
            let (first, end) = map.base_pages_in(id, (place.start, place.end));
            map.ensure(holes.try_reserve(1).is_ok())?;
            match holes.last_mut() {
                Some(hole) if hole.1 == first => hole.1 = end,
                _ => holes.push((first, end)),
            }
        }
        Ok(holes)
    }

    /// Plans a page for each base page of a hole.
    fn fill(&mut self, plan: &mut Plan, window: Home, (mut at, end): (u64, u64)) -> Result<(), Refusal> {
        while at < end {
            let room = end - at;
            let (step, base_pages) = if let Some(page) = self.parked.take(room) {
                (Step::Unpark { page, at }, u64::from(self.arena.pages.get(page).base_pages))
            } else if let Some(donor) = self.donors.claim_next(self.arena, room, window) {
                plan.take_over(self.arena, &self.request, donor.extent)?;
                (Step::Move { page: donor.page, from: donor.extent, at }, donor.base_pages())
            } else if let Some(page) = self.arriving.take(room).filter(|_| self.request.may_wait) {
                let page_record = self.arena.pages.get(page);
                if let Some(fence) = page_record.arrives_behind() {
                    plan.come_behind(self.arena, &self.request, fence)?;
                }
                (Step::Unpark { page, at }, u64::from(page_record.base_pages))
            } else {
                let base_pages = self.length_of_new(u32::try_from(room).unwrap_or(u32::MAX));
                (Step::Create { base_pages, at }, u64::from(base_pages))
            };
            plan.push(&self.arena.map, step)?;
            at += base_pages;
        }
        Ok(())
    }

    /// The length of a new page that suits the block.
    fn length_of_new(&self, room: u32) -> u32 {
        let layout = &self.arena.map.layout;
        let effort = self.request.effort;
        let doublings = match effort {
            Effort::Map(doublings) | Effort::MapNew(doublings) => doublings,
            Effort::Ready | Effort::Grow | Effort::TakeSegment => u32::MAX,
        };
        page_length(PageNeed {
            room,
            longest: self.request.longest,
            least: layout.least_page,
            block: self.request.units >> layout.base_page_shift,
            left: self.arena.pages.limits.room(u64::MAX) / layout.base_page_bytes,
            doublings,
        })
    }
}
