//! Where the steps of a job begin: a training step, a batch, a request.
//!
//! A recording does not say what a step is. So it is, in this order: the phase or tag that was asked for; a phase that comes
//! again and again; a tag that does; an allocation that comes at regular distances, as most of its kind do; else one of
//! [`PARTS`] equal parts of the run.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::owners::Owners;
use crate::replay::Program;
use crate::sites::tag;
use crate::trace::Trace;

/// Parts of a run in which nothing comes again and again.
pub const PARTS: usize = 16;

/// Steps that there must be: of fewer, nobody can tell growth from chance.
pub const FEWEST: usize = 8;

/// What the beginnings of steps are told by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepBy {
    /// A phase that the program named.
    Phase,
    /// The first allocation under a tag, after one that was not.
    Tag,
    /// An allocation that comes at regular distances.
    Allocation,
    /// Nothing: parts of the run, of as many allocations and frees each.
    Part,
}

/// The steps of a job.
#[derive(Debug, Clone)]
pub struct Steps {
    /// How they are told.
    pub by: StepBy,
    /// The phase, the tag or the allocation; nothing for parts.
    pub name: String,
    /// Where each begins, as an index into [`Program::steps`], rising; the last is where the last step ends.
    pub bounds: Vec<usize>,
}

/// There are no steps of the name that was asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "{trace} has no phase and no tag '{name}' that begins more than {FEWEST} times; {}",
    if .known.is_empty() { "none does: leave --step out".to_owned() } else { format!("those that do: {}", .known.join(", ")) }
)]
pub struct NoSuchStep {
    trace: String,
    name: String,
    known: Vec<String>,
}

impl Steps {
    /// The steps of a job, by what comes again and again.
    pub fn found(trace: &Trace, program: &Program) -> Self {
        let (phases, tags) = (often(phases(trace, program)), often(tags(trace, program)));
        let found = likeliest(phases).map(|found| Self::by(StepBy::Phase, found));
        let found = found.or_else(|| likeliest(tags).map(|found| Self::by(StepBy::Tag, found)));
        let found = found.or_else(|| Some(Self::by(StepBy::Allocation, regular(trace, program)?)));
        found.unwrap_or_else(|| {
            let end = end(program);
            let from = program.before.min(end);
            let bounds = (0..=PARTS).map(|part| from + (end - from) * part / PARTS).collect();
            Self::by(StepBy::Part, (String::new(), bounds))
        })
    }

    /// The steps that begin with this phase or tag.
    ///
    /// # Errors
    /// [`NoSuchStep`], which lists the names that there are.
    pub fn named(trace: &Trace, program: &Program, name: &str) -> Result<Self, NoSuchStep> {
        let (mut phases, mut tags) = (often(phases(trace, program)), often(tags(trace, program)));
        if let Some(found) = phases.remove_entry(name) {
            return Ok(Self::by(StepBy::Phase, found));
        }
        if let Some(found) = tags.remove_entry(name) {
            return Ok(Self::by(StepBy::Tag, found));
        }
        let known: BTreeSet<String> = phases.into_keys().chain(tags.into_keys()).collect();
        let known = known.into_iter().collect();
        Err(NoSuchStep { trace: trace.name.clone(), name: name.to_owned(), known })
    }

    fn by(by: StepBy, (name, bounds): (String, Vec<usize>)) -> Self {
        Self { by, name, bounds }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }
}

/// Those that come often enough.
fn often(mut found: BTreeMap<String, Vec<usize>>) -> BTreeMap<String, Vec<usize>> {
    found.retain(|_, begins| begins.len() > FEWEST);
    found
}

/// Those whose name speaks of steps, else of all: the ones of which there are fewest. What is inside of a step comes more
/// often. Of several, the one that comes first.
fn likeliest(found: BTreeMap<String, Vec<usize>>) -> Option<(String, Vec<usize>)> {
    found
        .into_iter()
        .min_by_key(|(name, begins)| (!name.to_lowercase().contains("step"), begins.len(), begins[0]))
}

