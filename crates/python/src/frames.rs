//! The lines of Python that a call comes from, for recordings with call sites.
//!
//! They are taken before the call lets go of the GIL, and only while somebody keeps call sites. What comes from C++ on a thread
//! that does not hold the GIL has no lines of Python: whoever holds it may wait for that thread. PyTorch's calls are different.
//! It lets go of the GIL before most of them, and takes it again for the call stacks of its own history. So do its calls here.

use std::ffi::CStr;
use std::sync::OnceLock;

use millpond::bindings::{CalledFrom, SourceFrame, called_from, freed_from};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Lines of a call stack at most.
const DEEPEST: usize = 64;

/// Says where a call of Python's comes from, until the result is dropped.
#[inline]
pub(crate) fn of_call(py: Python<'_>) -> Option<CalledFrom> {
    called_from(|| lines(py))
}

/// As [`of_call`], for a call from C++, whose thread may hold the GIL or not.
#[inline]
pub(crate) fn of_thread() -> Option<CalledFrom> {
    called_from(lines_of_thread)
}

/// As [`of_thread`], for a call that frees.
#[inline]
pub(crate) fn of_free() -> Option<CalledFrom> {
    freed_from(lines_of_thread)
}

/// As [`of_thread`], for a call of PyTorch's. It waits for the GIL.
#[inline]
pub(crate) fn of_torch() -> Option<CalledFrom> {
    called_from(|| Python::try_attach(lines).unwrap_or_default())
}

/// As [`of_torch`], for a call that frees.
#[inline]
pub(crate) fn of_torch_free() -> Option<CalledFrom> {
    freed_from(|| Python::try_attach(lines).unwrap_or_default())
}

#[cold]
fn lines_of_thread() -> Vec<SourceFrame> {
    if !is_attached() {
        return Vec::new();
    }
    // SAFETY: the thread holds the GIL, or on Pythons without one it is attached, and it stays so in here.
    lines(unsafe { Python::assume_attached() })
}

/// Whether the calling thread holds the GIL. It does not wait for it.
fn is_attached() -> bool {
    // Not in the stable interface, so it is asked for by name. Before 3.12 it is the thread that holds the GIL, whichever that is.
    type Present = unsafe extern "C" fn() -> *mut ffi::PyThreadState;
    static PRESENT: OnceLock<Option<Present>> = OnceLock::new();
    let named = |name: &CStr| {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: null is `None`; else it is Python's function of this name, which has had this type since 3.5.
        unsafe { std::mem::transmute::<*mut libc::c_void, Option<Present>>(found) }
    };
    let present = PRESENT.get_or_init(|| {
        named(c"PyThreadState_GetUnchecked").or_else(|| named(c"_PyThreadState_UncheckedGet"))
    });
    let Some(present) = present else { return false };
    // SAFETY: both may be called without the GIL, while Python runs.
    unsafe {
        ffi::Py_IsInitialized() != 0 && {
            let present = present();
            !present.is_null() && present == ffi::PyGILState_GetThisThreadState()
        }
    }
}

/// The lines of Python that are being run, innermost first. None where an exception is under way: nothing may be asked then.
#[cold]
fn lines(py: Python<'_>) -> Vec<SourceFrame> {
    let mut lines = Vec::new();
    if PyErr::occurred(py) {
        return lines;
    }
    // SAFETY: the GIL is held; the frame is borrowed, or null where no Python runs.
    let mut next = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast()) };
    while let Some(frame) = next.take().filter(|_| lines.len() < DEEPEST) {
        let Ok((line, outer)) = read(&frame) else { break };
        lines.push(line);
        next = outer;
    }
    lines
}

/// A frame's line, and the frame that called it.
fn read<'py>(frame: &Bound<'py, PyAny>) -> PyResult<(SourceFrame, Option<Bound<'py, PyAny>>)> {
    let py = frame.py();
    let code = frame.getattr(intern!(py, "f_code"))?;
    let name = code.getattr(intern!(py, "co_qualname"))?;
    let file = code.getattr(intern!(py, "co_filename"))?;
    let line: Option<u32> = frame.getattr(intern!(py, "f_lineno"))?.extract()?;
    let outer = frame.getattr(intern!(py, "f_back"))?;
    let [name, file] = [name.cast::<PyString>()?, file.cast::<PyString>()?];
    let line = SourceFrame::new(name.to_str()?, file.to_str()?, line.unwrap_or(0));
    Ok((line, (!outer.is_none()).then_some(outer)))
}
