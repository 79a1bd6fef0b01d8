//! One figure as programs read it.

use millpond::device::DeviceName;
use millpond_baselines::{MILLPOND, name_of};
use serde::Serialize;

use crate::samples::Samples;
use crate::{Bench, Suite};

/// One figure: a suite's mode with one allocator, size and number of threads. Times in nanoseconds a pair of allocate
/// and free, or a call where the mode says so.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The suite's name.
    pub suite: &'static str,
    /// What of the suite: `pair`, `alone`, a range of sizes, …
    pub mode: String,
    /// The allocator's name.
    pub allocator: &'static str,
    /// `sim`, `host`, `cuda:0`; `host` for mimalloc.
    pub device: String,
    /// Bytes of a block; of the largest, where they vary.
    pub bytes: u64,
    /// Threads that allocated and freed.
    pub threads: usize,
    /// The mean of the samples.
    pub mean_ns: f64,
    /// The least sample.
    pub min_ns: f64,
    /// The median. Samples are of batches of up to 100 pairs, or of single calls.
    pub p50_ns: f64,
    /// The 99th percentile.
    pub p99_ns: f64,
    /// The 99.9th percentile.
    pub p999_ns: f64,
    /// Pairs a second, of all threads together; calls a second where calls were timed.
    pub pairs_per_s: f64,
    /// Which memory of the device: `device`, `pinned` or `managed`; `host` for mimalloc.
    pub memory: &'static str,
    /// The median of what mimalloc's pair of 512 B took between these samples, where it was measured by turns with them.
    /// Not in JSON, whose keys are promised.
    #[serde(skip)]
    pub reference_p50_ns: Option<f64>,
    /// How many samples the figures are of: of fewer than 100, nobody knows what 99 % are below. Not in JSON, as above.
    #[serde(skip)]
    pub samples: usize,
}

impl Row {
    /// Whether the other row is of the same work, perhaps with another allocator.
    pub fn same_case(&self, other: &Self) -> bool {
        let case = |row: &Self| (row.suite, row.bytes, row.threads);
        case(self) == case(other) && self.mode == other.mode
    }

    /// What was timed, in words: the mode, where that says it.
    pub fn work(&self) -> &str {
        work_of(&self.mode)
    }

    /// With what the host's reference took meanwhile.
    pub(crate) fn beside(mut self, references: Samples) -> Self {
        self.reference_p50_ns = Some(rounded(references.figures().p50));
        self
    }

    /// The 99th percentile and the 99.9th, as far as there are samples enough to know them.
    pub fn known_percentiles(&self) -> [Option<f64>; 2] {
        [(100, self.p99_ns), (1000, self.p999_ns)].map(|(least, ns)| (self.samples >= least).then_some(ns))
    }

    /// Whether it is of the pool.
    pub fn is_ours(&self) -> bool {
        self.allocator == MILLPOND
    }
}

pub(crate) fn work_of(mode: &str) -> &str {
    match mode {
        "alone" => "allocation alone",
        "alone-free" => "free alone",
        mode => mode,
    }
}

/// What was measured: a row without its figures.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub(crate) suite: Suite,
    pub(crate) mode: String,
    pub(crate) allocator: &'static str,
    pub(crate) bytes: u64,
    pub(crate) threads: usize,
}

impl Measurement {
    /// A case of one thread.
    pub(crate) fn new(suite: Suite, mode: impl Into<String>, allocator: &'static str, bytes: u64) -> Self {
        Self { suite, mode: mode.into(), allocator, bytes, threads: 1 }
    }

    /// The row of samples that follow one another on one thread.
    pub(crate) fn row(self, bench: &Bench, samples: Samples) -> Row {
        self.row_at_rate(bench, samples, None)
    }

    /// The row of samples of several threads at once, which together made so many pairs a second.
    pub(crate) fn row_at_rate(self, bench: &Bench, samples: Samples, pairs_per_s: Option<f64>) -> Row {
        let count = samples.len();
        let figures = samples.figures();
        let of_the_cpu = self.allocator == crate::MIMALLOC;
        let device = if of_the_cpu { DeviceName::HOST } else { bench.target.name() };
        Row {
            suite: self.suite.name(),
            mode: self.mode,
            allocator: self.allocator,
            device: device.to_string(),
            memory: if of_the_cpu { "host" } else { name_of(bench.target.memory()) },
            bytes: self.bytes,
            threads: self.threads,
            mean_ns: rounded(figures.mean),
            min_ns: rounded(figures.min),
            p50_ns: rounded(figures.p50),
            p99_ns: rounded(figures.p99),
            p999_ns: rounded(figures.p999),
            pairs_per_s: pairs_per_s.unwrap_or(1e9 / figures.mean.max(1e-3)).round(),
            reference_p50_ns: None,
            samples: count,
        }
    }
}

/// To hundredths: what is below is noise.
fn rounded(ns: f64) -> f64 {
    (ns * 100.0).round() / 100.0
}

#[cfg(test)]
impl Row {
    /// A row with some figures.
    pub(crate) fn for_test(suite: Suite, mode: &str, allocator: &'static str, threads: usize) -> Self {
        Self {
            suite: suite.name(),
            mode: mode.to_owned(),
            allocator,
            device: "sim".to_owned(),
            memory: "device",
            bytes: 1 << 20,
            threads,
            mean_ns: 12.0,
            min_ns: 9.0,
            p50_ns: 10.0,
            p99_ns: 20.0,
            p999_ns: 40.0,
            pairs_per_s: 1e8,
            reference_p50_ns: None,
            samples: 10_000,
        }
    }
}
