//! How long a thread is waited for: that is inside its cache, or that moves its ceilings while another one reads them. Both take
//! a few instructions, unless it was suspended.

#[cfg(not(loom))]
use std::time::Duration;

/// Looks without a pause: less than a microsecond.
pub(crate) const SPINS: u64 = 64;

/// The pause between later looks: shorter than what it takes the system to wake a thread, some 50 us.
#[cfg(not(loom))]
pub(crate) const NAP: Duration = Duration::from_micros(10);
