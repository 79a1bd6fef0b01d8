//! What the command line may say to `millpond replay`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use millpond::device::{DeviceName, MemoryKind};
use millpond_baselines::{Caching, CachingOptions, MILLPOND, NAMES, OF_RMM, StreamOrdered, name_of};
use millpond_replay::choice::Choice;
use millpond_replay::fit::{CONTEXT_BYTES, Card};
use millpond_replay::replay::{FreeWhen, UNLIMITED};
use millpond_replay::trace::Trace;

use crate::choices::{ALL, is_asked, listed_memories, memories, names_or_all};

#[derive(Debug, Args)]
#[command(after_help = "\
A trace is a PyTorch memory snapshot, an RMM log or a recording of Millpond's,
plain, gzipped or compressed by zstd. Needs a GPU for `--device cuda` only.

Examples:
  millpond replay snapshot.pickle --report report.html
  millpond replay snapshot.pickle --capacity 24GiB --fail-if-oom")]
pub(crate) struct ReplayArgs {
    /// Traces to replay; - is standard input
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// Allocators to compare, such as millpond,caching
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = ALL, value_parser = names_or_all(NAMES.into_iter().chain(of_rmm())), hide_possible_values = true)]
    allocator: Vec<String>,
    /// Ask about one size of device, such as 24GiB
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub(crate) capacity: Option<u64>,
    /// Cards to judge, such as 'RTX 4090,A100-40,24GiB'
    #[arg(long, value_name = "CARDS", value_delimiter = ',')]
    pub(crate) card: Vec<Card>,
    /// Left to the driver on a card [default: 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    pub(crate) context: Option<u64>,
    /// End with status 1 if one chosen runs out of memory
    #[arg(long)]
    pub(crate) fail_if_oom: bool,
    /// Write a page with charts, for a browser
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Write the results; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write memory over time, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub(crate) export_counters: Option<PathBuf>,
    /// Write a snapshot, for pytorch.org/memory_viz
    #[arg(long, value_name = "FILE")]
    pub(crate) export_snapshot: Option<PathBuf>,
    /// Write the peak's stacks: .svg, .folded, .pb.gz
    #[arg(long, value_name = "FILE", value_parser = StacksFile::of)]
    pub(crate) export_stacks: Option<StacksFile>,
    /// When a block used by other streams is free again
    #[arg(long, value_enum, default_value = "completed")]
    free: Free,
    /// Millpond's pages, such as 2MiB..64MiB
    #[arg(long, value_name = "FROM..TO", value_parser = page_sizes)]
    pub(crate) page_sizes: Option<(u64, u64)>,
    /// PyTorch's settings, as in PYTORCH_CUDA_ALLOC_CONF
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) alloc_conf: Option<CachingOptions>,
    /// Costs of another machine, from millpond probe --cost-table
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) cost_table: Option<PathBuf>,
    #[arg(long, default_value_t = DeviceName::SIM, help = DeviceName::listed() + "; sim keeps no bytes")]
    pub(crate) device: DeviceName,
    #[arg(long, value_name = "KIND", default_value = name_of(MemoryKind::Device), value_parser = memories(), hide_possible_values = true, help = listed_memories())]
    pub(crate) memory: MemoryKind,
    /// With --device host or cuda: mark and check each block
    #[arg(long)]
    pub(crate) verify: bool,
}

/// A file for what call stacks hold.
#[derive(Debug, Clone)]
pub(crate) struct StacksFile {
    pub(crate) path: PathBuf,
    pub(crate) format: StacksFormat,
}

/// What such a file is, by the end of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StacksFormat {
    Flame,
    Folded,
    Pprof,
}

impl StacksFile {
    const ENDS: [(&str, StacksFormat); 3] =
        [(".svg", StacksFormat::Flame), (".folded", StacksFormat::Folded), (".pb.gz", StacksFormat::Pprof)];

    fn of(text: &str) -> Result<Self, String> {
        let found = Self::ENDS.iter().find(|(end, _)| text.ends_with(end));
        let (_, format) = found.ok_or_else(|| {
            format!("'{text}' should end with .svg (flame graph), .folded (folded stacks) or .pb.gz (pprof)")
        })?;
        Ok(Self { path: text.into(), format: *format })
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Free {
    /// When the recorded allocator found it reusable
    Completed,
    /// When the program let go of it
    Requested,
}

/// The names of RMM's own allocators.
fn of_rmm() -> impl Iterator<Item = &'static str> {
    OF_RMM.into_iter().map(|listed| listed.name)
}

impl ReplayArgs {
    /// The allocators to replay with, in the order of reports.
    pub(crate) fn allocators(&self) -> Vec<&'static str> {
        let left_out = self.left_out();
        let of_rmm = of_rmm().filter(|name| self.allocator.iter().any(|asked| asked == name));
        let names = NAMES.into_iter().filter(|name| is_asked(&self.allocator, name));
        names.filter(|name| !left_out.contains(name)).chain(of_rmm).collect()
    }

