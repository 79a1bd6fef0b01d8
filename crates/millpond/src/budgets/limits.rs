//! What a pool may hold: its hard limit, its budget, and what it leaves free for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Budget;
use super::named::Tenancy;
use crate::device::Device;
use crate::figures::counters::Counters;

/// What stood in the way of more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The device has none left.
    Device,
    /// The pool's hard limit.
    HardLimit,
    /// The budget that the pool shares.
    Budget,
    /// The bytes that the pool leaves free on the device.
    Headroom,
}

/// Bytes in live blocks, which cannot move: in the pool, and in the others that a limit is for.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) own: u64,
    /// In other pools of the same memory.
    pub(crate) on_device: u64,
    /// In other pools of the same budget.
    pub(crate) under_budget: u64,
    /// In other pools of the same hard limit.
    pub(crate) under_hard_limit: u64,
}

impl Live {
    fn of_others(&self, what: Shortage) -> u64 {
        match what {
            Shortage::HardLimit => self.under_hard_limit,
            Shortage::Budget => self.under_budget,
            Shortage::Device | Shortage::Headroom => self.on_device,
        }
    }
}

/// A limit, and the bytes that are held now by all that it is for.
#[derive(Debug, Clone, Copy)]
struct Bound {
    what: Shortage,
    most: u64,
    held: u64,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// What the pool may hold, with those of its tags: as a budget that no others share.
    pub(crate) hard_limit: Budget,
    /// Bytes that must stay free on the device.
    pub(crate) headroom: Arc<AtomicU64>,
    pub(crate) budget: Option<Budget>,
    /// What is imposed from outside, where the program has set a budget of its own.
    pub(crate) imposed: Option<Budget>,
    /// Bytes that the device has.
    pub(crate) total: u64,
    /// Bytes that all pools of the context hold together.
    pub(crate) together: Arc<AtomicU64>,
}

impl Limits {
    /// What this process has of the budget, where it shares that with others.
    pub(crate) fn tenancy(&self) -> Option<&Tenancy> {
        self.budgets().find_map(Budget::tenancy)
    }

    pub(crate) fn headroom(&self) -> u64 {
        // Relaxed, here and below: a setting; nothing is concluded from when it is seen.
        self.headroom.load(Ordering::Relaxed)
    }

    pub(crate) fn set_headroom(&self, bytes: u64) {
        self.headroom.store(bytes, Ordering::Relaxed);
    }

    /// All that the pool shares with others.
    fn budgets(&self) -> impl Iterator<Item = &Budget> {
        self.budget.iter().chain(&self.imposed)
    }

    /// The budget that has no room for so many bytes; the program's own if all have.
    pub(crate) fn budget_met(&self, bytes: u64) -> Option<&Budget> {
        let has_room = |budget: &Budget| budget.about_held().saturating_add(bytes) <= budget.most();
        self.budgets().find(|budget| !has_room(budget)).or(self.budget.as_ref())
    }

    /// Takes so much of each budget, or of none.
    fn take_of_budgets(&self, bytes: u64) -> bool {
        let taken = self.budgets().take_while(|budget| budget.take(bytes)).count();
        let has_all = taken == self.budgets().count();
        if !has_all {
            self.budgets().take(taken).for_each(|budget| budget.give_back(bytes));
        }
        has_all
    }

    /// Each limit, in the order in which a new page meets them.
    fn bounds(&self) -> impl Iterator<Item = Bound> {
        let of = |what, budget: &Budget| Bound { what, most: budget.most(), held: budget.about_held() };
        // Relaxed: a figure to read.
        let together = self.together.load(Ordering::Relaxed);
        let on_device = |what, most| Bound { what, most, held: together };
        let headroom = on_device(Shortage::Headroom, self.total.saturating_sub(self.headroom()));
        [of(Shortage::HardLimit, &self.hard_limit)]
            .into_iter()
            .chain((self.headroom() > 0).then_some(headroom))
            .chain(self.budgets().map(move |budget| of(Shortage::Budget, budget)))
            .chain([on_device(Shortage::Device, self.total)])
    }

    /// Whether so many bytes more exceed no limit.
    pub(crate) fn have_room(&self, bytes: u64) -> bool {
        self.bounds().all(|bound| bound.held.saturating_add(bytes) <= bound.most)
    }

