//! cuFFT, as PyTorch calls it. Its own library has a CUDA runtime inside, which would look for a driver.

use std::ffi::{c_int, c_longlong};

use crate::fft_workspace::Transform;
use crate::stubs::{DONE, answers, done, handle};
use crate::workspaces::{Unmeasured, used};

done! {
    cufftDestroy cufftSetAutoAllocation cufftSetStream cufftSetWorkArea cufftXtExec
}

answers! {
    // A plan is a number of four bytes.
    cufftCreate: c_int = handle() as c_int;
}

/// # Safety
/// As cuFFT's: `lengths` has `rank` of them.
#[unsafe(no_mangle)]
unsafe extern "C" fn cufftXtMakePlanMany(
    _plan: c_int,
    rank: c_int,
    lengths: *const c_longlong,
    _in_embed: *const c_longlong,
    _in_stride: c_longlong,
    _in_distance: c_longlong,
    in_type: c_int,
    _out_embed: *const c_longlong,
    _out_stride: c_longlong,
    _out_distance: c_longlong,
    out_type: c_int,
    batch: c_longlong,
    workspace: *mut usize,
    _type: c_int,
) -> c_int {
    let rank = usize::try_from(rank).unwrap_or(0);
    let lengths = match rank {
        0 => &[],
        // SAFETY: the caller has so many.
        _ => unsafe { std::slice::from_raw_parts(lengths, rank) },
    };
    let bytes = Transform { lengths, types: [in_type, out_type], batch }.workspace();
    used(Unmeasured::Fft, bytes);
    // SAFETY: the caller names a place for the answer.
    unsafe { workspace.write(bytes) };
    DONE
}
