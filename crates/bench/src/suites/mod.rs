//! `suites/`: what is measured, one file each.
//!
//! Uses the clock, the cores and the allocators as [`Subject`]s. A suite gets a way to build an allocator on a fresh
//! device, and returns its rows.

mod churn;
mod latency;
mod threads;

use std::hint::black_box;

use crate::subject::{Subject, Visit};
use crate::{Bench, Result, Row};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// A set of figures that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Pairs of one size, and each call alone.
    Latency,
    /// Pairs at once on 1, 2, 4, … threads, each with a stream of its own.
    Threads,
    /// Live blocks replaced at random.
    Churn,
    /// The host's mark: mimalloc's pair of 512 B, which every run measures.
    Mark,
}

impl Suite {
    /// All that can be asked for, in the order in which they run.
    pub const ALL: [Self; 3] = [Self::Latency, Self::Threads, Self::Churn];

    /// The name that `--suite` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency | Self::Mark => "latency",
            Self::Threads => "threads",
            Self::Churn => "churn",
        }
    }
}

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
            Suite::Mark => latency::mark(bench, &build()?).map(|row| vec![row]),
            Suite::Threads => threads::run(bench, &build()?),
            Suite::Churn => churn::run(bench, &build()?),
        }
    }
}

/// Allocates and frees once. The size is not known to the compiler, and the block is not optimised away.
#[inline(always)]
fn pair<S: Subject>(subject: &S, bytes: u64, lane: &S::Lane) -> Result<()> {
    let block = black_box(subject.allocate(black_box(bytes), lane)?);
    subject.free(block, lane)
}