    /// The limit that a block of so many bytes can never keep, beside what is live. A pool that `holds` enough need not grow
    /// for it: a budget may have been lowered since.
    pub(crate) fn verdict(&self, bytes: u64, live: Live, holds: u64) -> Option<Shortage> {
        let needed = live.own.saturating_add(bytes);
        let is_exceeded = |bound: &Bound| needed.saturating_add(live.of_others(bound.what)) > bound.most;
        self.bounds().find(|bound| needed > holds && is_exceeded(bound)).map(|bound| bound.what)
    }

    /// Whether both are of the same memory: the device's own, or the same other memory.
    pub(crate) fn have_memory_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.together, &other.together)
    }

    /// Whether both have one budget.
    pub(crate) fn have_budget_of(&self, other: &Self) -> bool {
        self.budget.as_ref().zip(other.budget.as_ref()).is_some_and(|(mine, theirs)| mine.is(theirs))
    }

    /// Bytes that may still be taken from the device, of which so many are free.
    pub(crate) fn room(&self, free: u64) -> u64 {
        let under_limits = self.bounds().map(|bound| bound.most.saturating_sub(bound.held));
        under_limits.chain([free.saturating_sub(self.headroom())]).min().unwrap_or(0)
    }

    /// Takes `bytes` of the budgets if every limit allows it. They are counted as reserved once the device has
    /// given them ([`count`](Self::count)), so that a refusal leaves no high-water mark.
    pub(crate) fn admit(&self, bytes: u64, device: &dyn Device) -> Result<(), Shortage> {
        if !self.hard_limit.take(bytes) {
            return Err(Shortage::HardLimit);
        }
        // A device that cannot say how much is free is asked for the memory itself.
        let free = || device.memory_info().map_or(u64::MAX, |info| info.free);
        let headroom = self.headroom();
        let short = if headroom > 0 && free() < bytes.saturating_add(headroom) {
            Shortage::Headroom
        } else if !self.take_of_budgets(bytes) {
            Shortage::Budget
        } else {
            return Ok(());
        };
        self.hard_limit.give_back(bytes);
        Err(short)
    }

    /// Counts what was admitted and given.
    pub(crate) fn count(&self, bytes: u64, counters: &Counters) {
        counters.reserved.raise(bytes);
        // Relaxed, here and below: a figure to read; read-modify-writes never lose an update.
        self.together.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Undoes [`admit`](Self::admit), where the device refused.
    pub(crate) fn refuse(&self, bytes: u64) {
        self.hard_limit.give_back(bytes);
        self.budgets().for_each(|budget| budget.give_back(bytes));
    }

    /// Undoes [`admit`](Self::admit) and [`count`](Self::count).
    pub(crate) fn withdraw(&self, bytes: u64, counters: &Counters) {
        counters.reserved.lower(bytes);
        self.together.fetch_sub(bytes, Ordering::Relaxed);
        self.refuse(bytes);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_the_pool_holds_already_serves_whatever_the_limit_is_now() {
        let hard_limit = Budget::bytes(10);
        let (budget, imposed, together) = (None, None, Arc::default());
        let limits = Limits { hard_limit, headroom: Arc::default(), budget, imposed, total: 100, together };
        let live = Live { own: 4, ..Live::default() };
        assert_eq!(limits.verdict(8, live, 0), Some(Shortage::HardLimit));
        assert_eq!(limits.verdict(8, live, 11), Some(Shortage::HardLimit));
        assert_eq!(limits.verdict(8, live, 12), None);
    }

    #[test]
    fn both_budgets_are_kept_and_the_one_that_is_met_is_told() {
        let device = crate::device::sim::SimDevice::new(Default::default()).unwrap();
        let (own, imposed) = (Budget::bytes(10), Budget::bytes(6));
        let limits = Limits {
            hard_limit: Budget::bytes(u64::MAX),
            headroom: Arc::default(),
            budget: Some(own.clone()),
            imposed: Some(imposed.clone()),
            total: 100,
            together: Arc::default(),
        };
        assert_eq!(limits.admit(4, device.as_ref()), Ok(()));
        assert_eq!(limits.admit(4, device.as_ref()), Err(Shortage::Budget));
        assert_eq!(
            (own.held(), imposed.held(), limits.hard_limit.held()),
            (4, 4, 4),
            "nothing is left taken"
        );
        assert!(limits.budget_met(4).unwrap().is(&imposed) && limits.budget_met(7).unwrap().is(&own));
        limits.refuse(4);
        assert_eq!((own.held(), imposed.held()), (0, 0));
    }
}
