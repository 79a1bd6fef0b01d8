//! The message of the last hook that failed, for `millpond.last_error()`.

use millpond::bindings::{Mutex, PerProcess};
use pyo3::prelude::*;

use crate::failure::Failure;

/// The message of the last hook that failed.
static LAST_ERROR: PerProcess<Mutex<Option<String>>> = PerProcess::new(Default::default);

/// Keeps the message of a hook that failed.
#[cold]
pub(super) fn note(failure: &Failure) {
    *LAST_ERROR.get().lock() = Some(failure.to_string());
}

/// The message of the last request of PyTorch's that failed.
#[pyfunction]
pub(super) fn last_error() -> Option<String> {
    LAST_ERROR.get().lock().clone()
}
