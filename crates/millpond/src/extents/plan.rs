//! The plan of a miss: a place in address space, and the steps that put pages behind it.

use std::fmt;

use super::arena::Arena;
use super::map::extent::ExtentId;
use super::map::extent_map::ExtentMap;
use super::placement::Placement;
use super::search::Request;
use crate::order::Fence;
use crate::physical::{IdleMapping, PageId, Refusal};

/// What happens to one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// An idle mapping is removed, since another page is mapped at its addresses.
    Clear { mapping: ExtentId, of: IdleMapping },
    /// The page moves back to its dormant mapping `to` from a free extent. Takes no device call.
    BringBack { page: PageId, from: ExtentId, to: ExtentId },
    /// The page, which is parked, is mapped from base page `at` on.
    Unpark { page: PageId, at: u64 },
    /// The page is mapped from base page `at` on, and leaves a free extent.
    Move { page: PageId, from: ExtentId, at: u64 },
    /// A new page of so many base pages is mapped from base page `at` on.
    Create { base_pages: u32, at: u64 },
    /// The same, once the page is created.
    MapNew { page: PageId, at: u64 },
}

/// See the [module](self). Steps are carried out in this order: all that clear, then the wait, then all that create, which
/// become steps that map a new page, then all that map. Only then is it noted what lies where, which cannot fail.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) place: Placement,
    pub(super) steps: Vec<Step>,
    /// What the stream is made to wait for.
    pub(super) waits: Fence,
    /// The work that used the place, or its pages where they were.
    pub(super) fence: Fence,
}

impl Plan {
    /// The stream is to use what lies in a free extent, or pages of it.
    pub(super) fn take_over(
        &mut self,
        arena: &Arena,
        request: &Request<'_>,
        id: ExtentId,
    ) -> Result<(), Refusal> {
        self.come_behind(arena, request, &arena.map[id].fence)
    }

    /// The stream is to use what lies behind a fence.
    pub(super) fn come_behind(
        &mut self,
        arena: &Arena,
        request: &Request<'_>,
        fence: &Fence,
    ) -> Result<(), Refusal> {
        let is_ready = arena.rules.query(request.stream).covers(fence);
        let has_memory = self.fence.try_join(fence) && (is_ready || self.waits.try_join(fence));
        Ok(arena.map.ensure(has_memory)?)
    }

    pub(super) fn push(&mut self, map: &ExtentMap, step: Step) -> Result<(), Refusal> {
        map.ensure(self.steps.try_reserve(1).is_ok())?;
        self.steps.push(step);
        Ok(())
    }

    /// The pages that are mapped, once none is to be created any more, and the first base page of each.
    pub(super) fn mapped(&self) -> impl Iterator<Item = (PageId, u64)> {
        self.steps.iter().filter_map(|step| match *step {
            Step::Unpark { page, at } | Step::Move { page, at, .. } | Step::MapNew { page, at } => {
                Some((page, at))
            }
            _ => None,
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Placement { region, start, end, .. } = self.place;
        write!(f, "units {start} to {end} of region {region}")?;
        if !self.waits.is_empty() {
            write!(f, "; wait for {} streams", self.waits.len())?;
        }
        for step in &self.steps {
            match step {
                Step::Clear { of, .. } => write!(f, "; clear an old mapping of page {}", of.page().0)?,
                Step::BringBack { page, .. } => write!(f, "; bring page {} back", page.0)?,
                Step::Unpark { page, at } => write!(f, "; map parked page {} at {at}", page.0)?,
                Step::Move { page, at, .. } => write!(f, "; move page {} to {at}", page.0)?,
                Step::MapNew { page, at } => write!(f, "; map new page {} at {at}", page.0)?,
                Step::Create { base_pages, at } => write!(f, "; create {base_pages} base pages at {at}")?,
            }
        }
        Ok(())
    }
}
