//! What a job would request at another size, such as a larger batch, from recordings of it at two sizes or more.
//!
//! Uses `trace`, the `Program` of `replay`, and `owners`.
//!
//! **How a job is scaled.** Lengths that a call site has in all recordings are fixed. Of its other blocks, the longest of each recording
//! gives a point, and a line goes through these. (Not their mean: a last batch that is not full would lower it.) The nearest
//! recording is then played with each block as much longer as the line of its call site rises. So a peak may move to another
//! moment. What is not scaled is how many blocks there are.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::owners::{Owner, Owners};
use crate::replay::{FreeWhen, Program};
use crate::trace::Trace;

/// A recording, and at which size the job ran.
#[derive(Debug, Clone, Copy)]
pub struct Recorded<'a> {
    /// The size, such as a batch of 8.
    pub at: f64,
    /// What was recorded.
    pub trace: &'a Trace,
}

/// What the blocks of one call site have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// Tag and call site, or sizes.
    pub site: String,
    /// Bytes at the peak of the scaled job.
    pub bytes: u64,
    /// Of these, what the size adds: bytes for each unit of it.
    pub for_each: f64,
}

/// A job at a size at which it was not recorded.
#[derive(Debug, Clone)]
pub struct Scaled {
    /// Its steps, of the nearest recording.
    pub program: Program,
    /// Bytes at its peak by call site, the most first.
    pub parts: Vec<Part>,
}

/// A straight line: so much, and so much for each unit of the size.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    fixed: f64,
    for_each: f64,
}

impl Line {
    /// The line of least squares through points; level where they are all at one size.
    fn through(points: &[(f64, f64)]) -> Self {
        let count = points.len().max(1) as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        let slope: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
        let for_each = if spread > 0.0 { slope / spread } else { 0.0 };
        Self { fixed: y - for_each * x, for_each }
    }

    fn at(&self, size: f64) -> f64 {
        (self.fixed + self.for_each * size).max(0.0)
    }
}

