//! A moment of a recording, as a command names it.

use std::collections::BTreeSet;
use std::str::FromStr;

use rustc_hash::FxHashMap;

use crate::event::StackId;
use crate::replay::Program;
use crate::sites::tag;
use crate::steps::{StepBy, Steps};
use crate::trace::Trace;

/// A moment of a recording.
#[derive(Debug, Clone, PartialEq)]
pub enum Moment {
    /// When the recording began.
    Start,
    /// When it ended.
    End,
    /// When most is requested.
    Peak,
    /// So many microseconds after its first event.
    At(u64),
    /// The end of this step, from 1.
    Step(usize),
    /// When most is requested in a phase or under a tag of this name.
    In(String),
}

/// What is no moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoMoment {
    /// It cannot be read.
    #[error(
        "expected start, end, peak, a time such as 1.5s or 300ms, step:N, or in:NAME for a phase or a tag"
    )]
    Unknown,
    /// The recording is shorter.
    #[error("{trace} is over after {:.3} s: name an earlier moment", *.wall_us as f64 / 1e6)]
    TooLate {
        /// The recording.
        trace: String,
        /// How long it is, in microseconds.
        wall_us: u64,
    },
    /// There are fewer steps.
    #[error("{trace} has {count} steps: name one from 1 to {count}")]
    NoSuchStep {
        /// The recording.
        trace: String,
        /// Its steps.
        count: usize,
    },
    /// Nothing in it says what a step is.
    #[error(
        "nothing in {trace} says what a step is: name a time, or with --step a phase or a tag that steps begin with"
    )]
    NoSteps {
        /// The recording.
        trace: String,
    },
    /// It has no phase and no tag of this name.
    #[error("{trace} has no phase and no tag '{name}'; {}",
        if .known.is_empty() { "it has none at all: name a time".to_owned() } else { format!("it has {}", .known.join(", ")) })]
    NoSuchName {
        /// The recording.
        trace: String,
        /// What was asked for.
        name: String,
        /// What there is, as far as it is listed.
        known: Vec<String>,
    },
}

/// Names that an error lists.
const MOST_NAMES: usize = 12;

impl FromStr for Moment {
    type Err = NoMoment;

    fn from_str(text: &str) -> Result<Self, NoMoment> {
        match text.split_once(':') {
            Some(("in", name)) if !name.is_empty() => return Ok(Self::In(name.to_owned())),
            Some(("step", number)) => {
                let number = number.parse().ok().filter(|&number| number > 0);
                return number.map(Self::Step).ok_or(NoMoment::Unknown);
            }
            _ => {}
        }
        Ok(match text {
            "start" => Self::Start,
            "end" => Self::End,
            "peak" => Self::Peak,
            _ => Self::At(time_us(text).ok_or(NoMoment::Unknown)?),
        })
    }
}

/// A time in microseconds: `1.5s`, `300ms`, `20us`, `2min`.
fn time_us(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let each = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "min" => 60e6,
        "h" => 3600e6,
        _ => return None,
    };
    let number = number.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)?;
    Some((number * each) as u64)
}

impl Moment {
    /// How many steps of the program come before the moment. `steps` are those that [`Moment::Step`] counts.
    ///
    /// # Errors
    /// [`NoMoment`] where the recording has no such moment.
    pub fn steps(&self, trace: &Trace, program: &Program, steps: &Steps) -> Result<usize, NoMoment> {
        let named = || trace.name.clone();
        match self {
            Self::Start => Ok(program.before),
            Self::End => Ok(program.steps.len()),
            Self::Peak => Ok(if program.steps.is_empty() { 0 } else { program.peak_requested().1 + 1 }),
            Self::At(time_us) if *time_us > trace.wall_us => {
                Err(NoMoment::TooLate { trace: named(), wall_us: trace.wall_us })
            }
            Self::At(time_us) => {
                let earlier = program.times(trace).take_while(|time| time <= time_us).count();
                Ok(earlier.max(program.before))
            }
            Self::Step(_) if steps.by == StepBy::Part => Err(NoMoment::NoSteps { trace: named() }),
            Self::Step(number) => steps
                .bounds
                .get(*number)
                .copied()
                .ok_or_else(|| NoMoment::NoSuchStep { trace: named(), count: steps.count() }),
            Self::In(name) => during(trace, program, name),
        }
    }

    /// The moment in words: `at its peak`.
    pub fn words(&self) -> String {
        match self {
            Self::Start => "at its start".to_owned(),
            Self::End => "at its end".to_owned(),
            Self::Peak => "at its peak".to_owned(),
            Self::At(time_us) => format!("after {:.3} s", *time_us as f64 / 1e6),
            Self::Step(number) => format!("after step {number}"),
            Self::In(name) => format!("at the peak of {name}"),
        }
    }
}

/// Behind the step after which most is requested, of those in phases of this name and those that allocate under such a tag.
fn during(trace: &Trace, program: &Program, name: &str) -> Result<usize, NoMoment> {
    let phases = trace.phases.iter().filter(|phase| phase.name == name);
    let mut phases: Vec<(u64, u64)> = phases.map(|phase| (phase.from_us, phase.to_us)).collect();
    // One behind the other, so that one look finds the phase of a time.
    phases.sort_unstable();
    phases.dedup_by(|later, earlier| {
        let inside = later.0 <= earlier.1;
        if inside {
            earlier.1 = earlier.1.max(later.1);
        }
        inside
    });
    let in_phase = |time: u64| {
        let before = phases.partition_point(|phase| phase.0 <= time);
        before > 0 && phases[before - 1].1 >= time
    };
    let mut known: FxHashMap<StackId, bool> = FxHashMap::default();
    let mut under = |block: u32| {
        let stack = trace.blocks[block as usize].stack;
        *known.entry(stack).or_insert_with(|| {
            tag(trace, stack).is_some_and(|tag| tag == name || tag.split('/').any(|part| part == name))
        })
    };
    let (mut now, mut most) = (0u64, None);
    for (at, (step, time)) in program.steps.iter().zip(program.times(trace)).enumerate() {
        now = if step.alloc { now + step.size } else { now - step.size };
        let is_in = at >= program.before && (in_phase(time) || step.alloc && under(step.block));
        if is_in && most.is_none_or(|(bytes, _)| now > bytes) {
            most = Some((now, at + 1));
        }
    }
    most.map(|(_, steps)| steps).ok_or_else(|| {
        let tags = trace.blocks.iter().map(|block| block.stack).collect::<BTreeSet<_>>();
        let tags = tags.into_iter().filter_map(|stack| tag(trace, stack));
        let known: BTreeSet<String> =
            trace.phases.iter().map(|phase| phase.name.clone()).chain(tags).collect();
        let known = known.into_iter().take(MOST_NAMES).collect();
        NoMoment::NoSuchName { trace: trace.name.clone(), name: name.to_owned(), known }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_they_are_written() {
        let read = |text: &str| text.parse::<Moment>();
        assert_eq!(read("peak"), Ok(Moment::Peak));
        assert_eq!(read("1.5s"), Ok(Moment::At(1_500_000)));
        assert_eq!(read("300ms"), Ok(Moment::At(300_000)));
        assert_eq!(read("step:30"), Ok(Moment::Step(30)));
        assert_eq!(
            read("in:Optimizer.step#Adam.step"),
            Ok(Moment::In("Optimizer.step#Adam.step".to_owned()))
        );
        for wrong in ["", "now", "12", "step:0", "step:x", "in:", "-1s", "NaNs", "s"] {
            assert_eq!(read(wrong), Err(NoMoment::Unknown), "{wrong}");
        }
    }
}
