//! How long other processes are waited for that this one has to do with, but for those [of a budget](super::budgets).

use std::time::Duration;

/// How long who asks for figures may take to send a question, and to read each part of the answer: it is ready for both, unless
/// it is stopped. As long, nobody else is answered.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// How long kernels of a process may run on after it died. No measurement chose it: docs/sharing.md promises it.
pub(crate) const AFTER_DEATH: Duration = Duration::from_millis(200);
