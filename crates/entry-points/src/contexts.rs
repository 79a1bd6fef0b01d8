//! Contexts that the program begins and ends, and what ends with them.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::code::Code;
use crate::driver::{self, Handle};
use crate::{captures, driver_memory, gpus, ipc, overhead, retained, streams};

/// Whether the process ends: the CUDA runtime gives up what it retained then. The system frees that faster than a pool could.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

extern "C" fn note_end() {
    // Relaxed: the same thread asks, at the end of what it runs.
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// `cuDevicePrimaryCtxRetain`.
pub(crate) fn retain(device: c_int, real: impl FnOnce() -> Code) -> Code {
    static WATCHED: Once = Once::new();
    // After the runtime has said what it does at the end, which therefore comes later.
    // SAFETY: a function of this library, which is never unloaded. Where the system refuses, the pool ends first.
    WATCHED.call_once(|| _ = unsafe { libc::atexit(note_end) });
    let mut retained = retained::lock();
    let before = if driver::has_primary(device) { None } else { overhead::before_context(device) };
    let code = real();
    if code.is_success() {
        retained.add(device);
        overhead::after_context(device, before);
    }
    code
}

/// `cuGreenCtxCreate`: the green context retains the primary one until it is destroyed, which is not seen.
pub(crate) fn create_green(device: c_int, real: impl FnOnce() -> Code) -> Code {
    let mut retained = retained::lock();
    let code = real();
    if code.is_success() {
        retained.add_other(device);
    }
    code
}

/// `cuDevicePrimaryCtxRelease`: with the program's last one, the context ends.
pub(crate) fn release(device: c_int, real: impl FnOnce() -> Code) -> Code {
    let mut retained = retained::lock();
    // Relaxed: as above.
    let is_end = retained.is_last(device) && !IS_ENDING.load(Ordering::Relaxed);
    let code = if is_end { end(device, real) } else { real() };
    if code.is_success() {
        retained.remove(device);
    }
    code
}

/// `cuDevicePrimaryCtxReset`: the context ends, whoever has retained it.
pub(crate) fn reset(device: c_int, real: impl FnOnce() -> Code) -> Code {
    end(device, real)
}

/// The primary context of a GPU ends, with all that the program has there.
fn end(device: c_int, real: impl FnOnce() -> Code) -> Code {
    let context = gpus::primary_of(device);
    if let Ok(ordinal) = usize::try_from(device) {
        // Also what this thread remembers, which would keep the context.
        streams::forget_all_of(ordinal);
        ipc::forget_all_of(device);
        // SAFETY: the context ends below.
        unsafe { gpus::remove(ordinal) };
    }
    let code = real();
    if let Some(context) = context.filter(|_| code.is_success()) {
        captures::end_all_of(context);
        driver_memory::forget_context(context.addr() as u64);
        overhead::forget(device);
    }
    code
}

/// A context of the program's own ends.
pub(crate) fn destroy(context: Handle, real: impl FnOnce() -> Code) -> Code {
    let code = real();
    if code.is_success() {
        captures::end_all_of(context);
        driver_memory::forget_context(context.addr() as u64);
    }
    code
}
