//! `hooks/`: the C functions that PyTorch calls, in place of its allocator's.
//!
//! They use `devices` and `streams`, and nothing of Python: PyTorch calls them with and without the GIL, from any thread.
//!
//! **How one request passes through.** `torch::millpond_torch_alloc` finds the device and the stream, and allocates. A
//! failure must not come back as null, which PyTorch would take for memory: `throw` throws PyTorch's own exceptions
//! through it. A free must not throw; what goes wrong there is printed, and kept for `millpond.last_error()`.
//!
//! While a graph is captured, `captures` has what is allocated for it come from memory of its own; `std_function` holds
//! PyTorch's description of what belongs to the capture.
//!
//! That is the plug-in. The native interface is the C++ shim's (`crates/python/torch`), which gets the functions of `shim`
//! as a table; these give it back what went wrong, and it throws. `blocks` has the blocks that PyTorch has, for its
//! figures, snapshots and checkpoints. `sharing` has those that other processes use, `pinned` PyTorch's
//! pinned memory, `settings` what its settings mean here. `rmm` is to RMM's resource what `shim` is to PyTorch's allocator.

mod blocks;
mod captures;
mod last_error;
mod outcome;
mod pinned;
mod rmm;
mod settings;
mod sharing;
mod shim;
mod std_function;
mod throw;
mod torch;

use std::ffi::c_void;

use pyo3::prelude::*;

/// Whether PyTorch's exceptions were found, and the addresses of the functions that PyTorch calls.
#[pyfunction]
fn torch_hooks() -> (bool, Vec<(&'static str, usize)>) {
    let mut hooks: Vec<(&'static str, *const c_void)> = vec![
        ("alloc", torch::millpond_torch_alloc as *const c_void),
        ("free", torch::millpond_torch_free as *const c_void),
        ("set_init_fn", torch::init as *const c_void),
        ("set_reset_fn", torch::reset as *const c_void),
        ("set_memory_fraction_fn", torch::memory_fraction as *const c_void),
        ("set_base_alloc_fn", torch::base_allocation as *const c_void),
        ("set_record_stream_fn", torch::record_stream as *const c_void),
    ];
    if std_function::is_known() {
        hooks.extend([
            ("set_begin_allocate_to_pool", torch::begin as *const c_void),
            ("set_end_allocate_to_pool_fn", torch::end as *const c_void),
            ("set_release_pool", torch::release as *const c_void),
        ]);
    }
    (throw::prepare(), hooks.into_iter().map(|(name, address)| (name, address.addr())).collect())
}

/// The address of the table of functions that the C++ shim stands on.
#[pyfunction]
fn torch_shim_table() -> usize {
    (&raw const shim::TABLE).addr()
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(last_error::last_error, module)?)?;
    module.add_function(wrap_pyfunction!(torch_hooks, module)?)?;
    module.add_function(wrap_pyfunction!(torch_shim_table, module)?)?;
    module.add_function(wrap_pyfunction!(captures::torch_open_captures, module)?)?;
    module.add_function(wrap_pyfunction!(captures::torch_abandon_capture, module)?)?;
    module.add_function(wrap_pyfunction!(settings::torch_set_fraction, module)?)?;
    module.add_function(wrap_pyfunction!(settings::torch_set_kept, module)?)?;
    module.add_function(wrap_pyfunction!(settings::torch_synchronized, module)?)?;
    rmm::add_to(module)
}
