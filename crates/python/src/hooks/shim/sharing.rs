//! Tensors of several processes.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::super::outcome::{Outcome, outcome};
use super::super::sharing;
use super::super::torch::{address, caught, pointer, report};
use super::entries::holder;
use crate::failure::Failure;

/// Room for a handle, in bytes.
const MOST: usize = 128;

/// Offers a live block to other processes: writes what [`open_shared`] takes there, and a 0.
///
/// # Safety
/// At `out` there is room for 128 bytes.
pub(super) unsafe extern "C" fn share(ptr: *mut c_void, out: *mut c_char) -> Outcome {
    outcome(|| {
        let gpu = holder(address(ptr)).ok_or_else(|| Failure::Broken("no tensor lies there".to_owned()))?;
        let handle = sharing::offer(gpu, address(ptr))?;
        assert!(handle.len() < MOST, "a handle has a fixed length");
        // SAFETY: as promised to this function.
        unsafe {
            out.cast::<u8>().copy_from_nonoverlapping(handle.as_ptr(), handle.len());
            out.add(handle.len()).write(0);
        }
        Ok(())
    })
}

/// Opens a block of another process on a GPU.
///
/// # Safety
/// `handle` ends with a 0, and `out` may be written.
pub(super) unsafe extern "C" fn open_shared(
    gpu: c_int,
    handle: *const c_char,
    out: *mut *mut c_void,
) -> Outcome {
    outcome(|| {
        // SAFETY: as promised to this function.
        let handle = unsafe { CStr::from_ptr(handle) }.to_string_lossy();
        let ptr = sharing::open(gpu, &handle)?;
        // SAFETY: likewise.
        unsafe { out.write(pointer(ptr)) };
        Ok(())
    })
}

/// Closes what [`open_shared`] opened.
pub(super) extern "C" fn close_shared(gpu: c_int, ptr: *mut c_void) {
    report(caught(|| sharing::close(gpu, address(ptr))));
}
