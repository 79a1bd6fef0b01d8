//! What RMM's resource asks of the pools: `crates/python/rmm/pool.h` declares the same in C.
//!
//! The resource (`crates/python/rmm/`) is a C++ class that RMM calls without Python. As with `shim`, these functions come to it
//! as a table of addresses, and it throws.
//!
//! RMM passes streams by handle, and whoever made a stream may destroy it. So a handle is looked up for each call, unless it was
//! promised that the stream stays ([`keep_stream`]).

use std::ffi::{c_int, c_void};

use pyo3::prelude::*;

use super::outcome::{Outcome, forget_failure, outcome};
use super::torch::{address, caught, pointer, report};
use crate::devices::device;
use crate::frames;
use crate::stream::StreamArgument;

/// What every pool aligns to at least: the smallest alignment that one can be built with.
const ALWAYS_ALIGNED: u64 = 256;

/// Allocates `bytes` at a multiple of `align`, for work on a stream.
///
/// # Safety
/// `stream` is null or a live stream of the GPU; `out` may be written.
unsafe extern "C" fn allocate(
    gpu: c_int,
    bytes: u64,
    align: u64,
    stream: *mut c_void,
    out: *mut *mut c_void,
) -> Outcome {
    outcome(|| {
        let device = device(gpu.into())?;
        // SAFETY: as promised to this function.
        let stream = unsafe { device.streams.find_for_call(stream.addr() as u64) }?;
        let _called = frames::of_thread();
        let found = if align <= ALWAYS_ALIGNED && align.is_power_of_two() {
            device.pool.alloc(bytes, &stream)
        } else {
            device.pool.alloc_aligned(bytes, align, &stream)
        };
        // SAFETY: as promised to this function.
        unsafe { out.write(pointer(found?)) };
        Ok(())
    })
}

/// Frees what [`allocate`] gave, after the work given so far to a stream, which may be another one.
///
/// # Safety
/// As for [`allocate`]; the block is the caller's.
unsafe extern "C" fn free(gpu: c_int, ptr: *mut c_void, stream: *mut c_void) {
    let _called = frames::of_free();
    report(caught(|| {
        let device = device(gpu.into())?;
        // SAFETY: as promised to this function.
        let stream = unsafe { device.streams.find_for_call(stream.addr() as u64) }?;
        // SAFETY: likewise.
        Ok(unsafe { device.pool.free(address(ptr), &stream) }?)
    }));
}

/// Waits for the work given to the legacy default stream so far.
extern "C" fn wait_for_default_stream(gpu: c_int) -> Outcome {
    outcome(|| Ok(device(gpu.into())?.context.default_stream()?.synchronize()?))
}

/// `crates/python/rmm/pool.h` has the same, in the same order.
#[repr(C)]
#[derive(Debug)]
struct ResourceTable {
    bytes: usize,
    forget_failure: extern "C" fn(Outcome),
    allocate: unsafe extern "C" fn(c_int, u64, u64, *mut c_void, *mut *mut c_void) -> Outcome,
    free: unsafe extern "C" fn(c_int, *mut c_void, *mut c_void),
    wait_for_default_stream: extern "C" fn(c_int) -> Outcome,
}

static TABLE: ResourceTable = ResourceTable {
    bytes: size_of::<ResourceTable>(),
    forget_failure,
    allocate,
    free,
    wait_for_default_stream,
};

/// The address of the table of functions that RMM's resource stands on.
#[pyfunction]
fn rmm_table() -> usize {
    (&raw const TABLE).addr()
}

/// Registers a stream that stays as long as the process, for the shared pool of a GPU: calls with its handle are then fast.
#[pyfunction]
fn keep_stream(py: Python<'_>, ordinal: i64, stream: &Bound<'_, PyAny>) -> PyResult<()> {
    let handle = match StreamArgument::read(Some(stream))? {
        StreamArgument::Ours(stream) => stream.handle().raw(),
        StreamArgument::Raw(handle) => handle,
    };
    py.detach(|| {
        // SAFETY: the documentation asks of the caller that the stream is one of the GPU, and stays.
        unsafe { device(ordinal)?.streams.keep(handle) }
    })?;
    Ok(())
}

pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rmm_table, module)?)?;
    module.add_function(wrap_pyfunction!(keep_stream, module)?)
}
