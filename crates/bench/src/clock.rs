//! The clock: the processor's time-stamp counter where it is steady, else the system's monotonic clock.

/// Readings of which the clock's own cost is the median.
const COST_READINGS: usize = 20_001;

/// A clock that knows what reading it costs.
#[derive(Debug)]
pub(crate) struct Clock {
    clock: quanta::Clock,
    /// Between two readings with nothing between them, the median.
    cost_ns: f64,
}

/// A reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Clock {
    pub(crate) fn new() -> Self {
        let mut clock = Self { clock: quanta::Clock::new(), cost_ns: 0.0 };
        let mut costs: Vec<f64> = (0..COST_READINGS)
            .map(|_| {
                let from = clock.now();
                clock.between(from, clock.now())
            })
            .collect();
        costs.sort_by(f64::total_cmp);
        clock.cost_ns = costs[COST_READINGS / 2];
        clock
    }

    pub(crate) fn cost_ns(&self) -> f64 {
        self.cost_ns
    }

    /// Reads the clock, after all that stands before it and before all that stands after it.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        fence();
        let raw = self.clock.raw();
        fence();
        Moment(raw)
    }

    /// Nanoseconds from one reading to a later one, with the cost of reading in it.
    #[inline]
    pub(crate) fn between(&self, from: Moment, to: Moment) -> f64 {
        self.clock.delta_as_nanos(from.0, to.0) as f64
    }

    /// Nanoseconds of the work between two readings.
    #[inline]
    pub(crate) fn work_between(&self, from: Moment, to: Moment) -> f64 {
        (self.between(from, to) - self.cost_ns).max(0.0)
    }
}

/// Keeps the processor from moving work over a reading of the counter.
#[inline(always)]
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `lfence` is of SSE2, which every x86-64 processor has; it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
}
