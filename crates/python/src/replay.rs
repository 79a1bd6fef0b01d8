//! What `millpond replay` has to tell of a trace, for Python.

use std::ffi::OsString;

use millpond_cli::Refused;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::failure::Failure;

/// Replays with the command's arguments, of which the first is the trace, prints nothing, and returns the results as JSON
/// with the remarks.
#[pyfunction]
fn replay_as_json(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<(String, Vec<String>)> {
    let folder = tempfile::tempdir().map_err(Failure::Temporary)?;
    let json = folder.path().join("results.json");
    let arguments = arguments.into_iter().chain([OsString::from("--json"), json.clone().into()]);
    let remarks =
        py.detach(|| millpond_cli::replay_silently(arguments)).map_err(|refused| match refused {
            Refused::Usage(text) => PyValueError::new_err(text),
            Refused::Failed(text) => Failure::Replay(text).into(),
        })?;
    Ok((std::fs::read_to_string(json).map_err(Failure::Temporary)?, remarks))
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(replay_as_json, module)?)
}
