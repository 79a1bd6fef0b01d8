//! How much effort goes into a probe.

use std::time::Duration;

/// How much effort goes into a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// How long a figure is measured, about.
    pub time: Duration,
    /// Bytes of the largest copy, page and working set.
    pub most_bytes: u64,
}

impl Effort {
    /// Sizes up to 1 GiB.
    pub const FULL: Self = Self { time: Duration::from_millis(60), most_bytes: 1 << 30 };
    /// Sizes up to 32 MiB, a tenth of the time.
    pub const QUICK: Self = Self { time: Duration::from_millis(6), most_bytes: 32 << 20 };
}
