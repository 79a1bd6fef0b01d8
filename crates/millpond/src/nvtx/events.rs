//! Ranges and marks, all in one domain: what a profiler draws beside the kernels.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::NonNull;

use super::injection::{DomainFunction, VERSION, tool};

/// What a range or a mark says.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    /// What the figure beside the text is: nothing (0), or a `u64` (1).
    payload_type: i32,
    reserved: i32,
    payload: u64,
    /// How the text is written: in ASCII (1).
    message_type: i32,
    message: *const c_char,
}

impl Attributes {
    fn new(message: &CStr) -> Self {
        Self {
            version: VERSION,
            size: size_of::<Self>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type: 1,
            message: message.as_ptr(),
        }
    }
}

/// A range of the calling thread, which ends when this is dropped. The tool nests those of a thread.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub(crate) struct Range {
    // Pointers, so that it stays with its thread, whose range it is.
    pop: NonNull<c_void>,
    domain: *mut c_void,
}

/// Begins a range, if a tool wants to hear of ranges.
#[inline]
pub(crate) fn range(text: &str) -> Option<Range> {
    push(tool()?.domain, text)
}

#[cold]
fn push(domain: *mut c_void, text: &str) -> Option<Range> {
    type Push = unsafe extern "C" fn(*mut c_void, *const Attributes) -> c_int;
    let (push, pop) = DomainFunction::Push.get().zip(DomainFunction::Pop.get())?;
    let text = without_zeros(text);
    // SAFETY: the function of this number has this type by NVTX. It reads the attributes during the call.
    unsafe { transmute::<NonNull<c_void>, Push>(push)(domain, &Attributes::new(&text)) };
    Some(Range { pop, domain })
}

impl Drop for Range {
    fn drop(&mut self) {
        type Pop = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: the function of this number has this type by NVTX.
        unsafe { transmute::<NonNull<c_void>, Pop>(self.pop)(self.domain) };
    }
}

/// A moment that a profiler shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark<'a> {
    pub(crate) text: &'a str,
    /// The figure beside it.
    pub(crate) figure: u64,
}

/// Whether a tool wants to hear of marks.
pub(crate) fn marks() -> bool {
    tool().and_then(|_| DomainFunction::Mark.get()).is_some()
}

impl Mark<'_> {
    /// Tells the tool, if there is one.
    pub(crate) fn tell(self) {
        type Tell = unsafe extern "C" fn(*mut c_void, *const Attributes);
        let Some((tool, tell)) = tool().zip(DomainFunction::Mark.get()) else { return };
        let text = without_zeros(self.text);
        let attributes = Attributes { payload_type: 1, payload: self.figure, ..Attributes::new(&text) };
        // SAFETY: the function of this number has this type by NVTX. It reads the attributes during the call.
        unsafe { transmute::<NonNull<c_void>, Tell>(tell)(tool.domain, &attributes) };
    }
}

/// A text as C has it, up to the first zero.
fn without_zeros(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}
