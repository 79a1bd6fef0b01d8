//! The CUDA driver's memory functions, over a pool: a program's memory then comes from it, is limited, or is only watched. They are in
//! what `millpond run` preloads, and in programs with `millpond-global`. They link neither the CUDA runtime nor the driver. Where a
//! program makes no CUDA call, they do nothing.
//!
//! An *entry point* is a function of ours with the name of one of the driver's. A program finds one on four ways:
//!
//! | the program | finds it |
//! | --- | --- |
//! | is linked with libcuda.so.1 | by its name: the program itself comes first, then what is preloaded |
//! | asks `dlsym` for the function | by our `dlsym` (`lookup`) |
//! | asks `cuGetProcAddress`, as each CUDA runtime does | by our `cuGetProcAddress` (`entry_points`) |
//! | asks the runtime, by `cudaGetDriverEntryPoint` | by the runtime's `cuGetProcAddress` |
//!
//! So a runtime that is linked statically is reached as well.

// Uses the public interface of `millpond`, and of `bindings` what is for one process.
//
// | file | concern |
// | --- | --- |
// | `at_load` | what is done while the process has one thread |
// | `code` | what a driver function returns |
// | `settings` | what the environment asks for |
// | `linker` | the real `dlsym`, and libcuda through it |
// | `driver` | the driver's own functions, looked up at their first call |
// | `report_due` | whether the report is to be written |
// | `messages` | what is said on the standard error, and kept for the report |
// | `shadow` | for `--watch`: a pool on a simulated device that does what the program does |
// | `nvml` | NVIDIA's management library |
// | `overhead` | what CUDA itself takes, where the limit counts it |
// | `driver_memory` | what the driver gave: counted, limited, watched |
// | `pages` | pages of `cuMemCreate`, and how long each is there |
// | `fast_path` | whether requests may take the fast path |
// | `known_blocks` | what is known of blocks that the program asked about |
// | `ipc` | blocks for other processes |
// | `retained` | who keeps the primary contexts |
// | `tags` | which part of a pool a thread's allocations come from |
// | `gpus` | a pool for each GPU |
// | `streams` | the program's streams, as the pools know them |
// | `captures` | which streams are being captured |
// | `pooled` | allocations and frees that a pool serves |
// | `memory_queries` | what asks about memory: sizes, ranges, attributes |
// | `driver_pools` | the driver's own pools, and what is asked about them |
// | `contexts` | contexts that the program ends |
// | `names` | which entry point a name means, in which version |
// | `entry_points` | the functions that programs call, and their table |
// | `deep_binding` | objects that find the driver before what is preloaded |
// | `lookup` | `dlsym` and `dlopen` |
// | `linked` | this code in the program itself, by `millpond-global` |
// | `report` | what the process tells, kept while it runs |
//
// **One allocation.** `cuMemAllocAsync` in `entry_points` asks `pooled`, which finds the stream in `streams`, and so the GPU and its
// pool. Where there is none (another context, a capture, a mode without a pool), it asks `driver_memory`, which asks the driver and
// counts. The pool's own calls find the driver, and no entry point: all names that it looks up are looked up under the guard
// `linker::OwnLookups`.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
// A test has the driver's own functions, and this library's `dlsym` is not its.
#![cfg_attr(test, allow(dead_code, reason = "nothing is exported there"))]

mod at_load;
mod captures;
mod code;
mod contexts;
mod crossing;
mod deep_binding;
mod driver;
mod driver_memory;
mod driver_pools;
mod entry_points;
mod fast_path;
mod gpus;
mod ipc;
mod known_blocks;
#[doc(hidden)]
pub mod linked;
mod linker;
mod lookup;
mod memory_queries;
mod messages;
mod names;
mod nvml;
mod overhead;
mod pages;
mod pooled;
mod report;
mod report_due;
mod retained;
mod settings;
mod shadow;
mod streams;
mod tags;
