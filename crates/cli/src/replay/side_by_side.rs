//! Several recordings side by side, such as those of the ranks of one job: each one's peak, the worst, and who makes the
//! difference.

use millpond::HumanBytes;
use millpond_replay::difference::{At, Difference};
use millpond_replay::moment::Moment;
use millpond_replay::replay::Program;
use millpond_replay::trace::Trace;

use crate::diff;
use crate::terminal::{say, table};
use crate::traces::{cut, wrapped};

/// The recordings so far. Only the two that are compared are kept.
#[derive(Debug, Default)]
pub(crate) struct SideBySide {
    rows: Vec<TraceRow>,
    least: Option<Peak>,
    most: Option<Peak>,
}

#[derive(Debug)]
struct TraceRow {
    trace: String,
    requested: u64,
    reserved: Option<u64>,
}

#[derive(Debug)]
struct Peak {
    requested: u64,
    trace: std::rc::Rc<(Trace, Program)>,
}

/// Columns of a recording's name.
const NAME: usize = 30;

impl SideBySide {
    /// Adds a recording.
    pub(crate) fn add(&mut self, trace: Trace, program: Program) {
        let (requested, reserved) = (program.peak_requested().0, trace.recorded_reserved);
        self.rows.push(TraceRow { trace: trace.name.clone(), requested, reserved });
        let trace = std::rc::Rc::new((trace, program));
        if self.least.as_ref().is_none_or(|least| requested < least.requested) {
            self.least = Some(Peak { requested, trace: trace.clone() });
        }
        if self.most.as_ref().is_none_or(|most| requested > most.requested) {
            self.most = Some(Peak { requested, trace });
        }
    }

    /// Says how they differ, where there are several.
    pub(crate) fn show(&self) {
        let (Some(least), Some(most), 2..) = (&self.least, &self.most, self.rows.len()) else { return };
        let mut lines = vec![["trace", "requested", "above the least", "held"].map(str::to_owned).to_vec()];
        lines.extend(self.rows.iter().map(|row| {
            let above = format!("+{}", HumanBytes(row.requested - least.requested));
            let held = row.reserved.map_or_else(|| "-".to_owned(), |held| HumanBytes(held).to_string());
            vec![cut(&row.trace, NAME), HumanBytes(row.requested).to_string(), above, held]
        }));
        say(&format!("Side by side, at most\n{}\n", table(&lines)));
        let (one, other) = (&least.trace.0, &most.trace.0);
        if least.requested == most.requested {
            say("All request as much at their peaks.\n");
            return;
        }
        say(&wrapped(&format!(
            "{} requests most, and {} more than {}, which requests least:",
            other.name,
            HumanBytes(most.requested - least.requested),
            one.name
        )));
        let at_peak = |peak: &Peak| {
            let steps = peak.trace.1.peak_requested().1 + 1;
            steps.min(peak.trace.1.steps.len())
        };
        let from = At::new(one, &least.trace.1, &Moment::Peak, at_peak(least));
        let to = At::new(other, &most.trace.1, &Moment::Peak, at_peak(most));
        diff::show(&Difference::of(&from, &to));
    }
}
