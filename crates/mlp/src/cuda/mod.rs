//! `cuda/`: training on an NVIDIA GPU. cuBLASLt multiplies, kernels compiled by NVRTC do the rest.
//!
//! It uses the trainer's own [`Memory`](crate::Memory) for every byte on the device, cudarc for modules, launches and graphs,
//! and cudarc's bindings of the two libraries. These are loaded when the first backend is made: nothing is needed to build, and a missing one is an
//! [`Error::Library`](crate::Error) that says where it was looked for.
//!
//! | file | concern |
//! | --- | --- |
//! | `toolkit` | finding cuBLASLt and NVRTC |
//! | `nvrtc` | compiling `kernels.cu` for the GPU at hand |
//! | `kernels` | the compiled kernels, each with its launch |
//! | `cublaslt` | matrix products |
//! | `steps` | steps of SGD of a whole network in one kernel |
//! | `engine` | all of that for one GPU, shared by the backends of the process |
//! | `backend` | the trainer's operations |
//! | `nccl` | what the GPUs of several ranks do together |
//!
//! **One step.** `backend.linear(x, w, Relu)` checks the shapes, takes the output from the allocator under test, and queues one
//! product with the ReLU in it. Nothing waits, and the loss stays on the device. Between `begin_capture` and `end_capture`, all of that becomes a graph. With small batches on GPUs with clusters,
//! `backend.steps` puts many steps into one kernel instead, which is captured as well.

mod backend;
mod cublaslt;
mod engine;
mod kernels;
mod nccl;
mod nvrtc;
mod steps;
mod toolkit;

use std::ffi::CStr;

use cudarc::driver::{CudaContext, DriverError};

use crate::Error;

pub use backend::CudaBackend;
pub(crate) use nccl::Nccl;

/// GPUs that this process sees; 0 without a driver.
pub(crate) fn gpus() -> usize {
    // SAFETY: loading the driver, which any CUDA program does.
    let is_there = unsafe { cudarc::driver::sys::is_culib_present() };
    let count = if is_there { CudaContext::device_count().ok() } else { None };
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
}

/// The error for a call that the driver refused.
fn refused(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| {
        let text = error.error_string().map_or("unknown error".into(), CStr::to_string_lossy);
        let what = format!("{call} failed: {text} ({:?})", error.0);
        Error::Library { library: "the CUDA driver", what }
    }
}

/// Whether the libraries that training needs can be loaded, without making anything of them.
///
/// # Errors
/// [`Error::Library`](crate::Error::Library) for the first that cannot.
pub(crate) fn libraries() -> crate::Result<()> {
    toolkit::find(nvrtc::NVRTC)?;
    toolkit::find(cublaslt::CUBLASLT)
}
