//! Recordings and tags, as Python sees them.

use std::cell::RefCell;

use millpond::record;
use pyo3::prelude::*;

/// What a recording has done.
#[pyclass(frozen, get_all, module = "millpond")]
#[derive(Debug)]
pub(crate) struct RecordingStatus {
    /// The file. Its name may have the process's number, where another process held the one asked for.
    path: std::path::PathBuf,
    /// Events recorded, of all pools that record to this file.
    events: u64,
    /// Events dropped because too much waited for the disk.
    dropped: u64,
    /// Bytes written.
    bytes: u64,
    /// Why the last write failed, if it did.
    failure: Option<String>,
}

impl From<record::Status> for RecordingStatus {
    fn from(status: record::Status) -> Self {
        let record::Status { path, events, dropped, bytes, failure, .. } = status;
        Self { path, events, dropped, bytes, failure }
    }
}

#[pymethods]
impl RecordingStatus {
    /// The same as a table for Jupyter.
    fn _repr_html_<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("millpond._html")?.call_method1("of_recording", (this,))
    }

    fn __repr__(&self) -> String {
        format!(
            "RecordingStatus(path={:?}, events={}, dropped={}, bytes={})",
            self.path, self.events, self.dropped, self.bytes
        )
    }
}

/// ``with millpond.tag("forward"):`` files what this thread does with pools under a name, in recordings.
#[pyclass(unsendable, module = "millpond", name = "tag")]
pub(crate) struct Tag {
    text: String,
    tagged: RefCell<Vec<record::Tagged>>,
}

#[pymethods]
impl Tag {
    #[new]
    fn new(text: String) -> Self {
        Self { text, tagged: RefCell::default() }
    }

    fn __enter__(&self) {
        self.tagged.borrow_mut().push(record::tag(&self.text));
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.tagged.borrow_mut().pop();
    }
}
