//! What went wrong, and the Python exception that says so.

use millpond::bindings::Forked;
use millpond::device::DeviceError;
use millpond::{Limit, OutOfMemory};
use millpond_offers::OfferError;
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// The exceptions are classes of Python, in `python/millpond/_errors.py`.
mod exceptions {
    use pyo3::import_exception;
    import_exception!(millpond._errors, Error);
    import_exception!(millpond._errors, OutOfMemoryError);
    import_exception!(millpond._errors, MisuseError);
    import_exception!(millpond._errors, DeviceError);
    import_exception!(millpond._errors, ForkedError);
    import_exception!(millpond._errors, RecordingError);
}

/// GPUs that a process can have: more than a machine has.
pub(crate) const MOST_DEVICES: usize = 64;

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Pool(#[from] millpond::Error),
    #[error("there is no GPU {0}: GPUs are numbered from 0 to {most}", most = MOST_DEVICES - 1)]
    NoSuchDevice(i64),
    #[error(
        "GPU {0} has its pool already, whose options do not change: give options before the first allocation on any GPU"
    )]
    InUse(usize),
    #[error(
        "the memory is on GPU {gpu}, and the stream is another GPU's ({error}): synchronise that stream before the memory is \
         freed, instead of recording it"
    )]
    StreamOfAnotherGpu { gpu: usize, error: millpond::Error },
    #[error("the block was freed already")]
    FreedBlock,
    #[error("the block's bytes are in use (memoryviews, arrays: {0}): drop these before the block is freed")]
    ShownBlock(usize),
    #[error("the sharing was closed already")]
    ClosedSharing,
    #[error("this process opened the block: the process that shared it sends it")]
    SharedElsewhere,
    #[error(
        "the tag {0:?} was begun on another thread, which has it until it ends the tag around it: use one thread for each `with`"
    )]
    TagOfAnotherThread(String),
    #[error("{0}")]
    Broken(String),
    #[error("{0}")]
    Trace(Box<millpond_replay::read::ReadError>),
    #[error("{path}: {error}")]
    Snapshot { path: String, error: Box<millpond_replay::export::ExportError> },
    #[error("{0}")]
    Replay(String),
    #[error("no temporary file could be made or read: {0}")]
    Temporary(#[source] std::io::Error),
}

impl From<OfferError> for Failure {
    fn from(error: OfferError) -> Self {
        match error {
            OfferError::Pool(error) => Self::Pool(error),
            other => Self::Broken(other.to_string()),
        }
    }
}

impl From<Forked> for Failure {
    fn from(_: Forked) -> Self {
        Self::Pool(millpond::Error::Forked)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self::Pool(error.into())
    }
}

impl Failure {
    /// Whether this process was forked from the one that made the pool.
    pub(crate) fn is_forked(&self) -> bool {
        matches!(self, Self::Pool(millpond::Error::Forked))
    }

    /// Whether memory ran out.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Pool(millpond::Error::OutOfMemory(_)))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        use millpond::Error as E;
        let text = failure.to_string();
        match failure {
            Failure::Pool(error) => match error {
                E::OutOfMemory(report) => out_of_memory(&report, text),
                E::SizeOverflow { .. } => PyOverflowError::new_err(text),
                E::BadAlignment { .. } | E::BadOption { .. } | E::LengthMismatch { .. } => {
                    PyValueError::new_err(text)
                }
                E::NoHostAccess { .. } => PyBufferError::new_err(text),
                E::DoubleFree { .. }
                | E::InteriorPointer { .. }
                | E::WrongPool { .. }
                | E::ForeignPointer { .. }
                | E::WrongDevice { .. }
                | E::NotManaged { .. }
                | E::Asleep { .. }
                | E::CannotSleep { .. }
                | E::Evicted { .. }
                | E::CannotEvict { .. }
                | E::NotShareable { .. }
                | E::PoolDestroyed { .. }
                | E::LiveBlocks { .. } => exceptions::MisuseError::new_err(text),
                E::Recording { .. } => exceptions::RecordingError::new_err(text),
                E::Forked => exceptions::ForkedError::new_err(text),
                E::Device(_) => exceptions::DeviceError::new_err(text),
                _ => exceptions::Error::new_err(text),
            },
            Failure::NoSuchDevice(_) => exceptions::DeviceError::new_err(text),
            Failure::InUse(_)
            | Failure::FreedBlock
            | Failure::ClosedSharing
            | Failure::SharedElsewhere
            | Failure::ShownBlock(_)
            | Failure::TagOfAnotherThread(_)
            | Failure::StreamOfAnotherGpu { .. } => exceptions::MisuseError::new_err(text),
            Failure::Broken(_) => exceptions::Error::new_err(text),
            Failure::Trace(_) | Failure::Snapshot { .. } | Failure::Replay(_) | Failure::Temporary(_) => {
                exceptions::RecordingError::new_err(text)
            }
        }
    }
}

/// The exception with the figures as its fields: plain values, so that it can be pickled.
fn out_of_memory(report: &OutOfMemory, text: String) -> PyErr {
    Python::attach(|py| {
        let error = exceptions::OutOfMemoryError::new_err(text);
        let (value, (what, limit)) = (error.value(py), limit_of(report));
        let fields = [
            value.setattr("requested", report.requested),
            value.setattr("live", report.live),
            value.setattr("cached", report.cached),
            value.setattr("reserved", report.reserved),
            value.setattr("limit", limit),
            value.setattr("what", what),
            value.setattr("advice", report.advice()),
        ];
        match fields.into_iter().collect() {
            Ok(()) => error,
            Err(failed) => failed,
        }
    })
}

/// What stood in the way of more memory, and its bytes, where it is not the device.
pub(crate) fn limit_of(report: &OutOfMemory) -> (&'static str, Option<u64>) {
    match report.limit {
        Limit::HardLimit(bytes) => ("hard_limit", Some(bytes)),
        Limit::Budget { limit, .. } => ("budget", Some(limit)),
        Limit::Headroom(bytes) => ("headroom", Some(bytes)),
        _ => ("device", None),
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;
