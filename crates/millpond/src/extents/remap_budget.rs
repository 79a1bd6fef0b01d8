//! The remap budget: device time that the pool may spend to hold less memory.
//!
//! Short pages pin less than long ones where blocks share them, and each costs as much. So their length depends on
//! how fast the program is. A job that computes for a second between two allocations can have pages of 2 MiB. One
//! that takes 15 GiB in its first seconds and ends should have long ones. The pool earns a small part of the time
//! that passes, and pays for its pages with it. While some is left, new pages are [short](super::mapping), and long
//! free ones are [shortened](super::shorten).

use std::time::Duration;

use crate::policy::{Mechanism, without};

/// What may be spent before anything is earned. Little, since shorter pages do not help what a program takes first
/// (docs/lab/pages.md).
const INITIAL_CREDIT: Duration = Duration::from_millis(10);

/// The part of the time that is earned. A little more than half of the 1 % that all device calls may take: a program
/// that misses much overspends.
const EARNED_PART: u32 = 180;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct RemapBudget {
    /// When the pool was made, by the device's clock.
    made: Duration,
    /// Time that its pages took so far.
    spent: Duration,
}

impl RemapBudget {
    pub(super) fn new(now: Duration) -> Self {
        Self { made: now, spent: Duration::ZERO }
    }

    pub(super) fn pay(&mut self, time: Duration) {
        self.spent += time;
    }

    fn earned(&self, now: Duration) -> Duration {
        now.saturating_sub(self.made) / EARNED_PART
    }

    /// What was earned and not spent.
    pub(super) fn savings(&self, now: Duration) -> Duration {
        if without(Mechanism::ShortPages) {
            return Duration::ZERO;
        }
        self.earned(now).saturating_sub(self.spent)
    }

    /// Whether less was spent than earned, with the initial credit.
    pub(super) fn has_credit(&self, now: Duration) -> bool {
        if without(Mechanism::ShortPages) || without(Mechanism::ShortPagesAlways) {
            return without(Mechanism::ShortPagesAlways);
        }
        self.spent < self.earned(now) + INITIAL_CREDIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_credit_and_earns_a_part_of_the_time() {
        let seconds = Duration::from_secs;
        let mut remap_budget = RemapBudget::new(seconds(100));
        assert!(remap_budget.has_credit(seconds(100)) && remap_budget.savings(seconds(100)).is_zero());
        remap_budget.pay(Duration::from_millis(50));
        // It earns 50 ms in nine seconds.
        assert!(!remap_budget.has_credit(seconds(107)) && remap_budget.has_credit(seconds(108)));
        assert_eq!([109, 118].map(|now| remap_budget.savings(seconds(now)).as_micros()), [0, 50_000]);
    }
}
