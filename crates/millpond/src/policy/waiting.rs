//! How long this process's own threads are waited for. One that is inside its cache, or moves its ceilings while another one reads
//! them, takes a few instructions, unless it was suspended.

#[cfg(not(loom))]
use std::time::Duration;

/// Looks without a pause: less than a microsecond.
pub(crate) const SPINS: u64 = 64;

/// The pause between later looks: shorter than what it takes the system to wake a thread, some 50 us.
#[cfg(not(loom))]
pub(crate) const NAP: Duration = Duration::from_micros(10);

/// Most callbacks under way at once, each on a thread of its own. On one thread callbacks do not nest; whether a callback waits for
/// another thread cannot be told.
pub(crate) const MOST_NESTED: usize = 32;

/// Most events of `tracing` that wait while a thread holds a lock. A trim that the device refuses has one for each page.
pub(crate) const MOST_EVENTS: usize = 64;
