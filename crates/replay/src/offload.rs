//! What a job would do whose memory under a tag is elsewhere while nobody uses it, such as its optimizer's state.
//!
//! A recording does not say when a block is used. So what is offloaded is taken to be there in the phases in which it was allocated, in
//! each of the same name, and nowhere else. Where no phases were recorded, it is there while something is allocated under its tag.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::replay::{Program, Step, WITHOUT_TIMES_US};
use crate::sites::tag;
use crate::trace::{Block, Phase, Trace};

/// The tag of optimizers, whatever a recorder calls what they keep.
pub const OPTIMIZER: &str = "optimizer";

/// The smallest and the largest page of a GPU's pool where optimizers are offloaded, in bytes. Each step moves the pages of their state
/// twice, and what one page leaves fits where another is lacking. (docs/lab/sleep.md, "How near is an offloaded optimizer to what is
/// possible?", has the figures.)
pub const PAGE_SIZES: (u64, u64) = (8 << 20, 32 << 20);

/// What a job's offloaded memory does.
#[derive(Debug, Clone, Serialize)]
pub struct Offload {
    /// The tag.
    pub tag: String,
    /// Bytes of it, at most.
    pub bytes: u64,
    /// How often it leaves.
    pub times: u64,
    /// Bytes that are copied each time that it leaves, to the host and back.
    pub bytes_a_time: u64,
    /// Microseconds for which it is away, in the mean, where times were recorded.
    pub away_us: Option<u64>,
    /// The most that is requested at once of what is there.
    pub peak_requested: u64,
    /// The same without.
    pub peak_before: u64,
    /// The job.
    #[serde(skip)]
    pub program: Program,
}

/// Why a recording has nothing to offload.
#[derive(Debug, thiserror::Error)]
pub enum NothingToOffload {
    /// There is no such memory.
    #[error("{trace} has nothing under the tag '{tag}'; {}", known(.tags))]
    NoSuchTag {
        /// The recording.
        trace: String,
        /// What was asked for.
        tag: String,
        /// The tags that there are.
        tags: Vec<String>,
    },
    /// Nothing says when it is needed.
    #[error(
        "{trace} does not say when '{tag}' is used: record more than one step, with phases (PyTorch's snapshots have them)"
    )]
    NeverLeaves {
        /// The recording.
        trace: String,
        /// What was asked for.
        tag: String,
    },
}

/// Tags that an error lists, at most.
const MOST_TAGS: usize = 12;

fn known(tags: &[String]) -> String {
    match tags {
        [] => "it has no tags".to_owned(),
        tags if tags.len() > MOST_TAGS => format!("the tags are {} and others", tags[..MOST_TAGS].join(", ")),
        tags => format!("the tags are {}", tags.join(", ")),
    }
}

impl Offload {
    /// What the job does when this tag is offloaded. The state of PyTorch's optimizers needs no tag: it is what their steps leave behind.
    ///
    /// # Errors
    /// Where there is no such memory, or it never leaves.
    pub fn of(trace: &Trace, program: &Program, tag: &str) -> Result<Self, NothingToOffload> {
        let times: Vec<u64> = program.times(trace).collect();
        let phases: Vec<&Phase> = trace.phases.iter().collect();
        let is_step = |phase: &&Phase| phase.name == OPTIMIZER || phase.name.starts_with("Optimizer.step");
        let steps: Vec<&Phase> = phases.iter().copied().filter(is_step).collect();
        let mut members = under(trace, tag);
        if members.is_empty() && tag == OPTIMIZER {
            members = under(trace, "optimizer state");
            if members.is_empty() {
                members = left_behind(program, &times, &steps);
            }
        }
        if members.is_empty() {
            let (trace, tags) = (trace, all_tags(trace));
            return Err(NothingToOffload::NoSuchTag { trace: trace.name.clone(), tag: tag.to_owned(), tags });
        }
        let windows = match tag {
            OPTIMIZER if !steps.is_empty() => in_phases(&times, &steps),
            _ => {
                let named = same_phases(program, &times, &phases, &members);
                if named.is_empty() { stretches(program, &members) } else { in_phases(&times, &named) }
            }
        };
        let mut moving = Moving::new(program, &members);
        for window in &windows {
            moving.play_until(window.0);
            moving.restore();
            moving.play_until(window.1);
            moving.evict();
        }
        moving.play_until(program.steps.len());
        if moving.times_back == 0 {
            return Err(NothingToOffload::NeverLeaves { trace: trace.name.clone(), tag: tag.to_owned() });
        }
        let gaps = windows
            .windows(2)
            .map(|pair| times[pair[1].0].saturating_sub(times[pair[0].1.saturating_sub(1)]));
        let gaps: Vec<u64> = gaps.collect();
        let away_us = gaps.iter().sum::<u64>() / gaps.len().max(1) as u64;
        let bytes_a_time = moving.out / moving.times + moving.back / moving.times_back;
        let Moving { steps, blocks, bytes_most, times, .. } = moving;
        let offloaded = Program { steps, blocks, ..program.clone() };
        Ok(Self {
            tag: tag.to_owned(),
            bytes: bytes_most,
            times,
            bytes_a_time,
            away_us: has_times(trace).then_some(away_us),
            peak_requested: offloaded.peak_requested().0,
            peak_before: program.peak_requested().0,
            program: offloaded,
        })
    }

