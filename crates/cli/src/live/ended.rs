//! What is known of processes beyond their end: the counts of out-of-memory errors, and what is to be said of them.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millpond::live::{SeenErrors, SeenProcess};

/// How long a process that has ended is told of after its last error: as long as a question about the last hour needs it.
const TOLD: Duration = Duration::from_secs(3600 + 300);

/// Processes that are told of at most.
const MOST_TOLD: usize = 100;

/// What an exporter keeps from look to look.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    known: HashMap<String, Known>,
    /// Errors of processes that are not known any more.
    before: u64,
    /// Whether this is not the first look: what happened before that is no event.
    has_looked: bool,
}

#[derive(Debug, Clone, Default)]
struct Known {
    errors: u64,
    /// The number that it had as long as it was seen: that in its file may be of another PID namespace.
    pid: Option<u32>,
    has_ended: bool,
}

/// A process with errors, as it is told of.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) seen: SeenErrors,
    /// Whether it has no pools any more.
    pub(crate) has_ended: bool,
}

/// What follows from the errors of a look.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    pub(crate) told: Vec<Told>,
    /// Of all processes, also of those that are forgotten: it never falls as long as one exporter runs.
    pub(crate) total: u64,
    /// What happened since the look before.
    pub(crate) events: Vec<String>,
}

impl Kept {
    /// Takes over what is seen now.
    pub(crate) fn take(&mut self, processes: &[SeenProcess], errors: Vec<SeenErrors>) -> Errors {
        let running: HashMap<_, _> = processes.iter().map(|process| (process.id(), process.pid)).collect();
        let mut gone = std::mem::take(&mut self.known);
        let mut taken = Errors::default();
        for mut seen in errors {
            let mut known = gone.remove(&seen.id).unwrap_or_default();
            let pid = running.get(&seen.id).copied();
            known.pid = pid.or(known.pid);
            seen.pid = known.pid.unwrap_or(seen.pid);
            let (more, ended) = (seen.errors > known.errors, pid.is_none() && !known.has_ended);
            if more || ended {
                taken.events.push(event(&seen, pid.is_none()));
            }
            // What a file says may fall only by another hand.
            (known.errors, known.has_ended) = (seen.errors.max(known.errors), pid.is_none());
            self.known.insert(seen.id.clone(), known);
            if pid.is_some() || is_recent(seen.last_at) {
                taken.told.push(Told { seen, has_ended: pid.is_none() });
            }
        }
        self.before += gone.values().map(|known| known.errors).sum::<u64>();
        taken.total = self.before + self.known.values().map(|known| known.errors).sum::<u64>();
        taken.told.truncate(MOST_TOLD);
        if !std::mem::replace(&mut self.has_looked, true) {
            taken.events.clear();
        }
        taken
    }
}

fn is_recent(at: u64) -> bool {
    let at = UNIX_EPOCH + Duration::from_secs(at.min(u64::MAX >> 8));
    SystemTime::now().duration_since(at).is_ok_and(|passed| passed < TOLD)
}

/// Who ran out of memory, in one line.
fn event(seen: &SeenErrors, has_ended: bool) -> String {
    let SeenErrors { pid, who, errors, last, .. } = seen;
    let of =
        [("pod ", &who.pod), ("container ", &who.container), ("Slurm job ", &who.job), ("rank ", &who.rank)];
    let of: Vec<_> = of
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(what, value)| format!("{what}{value}"))
        .collect();
    let of = if of.is_empty() { String::new() } else { format!(" ({})", of.join(", ")) };
    let is = if has_ended { "has ended after" } else { "had" };
    let times = if *errors == 1 {
        "an out-of-memory error".to_owned()
    } else {
        format!("{errors} out-of-memory errors")
    };
    format!("{pid} {}{of} {is} {times}; the last: {last}", who.script)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(id: &str, errors: u64) -> SeenErrors {
        let mut seen = SeenErrors::default();
        (seen.id, seen.errors, seen.pid) = (id.to_owned(), errors, 7);
        (seen.who.script, seen.who.job) = ("python train.py".to_owned(), "17".to_owned());
        seen.last = "out of memory".to_owned();
        seen.last_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        seen
    }

    #[test]
    fn counts_outlive_processes_and_files() {
        let mut kept = Kept::default();
        let before = kept.take(&[], vec![errors("6-z", 1)]);
        assert_eq!((before.total, before.events.len()), (1, 0), "it was before the exporter");
        let mut kept = Kept { has_looked: true, ..Kept::default() };
        let first = kept.take(&[], vec![errors("7-a", 1)]);
        assert_eq!((first.total, first.told.len()), (1, 1));
        assert_eq!(
            first.events,
            [
                "7 python train.py (Slurm job 17) has ended after an out-of-memory error; the last: out of memory"
            ]
        );
        let second = kept.take(&[], vec![errors("7-a", 1), errors("8-b", 2)]);
        assert_eq!((second.total, second.events.len()), (3, 1));
        assert!(second.events[0].contains("2 out-of-memory errors"), "{:?}", second.events);
        let third = kept.take(&[], vec![errors("8-b", 4)]);
        assert_eq!((third.total, third.events.len()), (5, 1), "a file that is gone counts");
    }

    #[test]
    fn what_was_long_ago_is_not_told() {
        let mut old = errors("1-a", 3);
        old.last_at = 1;
        let taken = Kept::default().take(&[], vec![old]);
        assert_eq!((taken.told.len(), taken.total), (0, 3));
    }
}