impl Scaled {
    /// The job at the size `to`. `None` without a recording.
    pub fn of(recordings: &[Recorded<'_>], to: f64) -> Option<Self> {
        let far = |recording: &&Recorded<'_>| (recording.at / to).ln().abs();
        let near = recordings.iter().min_by(|one, other| far(one).total_cmp(&far(other)))?;
        Some(Self::from(recordings, near, to))
    }

    /// By how much the peaks of the recordings are missed, as parts of them: each is scaled from the nearest other one.
    pub fn errors(recordings: &[Recorded<'_>]) -> Vec<f64> {
        let error = |(at, recording): (usize, &Recorded<'_>)| {
            let others: Vec<_> = recordings.iter().enumerate().filter(|(other, _)| *other != at).collect();
            let far = |other: &Recorded<'_>| (other.at / recording.at).ln().abs();
            let (_, near) = others.iter().min_by(|(_, one), (_, other)| far(one).total_cmp(&far(other)))?;
            // Two points are all that a line needs. So with three recordings or more, the one that is predicted is left out.
            let known: Vec<_> = match others.len() {
                1 => recordings.to_vec(),
                _ => others.iter().map(|(_, other)| **other).collect(),
            };
            let found = Self::from(&known, near, recording.at).program.peak_requested().0 as f64;
            let truth = Program::new(recording.trace, FreeWhen::Completed).peak_requested().0.max(1) as f64;
            Some(found / truth - 1.0)
        };
        recordings.iter().enumerate().filter_map(error).collect()
    }

    fn from(recordings: &[Recorded<'_>], near: &Recorded<'_>, to: f64) -> Self {
        let growths = growths(recordings);
        let owners = Owners::of(near.trace);
        let line_of = |block: u32| {
            let growth = growths.get(&owners.all[owners.of_block[block as usize] as usize])?;
            growth.line.filter(|_| !growth.fixed.contains(&near.trace.blocks[block as usize].size))
        };
        let mut program = Program::new(near.trace, FreeWhen::Completed);
        for step in &mut program.steps {
            let Some(line) = line_of(step.block) else { continue };
            let before = line.at(near.at);
            if before > 0.0 {
                step.size = (step.size as f64 * line.at(to) / before).round() as u64;
            }
        }
        let mut at_peak: BTreeMap<u32, (u64, f64)> = BTreeMap::new();
        let peak = program.peak_requested().1;
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        for step in program.steps.iter().take(peak + 1) {
            match step.alloc {
                true => live.insert(step.block, step.size),
                false => live.remove(&step.block),
            };
        }
        for (block, bytes) in live {
            let for_each = line_of(block).map_or(0.0, |line| line.for_each / line.at(to).max(1.0));
            let sum = at_peak.entry(owners.of_block[block as usize]).or_default();
            *sum = (sum.0 + bytes, sum.1 + for_each * bytes as f64);
        }
        let part = |(owner, (bytes, for_each)): (u32, (u64, f64))| {
            let site = owners.all[owner as usize].name();
            Part { site, bytes, for_each }
        };
        let mut parts: Vec<_> = at_peak.into_iter().map(part).collect();
        parts.sort_by(|one, other| (other.bytes, &one.site).cmp(&(one.bytes, &other.site)));
        Self { program, parts }
    }
}

/// How the blocks of a call site grow.
#[derive(Debug)]
struct SizeGrowth {
    /// Lengths that all recordings have.
    fixed: BTreeSet<u64>,
    /// Of the longest of the other blocks. `None` where a recording has no such block.
    line: Option<Line>,
}

/// The growth of each call site that all recordings have. Others stay as they are.
fn growths(recordings: &[Recorded<'_>]) -> BTreeMap<Owner, SizeGrowth> {
    let mut lengths: BTreeMap<Owner, Vec<(f64, BTreeSet<u64>)>> = BTreeMap::new();
    for recording in recordings {
        let owners = Owners::of(recording.trace);
        let mut by_owner = vec![BTreeSet::new(); owners.all.len()];
        for (block, owner) in recording.trace.blocks.iter().zip(&owners.of_block) {
            by_owner[*owner as usize].insert(block.size);
        }
        for (owner, found) in owners.all.iter().zip(by_owner) {
            lengths.entry(owner.clone()).or_default().push((recording.at, found));
        }
    }
    lengths.retain(|_, lengths| lengths.len() == recordings.len());
    let growth = |lengths: Vec<(f64, BTreeSet<u64>)>| {
        let common = |one: BTreeSet<u64>, other: &BTreeSet<u64>| &one & other;
        let first = lengths.first().map(|(_, lengths)| lengths.clone()).unwrap_or_default();
        let fixed = lengths.iter().map(|(_, lengths)| lengths).fold(first, common);
        let longest = |(at, lengths): &(f64, BTreeSet<u64>)| {
            Some((*at, lengths.difference(&fixed).max().copied()? as f64))
        };
        let points = lengths.iter().map(longest).collect::<Option<Vec<_>>>();
        let line = points.map(|points| Line::through(&points));
        SizeGrowth { fixed, line }
    };
    lengths.into_iter().map(|(owner, lengths)| (owner, growth(lengths))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind, Frame};
    use crate::trace::TraceBuilder;

    const MIB: u64 = 1 << 20;

    /// A job with 100 MiB of weights, 7 MiB of activations for each of the batch, and a workspace of 300 MiB after them.
    fn job(batch: u64) -> Trace {
        let mut builder = TraceBuilder::default();
        let stacks = ["weights", "activations", "workspace"].map(|name| {
            let frame = Frame { name: name.into(), file: "job.py".into(), line: 1 };
            let frame = builder.stacks.add_frame(frame);
            builder.stacks.add_stack(&[frame])
        });
        let mut push = |kind, address, size, stack: usize| {
            let event = Event { kind, device: 0, stream: 0, time_us: 0, address, size, stack: stacks[stack] };
            builder.push(event).unwrap();
        };
        push(EventKind::Alloc, 1, 100 * MIB, 0);
        for _ in 0..3 {
            push(EventKind::Alloc, 2, 7 * batch * MIB, 1);
            push(EventKind::FreeCompleted, 2, 7 * batch * MIB, 1);
            push(EventKind::Alloc, 3, 300 * MIB, 2);
            push(EventKind::FreeCompleted, 3, 300 * MIB, 2);
        }
        builder.finish("job").remove(0)
    }

    #[test]
    fn a_peak_moves_to_what_grows() {
        let [small, large] = [8, 16].map(job);
        let recordings = [Recorded { at: 8.0, trace: &small }, Recorded { at: 16.0, trace: &large }];
        // The workspace is the peak of both recordings.
        let scaled = Scaled::of(&recordings, 100.0).unwrap();
        assert_eq!(scaled.program.peak_requested().0, 800 * MIB);
        let sites: Vec<_> = scaled.parts.iter().map(|part| (part.site.as_str(), part.bytes / MIB)).collect();
        assert_eq!(sites, [("activations (job.py:1)", 700), ("weights (job.py:1)", 100)]);
        assert!((scaled.parts[0].for_each - (7 * MIB) as f64).abs() < 1.0, "{:?}", scaled.parts);
        assert!(scaled.parts[1].for_each.abs() < 1.0, "{:?}", scaled.parts);
        // Both are told without error.
        assert!(Scaled::errors(&recordings).iter().all(|error| error.abs() < 1e-6));
    }

    #[test]
    fn what_is_not_linear_is_told_by_the_error() {
        let jobs = [8, 16, 32].map(job);
        let mut recordings: Vec<_> =
            jobs.iter().zip([8.0, 16.0, 32.0]).map(|(trace, at)| Recorded { at, trace }).collect();
        let all_fit =
            |recordings: &[Recorded<'_>]| Scaled::errors(recordings).iter().all(|error| error.abs() < 1e-6);
        assert!(all_fit(&recordings));
        // The last one was recorded at another size than is said.
        recordings[2].at = 100.0;
        assert!(!all_fit(&recordings));
    }

    #[test]
    fn a_last_batch_that_is_not_full_changes_nothing() {
        // The activations of another 5 of a batch come from the same call site, and so does a block of a fixed length.
        let jobs = [8, 16].map(|batch| {
            let mut trace = job(batch);
            let short = |size: u64| crate::trace::Block { size, ..trace.blocks[1] };
            let more = [short(35 * batch * MIB / 8), short(50 * MIB)];
            trace.blocks.extend(more);
            trace
        });
        let recordings = [Recorded { at: 8.0, trace: &jobs[0] }, Recorded { at: 16.0, trace: &jobs[1] }];
        assert_eq!(Scaled::of(&recordings, 100.0).unwrap().program.peak_requested().0, 800 * MIB);
    }

    #[test]
    fn a_job_at_its_own_size_stays_as_it_is() {
        let small = job(8);
        let scaled = Scaled::of(&[Recorded { at: 8.0, trace: &small }], 8.0).unwrap();
        assert_eq!(scaled.program.steps, Program::new(&small, FreeWhen::Completed).steps);
        assert!(Scaled::of(&[], 8.0).is_none());
    }
}
