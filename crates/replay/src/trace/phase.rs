//! Phases of a job: stretches of time that the program named, such as an optimizer's step.

/// One stretch of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// What the program called it.
    pub name: String,
    /// Microseconds from the trace's start.
    pub from_us: u64,
    /// The same; not before `from_us`.
    pub to_us: u64,
}

/// Phases inside each other, at most; deeper ones are left out.
pub const MOST_PHASES_INSIDE: usize = 64;

/// Begins and ends of phases as a recorder tells them, one device's, in order.
#[derive(Debug, Default)]
pub(super) struct PhaseBuilder {
    open: Vec<Phase>,
    done: Vec<Phase>,
}

impl PhaseBuilder {
    pub(super) fn begin(&mut self, name: &str, from_us: u64) {
        if self.open.len() < MOST_PHASES_INSIDE {
            self.open.push(Phase { name: name.to_owned(), from_us, to_us: from_us });
        }
    }

    /// Ends the innermost open phase of this name, if there is one.
    pub(super) fn end(&mut self, name: &str, to_us: u64) {
        if let Some(at) = self.open.iter().rposition(|phase| phase.name == name) {
            let phase = self.open.remove(at);
            self.done.push(Phase { to_us: to_us.max(phase.from_us), ..phase });
        }
    }

    /// The phases by their begin, on a clock that began at `zero_us`. What is still open ends with the trace.
    pub(super) fn finish(self, zero_us: u64, wall_us: u64) -> Vec<Phase> {
        let open = self.open.into_iter().map(|phase| Phase { to_us: u64::MAX, ..phase });
        let clock = |time: u64| time.saturating_sub(zero_us).min(wall_us);
        let mut all: Vec<_> = self
            .done
            .into_iter()
            .chain(open)
            .map(|phase| Phase { from_us: clock(phase.from_us), to_us: clock(phase.to_us), ..phase })
            .collect();
        all.sort_by_key(|phase| (phase.from_us, std::cmp::Reverse(phase.to_us)));
        all
    }
}
