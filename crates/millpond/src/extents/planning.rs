//! A miss is planned: no free extent fits, so a place is chosen, and for each of its base pages the page that will back it.
//! Nothing changes before the plan is carried out (`commit`).

use super::arena::Arena;
use super::donors::Donors;
use super::extent::{ExtentId, ExtentState};
use super::placement::{Placement, choose_place};
use super::plan::{Plan, Step};
use super::search::{Effort, Request};
use crate::order::Fence;
use crate::physical::{Home, PageId, Refusal};
use crate::policy::ledger::Balance;
use crate::policy::page_length::{PageNeed, page_length};

/// What is read for a plan.
#[derive(Debug)]
pub(super) struct Planner<'a> {
    arena: &'a Arena,
    donors: Donors,
    request: Request<'a>,
    /// The parked pages that the plan has no step for, the longest last.
    parked: Vec<PageId>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(arena: &'a Arena, request: Request<'a>) -> Self {
        let (pages, mut parked) = (&arena.pages, Vec::new());
        // Without memory for the list, they stay parked.
        if parked.try_reserve_exact(pages.parked.len()).is_ok() {
            parked.extend_from_slice(&pages.parked);
            parked.sort_unstable_by_key(|page| pages.get(*page).base_pages);
        }
        let grows = matches!(request.effort, Effort::Grow);
        let donors = if grows { Donors::default() } else { Donors::gather(arena, &request) };
        Self { arena, donors, request, parked }
    }

    /// The plan that maps the fewest pages. Of these, parked ones come first, then those of donors, then new ones. `None` where
    /// only a new region has room.
    pub(super) fn plan(mut self) -> Result<Option<Plan>, Refusal> {
        let layout = &self.arena.map.layout;
        let found = choose_place(self.arena, &self.donors, self.request);
        let Some(place) = found else { return Ok(None) };
        let (waits, fence) = (Fence::empty(), Fence::empty());
        let mut plan = Plan { place, steps: Vec::new(), waits, fence };
        let window = (place.region, (layout.base_page_of(place.start), layout.base_pages_for(place.end)));
        for hole in self.bring_back(&mut plan, &place, window)? {
            self.fill(&mut plan, window, hole)?;
        }
        Ok(Some(plan))
    }

    /// Has pages come back to the dormant mappings in the place. Returns the base pages that have to be mapped.
    fn bring_back(
        &mut self,
        plan: &mut Plan,
        place: &Placement,
        window: Home,
    ) -> Result<Vec<(u64, u64)>, Refusal> {
        let mut holes: Vec<(u64, u64)> = Vec::new();
        for id in self.arena.map.until(place.first, place.end) {
            match self.arena.map[id].state {
                ExtentState::Free => {
                    self.take_over(plan, id)?;
                    continue;
                }
                ExtentState::Dormant(page) => {
                    if let Some(donor) = self.donors.take(page, window) {
                        self.take_over(plan, donor.extent)?;
                        self.push(plan, Step::BringBack { page, from: donor.extent, to: id })?;
                        continue;
                    }
                    self.push(plan, Step::Clear { mapping: id, of: page })?;
                }
                _ => {}
            }
            let (first, end) = self.arena.map.base_pages_in(id, (place.start, place.end));
            self.arena.map.ensure(holes.try_reserve(1).is_ok())?;
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
            let (step, base_pages) = if let Some(page) = self.take_parked(room) {
                (Step::Unpark { page, at }, u64::from(self.arena.pages.get(page).base_pages))
            } else if let Some(donor) = self.donors.take_next(room, window) {
                self.take_over(plan, donor.extent)?;
                (Step::Move { page: donor.page, from: donor.extent, at }, donor.base_pages())
            } else {
                let base_pages = self.length_of_new(u32::try_from(room).unwrap_or(u32::MAX));
                (Step::Create { base_pages, at }, u64::from(base_pages))
            };
            self.push(plan, step)?;
            at += base_pages;
        }
        Ok(())
    }

    /// The stream is to use what lies in a free extent, or pages of it.
    fn take_over(&self, plan: &mut Plan, id: ExtentId) -> Result<(), Refusal> {
        let fence = &self.arena.map[id].fence;
        let is_ready = self.arena.rules.query(self.request.stream).covers(fence);
        let has_memory = plan.fence.try_join(fence) && (is_ready || plan.waits.try_join(fence));
        Ok(self.arena.map.ensure(has_memory)?)
    }

    /// The longest parked page of at most so many base pages.
    fn take_parked(&mut self, most: u64) -> Option<PageId> {
        let fits = |page: &PageId| u64::from(self.arena.pages.get(*page).base_pages) <= most;
        let at = self.parked.partition_point(fits).checked_sub(1)?;
        Some(self.parked.remove(at))
    }

    /// The length of a new page that suits the block.
    fn length_of_new(&self, room: u32) -> u32 {
        let layout = &self.arena.map.layout;
        let effort = self.request.effort;
        let balance = if let Effort::Map(balance) = effort { balance } else { Balance::Overdrawn };
        page_length(PageNeed {
            room,
            longest: self.request.longest,
            block: self.request.units >> layout.base_page_shift,
            held: self.arena.reserved() / layout.base_page_bytes,
            balance,
        })
    }

    fn push(&self, plan: &mut Plan, step: Step) -> Result<(), Refusal> {
        self.arena.map.ensure(plan.steps.try_reserve(1).is_ok())?;
        plan.steps.push(step);
        Ok(())
    }
}
