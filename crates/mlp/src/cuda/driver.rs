//! Of libcuda, over cudarc: launches with numbers and addresses, and errors.

use std::ffi::CStr;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};

use crate::{Error, Result, Tensor};

/// GPUs that this process sees; 0 without a driver.
pub(crate) fn gpus() -> usize {
    // SAFETY: loading the driver, which any CUDA program does.
    let is_there = unsafe { cudarc::driver::sys::is_culib_present() };
    let count = if is_there { CudaContext::device_count().ok() } else { None };
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
}

/// The error for a call that the driver refused.
pub(super) fn refused(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| {
        let text = error.error_string().map_or("unknown error".into(), CStr::to_string_lossy);
        let what = format!("{call} failed: {text} ({:?})", error.0);
        Error::Library { library: "the CUDA driver", what }
    }
}

/// Where a tensor is, as kernels are given it.
pub(super) fn at<T: Pod>(tensor: &Tensor<T>) -> u64 {
    tensor.ptr().raw()
}

/// Finds a kernel by name.
pub(super) fn function(module: &Arc<CudaModule>, name: &'static str) -> Result<CudaFunction> {
    module.load_function(name).map_err(refused(name))
}

/// Queues a kernel.
///
/// # Safety
/// The arguments are numbers and addresses as the kernel takes them, in order. A kernel reads as many of the first bytes as its
/// parameter has: the machine is little-endian. What the kernel does with them is sound once the stream gets there.
pub(super) unsafe fn launch(
    stream: &CudaStream,
    function: &CudaFunction,
    grid: LaunchConfig,
    arguments: &[u64],
) -> Result<()> {
    let mut launch = stream.launch_builder(function);
    for argument in arguments {
        launch.arg(argument);
    }
    // SAFETY: the caller's promise. The driver copies the arguments before it returns.
    unsafe { launch.launch(grid) }.map_err(refused("cuLaunchKernel"))?;
    Ok(())
}
