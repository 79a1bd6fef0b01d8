//! Memory for what is captured into CUDA graphs.

use std::sync::Arc;

use millpond::bindings::Mutex;
use pyo3::prelude::*;

use crate::failure::Failure;
use crate::gil::Detached;
use crate::handle::{Given, Handle};

/// Memory for what is captured into CUDA graphs: made by ``Pool.capture_pool``.
///
/// It stays at its addresses, and nothing else uses it, until this object is dropped. So keep it as long as the graph. Several
/// captures may share it, one after the other. Then replay their graphs in that order, and never at the same time.
///
/// Drop it only when no graph that uses the memory is launched again: the host then waits for the device, and what is free goes
/// back. Blocks that are live stay valid until they are freed. docs/graphs.md says more.
#[pyclass(frozen, module = "millpond", weakref)]
pub(crate) struct CapturePool {
    memory: Detached<millpond::CapturePool>,
    pool: Arc<Handle>,
}

impl CapturePool {
    pub(crate) fn of(py: Python<'_>, pool: &Arc<Handle>) -> Self {
        let memory = py.detach(|| pool.pool.capture_pool());
        Self { memory: memory.into(), pool: pool.clone() }
    }
}

#[pymethods]
impl CapturePool {
    /// Lets the pool's allocations for ``stream``, and for others of the same capture, come from this memory.
    ///
    /// Call it before the capture begins, and end it after the capture has ended: ``with memory.begin(stream):`` around the
    /// capture does both.
    ///
    /// Raises:
    ///     Error: where another one has not ended.
    #[pyo3(signature = (stream=None))]
    fn begin(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Capturing> {
        let Given { stream: found, .. } = self.pool.stream(py, stream)?;
        let capturing = py.detach(move || self.memory.begin(&found)).map_err(Failure::from)?;
        let keeps = stream.map(|stream| stream.clone().unbind());
        Ok(Capturing { capturing: Mutex::new(Some(capturing)).into(), _keeps: keeps })
    }

    /// Physical bytes that the memory holds.
    #[getter]
    fn reserved(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.memory.reserved())
    }

    /// Bytes in live blocks of the memory.
    #[getter]
    fn used(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.memory.allocated())
    }
}

/// As long as it has not ended, allocations come from the memory of a capture: made by ``CapturePool.begin``.
#[pyclass(frozen, module = "millpond", weakref)]
pub(crate) struct Capturing {
    /// `None` once it has ended.
    capturing: Detached<Mutex<Option<millpond::Capturing>>>,
    /// Another library's stream object, so that the stream lives until the end.
    _keeps: Option<Py<PyAny>>,
}

#[pymethods]
impl Capturing {
    /// Lets allocations come from the pool's own memory again. A second call does nothing.
    fn end(&self, py: Python<'_>) {
        py.detach(|| {
            let capturing = self.capturing.lock().take();
            drop(capturing);
        });
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.end(py);
    }
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CapturePool>()?;
    module.add_class::<Capturing>()
}
