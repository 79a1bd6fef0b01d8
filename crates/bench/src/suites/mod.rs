//! `suites/`: what is measured, one file each.
//!
//! Uses the clock, the cores and the allocators as [`Subject`]s. A suite gets a way to build an allocator on a fresh
//! device, and returns its rows. (`streams`, which asks for more of the pool than others have, builds its own.)

mod churn;
mod hand_over;
mod latency;
mod reuse;
mod scale;
mod streams;
mod threads;
mod throughput;

use crate::opaque::Opaque;
use crate::subject::{Subject, Visit};
use crate::suite::Suite;
use crate::{Bench, Result, Row};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// A suite to run with whichever allocator was chosen.
pub(crate) struct Measure<'a> {
    pub(crate) bench: &'a Bench,
    pub(crate) suite: Suite,
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

/// Allocates and frees once. The size is not known to the compiler, and the block is not optimised away.
#[inline(always)]
fn pair<S: Subject>(subject: &S, bytes: u64, lane: &S::Lane) -> Result<()> {
    let block = subject.allocate(bytes.opaque(), lane)?;
    subject.free(block.opaque(), lane)
}
