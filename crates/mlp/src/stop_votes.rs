//! When ranks ask each other whether to stop.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::{Duration, Instant};

use crate::Result;
use crate::ranks::Team;

/// How often ranks ask each other whether to stop.
const ASKS_EVERY: Duration = Duration::from_millis(100);

/// When ranks ask each other whether to stop: all after the same steps, some time apart.
#[derive(Debug)]
pub(crate) struct StopVotes {
    /// Steps between two times. Rank 0 chooses it.
    stride: u64,
    /// Steps until the next time.
    left: u64,
    last: Instant,
}

impl StopVotes {
    pub(crate) fn new() -> Self {
        Self { stride: 1, left: 1, last: Instant::now() }
    }

    /// Whether to go on after a step. Every rank calls it after every step.
    pub(crate) fn go_on(
        &mut self,
        mut stops: impl FnMut() -> bool,
        team: Option<&Team>,
    ) -> Result<ControlFlow<()>> {
        let flow = |stops| if stops { Break(()) } else { Continue(()) };
        let Some(team) = team else { return Ok(flow(stops())) };
        team.check()?;
        self.left -= 1;
        if self.left > 0 {
            return Ok(Continue(()));
        }
        let pause = self.last.elapsed();
        if pause < ASKS_EVERY / 2 {
            self.stride *= 2;
        } else if pause > ASKS_EVERY * 2 {
            self.stride = (self.stride / 2).max(1);
        }
        let said = team.gather(&(stops(), self.stride))?;
        (self.stride, self.left, self.last) = (said[0].1, said[0].1, Instant::now());
        Ok(flow(said.iter().any(|(stops, _)| *stops)))
    }
}
