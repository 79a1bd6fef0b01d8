//! How a call says that it did nothing: no exception and no panic passes between C++ and here.

use std::ffi::{CString, c_char};

use millpond::Error;

use super::last_error::note;
use super::torch::{caught, report};
use crate::failure::{Failure, Result};

/// Why a call did nothing. The shim gives it back to [`forget_failure`].
#[repr(C)]
#[derive(Debug)]
pub(super) struct Failed {
    is_out_of_memory: bool,
    text: *mut c_char,
}

/// Null where the call did what it is for.
pub(super) type Outcome = *mut Failed;

pub(super) fn outcome(call: impl FnOnce() -> Result<()>) -> Outcome {
    match caught(call) {
        Ok(()) => std::ptr::null_mut(),
        Err(failure) => failed(&failure),
    }
}

#[cold]
fn failed(failure: &Failure) -> Outcome {
    note(failure);
    let is_too_long = matches!(failure, Failure::Pool(Error::SizeOverflow { .. }));
    let mut text = failure.to_string();
    text.retain(|character| character != '\0');
    let text = CString::new(text).unwrap_or_default().into_raw();
    Box::into_raw(Box::new(Failed { is_out_of_memory: failure.is_out_of_memory() || is_too_long, text }))
}

pub(super) extern "C" fn forget_failure(failed: Outcome) {
    if !failed.is_null() {
        // SAFETY: made by `failed`, and given back once.
        drop(unsafe { (CString::from_raw((*failed).text), Box::from_raw(failed)) });
    }
}

/// Runs what cannot fail but by a panic or a device's error, which is printed.
pub(super) fn or_default<T: Default>(call: impl FnOnce() -> Result<T>) -> T {
    caught(call).unwrap_or_else(|failure| {
        report(Err(failure));
        T::default()
    })
}
