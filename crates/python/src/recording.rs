//! Recordings and tags, as Python sees them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use millpond::bindings::Mutex;
use millpond::record;
use pyo3::prelude::*;

use crate::failure::{Failure, Result};

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
///
/// It ends on the thread that began it, with all that this thread began since.
#[pyclass(frozen, module = "millpond", name = "tag")]
pub(crate) struct Tag {
    text: String,
    /// What each `with` began, by thread and number, innermost last.
    begun: Mutex<Vec<(ThreadId, u64)>>,
}

thread_local! {
    /// What the thread began and did not end, by number.
    static TAGGED: RefCell<Vec<(u64, record::Tagged)>> = const { RefCell::new(Vec::new()) };
}

/// The number of the next one.
static NEXT: AtomicU64 = AtomicU64::new(0);

#[pymethods]
impl Tag {
    #[new]
    fn new(text: String) -> Self {
        Self { text, begun: Mutex::default() }
    }

    fn __enter__(&self) {
        // Relaxed: all that counts is that no two are the same.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let tagged = record::tag(&self.text);
        // Fails while the thread ends, and no tag is set then.
        TAGGED.try_with(|all| all.borrow_mut().push((number, tagged))).ok();
        self.begun.lock().push((thread::current().id(), number));
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> Result<()> {
        let Some((of, number)) = self.begun.lock().pop() else { return Ok(()) };
        if of != thread::current().id() {
            return Err(Failure::TagOfAnotherThread(self.text.clone()));
        }
        let take = |all: &RefCell<Vec<(u64, record::Tagged)>>| {
            let mut all = all.borrow_mut();
            let at = all.iter().position(|(known, _)| *known == number);
            at.map(|at| all.split_off(at)).unwrap_or_default()
        };
        let mut ended = TAGGED.try_with(take).unwrap_or_default();
        // The innermost first: each brings back the one before.
        while ended.pop().is_some() {}
        Ok(())
    }
}
