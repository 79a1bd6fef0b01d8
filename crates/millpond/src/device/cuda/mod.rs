//! NVIDIA GPUs, through the driver interface (libcuda, CUDA 12.0 and later).
//!
//! Nothing of CUDA is needed to build it. The driver is loaded when a GPU is first opened. Where there is none, that call
//! fails with [`DeviceError::Unavailable`], which says what to do.
//!
//! ```no_run
//! use millpond::device::cuda::{CudaDevice, CudaOptions};
//! use millpond::{Context, Pool};
//!
//! let gpu = CudaDevice::with_options(0, CudaOptions::default().virtual_memory(true))?;
//! println!("compute capability {:?}", gpu.facts()?.compute_capability);
//! let pool = Pool::builder(&Context::new(gpu)).build()?;
//! # Ok::<(), millpond::Error>(())
//! ```
//!
//! **Contexts.** Some calls of the driver need a *current* context on the calling thread. The device makes its primary
//! context current around those, and restores the one before. So a thread that works with another GPU finds its own context
//! where it left it. [`CudaDevice::make_current`] makes the primary context current for good.

// It uses the words of `device/` and, of cudarc, the raw types and the loading of libcuda.
//
// | file | concern |
// | --- | --- |
// | `api` | the driver's functions that we call, as one table loaded at once |
// | `driver` | finding and starting the driver, and saying what is wrong with it |
// | `context` | the primary context, made current only around the calls that need it |
// | `device` | `CudaDevice`: opening a GPU, its properties and facts |
// | `calls` | the `Device` trait, call by call |
// | `async_pool` | the driver's own stream-ordered pool behind `alloc_async` |
// | `compare` | a kernel that looks for another byte in a range |
// | `peers` | which other GPUs may use its memory |
// | `pinned` | page-locked memory of the host, as a device over the GPU |
// | `managed` | managed memory, as a device over the GPU; where it lies |
// | `taken` | how much managed memory was taken, and may be |
// | `checked` | segments that compute-sanitizer is told of |
// | `structures` | what the driver's structures are filled with |
// | `capture_mode` | what captures of streams forbid the calling thread, lifted for our calls |
// | `host_fn` | running Rust closures in stream order |
// | `host_ranges` | where pinned memory lies, which some calls treat otherwise |
//
// **One call.** `device.map(at, bytes, page)` reaches `calls`, which calls `cuMemMap` of the table. The code
// that comes back is a `Failure` or nothing; `?` turns it into a `DeviceError` with the driver's name and sentence for it.
//
// Where the primary context is current already (as in every program over the CUDA runtime, PyTorch or cudarc), making it
// current costs one `cuCtxGetCurrent`. Calls on explicit handles (events, streams that are not the two default ones, pages,
// mappings) carry their context and need none.

mod api;
mod async_pool;
mod calls;
mod capture_mode;
mod checked;
mod compare;
mod context;
mod device;
mod driver;
mod exports;
mod host_fn;
mod host_ranges;
mod managed;
mod page_extras;
mod peers;
mod pinned;
mod structures;
mod taken;

pub use device::{CudaDevice, CudaFacts, CudaOptions};
#[doc(hidden)]
pub use driver::load_driver;
pub use driver::{DriverInfo, DriverVersion, driver, loaded_library};

#[cfg(doc)]
use super::DeviceError;

// Sizes travel as u64 in the trait and as usize in the driver's functions.
const _: () = assert!(size_of::<usize>() == 8, "CUDA 12 exists for 64-bit machines only");
