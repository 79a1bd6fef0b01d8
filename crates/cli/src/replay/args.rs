//! The arguments of `millpond replay`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use millpond::device::{DeviceName, MemoryKind};
use millpond_baselines::{Caching, CachingOptions, MILLPOND, NAMES, OF_RMM, StreamOrdered, name_of};
use millpond_replay::choice::Choice;
use millpond_replay::fit::{CONTEXT_BYTES, Card};
use millpond_replay::replay::FreeWhen;
use millpond_replay::trace::Trace;

use crate::flags::{
    ALL, capacity, is_asked, listed_memories, memories, names_or_all, page_sizes, size_or_none,
};
use crate::traces::Bandwidth;

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
    /// Say what is needed with this tag offloaded
    #[arg(long, value_name = "TAG")]
    pub(super) offload: Option<String>,
    /// How fast it is copied, each way [default: 55]
    #[arg(long, value_name = "GB/s", value_parser = Bandwidth::parse, requires = "offload")]
    pub(super) bandwidth: Option<Bandwidth>,
    /// End with status 1 if one runs out of memory
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
    /// On host or cuda: mark and check each block
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

/// Whether what is needed is looked for, and which cards have it.
pub(super) fn is_about_cards(args: &ReplayArgs) -> bool {
    !is_real(args.device) && args.memory == MemoryKind::Device
}

/// Whether the device keeps bytes.
pub(super) fn is_real(device: DeviceName) -> bool {
    device != DeviceName::SIM
}