    /// Seconds that those copies take at so many bytes a second.
    pub fn copy_seconds(&self, bandwidth: f64) -> f64 {
        self.bytes_a_time as f64 / bandwidth
    }
}

/// Whether the times are those of a job that ran. A prediction's are as far apart as if nobody had noted them.
fn has_times(trace: &Trace) -> bool {
    let mut pairs = trace.ops.windows(2).map(|pair| pair[1].time_us.saturating_sub(pair[0].time_us));
    trace.wall_us > 0 && !pairs.all(|passed| passed == 0 || passed == WITHOUT_TIMES_US)
}

/// The blocks that have this tag among theirs.
fn under(trace: &Trace, wanted: &str) -> FxHashSet<u32> {
    // What is large is in several parts, such as `optimizer.2`.
    let is_part =
        |end: &str| end.is_empty() || end.strip_prefix('.').is_some_and(|end| end.parse::<u32>().is_ok());
    let is_wanted = |one: &str| one.strip_prefix(wanted).is_some_and(is_part);
    let mut known = FxHashMap::default();
    let mut has = |block: &Block| {
        *known.entry(block.stack).or_insert_with(|| {
            tag(trace, block.stack).is_some_and(|tags| is_wanted(&tags) || tags.split('/').any(is_wanted))
        })
    };
    let numbered = trace.blocks.iter().zip(0..);
    numbered.filter_map(|(block, number)| has(block).then_some(number)).collect()
}

fn all_tags(trace: &Trace) -> Vec<String> {
    let stacks: FxHashSet<_> = trace.blocks.iter().map(|block| block.stack).collect();
    let tags = stacks.into_iter().filter_map(|stack| tag(trace, stack));
    let outermost = tags.map(|tags| tags.split('/').next().unwrap_or_default().to_owned());
    outermost.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Where each of the phases begins and ends, as indices into the steps, one after another.
fn in_phases(times: &[u64], phases: &[&Phase]) -> Vec<(usize, usize)> {
    let mut windows: Vec<(usize, usize)> = Vec::new();
    for phase in phases {
        let from = times.partition_point(|time| *time < phase.from_us);
        let to = times.partition_point(|time| *time <= phase.to_us);
        match windows.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => windows.push((from, to)),
        }
    }
    windows
}

/// What phases allocate and do not free.
fn left_behind(program: &Program, times: &[u64], phases: &[&Phase]) -> FxHashSet<u32> {
    let mut left = FxHashSet::default();
    for (from, to) in in_phases(times, phases) {
        let mut new = FxHashSet::default();
        for step in &program.steps[from..to] {
            match step.alloc {
                true => _ = new.insert(step.block),
                false => _ = new.remove(&step.block),
            }
        }
        left.extend(new);
    }
    left
}

/// The phases in which such blocks are allocated, and all others of the same names: of several inside each other, the innermost.
fn same_phases<'a>(
    program: &Program,
    times: &[u64],
    phases: &[&'a Phase],
    members: &FxHashSet<u32>,
) -> Vec<&'a Phase> {
    let mut names = FxHashSet::default();
    for (step, time) in program.steps.iter().zip(times) {
        if step.alloc && members.contains(&step.block) {
            let around = phases.iter().rev().find(|phase| phase.from_us <= *time && *time <= phase.to_us);
            names.extend(around.map(|phase| &phase.name));
        }
    }
    phases.iter().copied().filter(|phase| names.contains(&phase.name)).collect()
}

/// Allocations and frees of such blocks with no others between.
fn stretches(program: &Program, members: &FxHashSet<u32>) -> Vec<(usize, usize)> {
    let mut windows: Vec<(usize, usize)> = Vec::new();
    for (at, step) in program.steps.iter().enumerate() {
        if !members.contains(&step.block) {
            continue;
        }
        match windows.last_mut() {
            Some(last) if last.1 == at => last.1 = at + 1,
            _ => windows.push((at, at + 1)),
        }
    }
    windows
}

/// A program that is played, with blocks that leave and come back as others of the same size.
struct Moving<'a> {
    program: &'a Program,
    members: &'a FxHashSet<u32>,
    /// The next step of the program.
    next: usize,
    /// By its number in the program: the block that stands for it, if it is there.
    live: FxHashMap<u32, (Step, Option<u32>)>,
    /// Those of `live`, in the order in which they came.
    order: Vec<u32>,
    steps: Vec<Step>,
    blocks: usize,
    bytes: u64,
    bytes_most: u64,
    times: u64,
    out: u64,
    back: u64,
    times_back: u64,
}

