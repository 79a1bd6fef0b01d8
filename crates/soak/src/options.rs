//! What a soak is asked for.

use std::path::PathBuf;
use std::time::Duration;

use millpond::device::DeviceName;

/// What a soak is asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device that programs run on.
    pub device: DeviceName,
    /// It ends after so many operations…
    pub operations: u64,
    /// …or after this time.
    pub time: Option<Duration>,
    /// The chance of each device call to fail.
    pub faults: f64,
    /// Programs that run at once, and threads that share the pools of some of them.
    pub threads: usize,
    /// Streams of each thread, at most [`Options::MOST_STREAMS`].
    pub streams: usize,
    /// Decides which programs there are.
    pub seed: u64,
    /// The program that other processes are started with, and killed in, to share a named budget. It calls [`crate::tenant`] with
    /// its last two arguments.
    pub tenant: Option<(PathBuf, Vec<String>)>,
    /// The name of that budget.
    pub named_budget: Option<String>,
}

impl Options {
    /// The most streams of a thread.
    pub const MOST_STREAMS: usize = crate::order::STREAMS;
}
