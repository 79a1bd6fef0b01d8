//! What one process requests and needs: by kind and module at the peak, with each allocator, and beside the allocators.

use std::collections::{BTreeMap, BTreeSet};

use millpond::HumanBytes;
use millpond_baselines::NAMES;
use millpond_replay::fit::Card;
use millpond_replay::replay::{FreeWhen, Program};
use millpond_replay::sites::tags_at_peak;
use serde::Serialize;

use super::cards::CardFacts;
use super::job::Process;
use super::needs::Needs;
use crate::error::Result;
use crate::terminal::{WIDTH, columns, say, table, wrapped};
use crate::traces::{Bandwidth, Offloaded, cut};

/// What a process takes of a card beside its allocator: the context, and the kernels of PyTorch, cuBLAS and cuDNN. Of jobs that
/// train, on an H100 with driver 580 and PyTorch 2.11: docs/lab/predict.md.
pub(super) const CONTEXT_BYTES: u64 = 770 << 20;

/// What NCCL takes besides: between two H100s of one host, as measured there.
pub(super) const NCCL_BYTES: u64 = 830 << 20;

/// What is asked about each process.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Empty for the sizes that cards have.
    pub(super) cards: Vec<CardFacts>,
    /// Bytes beside the allocator, and those of NCCL.
    pub(super) context: u64,
    pub(super) nccl: u64,
    /// What is to be offloaded, and how fast it is copied.
    pub(super) offload: Option<(String, Option<Bandwidth>)>,
}

impl Wanted {
    /// All bytes that are not the allocator's.
    pub(super) fn beside(&self) -> u64 {
        self.context + self.nccl
    }
}

/// What is told of a process. Sizes in bytes.
#[derive(Debug, Serialize)]
pub(super) struct Rank {
    rank: u32,
    seen: String,
    peak_requested: u64,
    /// What PyTorch's own allocator reserved at most, without a limit.
    recorded_reserved: u64,
    /// What is live at the peak, by kind.
    kinds: Vec<Held>,
    modules: Vec<Held>,
    allocators: Vec<Needs>,
    beside: Vec<Beside>,
    /// Where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    offloaded: Option<Offloaded>,
    /// What is said before all else.
    first: Vec<String>,
    remarks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Held {
    name: String,
    bytes: u64,
}

/// What is not allocated by PyTorch's allocator.
#[derive(Debug, Serialize)]
struct Beside {
    what: &'static str,
    /// `None` where it is not counted.
    bytes: Option<u64>,
    source: &'static str,
}

impl Rank {
    pub(super) fn of(process: &Process, wanted: &Wanted) -> Result<Self> {
        let trace = &process.trace;
        let program = Program::new(trace, FreeWhen::Completed).without_times();
        let cards: Vec<Card> = match wanted.cards.as_slice() {
            [] => Card::all(),
            named => named.iter().map(|facts| facts.card.clone()).collect(),
        };
        let tags = tags_at_peak(trace, &program);
        let by = |level: fn(&[String]) -> String| {
            let mut sums: BTreeMap<String, u64> = BTreeMap::new();
            tags.iter().for_each(|(tags, bytes)| *sums.entry(level(tags)).or_default() += bytes);
            let mut held: Vec<_> = sums.into_iter().map(|(name, bytes)| Held { name, bytes }).collect();
            held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
            held
        };
        Ok(Self {
            rank: process.rank,
            seen: process.seen(),
            peak_requested: program.peak_requested().0,
            recorded_reserved: process.answer.peak_reserved,
            kinds: by(|tags| tags.first().cloned().unwrap_or_else(|| "other".to_owned())),
            modules: by(|tags| tags.get(1).cloned().unwrap_or_else(|| "(no module)".to_owned())),
            allocators: Needs::with(&NAMES, trace, &program, &cards, wanted.beside())?,
            beside: beside(wanted),
            offloaded: match &wanted.offload {
                Some((tag, bandwidth)) => Some(Offloaded::of((trace, &program), tag, *bandwidth)?),
                None => None,
            },
            first: process.answer.first.clone(),
            remarks: process.answer.remarks.clone(),
        })
    }

    /// What it needs with an allocator of this name.
    pub(super) fn needs(&self, allocator: &str) -> u64 {
        let row = self.allocators.iter().find(|row| row.allocator == allocator);
        row.and_then(|row| row.needs).unwrap_or(u64::MAX)
    }

    /// What they are, and the number of each: processes of one rank, as those that a program starts by itself, are counted.
    pub(super) fn numbers(ranks: &[Self]) -> (&'static str, Vec<u32>) {
        let numbers: BTreeSet<u32> = ranks.iter().map(|rank| rank.rank).collect();
        if numbers.len() == ranks.len() {
            return ("rank", ranks.iter().map(|rank| rank.rank).collect());
        }
        ("process", (1..).take(ranks.len()).collect())
    }

