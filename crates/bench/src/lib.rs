//! What a pair of allocate and free costs: millpond, the allocators that it is measured against, and mimalloc.
//!
//! A user of the pool's public interface only. `millpond bench` prints what this crate measures.
//!
//! **How one figure comes about.** [`Bench::run`] takes one suite and one allocator. It opens a device for it
//! (`target.rs`) and builds the allocator as a `Subject` (`subject/`), so that its calls are compiled into the loops that
//! measure them. A suite (`suites/`, one file each) runs its work on pinned threads (`cores.rs`), takes times with the
//! clock (`clock.rs`), whose own cost is measured and taken off, and makes one [`Row`] of each set of samples
//! (`samples.rs`).
//!
//! **What the figures are of.** Nanoseconds that the calling thread spends, wall clock. On the simulated device the
//! driver's calls cost next to nothing, so that the figures there are of an allocator's own work alone.

mod clock;
mod cores;
mod drift;
mod error;
mod machine;
mod opaque;
mod ratio;
pub mod report;
mod row;
mod samples;
pub mod scale;
mod subject;
mod suite;
mod suites;
mod target;
mod work;

use std::time::Duration;

pub use drift::Drift;
pub use error::{Error, Result};
pub use machine::Machine;
pub use ratio::{times, times_reference};
pub use row::Row;
pub use subject::{MIMALLOC, names};
pub use suite::Suite;
pub use target::Target;

use clock::Clock;
use cores::Cores;
use opaque::Opaque;
use subject::{Subject, Visit, with_subject};

/// A run of suites on one device.
#[derive(Debug)]
pub struct Bench {
    target: Target,
    clock: Clock,
    cores: Cores,
    /// How long each figure is measured.
    time: Duration,
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

    /// The reference: a pair of 512 B with mimalloc.
    ///
    /// # Errors
    /// Where mimalloc has no memory.
    pub fn reference(&self) -> Result<Row> {
        let rows =
            with_subject(MIMALLOC, &self.target, suites::Measure { bench: self, suite: Suite::Reference })?;
        rows.into_iter().next().ok_or(Error::NothingMeasured)
    }

    /// Runs a suite with one allocator, on a device of its own. No rows where the suite has nothing to ask of the
    /// allocator.
    ///
    /// # Errors
    /// The allocator's own, and the device's. Rows that were measured before are lost with it.
    pub fn run(&self, suite: Suite, allocator: &'static str) -> Result<Vec<Row>> {
        with_subject(allocator, &self.target, suites::Measure { bench: self, suite })
    }
}

/// Allocates and frees `bytes` so many times, with nothing around it: for counting instructions. The difference between
/// two counts is what the pairs between them cost.
///
/// # Errors
/// The allocator's own, and the device's.
pub fn repeat(target: &Target, allocator: &str, bytes: u64, pairs: usize) -> Result<()> {
    with_subject(allocator, target, Repeat { bytes, pairs })
}

struct Repeat {
    bytes: u64,
    pairs: usize,
}

impl Visit for Repeat {
    type Outcome = ();

    fn visit<S: Subject>(self, build: impl Fn() -> Result<S>) -> Result<()> {
        let subject = build()?;
        let lane = subject.lane()?;
        for _ in 0..self.pairs {
            let block = subject.allocate(self.bytes.opaque(), &lane)?;
            subject.free(block.opaque(), &lane)?;
        }
        Ok(())
    }
}
