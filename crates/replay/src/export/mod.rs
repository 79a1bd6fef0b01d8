//! `export/`: a trace, or a replay of it, in files that other programs open.
//!
//! Uses `trace` and `replay`. [`snapshot()`] writes what pytorch.org/memory_viz opens, [`chrome()`] what
//! ui.perfetto.dev and chrome://tracing open. Both write as they go and hold no more than the trace.

mod chrome;
mod held;
mod snapshot;
#[cfg(test)]
mod tests;

pub use chrome::chrome;
pub use snapshot::snapshot;

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
