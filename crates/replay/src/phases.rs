//! What happened in the phases of a job.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::replay::Program;
use crate::trace::{MOST_PHASES_INSIDE, Phase, Trace};

/// All phases of one name. Sizes in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PhaseSum {
    /// What the program called them.
    pub name: String,
    /// How many there were.
    pub times: u64,
    /// Microseconds in all of them.
    pub wall_us: u64,
    /// The most that was requested at once in any of them.
    pub peak_requested: u64,
    /// What they allocated.
    pub allocated: u64,
    /// What they allocated less what they freed: what they leave behind.
    pub kept: i64,
}

/// What happened in the phases of each name, the one with the highest peak first.
pub fn sums(trace: &Trace, program: &Program) -> Vec<PhaseSum> {
    let mut sums: BTreeMap<&str, PhaseSum> = BTreeMap::new();
    let mut coming = trace.phases.iter().peekable();
    // At most as many at once as may be inside each other.
    let mut open: Vec<&Phase> = Vec::new();
    let mut requested = 0u64;
    for (step, now) in program.steps.iter().zip(program.times(trace)) {
        open.retain(|phase| phase.to_us >= now);
        while let Some(phase) = coming.next_if(|phase| phase.from_us <= now) {
            let sum = sums.entry(&phase.name).or_default();
            sum.times += 1;
            sum.wall_us += phase.to_us - phase.from_us;
            sum.peak_requested = sum.peak_requested.max(requested);
            if phase.to_us >= now && open.len() < MOST_PHASES_INSIDE {
                open.push(phase);
            }
        }
        requested = if step.alloc { requested + step.size } else { requested - step.size };
        for (at, phase) in open.iter().enumerate() {
            // A phase inside one of its own name counts once.
            if open[..at].iter().any(|outer| outer.name == phase.name) {
                continue;
            }
            let Some(sum) = sums.get_mut(phase.name.as_str()) else { continue };
            sum.peak_requested = sum.peak_requested.max(requested);
            sum.allocated += if step.alloc { step.size } else { 0 };
            sum.kept += if step.alloc { step.size as i64 } else { -(step.size as i64) };
        }
    }
    for phase in coming {
        let sum = sums.entry(&phase.name).or_default();
        sum.times += 1;
        sum.wall_us += phase.to_us - phase.from_us;
        sum.peak_requested = sum.peak_requested.max(requested);
    }
    let mut sums: Vec<_> =
        sums.into_iter().map(|(name, sum)| PhaseSum { name: name.to_owned(), ..sum }).collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.peak_requested));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind, StackId};
    use crate::replay::FreeWhen;
    use crate::trace::TraceBuilder;

    #[test]
    fn phases_are_told_what_was_requested_in_them() {
        let mut builder = TraceBuilder::default();
        let event = |kind, address, size, time_us| Event {
            kind,
            device: 0,
            stream: 0,
            time_us,
            address,
            size,
            stack: StackId::NONE,
        };
        builder.push(event(EventKind::Alloc, 64, 100, 1000)).unwrap();
        builder.push(event(EventKind::Alloc, 128, 50, 1010)).unwrap();
        builder.push(event(EventKind::FreeCompleted, 128, 50, 1020)).unwrap();
        builder.push(event(EventKind::Alloc, 192, 7, 1030)).unwrap();
        for (name, begins, time) in [
            ("step", true, 1005),
            ("inner", true, 1005),
            ("inner", false, 1012),
            ("nobody's", false, 1013),
            ("step", false, 1020),
            ("open", true, 1025),
        ] {
            builder.phase(0, name, begins, time).unwrap();
        }
        let trace = builder.finish("t").remove(0);
        let phases: Vec<_> =
            trace.phases.iter().map(|phase| (phase.name.as_str(), phase.from_us, phase.to_us)).collect();
        assert_eq!(phases, [("step", 5, 20), ("inner", 5, 12), ("open", 25, 30)]);
        let sums = sums(&trace, &Program::new(&trace, FreeWhen::Completed));
        let told: Vec<_> =
            sums.iter().map(|sum| (sum.name.as_str(), sum.peak_requested, sum.allocated, sum.kept)).collect();
        assert_eq!(told, [("inner", 150, 50, 50), ("step", 150, 50, 0), ("open", 107, 7, 7)]);
    }
}
