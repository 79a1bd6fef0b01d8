//! Ranges and marks, all in one domain: what a profiler draws beside the kernels.

use std::ffi::{CStr, CString, c_int, c_void};
use std::marker::PhantomData;
use std::mem::transmute;
use std::ptr::{self, NonNull};

use super::injection::{DOMAINS, VERSION, function, is_there};
use crate::process::PerProcess;

/// The domain's name, as a profiler shows it and filters by it.
const DOMAIN: &CStr = c"millpond";

/// Numbers of the functions that we call.
const MARK: usize = 1;
const PUSH: usize = 4;
const POP: usize = 5;
const CREATE_DOMAIN: usize = 12;

/// What a range or a mark says.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const std::ffi::c_char,
}

const UNSIGNED_INT64: i32 = 1;
const ASCII: i32 = 1;

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
            message_type: ASCII,
            message: message.as_ptr(),
        }
    }
}

/// The tool's handle of our domain, which may be null.
struct Domain(*mut c_void);

// SAFETY: a handle, which the tool's functions take on any thread.
unsafe impl Send for Domain {}
// SAFETY: likewise.
unsafe impl Sync for Domain {}

impl Default for Domain {
    fn default() -> Self {
        type Create = unsafe extern "C" fn(*const std::ffi::c_char) -> *mut c_void;
        let Some(create) = slot(CREATE_DOMAIN) else { return Self(ptr::null_mut()) };
        // SAFETY: the function of this number has this type by NVTX, and the name ends in a zero.
        Self(unsafe { transmute::<NonNull<c_void>, Create>(create)(DOMAIN.as_ptr()) })
    }
}

static OURS: PerProcess<Domain> = PerProcess::new();

/// The tool's handle of our domain; null where it has none.
pub(super) fn domain() -> *mut c_void {
    OURS.get().0
}

fn slot(number: usize) -> Option<NonNull<c_void>> {
    if is_there() { function(&DOMAINS[number]) } else { None }
}

/// A range of the calling thread, which ends when this is dropped. The tool nests those of a thread.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub(crate) struct Range {
    pop: NonNull<c_void>,
    /// A range is its thread's.
    not_send: PhantomData<*const ()>,
}

/// Begins a range, if a tool wants to hear of ranges.
#[inline]
pub(crate) fn range(text: &str) -> Option<Range> {
    if is_there() { push(text) } else { None }
}

#[cold]
fn push(text: &str) -> Option<Range> {
    type Push = unsafe extern "C" fn(*mut c_void, *const Attributes) -> c_int;
    let (push, pop) = slot(PUSH).zip(slot(POP))?;
    let text = without_zeros(text);
    // SAFETY: the function of this number has this type by NVTX. It reads the attributes during the call.
    unsafe { transmute::<NonNull<c_void>, Push>(push)(domain(), &Attributes::new(&text)) };
    Some(Range { pop, not_send: PhantomData })
}

impl Drop for Range {
    fn drop(&mut self) {
        type Pop = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: the function of this number has this type by NVTX.
        unsafe { transmute::<NonNull<c_void>, Pop>(self.pop)(domain()) };
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
    slot(MARK).is_some()
}

impl Mark<'_> {
    /// Tells the tool, if there is one.
    pub(crate) fn tell(self) {
        type Tell = unsafe extern "C" fn(*mut c_void, *const Attributes);
        let Some(tell) = slot(MARK) else { return };
        let text = without_zeros(self.text);
        let attributes =
            Attributes { payload_type: UNSIGNED_INT64, payload: self.figure, ..Attributes::new(&text) };
        // SAFETY: the function of this number has this type by NVTX. It reads the attributes during the call.
        unsafe { transmute::<NonNull<c_void>, Tell>(tell)(domain(), &attributes) };
    }
}

/// A text as C has it, up to the first zero.
fn without_zeros(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}
