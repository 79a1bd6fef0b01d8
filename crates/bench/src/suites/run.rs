//! Which suite is run with which allocator.

use super::{churn, hand_over, latency, reuse, scale, streams, threads, throughput};
use crate::bench::Bench;
use crate::error::{Error, Result};
use crate::row::Row;
use crate::subject::{MIMALLOC, Subject, Visit, with_subject};
use crate::suite::Suite;

impl Bench {
    /// The reference: a pair of 512 B with mimalloc.
    ///
    /// # Errors
    /// Where mimalloc has no memory.
    pub fn reference(&self) -> Result<Row> {
        let rows = with_subject(MIMALLOC, &self.target, Measure { bench: self, suite: Suite::Reference })?;
        rows.into_iter().next().ok_or(Error::NothingMeasured)
    }

    /// Runs a suite with one allocator, on a device of its own. No rows where the suite has nothing to ask of the
    /// allocator.
    ///
    /// # Errors
    /// The allocator's own, and the device's. Rows that were measured before are lost with it.
    pub fn run(&self, suite: Suite, allocator: &'static str) -> Result<Vec<Row>> {
        with_subject(allocator, &self.target, Measure { bench: self, suite })
    }
}

/// A suite to run with whichever allocator was chosen.
struct Measure<'a> {
    bench: &'a Bench,
    suite: Suite,
}

impl Visit for Measure<'_> {
    type Outcome = Vec<Row>;

    fn visit<S: Subject>(self, build: impl Fn() -> Result<S>) -> Result<Vec<Row>> {
        let bench = self.bench;
        match self.suite {
            Suite::Latency => latency::run(bench, &build()?),
            Suite::Reference => latency::reference(bench, &build()?).map(one),
            Suite::Throughput => throughput::run(bench, &build()?).map(one),
            Suite::Mixed => throughput::run_mixed(bench, &build()?).map(one),
            Suite::Threads => threads::run(bench, &build()?),
            Suite::HandOver => hand_over::run(bench, &build()?),
            Suite::Churn => churn::run(bench, &build()?),
            Suite::Reuse => reuse::run(bench, build),
            Suite::Streams => streams::run(bench, build()?.name()),
            Suite::Scale => scale::run(bench, build()?.name()),
        }
    }
}

fn one(row: Row) -> Vec<Row> {
    vec![row]
}
