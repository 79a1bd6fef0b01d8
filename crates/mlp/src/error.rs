//! What can go wrong with a training run, said so that the reader knows what to do next.

use std::path::PathBuf;

use millpond::device::DeviceError;

/// Why a training run, or what it needs, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The allocator under test refused.
    #[error(transparent)]
    Memory(#[from] millpond::Error),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An operation was given a tensor of the wrong shape.
    #[error("{operation}: a {} x {} tensor where {} x {} was expected", found.0, found.1, expected.0, expected.1)]
    Shape {
        /// The operation.
        operation: &'static str,
        /// Rows and columns found.
        found: (usize, usize),
        /// Rows and columns expected.
        expected: (usize, usize),
    },
    /// A library that the device's backend needs is missing, or refused.
    #[error("{library}: {what}")]
    Library {
        /// The library, such as "cuBLASLt" or "NVRTC".
        library: &'static str,
        /// What happened, and what to do about it.
        what: String,
    },
    /// A data file is not what it should be.
    #[error("{file}: {what}: found {found}, expected {expected}")]
    Data {
        /// The file.
        file: String,
        /// The part of it.
        what: &'static str,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
    /// The file of settings is no TOML, or has a key that is not known, or a value that makes no sense.
    #[error("{}: {what}", file.display())]
    ConfigFile {
        /// The file.
        file: PathBuf,
        /// What is wrong, where, and what is known.
        what: String,
    },
    /// A checkpoint is no checkpoint, or one of another training.
    #[error("{}: cannot go on from this checkpoint: {what}; name another folder, or leave --resume out", file.display())]
    Checkpoint {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The environment does not say which rank this process is.
    #[error("{what}")]
    Launcher {
        /// What is missing, or contradicts what.
        what: String,
    },
    /// The ranks did not meet, or do not understand each other.
    #[error("{what}")]
    Rendezvous {
        /// Who is missing, or what went wrong.
        what: String,
    },
    /// Another rank has died or failed.
    #[error("rank {rank}{what}")]
    RankLost {
        /// Which.
        rank: usize,
        /// Its error, or that it has died.
        what: String,
    },
    /// A file or folder cannot be read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The loss is no number: training diverged.
    #[error("the training loss of epoch {epoch} is {loss}: training diverged; try a smaller learning rate")]
    Diverged {
        /// The epoch, counted from 1.
        epoch: usize,
        /// The loss.
        loss: f64,
    },
}

/// The result of training, or of preparing for it.
pub type Result<T> = std::result::Result<T, Error>;
