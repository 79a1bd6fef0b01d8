//! What `millpond top` and `millpond metrics` look at: the pools of running programs, and the GPUs beside them.

pub(crate) mod gpus;
pub(crate) mod prometheus;
pub(crate) mod shares;

use std::time::{Duration, Instant};

use millpond::Stats;
use millpond::live::{LookError, SeenPool, SeenProcess, processes};

use self::gpus::{Gpu, Gpus};

/// How long all processes together have for their answers.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// Looks at everything, again and again.
#[derive(Debug)]
pub(crate) struct Watch {
    gpus: Gpus,
}

/// What was seen at one moment.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) at: Instant,
    pub(crate) processes: Vec<SeenProcess>,
    /// Or why nothing is known of them.
    pub(crate) gpus: Result<Vec<Gpu>, String>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self { gpus: Gpus::open() }
    }

    pub(crate) fn look(&self) -> Result<Sight, LookError> {
        let at = Instant::now();
        Ok(Sight { at, processes: processes(PATIENCE)?, gpus: self.gpus.look() })
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
    /// What a pool did since an earlier look; `None` where it was not seen then.
    pub(crate) fn rates(&self, before: Option<&Self>, pid: u32, pool: &SeenPool) -> Option<Rates> {
        let before = before?;
        let same = before.processes.iter().find(|process| process.pid == pid)?;
        let same = same.pools.iter().find(|known| known.number == pool.number)?;
        Some(Rates::between(same, pool, self.at.saturating_duration_since(before.at)))
    }
}
