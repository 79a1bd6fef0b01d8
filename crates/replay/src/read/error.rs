//! Why a file gives no trace.

use std::io;
use std::path::PathBuf;

use crate::trace::TraceError;

/// Why a file gives no trace.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// What was wrong with it.
    #[source]
    pub what: FormatError,
}

/// What was wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// It cannot be opened or read.
    #[error("cannot be read: {0}")]
    Io(#[source] io::Error),
    /// It is compressed, and ends within its compression.
    #[error("ends before its compressed contents do; it was cut off, copy it again")]
    CutOff,
    /// It has no bytes.
    #[error("is empty: the program did not write it, or has not yet")]
    NoBytes,
    /// It is a zip, which no trace is.
    #[error(
        "is a zip, as torch.save writes: a checkpoint, and no memory snapshot. torch.cuda.memory._dump_snapshot writes one"
    )]
    Zip,
    /// Its first bytes are those of no format that we read.
    #[error(
        "not a trace: expected a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot), an RMM log (Thread,Time,Action,Pointer,Size,Stream) or a recording of millpond's (MILLPOND_RECORD), plain, gzipped or zstd-compressed"
    )]
    Unknown,
    /// It is a pickle that cannot be read.
    #[error("{0}")]
    Pickle(#[from] crate::pickle::PickleError),
    /// It is a pickle, but not of a snapshot.
    #[error("{place}: {what}")]
    Snapshot {
        /// Where in the snapshot, as Python would write it.
        place: String,
        /// What was found and what was expected.
        what: &'static str,
    },
    /// It is a log with a line that cannot be read.
    #[error("line {line}: {what}")]
    Log {
        /// The line, from 1.
        line: u64,
        /// What was found and what was expected.
        what: String,
    },
    /// It is a recording of millpond's, of another version or with a part that makes no sense.
    #[error("{0}")]
    Recording(String),
    /// Its events make no trace.
    #[error("{0}")]
    Trace(#[from] TraceError),
    /// It holds no allocation.
    #[error("holds no allocation: {0}")]
    Empty(String),
}

impl From<io::Error> for FormatError {
    fn from(error: io::Error) -> Self {
        // Only what undoes compression says so; a plain file just ends.
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::CutOff } else { Self::Io(error) }
    }
}

impl From<::millpond::record::ChunkError> for FormatError {
    fn from(error: ::millpond::record::ChunkError) -> Self {
        match error {
            ::millpond::record::ChunkError::Io(error) => error.into(),
            error => Self::Recording(error.to_string()),
        }
    }
}