/// Where the phases of each name begin. `ProfilerStep#7` is one of `ProfilerStep`.
fn phases(trace: &Trace, program: &Program) -> BTreeMap<String, Vec<usize>> {
    let times: Vec<u64> = program.times(trace).collect();
    let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for phase in &trace.phases {
        let name = phase.name.trim_end_matches(|c: char| c.is_ascii_digit());
        let name = if name.ends_with('#') { name.trim_end_matches('#') } else { &phase.name };
        let at = times.partition_point(|&time| time < phase.from_us).max(program.before);
        let begins = found.entry(name.to_owned()).or_default();
        // Phases without an allocation between are one.
        if begins.last().is_none_or(|&last| last < at) {
            begins.push(at);
        }
    }
    found
}

/// Where allocations under each tag begin, after others.
fn tags(trace: &Trace, program: &Program) -> BTreeMap<String, Vec<usize>> {
    let mut known = FxHashMap::default();
    let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut before: Vec<String> = Vec::new();
    for (at, step) in program.steps.iter().enumerate().skip(program.before).filter(|(_, step)| step.alloc) {
        let stack = trace.blocks[step.block as usize].stack;
        let now = known.entry(stack).or_insert_with(|| {
            tag(trace, stack)
                .map_or_else(Vec::new, |tag| tag.split('/').map(str::to_owned).collect::<Vec<_>>())
        });
        for name in now.iter().filter(|name| !before.contains(name)) {
            found.entry(name.clone()).or_default().push(at);
        }
        before.clone_from(now);
    }
    found
}

/// Behind the last allocation.
fn end(program: &Program) -> usize {
    program.steps.iter().rposition(|step| step.alloc).map_or(0, |last| last + 1)
}

/// How much distances may differ, as their standard deviation over their mean, to be called regular.
const REGULAR: f64 = 0.35;

/// An allocation that comes at regular distances all through the run, as often as most of those do: in each step, things
/// are allocated once.
fn regular(trace: &Trace, program: &Program) -> Option<(String, Vec<usize>)> {
    let owners = Owners::of(trace);
    let mut found: FxHashMap<(u32, u64), Vec<usize>> = FxHashMap::default();
    for (at, step) in program.steps.iter().enumerate().skip(program.before).filter(|(_, step)| step.alloc) {
        // Where all that is known of a block is its size, sizes that are nearly alike are of different blocks.
        let size = if trace.stacks.is_empty() { step.size } else { 0 };
        found.entry((owners.of_block[step.block as usize], size)).or_default().push(at);
    }
    // What comes behind the last allocation is how the program ends.
    let length = end(program) - program.before.min(end(program));
    let is_regular = |begins: &[usize]| {
        let (Some(first), Some(last)) = (begins.first(), begins.last()) else { return false };
        let mean = (last - first) as f64 / (begins.len() - 1) as f64;
        let off = |pair: &[usize]| ((pair[1] - pair[0]) as f64 - mean).powi(2);
        let variance = begins.windows(2).map(off).sum::<f64>() / (begins.len() - 1) as f64;
        variance.sqrt() <= REGULAR * mean && (last - first) as f64 + 4.0 * mean >= length as f64
    };
    found.retain(|_, begins| begins.len() > FEWEST && is_regular(begins));
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    found.values().for_each(|begins| *counts.entry(begins.len()).or_default() += 1);
    let (&often, _) = counts.iter().max_by_key(|(often, keys)| (**keys, std::cmp::Reverse(**often)))?;
    let first =
        found.into_iter().filter(|(_, begins)| begins.len() == often).min_by_key(|(_, begins)| begins[0]);
    let ((owner, size), begins) = first?;
    let name = if size > 0 { format!("{size} B") } else { owners.all[owner as usize].name() };
    Some((name, begins))
}
