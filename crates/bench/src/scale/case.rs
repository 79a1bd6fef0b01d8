//! The cases by name: the size that is promised, and the most that it may cost there.

use std::time::Duration;

use super::{Meter, pages, pools, streams, threads};
use crate::Result;

/// Which figure of the calls is held against the most that is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Half of the calls take less.
    Median,
    /// No call takes longer.
    Worst,
}

/// A call beside very many of something.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// One word, by which it is asked for.
    pub name: &'static str,
    /// What is measured, with `{n}` for how many there are.
    pub about: &'static str,
    /// How many of it there are.
    pub size: u64,
    /// What the call may cost there.
    pub most: Duration,
    /// Which figure that is.
    pub figure: Figure,
    /// By how many times the instructions of a part may grow from a few hundred to eight times as many; `None` where only the
    /// time says something.
    pub growth: Option<f64>,
    run: fn(&mut Meter, u64) -> Result<()>,
}

const MICROSECOND: Duration = Duration::from_micros(1);
const MILLISECOND: Duration = Duration::from_millis(1);

impl Case {
    /// All, in the order in which they run.
    pub const ALL: [Self; 14] = [
        Self {
            size: 50_000,
            most: MICROSECOND.saturating_mul(10),
            ..Self::new("idle", "a miss beside {n} idle old mappings", pages::idle)
        },
        Self {
            size: 50_000,
            most: MICROSECOND.saturating_mul(10),
            ..Self::new("pending", "a miss beside {n} pending old mappings", pages::pending)
        },
        Self {
            size: 16_000,
            most: MICROSECOND.saturating_mul(200),
            // It looks at each: whether its work is complete, only the device knows.
            growth: None,
            ..Self::new(
                "pending-holes",
                "a miss beside {n} pending holes, no reuse policy",
                pages::pending_holes,
            )
        },
        Self {
            size: 50_000,
            most: MICROSECOND.saturating_mul(20),
            ..Self::new("aligned", "an aligned miss beside {n} holes that lie badly", pages::aligned)
        },
        Self {
            size: 10 << 10,
            most: MILLISECOND.saturating_mul(300),
            ..Self::new("block", "one block of {n} GiB, default pages", pages::block)
        },
        Self {
            size: 40_000,
            most: MILLISECOND.saturating_mul(20),
            ..Self::new("come-back", "a miss in which {n} pages come back", pages::come_back)
        },
        Self {
            size: 1_000_000,
            most: MILLISECOND,
            ..Self::new("trim", "a trim that gives one range back, {n} blocks", pages::trim)
        },
        Self {
            size: 1_000_000,
            most: MICROSECOND.saturating_mul(20),
            ..Self::new("after-trim", "the miss after that trim, {n} blocks", pages::after_trim)
        },
        Self {
            size: 1_000_000,
            most: MILLISECOND.saturating_mul(5),
            figure: Figure::Worst,
            growth: None,
            ..Self::new("growing", "the longest allocation up to {n} blocks", pages::growing)
        },
        Self { size: 50_000, ..Self::new("new-stream", "a new stream beside {n}", streams::new_stream) },
        Self {
            size: 50_000,
            most: Duration::from_nanos(300),
            ..Self::new("foreign-stream", "foreign_stream of one of {n}", streams::foreign_stream)
        },
        Self {
            size: 10_000,
            most: MICROSECOND.saturating_mul(100),
            // It grows a little, and more with the checks of tests: a walk over all would be eight times as much.
            growth: Some(2.0),
            ..Self::new("take-back", "a miss that takes back, {n} stream caches", streams::take_back)
        },
        Self {
            size: 1_100,
            most: MICROSECOND.saturating_mul(2),
            // Valgrind has 500 threads at most.
            growth: None,
            ..Self::new("threads", "a pair of a thread beside {n} others", threads::pair)
        },
        Self {
            size: 20_000,
            most: MILLISECOND,
            // Valgrind has no addresses for thousands of pools.
            growth: None,
            ..Self::new("pools", "a pool with a block beside {n} others", pools::pool)
        },
    ];

    const fn new(name: &'static str, about: &'static str, run: fn(&mut Meter, u64) -> Result<()>) -> Self {
        Self { name, about, size: 0, most: MICROSECOND, figure: Figure::Median, growth: Some(1.5), run }
    }

    /// Measures it beside so many.
    ///
    /// # Errors
    /// The pool's own, and the device's.
    pub fn measure(&self, size: u64) -> Result<Meter> {
        let mut meter = Meter::default();
        (self.run)(&mut meter, size)?;
        Ok(meter)
    }
}
