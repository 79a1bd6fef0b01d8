//! Why something could not be measured.

use std::path::PathBuf;

use millpond::device::DeviceError;

/// What to do about a file of costs that is none.
const WRITES_ONE: &str = "millpond probe --cost-table FILE writes one";

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The pool refused.
    #[error(transparent)]
    Memory(#[from] millpond::Error),
    /// The pool's pair could not be measured.
    #[error(transparent)]
    Bench(#[from] millpond_bench::Error),
    /// A kernel could not be loaded or launched.
    #[error("the GPU cannot {what}: {why}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The driver's answer.
        why: String,
    },
    /// There is nothing to measure.
    #[error("a simulated device has no memory to measure: name host, cuda or cuda:N")]
    Simulated,
    /// A thread that measured ended early.
    #[error("a measuring thread panicked; its message is above")]
    Thread,
    /// A file of costs cannot be read.
    #[error("{}: cannot read the costs: {source}; {WRITES_ONE}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of costs says what cannot be.
    #[error("{}: cannot read the costs: {what}; {WRITES_ONE}", path.display())]
    CostTable {
        /// The file.
        path: PathBuf,
        /// The line, the key, and what is wrong there.
        what: String,
    },
}

/// The result of measuring.
pub type Result<T> = std::result::Result<T, Error>;
