//! A copy of a C++ `std::function<bool(cudaStream_t)>`, kept and called from Rust.
//!
//! PyTorch passes one when a capture begins, by value, which for a type with a destructor means by address; it says of
//! a stream whether the capture is about it. What it holds dies with that call, so it is copied.
//!
//! **What this relies on** is the layout of libstdc++'s `std::function`, which is part of its ABI: two words for the
//! target, a function that copies and destroys it, a function that calls it. PyTorch for Linux is built against
//! libstdc++; where that is not loaded, these hooks are not offered to it ([`is_known`]).

use std::ffi::{c_int, c_void};

use super::throw::symbol;

/// `std::_Any_data`: the target, or its address.
type Target = [usize; 2];
/// Copies or destroys: to, from, and one of the operations below.
type Manage = unsafe extern "C-unwind" fn(*mut Target, *const Target, c_int) -> bool;
/// Calls the target; arguments are passed by address.
type Invoke = unsafe extern "C-unwind" fn(*const Target, *mut *mut c_void) -> bool;

const CLONE: c_int = 2;
const DESTROY: c_int = 3;

/// The layout of libstdc++'s `std::function`.
#[repr(C)]
pub(super) struct Layout {
    target: Target,
    manage: Option<Manage>,
    invoke: Option<Invoke>,
}

/// Says of a stream whether allocations for it belong to a capture.
pub(super) struct StreamFilter {
    target: Target,
    manage: Manage,
    invoke: Invoke,
}

// SAFETY: PyTorch's filters look at the calling thread, or at a capture's number; it calls them from any thread too.
unsafe impl Send for StreamFilter {}
// SAFETY: likewise: calling does not change the target.
unsafe impl Sync for StreamFilter {}

/// Whether C++ objects of this process are libstdc++'s.
pub(super) fn is_known() -> bool {
    symbol(c"libstdc++.so.6", c"_ZSt25__throw_bad_function_callv").is_some()
}

impl StreamFilter {
    /// Copies the function; `None` where it is empty.
    ///
    /// # Safety
    /// `function` points to a live `std::function<bool(cudaStream_t)>` of libstdc++.
    pub(super) unsafe fn copy_of(function: *const Layout) -> Option<Self> {
        // SAFETY: as promised to this function.
        let Layout { target: from, manage, invoke } = unsafe { &*function };
        let (manage, invoke) = (*manage.as_ref()?, *invoke.as_ref()?);
        let mut target = [0; 2];
        // SAFETY: its own manager copies the target, which may be moved afterwards: it is two words that hold either a
        // trivially copyable object or an address.
        unsafe { manage(&raw mut target, from, CLONE) };
        Some(Self { target, manage, invoke })
    }

    /// Asks it about a stream.
    ///
    /// # Safety
    /// What the function refers to is alive: for PyTorch's, the graph that is being captured.
    pub(super) unsafe fn takes(&self, stream: u64) -> bool {
        let mut stream: *mut c_void = std::ptr::without_provenance_mut(stream as usize);
        // SAFETY: the target that the function belongs to, and as promised to this function.
        unsafe { (self.invoke)(&raw const self.target, &raw mut stream) }
    }
}

impl Drop for StreamFilter {
    fn drop(&mut self) {
        let target = &raw mut self.target;
        // SAFETY: its own manager destroys the target, once.
        unsafe { (self.manage)(target, target, DESTROY) };
    }
}
