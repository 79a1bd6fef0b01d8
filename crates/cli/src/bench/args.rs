//! The arguments of `millpond bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millpond::device::{DeviceChoice, MemoryKind};
use millpond_baselines::{MILLPOND, name_of};
use millpond_bench::{MIMALLOC, Suite, names};
use millpond_mlp::Config;

use crate::error::{Error, Result};
use crate::flags::{ALL, is_asked, listed, listed_memories, memories, names_or_all};

#[derive(Debug, Args)]
#[command(after_help = "\
Times are nanoseconds of the calling thread, for an allocation and its free.

Examples:
  millpond bench                                       everything, 3 minutes
  millpond bench --quick                               everything, 30 seconds
  millpond bench --suite latency,churn --device sim    without a driver's calls
  millpond bench --suite reuse --memory pinned         page-locked host memory
  millpond bench --allocator millpond,binned --json out.json --report out.html")]
pub(crate) struct BenchArgs {
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = ALL, value_parser = names_or_all(Suite::ALL.map(Suite::name)), hide_possible_values = true, help = suites_help())]
    suite: Vec<String>,
    /// Allocators, with commas between, or all: those of millpond train, and mimalloc
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = ALL, value_parser = names_or_all(names()), hide_possible_values = true)]
    allocator: Vec<String>,
    #[arg(long, default_value_t = DeviceChoice::Auto, help = DeviceChoice::listed())]
    pub(crate) device: DeviceChoice,
    #[arg(long, value_name = "KIND", default_value = name_of(MemoryKind::Device), value_parser = memories(), hide_possible_values = true, help = memory_help())]
    pub(crate) memory: MemoryKind,
    /// Milliseconds for each figure [default: 200]
    #[arg(long, value_name = "MS", value_parser = milliseconds, allow_negative_numbers = true)]
    time: Option<u64>,
    /// A rough answer, in some 30 seconds: --time 20
    #[arg(long, conflicts_with = "time")]
    quick: bool,
    /// Write the figures to this file, or to standard output for -
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

impl BenchArgs {
    /// The suites to run, in their order.
    pub(crate) fn suites(&self) -> Vec<Suite> {
        Suite::ALL.into_iter().filter(|suite| is_asked(&self.suite, suite.name())).collect()
    }

    /// The allocators to run them with, in the order of reports.
    pub(crate) fn allocators(&self) -> Vec<&'static str> {
        names().into_iter().filter(|name| is_asked(&self.allocator, name) && self.has_memory(name)).collect()
    }

    /// Allocators whose rows would say nothing, since they take the device's own memory only.
    pub(crate) fn without_memory(&self) -> Vec<&'static str> {
        names().into_iter().filter(|name| is_asked(&self.allocator, name) && !self.has_memory(name)).collect()
    }

    /// mimalloc is the reference, whatever is measured.
    fn has_memory(&self, allocator: &str) -> bool {
        self.memory == MemoryKind::Device || [MILLPOND, MIMALLOC].contains(&allocator)
    }

    /// Refuses allocators by name that have no such memory.
    pub(crate) fn check(&self) -> Result<()> {
        match self.without_memory()[..] {
            [first, ..] if !self.allocator.iter().any(|name| name == ALL) => Err(Error::Usage(format!(
                "--memory {} is for {MILLPOND}: {first} takes device memory only",
                name_of(self.memory)
            ))),
            _ => Ok(()),
        }
    }

    /// How long each figure is measured.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(self.time.unwrap_or(if self.quick { QUICK_MS } else { DEFAULT_MS }))
    }

    /// About how long all of it takes.
    pub(crate) fn takes(&self) -> String {
        let pairs = self.suites().len() * self.allocators().len();
        let time = self.time();
        let each = (time + time.min(WARM_UP)).as_secs_f64() * FIGURES_A_PAIR + BESIDE_S;
        let seconds = each * pairs as f64;
        let about = if seconds < 90.0 {
            format!("{} s", (seconds / 5.0).ceil() * 5.0)
        } else {
            format!("{} minutes", (seconds / 60.0).round())
        };
        let quicker =
            if time > Duration::from_millis(QUICK_MS) { "; --quick takes a sixth of that" } else { "" };
        format!("time: about {about}{quicker}")
    }
}

const DEFAULT_MS: u64 = 200;
const QUICK_MS: u64 = 20;

/// Before a figure is measured it runs for as long, up to this.
const WARM_UP: Duration = Duration::from_millis(150);

/// Figures of a suite with an allocator, in the mean.
const FIGURES_A_PAIR: f64 = 6.5;

/// Seconds that a suite with an allocator takes beside what is measured.
const BESIDE_S: f64 = 0.15;

/// A minute for each figure at most.
fn milliseconds(text: &str) -> std::result::Result<u64, String> {
    Ok(Config::whole(text, 60_000)? as u64)
}

fn memory_help() -> String {
    format!("Memory of millpond's pools: {}", listed_memories())
}

fn suites_help() -> String {
    format!("Suites, with commas between: {}", listed(Suite::ALL.map(Suite::name)))
}
