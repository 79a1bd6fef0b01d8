//! A run of suites on one device: what each of them measures with.

use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::cores::Cores;
use crate::target::Target;

/// A run of suites on one device.
#[derive(Debug)]
pub struct Bench {
    pub(crate) target: Target,
    pub(crate) clock: Clock,
    pub(crate) cores: Cores,
    /// How long each figure is measured.
    pub(crate) time: Duration,
}

impl Bench {
    /// Makes ready to measure on `target`, each figure for about `time`.
    pub fn new(target: Target, time: Duration) -> Self {
        Self { target, clock: Clock::new(), cores: Cores::new(), time }
    }

    /// The device.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Nanoseconds that reading the clock costs, which were taken off every sample.
    pub fn clock_cost_ns(&self) -> f64 {
        self.clock.cost_ns()
    }

    /// Whether a measurement that began then has had its time.
    pub(crate) fn is_over(&self, began: Moment, now: Moment) -> bool {
        self.clock.between(began, now) >= self.time.as_nanos() as f64
    }
}