    /// With a title, where it is one of several.
    pub(super) fn show(&self, title: Option<String>) {
        title.iter().for_each(|title| say(&format!("\n{title}")));
        say(&format!("({})", self.seen));
        self.first.iter().for_each(|said| say(&wrapped(&format!("But: {said}"), WIDTH)));
        let peak = self.peak_requested;
        say(&format!("requests {} at most\n\nHeld at the peak, by kind", HumanBytes(peak)));
        say(&held(&self.kinds, peak));
        say("\nby module");
        say(&held(&grouped(&self.modules), peak));
        let titles = ["allocator", "needs", "reserved", "runs on"].map(str::to_owned).to_vec();
        let mut lines = vec![titles];
        lines.extend(self.allocators.iter().map(|row| {
            let needs = row.needs.map_or("-".to_owned(), |bytes| HumanBytes(bytes).to_string());
            vec![row.allocator.to_owned(), needs, HumanBytes(row.reserved).to_string(), runs_on(&row.cards)]
        }));
        say(&format!("\n{}\n", table(&lines)));
        if let Some(offloaded) = &self.offloaded {
            offloaded.lines().iter().for_each(|line| say(&wrapped(line, WIDTH)));
            say("");
        }
        say("Beside the allocator");
        for Beside { what, bytes, source } in &self.beside {
            let bytes = bytes.map_or("not counted".to_owned(), |bytes| HumanBytes(bytes).to_string());
            say(&format!("{bytes:>11}  {what}; {source}"));
        }
        if !self.remarks.is_empty() {
            say("");
        }
        for remark in self.remarks.iter().take(MOST_REMARKS) {
            say(&wrapped(remark, WIDTH));
        }
        if let Some(more) = self.remarks.len().checked_sub(MOST_REMARKS).filter(|more| *more > 0) {
            say(&format!("and {more} more; --json has them"));
        }
        say("");
    }
}

/// Rows of a table, and remarks.
const MOST_ROWS: usize = 12;
const MOST_REMARKS: usize = 8;

fn held(rows: &[Held], peak: u64) -> String {
    let line = |bytes: u64, name: &str| {
        let share = format!("{:.0} %", bytes as f64 * 100.0 / peak.max(1) as f64);
        format!("{:>11} {share:>5}  {}", HumanBytes(bytes).to_string(), cut(name, columns() - 19))
    };
    let mut lines: Vec<_> = rows.iter().take(MOST_ROWS).map(|row| line(row.bytes, &row.name)).collect();
    if rows.len() > MOST_ROWS {
        let rest = rows[MOST_ROWS..].iter().map(|row| row.bytes).sum();
        lines.push(line(rest, &format!("in {} others", rows.len() - MOST_ROWS)));
    }
    lines.join("\n")
}

/// The modules of equal layers together: `h.*.mlp` for `h.0.mlp`, `h.1.mlp` and so on.
fn grouped(modules: &[Held]) -> Vec<Held> {
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for Held { name, bytes } in modules {
        let mut parts: Vec<&str> = name.split('.').collect();
        let layer = parts.iter_mut().find(|part| part.parse::<u32>().is_ok());
        layer.into_iter().for_each(|part| *part = "*");
        let sum = sums.entry(parts.join(".")).or_default();
        *sum = (sum.0 + bytes, sum.1 + 1);
    }
    let name = |name: String, modules: u64| match modules {
        1 => name,
        several => format!("{name} ({several})"),
    };
    let mut held: Vec<_> = sums
        .into_iter()
        .map(|(pattern, (bytes, modules))| Held { name: name(pattern, modules), bytes })
        .collect();
    held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
    held
}

/// Of cards that are sizes, the smallest says it all.
fn runs_on(cards: &[String]) -> String {
    match cards {
        [] => "none".to_owned(),
        [first, ..] if cards.iter().all(|card| card.parse::<u64>().is_ok()) => {
            format!("{first} GiB, or more")
        }
        several => several.join(", "),
    }
}

fn beside(wanted: &Wanted) -> Vec<Beside> {
    let measured = "measured on an H100; --context sets it";
    let what = "the context, and the kernels of PyTorch, cuBLAS and cuDNN";
    let mut all = vec![Beside { what, bytes: Some(wanted.context), source: measured }];
    if wanted.nccl > 0 {
        let source = "measured between two H100s of one host";
        all.push(Beside { what: "NCCL's buffers", bytes: Some(wanted.nccl), source });
    }
    let source = "what they allocate past PyTorch";
    all.push(Beside { what: "other libraries", bytes: None, source });
    all
}

/// What the ranks request and need, side by side.
pub(super) fn compared(ranks: &[Rank]) -> String {
    let (what, numbers) = Rank::numbers(ranks);
    let mut lines =
        vec![[what, "requested", "needs with caching", "with millpond"].map(str::to_owned).to_vec()];
    lines.extend(ranks.iter().zip(numbers).map(|(rank, number)| {
        let [pytorch, millpond] =
            ["caching", "millpond"].map(|name| HumanBytes(rank.needs(name)).to_string());
        vec![number.to_string(), HumanBytes(rank.peak_requested).to_string(), pytorch, millpond]
    }));
    table(&lines) + "\n"
}
