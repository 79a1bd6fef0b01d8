//! `export/`: a trace, or a replay of it, in files that other programs open.
//!
//! Uses `trace` and `replay`. [`snapshot()`] writes what pytorch.org/memory_viz opens, [`chrome()`] what
//! ui.perfetto.dev and chrome://tracing open. Both write as they go and hold no more than the trace. What is live at the peak
//! is written by call stack: as a picture by [`flame()`], for other programs by [`folded()`] and [`pprof()`].

mod chrome;
pub(crate) mod flame;
mod held;
mod lives;
mod pprof;
mod snapshot;
mod stacks;
#[cfg(test)]
mod tests;
mod trace_events;

pub use chrome::chrome;
pub use flame::flame;
pub use pprof::pprof;
pub use snapshot::snapshot;
pub use stacks::folded;

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The replay that the file is made of failed.
    #[error(transparent)]
    Replay(#[from] crate::replay::ReplayError),
    /// The file could not be written.
    #[error("cannot be written: {0}")]
    Io(#[from] std::io::Error),
    /// The pickle could not be written.
    #[error("cannot be written as a pickle: {0}")]
    Pickle(#[from] serde_pickle::Error),
}