impl<'a> Moving<'a> {
    fn new(program: &'a Program, members: &'a FxHashSet<u32>) -> Self {
        Self {
            program,
            members,
            next: 0,
            live: FxHashMap::default(),
            order: Vec::new(),
            steps: Vec::with_capacity(program.steps.len()),
            blocks: program.blocks,
            bytes: 0,
            bytes_most: 0,
            times: 0,
            out: 0,
            back: 0,
            times_back: 0,
        }
    }

    fn play_until(&mut self, end: usize) {
        for step in &self.program.steps[self.next..end.max(self.next)] {
            if !self.members.contains(&step.block) {
                self.steps.push(*step);
            } else if step.alloc {
                self.steps.push(*step);
                self.live.insert(step.block, (*step, Some(step.block)));
                self.order.push(step.block);
                self.bytes += step.size;
                self.bytes_most = self.bytes_most.max(self.bytes);
            } else if let Some((_, there)) = self.live.remove(&step.block) {
                // Freed elsewhere, it costs nothing.
                self.steps.extend(there.map(|block| Step { block, ..*step }));
                self.bytes -= step.size;
            }
        }
        self.next = end.max(self.next);
    }

    /// The time of what happens now.
    fn now(&self) -> u64 {
        let at = self.next.min(self.program.steps.len().saturating_sub(1));
        self.program.steps.get(at).map_or(0, |step| step.time_us)
    }

    fn restore(&mut self) {
        let time_us = self.now();
        self.order.retain(|block| self.live.contains_key(block));
        let before = self.back;
        for block in &self.order {
            let Some((step, there @ None)) = self.live.get_mut(block) else { continue };
            let number = self.blocks as u32;
            self.blocks += 1;
            *there = Some(number);
            self.back += step.size;
            self.steps.push(Step { time_us, block: number, alloc: true, ..*step });
        }
        self.times_back += u64::from(self.back > before);
    }

    fn evict(&mut self) {
        let time_us = self.now();
        self.order.retain(|block| self.live.contains_key(block));
        let before = self.out;
        for block in &self.order {
            let Some((step, there)) = self.live.get_mut(block) else { continue };
            let Some(number) = there.take() else { continue };
            self.out += step.size;
            self.steps.push(Step { time_us, block: number, alloc: false, ..*step });
        }
        self.times += u64::from(self.out > before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind, StackId};
    use crate::replay::FreeWhen;
    use crate::trace::TraceBuilder;

    fn event(kind: EventKind, address: u64, size: u64, time_us: u64) -> Event {
        Event { kind, device: 0, stream: 0, time_us, address, size, stack: StackId::NONE }
    }

    /// Three steps: activations of 100 in a forward, and an optimizer with a state of 60 and a temporary of 5.
    fn job() -> Trace {
        let mut builder = TraceBuilder::default();
        for step in 0..3 {
            let at = 1000 * (step + 1);
            builder.push(event(EventKind::Alloc, 64, 100, at)).unwrap();
            builder.push(event(EventKind::FreeCompleted, 64, 100, at + 100)).unwrap();
            builder.phase(0, "Optimizer.step#AdamW.step", true, at + 200).unwrap();
            if step == 0 {
                builder.push(event(EventKind::Alloc, 4096, 60, at + 210)).unwrap();
            }
            builder.push(event(EventKind::Alloc, 8192, 5, at + 220)).unwrap();
            builder.push(event(EventKind::FreeCompleted, 8192, 5, at + 230)).unwrap();
            builder.phase(0, "Optimizer.step#AdamW.step", false, at + 240).unwrap();
        }
        builder.finish("job").remove(0)
    }

    #[test]
    fn what_an_optimizer_keeps_is_there_in_its_steps_only() {
        let trace = job();
        let program = Program::new(&trace, FreeWhen::Completed);
        let found = Offload::of(&trace, &program, OPTIMIZER).unwrap();
        assert_eq!((found.bytes, found.times, found.bytes_a_time), (60, 3, 120));
        assert_eq!((found.peak_before, found.peak_requested), (160, 100));
        assert_eq!(found.away_us, Some(990));
        // Each block is allocated once and freed once at most, and there is no free without its allocation.
        let mut live = FxHashSet::default();
        for step in &found.program.steps {
            assert!((step.block as usize) < found.program.blocks);
            assert!(if step.alloc { live.insert(step.block) } else { live.remove(&step.block) });
        }
        assert!(live.is_empty(), "it is away at the end");
    }

    #[test]
    fn what_is_not_there_or_never_leaves_is_said() {
        let trace = job();
        let program = Program::new(&trace, FreeWhen::Completed);
        let said = Offload::of(&trace, &program, "weights").unwrap_err().to_string();
        assert_eq!(said, "job has nothing under the tag 'weights'; it has no tags");
        let mut once = job();
        once.phases.truncate(1);
        let said = Offload::of(&once, &program, OPTIMIZER).unwrap_err().to_string();
        assert!(said.starts_with("job does not say when 'optimizer' is used"), "{said}");
    }
}
