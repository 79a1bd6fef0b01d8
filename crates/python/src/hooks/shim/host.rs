//! PyTorch's pinned memory.

use std::ffi::{c_int, c_void};

use super::super::outcome::{Outcome, or_default, outcome};
use super::super::pinned::{self, PinnedFigures};
use super::super::torch::{caught, report};

/// # Safety
/// `out` may be written.
pub(super) unsafe extern "C" fn allocate_pinned(gpu: c_int, bytes: u64, out: *mut *mut c_void) -> Outcome {
    outcome(|| {
        let ptr = pinned::allocate(gpu, bytes)?;
        // SAFETY: as promised to this function.
        unsafe { out.write(ptr) };
        Ok(())
    })
}

/// # Safety
/// `stream` as for [`allocate`]; `is_known` may be written.
pub(super) unsafe extern "C" fn record_pinned(
    context: *mut c_void,
    ptr: *mut c_void,
    gpu: c_int,
    stream: *mut c_void,
    is_known: *mut bool,
) -> Outcome {
    outcome(|| {
        let (context, ptr) = (context.addr() as u64, ptr.addr() as u64);
        // SAFETY: as promised to this function.
        let known = unsafe { pinned::record(context, ptr, gpu, stream.addr() as u64) }?;
        // SAFETY: as promised to this function.
        unsafe { is_known.write(known) };
        Ok(())
    })
}

pub(super) extern "C" fn empty_pinned() -> Outcome {
    outcome(pinned::empty)
}

/// # Safety
/// `out` may be written.
pub(super) unsafe extern "C" fn pinned_figures(out: *mut PinnedFigures) {
    let figures = or_default(pinned::figures);
    // SAFETY: as promised to this function.
    unsafe { out.write(figures) };
}

pub(super) extern "C" fn reset_pinned(peaks: bool) {
    report(caught(|| pinned::reset(peaks)));
}
