//! `cuda/`: training on an NVIDIA GPU. cuBLASLt multiplies, kernels compiled by NVRTC do the rest.
//!
//! It uses the trainer's own [`Memory`](crate::Memory) for every byte on the device, cudarc for modules, launches and graphs,
//! and cudarc's bindings of the two libraries. These are loaded when the first backend is made: nothing is needed to build,
//! and a missing one is an [`Error::Library`](crate::Error) that says where it was looked for.
//!
//! | file | concern |
//! | --- | --- |
//! | `toolkit` | finding cuBLASLt and NVRTC |
//! | `driver` | of libcuda, over cudarc: launches, and errors |
//! | `nvrtc` | compiling `kernels.cu` for the GPU at hand |
//! | `kernels` | the compiled kernels, each with its launch |
//! | `cublaslt` | matrix products |
//! | `steps` | steps of SGD of a whole network in one kernel |
//! | `engine` | all of that for one GPU, shared by the backends of the process |
//! | `backend` | the trainer's operations |
//! | `nccl` | what the GPUs of several ranks do together |
//!
//! **One step.** `backend.linear(x, w, Relu)` checks the shapes, takes the output from the allocator under test, and queues one
//! product with the ReLU in it. Nothing waits, and the loss stays on the device. Between `begin_capture` and `end_capture`, all
//! of that becomes a graph. With small batches on GPUs with clusters, `backend.steps` puts many steps into one kernel instead,
//! which is captured as well.

mod backend;
mod cublaslt;
mod driver;
mod engine;
mod kernels;
mod nccl;
mod nvrtc;
mod steps;
mod toolkit;

pub use backend::CudaBackend;
pub(crate) use driver::gpus;
pub(crate) use nccl::Nccl;

/// Whether the libraries that training needs can be loaded, without making anything of them.
///
/// # Errors
/// [`Error::Library`](crate::Error::Library) for the first that cannot.
pub(crate) fn libraries() -> crate::Result<()> {
    toolkit::find(nvrtc::NVRTC)?;
    toolkit::find(cublaslt::CUBLASLT)
}
