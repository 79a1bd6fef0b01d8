//! A miss: no free extent fits. It is planned, and the plan is carried out.

use super::commit::{Commit, Committed};
use super::donors::Donors;
use super::extent_map::ExtentMap;
use super::mapper::Mapper;
use super::planning::{PageOrigin, Planner};
use super::refusal::Refusal;
use super::reuse_rules::ReuseRules;
use super::search::{Found, Request};
use crate::policy::shortening::Shortening;

#[cfg(test)]
thread_local! {
    /// The steps of the last plan that was carried out on this thread, and whether the stream had to wait.
    pub(super) static CARRIED_OUT: std::cell::Cell<Option<(Vec<super::plan::Step>, bool)>> =
        const { std::cell::Cell::new(None) };
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
}

impl Miss<'_> {
    /// Backs a place for the request; returns the free extent there and the unit in it to start at. A new region `is_short`
    /// or not.
    #[cold]
    pub(super) fn back(self, origin: PageOrigin, is_short: bool) -> Result<Found, Refusal> {
        let Self { map, rules, mapper, donors, shortening, request } = self;
        mapper.old_mappings.settle(map, rules, &mut mapper.pages);
        let mut rules = rules.clone();
        // Each plan in vain leaves one dormant mapping less, or makes no stream wait any more.
        loop {
            let plan = Planner::new((map, &rules, mapper), donors, request).plan(origin)?;
            tracing::trace!(%plan, "a miss");
            let commit = Commit { map, rules: &rules, mapper, shortening, request, is_short };
            match commit.carry_out(&plan)? {
                Committed::Found(found) => {
                    #[cfg(test)]
                    CARRIED_OUT.set(Some((plan.steps, !plan.waits.is_empty())));
                    return Ok(found);
                }
                Committed::NotCleared => {}
                Committed::NotWaiting => rules.policies.internal_dependencies = false,
            }
        }
    }
}
