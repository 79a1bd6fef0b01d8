//! A GPU memory pool: stream-ordered allocation that holds no more memory than the program uses.
//!
//! A *pool* takes memory from a device in pages, and gives it to the program in blocks. Allocations and frees are ordered
//! by streams, as kernels are. A repeated allocation makes no device call, and the host does not wait for the device. Free
//! pages are remapped to where they are needed, before the pool takes new memory.
//!
//! ```
//! use millpond::{Buffer, Context, Pool};
//!
//! let device = Context::host()?; // the CPU as a device; Context::cuda(0)? is the first GPU
//! let pool = Pool::builder(&device).name("activations").build()?;
//! let stream = device.create_stream()?;
//! let mut inputs = Buffer::<f32>::zeroed(&pool, 1024, &stream)?;
//! inputs.copy_from_slice(&[1.0; 1024])?; // in stream order
//! assert_eq!(inputs.to_vec()?, [1.0; 1024]); // waits for the stream
//! drop(inputs); // freed in stream order: the host does not wait
//! let outputs = Buffer::<f32>::new(&pool, 1024, &stream)?; // the same memory, without a device call
//! println!("{} bytes in use\n{}", outputs.byte_len(), pool.stats());
//! # Ok::<(), millpond::Error>(())
//! ```
//!
//! # Where to begin
//! | to … | use |
//! | --- | --- |
//! | open a device and make streams | [`Context`], [`Stream`], [`Event`] |
//! | build a pool, with limits and options | [`Pool::builder`], [`PoolBuilder`], [`Budget`] |
//! | share one limit with other processes | [`Budget::named`] |
//! | hold typed memory that frees itself | [`Buffer`] |
//! | use a part of it | [`Buffer::slice`], [`BufferView`], [`BufferViewMut`] |
//! | stage bytes in pinned host memory | [`Context::pinned`], [`Buffer::as_mut_slice`], [`Buffer::copy_from_pinned`] |
//! | use managed memory, which moves to where it is used | [`Context::managed`], [`Buffer::prefetch`], [`Buffer::advise`] |
//! | share memory with other processes | [`Buffer::share`], [`Context::open_shared`], [`PoolBuilder::for_sharing`] |
//! | work with several GPUs | [`Buffer::copy_from`], [`Buffer::allow_access`], [`Pool::allow_access`], [`Stream::wait`] |
//! | reuse one block every step | [`Workspace`] |
//! | lend a pool's memory to others for a while | [`Pool::sleep`], [`Pool::wake`] |
//! | let parts of a job take turns on the device | [`Pool::evict`], [`Pool::restore`], [`Pool::restore_ahead`], [`Pool::restore_free`] |
//! | hold plain blocks, as an allocator for others does | [`Pool::alloc`], [`Pool::free`] |
//! | capture CUDA graphs | [`Pool::capture_pool`], [`CapturePool`] |
//! | launch kernels with cudarc | the module `cudarc` |
//! | see what a pool did | [`Pool::stats`], [`Stats`] |
//! | see what all programs' pools do now | [`mod@live`] |
//! | record a run for `millpond replay` | [`mod@record`] |
//! | see who holds memory, and who leaks it | [`record::Tracking`], [`Pool::live_blocks`] |
//! | test an allocator or a device | the module `testing`, [`device::sim`] |
//!
//! The repository has a page for each question in `docs/`, and whole programs in `crates/millpond/examples/`.
//!
//! # What it does in a process
//! The first pool of a process opens a socket in the abstract namespace, and starts a thread that sleeps until `millpond top` or
//! another program of this user asks for its figures. Both end with the last pool. A library that builds pools inside of
//! other people's programs may not want that: [`PoolBuilder::live`]`(false)` has neither, and a program switches it off for all
//! by `MILLPOND_LIVE=off`. Events go to the crate `tracing`, with the fields `pool` and `bytes`.
//!
//! # Features
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `cuda` | yes | the CUDA device. It needs no toolkit to build, and loads the driver when a GPU is opened |
//! | `cudarc` | yes | the module `cudarc`: buffers for cudarc's launches, copies and libraries |
//! | `cuda-13000` | no | CUDA 13.0 as the version of cudarc's types; the driver may still be of CUDA 12.0 |
//! | `testing` | no | the module `testing`: devices that check how an allocator uses them |
//! | `lab` | no | for the experiments of this repository only |
//!
//! All of a build shares one cudarc, whose features are the program's to choose: the CUDA version of its types, and whether the
//! driver is loaded or linked. Where nobody chooses, it is loaded, and the version is that of the toolkit, or else the newest one.
//! The page `docs/rust.md` has the `Cargo.toml` of each case.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "millpond is for Linux: it maps pages by memfd, and talks to other processes by abstract sockets"
);

#[doc(hidden)]
pub mod bindings;
mod budgets;
mod cache;
mod capture;
mod core;
#[cfg(feature = "cudarc")]
pub mod cudarc;
mod decay;
pub mod device;
mod error;
mod evict;
mod extents;
mod figures;
#[cfg(test)]
mod fixtures;
pub mod guard;
pub mod live;
mod log;
mod managed;
mod nvtx;
mod order;
mod out_of_memory;
mod peers;
mod physical;
mod policy;
mod pool;
pub mod record;
mod sharing;
mod sleep;
mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod typed;

// The examples of the repository's pages are tests. They are not in the packaged crate, whose own tests are in the repository.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/beyond.md")]
    mod beyond {}
    #[doc = include_str!("../../../docs/budgets.md")]
    mod budgets {}
    #[doc = include_str!("../../../docs/graphs.md")]
    mod graphs {}
    #[doc = include_str!("../../../docs/guard.md")]
    mod guard {}
    #[doc = include_str!("../../../docs/memory-kinds.md")]
    mod memory_kinds {}
    #[cfg(feature = "cudarc")]
    #[doc = include_str!("../../../docs/rust.md")]
    mod rust {}
    #[doc = include_str!("../../../docs/sleep.md")]
    mod sleep {}
    #[doc = include_str!("../../../docs/sharing.md")]
    mod sharing {}
    #[doc = include_str!("../../../docs/several-gpus.md")]
    mod several_gpus {}
    #[doc = include_str!("../../../docs/stream-order.md")]
    mod stream_order {}
}

pub use crate::core::{ObserverId, ReclaimId};
pub use budgets::Budget;
pub use capture::{CapturePool, Capturing};
pub use device::{Advice, Place, Residency};
pub use error::{Error, Result};
pub use figures::stats::{DeviceCalls, HumanBytes, Level, Stats};
pub use figures::tenant::{SeenBudget, Tenant};
pub use order::{Event, RegisteredStream, ReusePolicies, Stream};
pub use out_of_memory::{Limit, OutOfMemory};
pub use pool::{Context, Pool, PoolBuilder};
pub use sharing::{Received, Shared, SharedEvent, SharedToken};
pub use sleep::Keep;
pub use typed::{Buffer, BufferView, BufferViewMut, Opened, Workspace, WorkspaceSlice};
