//! How long other processes are waited for that this one has to do with, but for those [of a budget](super::budgets).

use std::time::Duration;

/// How long kernels of a process may run on after it died: docs/sharing.md promises it. As long may who asks for figures take to
/// send a question, and to read each part of the answer, while nobody else is answered: it is ready for both, unless it is stopped.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);

/// How long is waited for what takes less than a millisecond, unless somebody is stopped meanwhile: the lock of a budget, which a
/// process holds for less than a microsecond, and the end of a fork.
pub(crate) const STOPPED: Duration = Duration::from_secs(1);

/// About how many shared blocks one that is shared, or a synchronisation, asks about: a call of the system for each. With all of them, to
/// close 1,600 took 2.7 s in place of 0.3 (docs/lab/sharing.md).
pub(crate) const ASKED_AT_ONCE: usize = 16;
