//! Pools, as Python sees them. `python/millpond/_millpond.pyi` documents the methods.

use std::path::PathBuf;

use millpond::device::{DeviceName, DevicePtr, Kind, UnknownDevice};
use millpond::{Context, record};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::block::Block;
use crate::failure::{Failure, Result};
use crate::options::Options;
use crate::recording::RecordingStatus;
use crate::snapshot;
use crate::stats::Stats;
use crate::stream::{Stream, StreamArgument};

/// A memory pool of one device.
#[pyclass(frozen, module = "millpond", weakref)]
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) context: Context,
    pub(crate) pool: millpond::Pool,
}

/// Reads which device a pool is of: a GPU by its number, or any by its name.
fn read_device(argument: &Bound<'_, PyAny>) -> PyResult<DeviceName> {
    if let Ok(ordinal) = argument.extract::<i64>() {
        return Ok(DeviceName::cuda(usize::try_from(ordinal).map_err(|_| Failure::NoSuchDevice(ordinal))?));
    }
    let Ok(name) = argument.extract::<String>() else {
        let names = DeviceName::listed();
        return Err(PyTypeError::new_err(format!("a device is a GPU's number, or its name: {names}")));
    };
    name.parse().map_err(|unknown: UnknownDevice| PyValueError::new_err(unknown.to_string()))
}

/// Opens a device; one without a capacity of its own is shared with the rest of the process.
fn open(name: DeviceName, capacity: Option<u64>) -> Result<Context> {
    Ok(match (name.kind(), capacity) {
        (Kind::Cuda, None) => Context::cuda(name.ordinal())?,
        (Kind::Host, None) => Context::host()?,
        _ => Context::new(name.open_with_capacity(capacity)?),
    })
}

/// The number of the GPU that a text names; `None` where it names none.
#[pyfunction]
fn gpu_ordinal(name: &str) -> Option<usize> {
    name.parse().ok().filter(|name: &DeviceName| name.is_gpu()).map(DeviceName::ordinal)
}

impl Pool {
    fn stream(&self, argument: Option<&Bound<'_, PyAny>>) -> PyResult<millpond::Stream> {
        Ok(StreamArgument::read(argument)?.find(&self.context)?)
    }
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (device, *, capacity=None, **options))]
    fn new(
        py: Python<'_>,
        device: &Bound<'_, PyAny>,
        capacity: Option<u64>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let (device, options) = (read_device(device)?, Options::from_keywords(options)?);
        if capacity.is_some() && device.is_gpu() {
            return Err(PyValueError::new_err("capacity is for 'host' and 'sim'; a GPU has what it has"));
        }
        let built = py.detach(|| -> Result<Self> {
            let context = open(device, capacity)?;
            let pool = options.builder(&context, "pool").build()?;
            Ok(Self { context, pool })
        });
        Ok(built?)
    }

    #[getter]
    fn name(&self) -> &str {
        self.pool.name()
    }

    /// The device, as `Pool` takes it.
    #[getter]
    fn device(&self) -> String {
        DeviceName::of(self.pool.device().properties()).to_string()
    }

    #[pyo3(signature = (size, stream=None, *, align=None))]
    fn allocate(
        &self,
        py: Python<'_>,
        size: u64,
        stream: Option<&Bound<'_, PyAny>>,
        align: Option<u64>,
    ) -> PyResult<Block> {
        let found = self.stream(stream)?;
        let keeps = stream.map(|stream| stream.clone().unbind());
        Ok(py.detach(|| Block::allocate(&self.pool, &self.context, (size, align), found, keeps))?)
    }

    /// Allocates for callers that keep the address themselves.
    #[pyo3(signature = (size, stream=None))]
    fn allocate_address(
        &self,
        py: Python<'_>,
        size: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let stream = self.stream(stream)?;
        Ok(py.detach(|| self.pool.alloc(size, &stream)).map_err(Failure::from)?.raw())
    }

    #[pyo3(signature = (address, stream=None))]
    fn free_address(&self, py: Python<'_>, address: u64, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = self.stream(stream)?;
        // SAFETY: whoever frees an address got it from the pool and owns the block: Python cannot promise more.
        Ok(py
            .detach(|| unsafe { self.pool.free(DevicePtr::new(address), &stream) })
            .map_err(Failure::from)?)
    }

    fn create_stream(&self) -> PyResult<Stream> {
        let inner = self.context.create_stream().map_err(Failure::from)?;
        Ok(Stream { inner, context: self.context.clone() })
    }

    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.context.synchronize()).map_err(Failure::from)?)
    }

    fn stats(&self) -> Stats {
        self.pool.stats().into()
    }

    fn reset_peak(&self, py: Python<'_>) {
        py.detach(|| self.pool.reset_high_water());
    }

    /// Gives free memory back to the device until `keep` bytes are reserved; the bytes given back.
    #[pyo3(signature = (keep=0))]
    fn trim(&self, py: Python<'_>, keep: u64) -> PyResult<u64> {
        Ok(py.detach(|| self.pool.trim_to(keep)).map_err(Failure::from)?)
    }

    /// Free and total bytes of the device.
    fn memory_info(&self) -> PyResult<(u64, u64)> {
        let info = self.pool.memory_info().map_err(Failure::from)?;
        Ok((info.free, info.total))
    }

    #[pyo3(signature = (path, *, call_sites=false))]
    fn start_recording(&self, py: Python<'_>, path: PathBuf, call_sites: bool) -> PyResult<()> {
        let options = record::Options::new(path).call_sites(call_sites);
        Ok(py.detach(|| self.pool.start_recording(options)).map_err(Failure::from)?)
    }

    fn stop_recording(&self, py: Python<'_>) -> PyResult<Option<RecordingStatus>> {
        let status = py.detach(|| self.pool.stop_recording()).map_err(Failure::from)?;
        Ok(status.map(Into::into))
    }

    /// The recording that runs.
    #[getter]
    fn recording(&self) -> Option<RecordingStatus> {
        self.pool.recording().map(Into::into)
    }

    /// Writes a snapshot for memory_viz; `False`, and nothing, where there is nothing to show.
    fn write_snapshot(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        Ok(py.detach(|| snapshot::write(&self.pool, &path))?)
    }

    /// Destroys the pool: it allocates no more.
    fn destroy(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.pool.destroy()).map_err(Failure::from)?)
    }

    /// Recounts every invariant, for tests.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.pool.check()).map_err(Failure::Broken)?)
    }

    fn __repr__(&self) -> String {
        format!("<millpond.Pool '{}' of {}>", self.pool.name(), self.device())
    }
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pool>()?;
    module.add_function(wrap_pyfunction!(gpu_ordinal, module)?)
}
