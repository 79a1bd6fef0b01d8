//! Memory that passes between processes, under a named budget.

use std::time::{Duration, Instant};

use super::inner::PoolInner;
use crate::Result;
use crate::physical::{GivesBack, Shortage};

/// How often one request asks other processes, as long as its time is not over.
pub(super) const MOST_ASKED: usize = 8;

impl PoolInner {
    /// Waits until other processes have left so much of the budget, for as long as the patience lasts, which gets shorter.
    /// There is none any more where they have not. What was short says in which lengths memory is taken.
    pub(super) fn ask_processes(
        &self,
        bytes: u64,
        (what, at_once): (Shortage, u64),
        patience: &mut Option<Duration>,
    ) -> bool {
        let budget = self.limits.budget.as_ref().filter(|_| what == Shortage::Budget);
        let Some((budget, left)) = budget.zip(*patience) else { return false };
        let began = Instant::now();
        let has_room = budget.ask(bytes.next_multiple_of(at_once.max(1)), left);
        *patience = has_room.then(|| left.saturating_sub(began.elapsed()));
        has_room
    }

    /// Gives back what is free until so much is held; waits for work on it if that is not enough.
    fn trim_for_others(&self, keep: u64) -> Result<u64> {
        let released = self.trim(keep)?;
        if self.counters.reserved.current() <= keep || self.sleep_gate.is_closed() {
            return Ok(released);
        }
        self.let_go_of_released();
        self.timelines.wait_on_host(&self.fence_of_all_free())?;
        Ok(released + self.trim(keep)?)
    }
}

impl GivesBack for PoolInner {
    /// At least half of what is free, so that a program whose requests grow does not have to ask for each.
    fn give_back_free(&self, wanted: u64, at_most: u64) -> u64 {
        let held = self.counters.reserved.current();
        let free = held.saturating_sub(self.counted().allocated.current);
        let give = wanted.max(free / 2).min(free).min(at_most);
        self.trim_for_others(held - give).unwrap_or_else(|error| {
            tracing::debug!(%error, pool = self.name, "a pool could not give memory to another process");
            0
        })
    }
}
