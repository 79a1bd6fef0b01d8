//! A block of a pool that is freed with the last Python reference to it.

use millpond::bindings::{Mutex, Process};
use millpond::device::DevicePtr;
use pyo3::prelude::*;

use crate::failure::{Failure, Result};
use crate::stream::StreamArgument;

/// A block of device memory, freed when it is dropped.
#[pyclass(frozen, module = "millpond", weakref)]
pub(crate) struct Block {
    pub(crate) ptr: DevicePtr,
    bytes: u64,
    context: millpond::Context,
    pool: millpond::Pool,
    process: Process,
    /// The stream that it is freed on by default; `None` once it is freed.
    stream: Mutex<Option<millpond::Stream>>,
    /// Another library's stream object, so that the stream lives until the block is freed on it.
    _keeps: Option<Py<PyAny>>,
}

impl Block {
    pub(crate) fn allocate(
        pool: &millpond::Pool,
        context: &millpond::Context,
        (bytes, align): (u64, Option<u64>),
        stream: millpond::Stream,
        keeps: Option<Py<PyAny>>,
    ) -> Result<Self> {
        let ptr = match align {
            None => pool.alloc(bytes, &stream)?,
            Some(align) => pool.alloc_aligned(bytes, align, &stream)?,
        };
        let (pool, context) = (pool.clone(), context.clone());
        let (process, stream) = (Process::here(), Mutex::new(Some(stream)));
        Ok(Self { ptr, bytes, context, pool, process, stream, _keeps: keeps })
    }

    fn free_on(&self, other: Option<millpond::Stream>) -> Result<()> {
        // Before the lock, which a thread of the parent may have had.
        self.process.check()?;
        let own = self.stream.lock().take().ok_or(Failure::FreedBlock)?;
        // SAFETY: the block is this object's, which gave its stream up above; the order of its work is Python's promise.
        let freed = unsafe { self.pool.free(self.ptr, other.as_ref().unwrap_or(&own)) };
        if let Err(error) = freed {
            *self.stream.lock() = Some(own);
            return Err(error.into());
        }
        Ok(())
    }
}

#[pymethods]
impl Block {
    /// The address; 0 for a block of no bytes.
    #[getter]
    fn ptr(&self) -> u64 {
        self.ptr.raw()
    }

    /// Bytes asked for.
    #[getter]
    fn size(&self) -> u64 {
        self.bytes
    }

    /// Whether the block was freed.
    #[getter]
    fn freed(&self) -> bool {
        // In a forked child the block is its parent's.
        self.process.is_here() && self.stream.lock().is_none()
    }

    /// Frees the block after the work given so far to `stream`, which is the allocation's by default.
    #[pyo3(signature = (stream=None))]
    fn free(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let other = match stream.filter(|stream| !stream.is_none()) {
            None => None,
            some => Some(StreamArgument::read(some)?.find(&self.context)?),
        };
        Ok(py.detach(|| self.free_on(other))?)
    }

    /// Notes that work on `stream` uses the block: the free will wait for it.
    fn record_use(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = StreamArgument::read(Some(stream))?.find(&self.context)?;
        Ok(py.detach(|| {
            self.process.check()?;
            // Held meanwhile: once the block is freed, another may lie at its address.
            let own = self.stream.lock();
            if own.is_none() {
                return Err(Failure::FreedBlock);
            }
            Ok(self.pool.record_use(self.ptr, &stream)?)
        })?)
    }

    fn __int__(&self) -> u64 {
        self.ptr.raw()
    }

    fn __len__(&self) -> usize {
        self.bytes as usize
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.freed() || !self.process.is_here() { Ok(()) } else { self.free(py, None) }
    }

    fn __repr__(&self) -> String {
        let freed = if self.freed() { ", freed" } else { "" };
        format!("<millpond.Block of {} bytes at {}{freed}>", self.bytes, self.ptr)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.process.is_here()
            && self.stream.get_mut().is_some()
            && let Err(failure) = self.free_on(None)
        {
            Python::attach(|py| PyErr::from(failure).write_unraisable(py, None));
        }
    }
}
