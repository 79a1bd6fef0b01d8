//! What `millpond top` and `millpond metrics` look at: the pools of running programs, the errors of those that ran, budgets, and the
//! GPUs beside them.

pub(crate) mod ended;
pub(crate) mod gpus;
pub(crate) mod prometheus;
pub(crate) mod shares;
pub(crate) mod users;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use millpond::live::{LookError, SeenPool, SeenProcess, SeenProcesses, errors, look};
use millpond::{Budget, SeenBudget, Stats};

use self::ended::{Errors, Kept};
use self::gpus::{Gpu, Gpus};
use self::users::name_of_user;

/// How long all processes together have for their answers.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// The shortest time between two looks: the figures of a shorter one say little.
const SHORTEST: Duration = Duration::from_millis(50);

pub(crate) fn interval(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || "a time from 50ms to 1day, as 500ms or 2s".to_owned();
    let time = humantime::parse_duration(text).map_err(|_| wrong())?;
    if (SHORTEST..=Duration::from_secs(86_400)).contains(&time) { Ok(time) } else { Err(wrong()) }
}

/// Looks at everything, again and again.
#[derive(Debug)]
pub(crate) struct Watch {
    gpus: Gpus,
    kept: RefCell<Kept>,
}

/// What was seen at one moment.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) at: Instant,
    pub(crate) processes: Vec<SeenProcess>,
    /// Processes with pools that this user may not look at, as far as it can know.
    pub(crate) hidden: usize,
    pub(crate) errors: Errors,
    pub(crate) budgets: Vec<SeenBudget>,
    /// Or why nothing is known of them.
    pub(crate) gpus: Result<Vec<Gpu>, String>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self { gpus: Gpus::open(), kept: RefCell::default() }
    }

    pub(crate) fn look(&self) -> Result<Sight, LookError> {
        let at = Instant::now();
        let SeenProcesses { all: processes, hidden, .. } = look(PATIENCE)?;
        let errors = self.kept.borrow_mut().take(&processes, errors());
        Ok(Sight { at, processes, hidden, errors, budgets: Budget::all(), gpus: self.gpus.look() })
    }
}

/// What a pool did between two looks, a second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rates {
    pub(crate) hits: f64,
    pub(crate) misses: f64,
    pub(crate) stream_waits: f64,
    pub(crate) retries: f64,
    /// The part of the time that went to pages: 1 is all of it.
    pub(crate) device_time: f64,
}

impl Rates {
    fn between(before: &SeenPool, after: &SeenPool, passed: Duration) -> Self {
        let seconds = passed.as_secs_f64().max(1e-3);
        let grew = |figure: fn(&Stats) -> u64| {
            figure(&after.stats).saturating_sub(figure(&before.stats)) as f64 / seconds
        };
        Self {
            hits: grew(|stats| stats.hits),
            misses: grew(|stats| stats.misses),
            stream_waits: grew(|stats| stats.stream_waits),
            retries: grew(|stats| stats.retries),
            device_time: after.device_time.saturating_sub(before.device_time).as_secs_f64() / seconds,
        }
    }
}

impl Sight {
    /// One without errors and budgets.
    #[cfg(test)]
    pub(crate) fn of(processes: Vec<SeenProcess>, gpus: Result<Vec<Gpu>, String>) -> Self {
        let (errors, budgets) = (Errors::default(), Vec::new());
        Self { at: Instant::now(), processes, hidden: 0, errors, budgets, gpus }
    }

    /// Keeps only pools of which this text is said: of their process, its user and job, or in their name.
    pub(crate) fn keep(&mut self, filter: Option<&str>) {
        let Some(filter) = filter.filter(|text| !text.is_empty()) else { return };
        for process in &mut self.processes {
            let SeenProcess { pid, program, who, .. } = &*process;
            let user = name_of_user(who.user);
            let pid = pid.to_string();
            let of = [&pid, program, &who.script, &user, &who.container, &who.pod, &who.job];
            if !of.iter().any(|text| text.contains(filter)) {
                process.pools.retain(|pool| pool.name.contains(filter) || pool.device.contains(filter));
            }
        }
        self.processes.retain(|process| !process.pools.is_empty());
    }

    /// What a pool did since an earlier look; `None` where it was not seen then.
    pub(crate) fn rates(&self, before: Option<&Self>, pid: u32, pool: &SeenPool) -> Option<Rates> {
        let before = before?;
        let same = before.processes.iter().find(|process| process.pid == pid)?;
        let same = same.pools.iter().find(|known| known.number == pool.number)?;
        Some(Rates::between(same, pool, self.at.saturating_duration_since(before.at)))
    }
}
