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
    /// The processes that share a named budget; none where there are to be none.
    pub tenant: Option<Tenant>,
}

/// How processes are started that share a named budget, and are killed.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// The budget's name.
    pub budget: String,
    /// The program that is started. It calls [`crate::tenant`] with its last two arguments.
    pub program: PathBuf,
    /// What stands before those.
    pub arguments: Vec<String>,
}

impl Options {
    /// The most streams of a thread.
    pub const MOST_STREAMS: usize = crate::order::STREAMS;
}
