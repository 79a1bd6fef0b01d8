//! How long a thread is waited for that is inside its cache: a few instructions, unless it was suspended.

use std::time::Duration;

/// Looks without a pause: less than a microsecond.
pub(crate) const SPINS: u64 = 64;

/// The pause between later looks: shorter than what it takes the system to wake a thread, some 50 us.
pub(crate) const NAP: Duration = Duration::from_micros(10);
