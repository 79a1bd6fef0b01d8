//! `crates/python`: the extension module `millpond._millpond`, under the Python package beside it (`python/`).
//!
//! It uses the public interface of `millpond`, `millpond-replay` and the command, and adds no policy of its own.
//!
//! | file | concern |
//! | --- | --- |
//! | `devices` | the pool of each GPU that PyTorch and the others share, made at first use |
//! | `streams` | the driver's stream handles, as PyTorch hands them over |
//! | `thread_tag` | the part of a GPU's pool that a thread allocates from |
//! | `hooks` | the C functions that PyTorch calls, and the exception that they throw |
//! | `pool`, `block`, `budget`, `stream`, `stats`, `recording` | the classes that Python sees |
//! | `handle` | a pool as these share it, and the streams that calls are given |
//! | `options`, `sizes`, `memory` | a pool's options by name; sizes as numbers or texts; kinds of memory by their words |
//! | `callbacks`, `captures` | functions of Python that a pool calls; memory for CUDA graphs |
//! | `sharing` | blocks that several processes use |
//! | `gil` | the GIL, and calls that may wait |
//! | `dlpack` | a block's bytes for NumPy and others |
//! | `snapshot` | what a live pool holds, for memory_viz |
//! | `replay` | what the command's `replay` has to tell |
//! | `host_work` | work for the CPU's streams, for tests |
//! | `frames` | the lines of Python that a call comes from, for recordings |
//! | `failure` | what went wrong, and the Python exception for it |
//!
//! **How one request passes through.** PyTorch calls `hooks` with a size, a device and a stream, without Python in
//! between. `devices` has the pool, a load; `streams` has the stream, from a variable of the thread where it was the
//! last one used there, with a look at its identity; and the pool allocates. Where it cannot, `hooks` throws PyTorch's
//! own `OutOfMemoryError` with the pool's message. From Python, `pool` does the same, without the GIL held.
//!
//! **Threads.** Nothing here relies on the GIL for order, so that free-threaded Pythons leave it off (`gil_used = false`). Classes
//! are frozen: what changes in an object is behind a lock or atomic. What the module has beside objects is atomics
//! (`devices`, `streams`, `thread_tag`), locks (`devices`' options, `hooks`' last error), values that are made once (`host_work`,
//! `hooks::throw`, `frames`), and variables of a thread (`streams`, `thread_tag`, `recording`). No reference to a Python object lies
//! in any of them, but for names of attributes (`frames`). `gil` says where the GIL is let go of.

mod block;
mod budget;
mod callbacks;
mod captures;
mod devices;
mod dlpack;
mod failure;
mod frames;
mod gil;
mod handle;
mod hooks;
mod host_work;
mod memory;
mod options;
mod pool;
mod recording;
mod replay;
mod sharing;
mod sizes;
mod snapshot;
mod stats;
mod stream;
mod streams;
mod thread_tag;

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the ``millpond`` command with these arguments, of which the first is the program's name; its exit status.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| millpond_cli::run(arguments))
}

#[pymodule(gil_used = false)]
fn _millpond(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    pool::add_to(module)?;
    block::add_to(module)?;
    module.add_class::<memory::Residency>()?;
    module.add_class::<budget::Budget>()?;
    module.add_class::<budget::Tenant>()?;
    module.add_class::<sharing::Shared>()?;
    callbacks::add_to(module)?;
    captures::add_to(module)?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<stats::Stats>()?;
    module.add_class::<stats::Level>()?;
    module.add_class::<stats::DeviceCalls>()?;
    module.add_class::<recording::RecordingStatus>()?;
    module.add_class::<recording::Tag>()?;
    thread_tag::add_to(module)?;
    host_work::add_to(module)?;
    module.add_function(wrap_pyfunction!(run_command, module)?)?;
    replay::add_to(module)?;
    devices::add_to(module)?;
    hooks::add_to(module)
}
