//! Streams as Python names them: millpond's own, the driver's by number, or another library's object.

use millpond::bindings::Mutex;
use millpond::device::StreamHandle;
use millpond::{Context, RegisteredStream};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::failure::{Failure, Result};
use crate::gil::Detached;

/// A stream that millpond made (``Pool.create_stream``), or another library's that is registered (``Pool.register_stream``).
#[pyclass(frozen, module = "millpond")]
#[derive(Debug)]
pub(crate) struct Stream {
    // In the order of their ends: nothing is left of the stream when its registration ends, and then its owner goes.
    pub(crate) inner: Detached<millpond::Stream>,
    registered: Mutex<Option<Detached<RegisteredStream>>>,
    owner: Mutex<Option<Py<PyAny>>>,
    pub(crate) context: Detached<Context>,
}

impl Stream {
    /// A stream that millpond made.
    pub(crate) fn ours(inner: millpond::Stream, context: Context) -> Self {
        let (inner, context) = (inner.into(), context.into());
        Self { inner, registered: Mutex::default(), owner: Mutex::default(), context }
    }

    /// Another library's stream, registered as long as this lives.
    pub(crate) fn register(stream: &Bound<'_, PyAny>, context: &Context) -> PyResult<Self> {
        let handle = match StreamArgument::read(Some(stream))? {
            StreamArgument::Ours(stream) => stream.handle(),
            // SAFETY: that it is a live stream of the device is what the documentation asks of the caller.
            StreamArgument::Raw(raw) => unsafe {
                StreamHandle::from_raw(raw.max(StreamHandle::LEGACY.raw()))
            },
        };
        // SAFETY: likewise, and that it stays; the owner is kept here.
        let registered = stream.py().detach(|| unsafe { context.register_stream(handle) });
        let registered = registered.map_err(Failure::from)?;
        Ok(Self {
            inner: millpond::Stream::clone(&registered).into(),
            registered: Mutex::new(Some(registered.into())),
            owner: Mutex::new(Some(stream.clone().unbind())),
            context: context.clone().into(),
        })
    }
}

#[pymethods]
impl Stream {
    /// Ends the registration of another library's stream: that may be destroyed then. Does not wait for the stream's work.
    ///
    /// What was made with this object afterwards frees late but safely; all else with it is an error.
    fn unregister(&self, py: Python<'_>) {
        let registered = self.registered.lock().take();
        py.detach(|| drop(registered));
        let owner = self.owner.lock().take();
        drop(owner);
    }

    /// The driver's handle (``CUstream``), valid as long as this object.
    #[getter]
    fn handle(&self) -> u64 {
        self.inner.handle().raw()
    }

    /// The protocol by which other libraries take a stream: a version, and the handle.
    fn __cuda_stream__(&self) -> (u32, u64) {
        (0, self.handle())
    }

    /// Waits until all work given to the stream so far is complete, then applies the release thresholds.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.inner.synchronize()).map_err(Failure::from)?)
    }

    /// Makes later work on this stream wait for all work given to ``other`` so far. The host does not wait.
    fn wait_for(&self, py: Python<'_>, other: &Self) -> PyResult<()> {
        Ok(py.detach(|| self.inner.wait_for(&other.inner)).map_err(Failure::from)?)
    }

    /// Makes later work on this stream wait for all work given to the legacy default stream so far.
    fn wait_for_default(&self, py: Python<'_>) -> PyResult<()> {
        let waited = py.detach(|| self.inner.wait_for(&self.context.default_stream()?));
        Ok(waited.map_err(Failure::from)?)
    }

    /// Whether all work given to the stream so far is complete.
    #[getter]
    fn idle(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(py.detach(|| self.inner.is_idle()).map_err(Failure::from)?)
    }

    fn __repr__(&self) -> String {
        format!("<millpond.Stream {:#x}>", self.handle())
    }
}

/// What a call was given for a stream.
pub(crate) enum StreamArgument {
    /// One of millpond's.
    Ours(millpond::Stream),
    /// The driver's.
    Raw(u64),
}

impl StreamArgument {
    /// Reads `None` (the legacy default stream), a [`Stream`], an int, or an object with `__cuda_stream__`
    /// (cuda.core, CuPy, Numba), `cuda_stream` (PyTorch) or `ptr` (CuPy).
    pub(crate) fn read(argument: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(argument) = argument.filter(|argument| !argument.is_none()) else {
            return Ok(Self::Raw(0));
        };
        if let Ok(stream) = argument.cast::<Stream>() {
            return Ok(Self::Ours(millpond::Stream::clone(&stream.get().inner)));
        }
        if argument.is_instance_of::<PyInt>() {
            let handle = argument.extract().map_err(|_| {
                PyValueError::new_err(format!("stream: {argument} is no CUstream, which is an address"))
            })?;
            return Ok(Self::Raw(handle));
        }
        if let Some(protocol) = argument.getattr_opt("__cuda_stream__")? {
            let (_, handle): (u32, u64) = protocol.call0()?.extract()?;
            return Ok(Self::Raw(handle));
        }
        for name in ["cuda_stream", "ptr"] {
            if let Some(handle) = argument.getattr_opt(name)? {
                return Ok(Self::Raw(handle.extract()?));
            }
        }
        Err(PyTypeError::new_err(format!(
            "a stream is None, a millpond.Stream, a CUstream as an int, or an object with __cuda_stream__, not {}",
            argument.get_type().name()?
        )))
    }

    /// The stream itself, for a pool of this context.
    pub(crate) fn find(self, context: &Context) -> Result<millpond::Stream> {
        match self {
            Self::Ours(stream) => Ok(stream),
            Self::Raw(0 | 1) => Ok(context.default_stream()?),
            Self::Raw(2) => Ok(context.per_thread_stream()?),
            // SAFETY: that the handle is a live stream of the device is what the documentation asks of the caller, and
            // each later use of what is returned is for a call that presents the stream, or for the free of a block
            // that keeps the Python object of it.
            Self::Raw(raw) => Ok(unsafe { context.foreign_stream(StreamHandle::from_raw(raw)) }?),
        }
    }
}
