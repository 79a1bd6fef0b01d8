//! How long processes that share a budget wait for each other. docs/budgets.md says what is promised.

use std::time::Duration;

/// How long a request waits for the other processes by default.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// How long a request waits for answers at first. Then the others are asked again, and then after twice as long, up to eight
/// times: what they free meanwhile, or what comes free without them, is noticed then. What takes another process some
/// microseconds takes so long only if that process is stopped, or gone.
pub(crate) const ROUND: Duration = Duration::from_millis(4);

/// How often one request asks the other processes, as long as its time is not over.
pub(crate) const ROUNDS: usize = 8;