    /// Those to replay a trace with: RMM's own are among all for a log of RMM's.
    pub(crate) fn allocators_for(&self, trace: &Trace) -> Vec<&'static str> {
        let mut names = self.allocators();
        let is_missing =
            |name: &&str| trace.is_rmms && is_asked(&self.allocator, name) && !names.contains(name);
        let more: Vec<_> = of_rmm().filter(is_missing).collect();
        names.extend(more);
        names
    }

    /// The allocators that were asked for and that the memory does not carry: the driver's pool has device memory only, and
    /// managed memory has no pages to be mapped.
    pub(crate) fn left_out(&self) -> Vec<&'static str> {
        let without: &[_] = match self.memory {
            MemoryKind::Device => &[],
            MemoryKind::Managed => &[Caching::EXPANDABLE, StreamOrdered::NAME],
            _ => &[StreamOrdered::NAME],
        };
        without.iter().copied().filter(|name| is_asked(&self.allocator, name)).collect()
    }

    /// What the allocators are built with.
    pub(crate) fn choice(&self) -> Choice {
        Choice { page_sizes: self.page_sizes, pytorch: self.alloc_conf.clone() }
    }

    /// Bytes of each card that are not the allocator's.
    pub(crate) fn context(&self) -> u64 {
        self.context.unwrap_or(CONTEXT_BYTES)
    }

    /// What a process takes of `--capacity` beside what the allocator gets: of device memory on the simulated device.
    pub(crate) fn context_beside(&self) -> u64 {
        let has_context = self.device == DeviceName::SIM && self.memory == MemoryKind::Device;
        if has_context { self.context() } else { 0 }
    }

    /// Whether `--fail-if-oom` is about an allocator: one that was named, or where none was, the one that ran. Of a trace that does
    /// not say which it was, the pool.
    pub(crate) fn is_judged(&self, name: &str, ran: &str) -> bool {
        match self.allocator.iter().any(|asked| asked == ALL) {
            true if ran.is_empty() => name == MILLPOND,
            true => name == ran,
            false => true,
        }
    }

    /// The cards to look at.
    pub(crate) fn cards(&self) -> Vec<Card> {
        if self.card.is_empty() { Card::all() } else { self.card.clone() }
    }

    /// The files that are to be written.
    pub(crate) fn written(&self) -> [Option<&Path>; 5] {
        let [json, report, snapshot, counters] =
            [&self.json, &self.report, &self.export_snapshot, &self.export_counters].map(Option::as_deref);
        let stacks = self.export_stacks.as_ref().map(|file| file.path.as_path());
        [json, report, snapshot, counters, stacks]
    }

    pub(crate) fn free(&self) -> FreeWhen {
        match self.free {
            Free::Completed => FreeWhen::Completed,
            Free::Requested => FreeWhen::Requested,
        }
    }
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    match size_or_none(text) {
        Ok(0) => Err(A_SIZE.to_owned()),
        other => other,
    }
}

/// No more than a device may claim to have: allocators reserve addresses in proportion to it.
fn capacity(text: &str) -> Result<u64, String> {
    // A bare number can only be GiB: no device has so few bytes.
    let text = match text.trim().parse::<f64>() {
        Ok(number) if (1.0..=512.0).contains(&number) => format!("{}GiB", text.trim()),
        _ => text.to_owned(),
    };
    match size(&text) {
        Ok(bytes) if bytes > UNLIMITED => Err("16TiB are the most that can be simulated".to_owned()),
        other => other,
    }
}

pub(crate) fn size_or_none(text: &str) -> Result<u64, String> {
    size_near(text, |number| if number < 256.0 { "GiB" } else { "MiB" })
}

/// `unit` is what a number without one most likely means.
fn size_near(text: &str, unit: fn(f64) -> &'static str) -> Result<u64, String> {
    // "24G" means 24 GiB, as for every other tool that speaks of GPU memory.
    let bytes = parse_size::Config::new().with_binary().parse_size(text).map_err(|_| A_SIZE.to_owned())?;
    let number = text.trim();
    match number.parse::<f64>() {
        // Nobody means so few bytes.
        Ok(plain) if bytes < LEAST_WITHOUT_UNIT && plain > 0.0 => {
            Err(format!("{number} without a unit is {number} bytes; did you mean {number}{}?", unit(plain)))
        }
        _ => Ok(bytes),
    }
}

const LEAST_WITHOUT_UNIT: u64 = 1 << 20;

const A_SIZE: &str = "expected a size such as 24GiB, 512MiB or 8000000000";

/// Whether they are powers of two, the pool says.
fn page_sizes(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or("expected two sizes, such as 2MiB..64MiB")?;
    let page = |text| {
        size_near(text, |_| "MiB")
            .and_then(|bytes| if bytes == 0 { Err(A_SIZE.to_owned()) } else { Ok(bytes) })
    };
    Ok((page(from)?, page(to)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_unless_they_say_otherwise() {
        assert_eq!(size("24GiB"), Ok(24 << 30));
        assert_eq!(size("24g"), Ok(24 << 30));
        assert_eq!(size("24KiB"), Ok(24 << 10));
        assert_eq!(size("8000000000"), Ok(8_000_000_000));
        assert!(size("0").is_err());
        assert!(size("much").is_err());
        assert_eq!(capacity("16TiB"), Ok(UNLIMITED));
        let sizes = ["24", "23.5GiB", "24564MiB"].map(|text| capacity(text).unwrap() >> 20);
        assert_eq!(sizes, [24 << 10, 24064, 24564]);
        assert!(capacity("17TiB").unwrap_err().starts_with("16TiB are the most"));
        assert_eq!(size_or_none("0"), Ok(0));
        assert_eq!(page_sizes("2M..64MiB"), Ok((2 << 20, 64 << 20)));
        assert!(page_sizes("2MiB").is_err());
        assert!(page_sizes("0..2MiB").is_err());
    }

    #[test]
    fn a_number_that_cannot_be_bytes_is_refused_with_what_it_may_mean() {
        for (text, meant) in [("24", "24GiB"), ("512", "512MiB"), ("8192", "8192MiB"), (" 1.5 ", "1.5GiB")] {
            let said = size_or_none(text).unwrap_err();
            assert!(said.ends_with(&format!("did you mean {meant}?")), "{said}");
        }
        assert!(page_sizes("2..64MiB").unwrap_err().ends_with("did you mean 2MiB?"));
        assert_eq!(size_or_none("0"), Ok(0));
        assert_eq!(size_or_none("1048576"), Ok(1 << 20));
    }
}
