//! The CPU's memory: caches and DRAM.
//!
//! `bandwidth` has loops over working sets, by one core and by all; `reads` has strides and layouts; `latency` follows a
//! chain. All of it runs on pinned threads (`workers`), each with memory that it touched first: on machines with several
//! NUMA nodes that is memory of its own node.

mod bandwidth;
mod latency;
mod reads;
mod workers;

use crate::Result;
use crate::facts::Facts;
use crate::run::Run;

/// The CPU as who reads the memory.
#[derive(Debug)]
pub(crate) struct Cpu {
    cores: workers::Cores,
}

impl Cpu {
    pub(crate) fn new() -> Self {
        Self { cores: workers::Cores::new() }
    }

    pub(crate) fn bandwidth(&self, run: &mut Run<'_>) -> Result<()> {
        bandwidth::measure(&self.cores, run)
    }

    pub(crate) fn reads(&self, run: &mut Run<'_>) -> Result<()> {
        self.cores.on_one(|| reads::measure(run))
    }

    pub(crate) fn latency(&self, facts: &Facts, run: &mut Run<'_>) -> Result<()> {
        self.cores.on_one(|| latency::measure(facts, run))
    }
}
