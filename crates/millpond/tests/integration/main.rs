//! The tests of the library's interface, each file a module: one program is built much faster than many.
//!
//! `cargo test -p millpond --test integration sharing::` runs those of one file. Tests run side by side in one process.
//! One that looks at the whole process, forks or ends badly runs in a process of its own: [`processes::alone`].
//! `host_memory.rs` and `host_refusals.rs` beside this folder are programs of their own, since each replaces the allocator.

#[path = "../shared/processes.rs"]
mod processes;
#[path = "../shared/mod.rs"]
mod shared;

mod advice;
mod awaiting;
mod budgets;
mod buffers;
mod captures;
mod conformance;
#[cfg(target_os = "linux")]
mod containers;
mod contexts;
mod contributing;
#[cfg(feature = "cudarc")]
mod cuda_cudarc;
#[cfg(feature = "cuda")]
mod cuda_device;
#[cfg(feature = "cuda")]
mod cuda_evict;
#[cfg(feature = "cuda")]
mod cuda_graphs;
#[cfg(feature = "cuda")]
mod cuda_guard;
#[cfg(feature = "cuda")]
mod cuda_nvtx;
#[cfg(feature = "cuda")]
mod cuda_peers;
#[cfg(feature = "cuda")]
mod cuda_sharing;
#[cfg(feature = "cuda")]
mod cuda_sleep;
#[cfg(feature = "cudarc")]
mod cudarc_streams;
mod debug;
mod default_streams;
mod errors;
mod evict;
mod evict_beside;
mod evict_waiting;
mod failing_calls;
mod file_limit;
mod floors;
mod fork;
mod growing;
mod guard;
#[cfg(target_os = "linux")]
mod host_tables;
#[cfg(target_os = "linux")]
mod imposed;
mod interface;
#[cfg(target_os = "linux")]
mod live;
mod logging;
mod managed;
mod mappings;
mod nvtx;
mod old_mappings;
mod peaks;
mod peers;
mod pinned;
mod pool;
mod pool_misuse;
mod properties;
mod public_interface;
mod recording;
mod registered_streams;
mod repeating;
mod segments;
mod sharing;
mod sleep;
mod threads;
mod throughput;
mod tracking;
mod two_streams;
mod views;
mod walk;
