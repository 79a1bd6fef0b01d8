//! Millpond: a GPU memory pool. Stream-ordered allocation that holds no more memory than the program uses.
//!
//! ```
//! use millpond::{Buffer, Context, Pool};
//!
//! let device = Context::host()?; // or Context::cuda(0)?
//! let pool = Pool::builder(&device).build()?;
//! let stream = device.create_stream()?;
//! let mut buffer = Buffer::<f32>::zeroed(&pool, 1024, &stream)?;
//! buffer.copy_from_slice(&[1.0; 1024])?;
//! assert_eq!(buffer.to_vec()?, [1.0; 1024]);
//! drop(buffer); // freed in stream order
//! println!("{}", pool.stats());
//! # Ok::<(), millpond::Error>(())
//! ```
//!
//! # The floors
//! Each module uses only those below it: [`Pool`], [`Context`] and [`Buffer`] (`pool/` and beside it, [`mod@cudarc`] too) over
//! `cache/` (each thread's magazines), `extents/` (addresses), `physical/` (physical memory), `order/` ([`Stream`], [`Event`]) and [`device`]
//! (hardware). `docs/walk.md` follows one allocation through all of them.
//!
//! # Features
//! `cuda` (default): the CUDA device, over cudarc. `cudarc` (default): the module [`mod@cudarc`], buffers that
//! cudarc's launches, copies and libraries take. `cuda-13000` (default): the CUDA version of cudarc's types, which
//! is one for all of a build; it asks nothing of the driver, which may be of CUDA 12.0. A program that uses cudarc
//! with another version takes `default-features = false, features = ["cudarc", "record"]` and chooses the version there.
//!
//! `record` (default): the module [`mod@record`], [`Pool::start_recording`] and `MILLPOND_RECORD`. `testing`: the module
//! `testing`, devices that check how an allocator uses them.

#[doc(hidden)]
pub mod bindings;
mod buffer;
mod cache;
mod counters;
#[cfg(feature = "cudarc")]
pub mod cudarc;
pub mod device;
mod error;
mod extents;
#[cfg(test)]
mod fixtures;
mod host;
mod lock;
#[cfg(not(feature = "record"))]
mod no_record;
mod order;
mod out_of_memory;
mod physical;
mod policy;
mod pool;
mod process;
#[cfg(feature = "record")]
pub mod record;
mod stats;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod workspace;

#[cfg(not(feature = "record"))]
use no_record as record;

pub use buffer::Buffer;
pub use error::{Error, Result};
pub use order::{Event, ReusePolicies, Stream};
pub use out_of_memory::{Limit, OutOfMemory};
pub use physical::Budget;
pub use pool::{CapturePool, Capturing, Context, ObserverId, Pool, PoolBuilder, ReclaimId};
pub use stats::{DeviceCalls, HumanBytes, Level, Stats};
pub use workspace::{Workspace, WorkspaceSlice};
