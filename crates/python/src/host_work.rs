//! Work for the streams of the CPU as a device, for tests: what `cudaLaunchHostFunc` is on a GPU.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use millpond::Context;
use millpond::device::host::HostDevice;
use pyo3::prelude::*;

use crate::failure::{Failure, Result};
use crate::pool::Pool;
use crate::stream::Stream;

/// A device of its own, which takes such work.
struct Host {
    device: Arc<HostDevice>,
    context: Context,
}

static HOST: OnceLock<Host> = OnceLock::new();

fn host() -> Result<&'static Host> {
    if let Some(host) = HOST.get() {
        return Ok(host);
    }
    let device = HostDevice::new()?;
    let context = Context::new(device.clone());
    // Of two threads that come here at once, the second one's goes, unused.
    Ok(HOST.get_or_init(|| Host { device, context }))
}

/// A pool of the CPU as a device, for tests: its streams take ``launch_host_function``.
#[pyfunction]
fn pool_for_host_functions(py: Python<'_>) -> PyResult<Pool> {
    let built = py.detach(|| -> Result<Pool> {
        let context = &host()?.context;
        Ok(Pool::over(millpond::Pool::builder(context).build()?, context.clone()))
    });
    Ok(built?)
}

/// Lets a stream of such a pool call a C function, by its address, with one argument, in stream order. For tests.
#[pyfunction]
fn launch_host_function(
    py: Python<'_>,
    stream: &Bound<'_, Stream>,
    function: usize,
    argument: usize,
) -> PyResult<()> {
    let handle = stream.get().inner.handle();
    Ok(py.detach(|| -> Result<()> {
        // SAFETY: a test passes the address of such a function, which it keeps.
        let function: extern "C" fn(*mut c_void) = unsafe { std::mem::transmute(function) };
        let work = move || function(std::ptr::with_exposed_provenance_mut(argument));
        host()?.device.launch(handle, work).map_err(Failure::from)
    })?)
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pool_for_host_functions, module)?)?;
    module.add_function(wrap_pyfunction!(launch_host_function, module)?)
}
