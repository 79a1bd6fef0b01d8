//! Atomics of the machine, and host memory that is made of them. Models have those of loom in their place.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

pub(super) use std::sync::atomic::{AtomicPtr, Ordering};

/// What an entry of a table is: an atomic that is 0 at first.
///
/// # Safety
/// Zeros are its default value, which needs no drop.
pub(super) unsafe trait Zeroed: Default {}

// SAFETY: an integer.
unsafe impl Zeroed for AtomicU64 {}

fn layout<T>(len: usize) -> Layout {
    Layout::array::<T>(len).expect("a chunk is shorter than the addresses")
}

/// So many zeros, at least one; `None` where the host has no memory for them.
pub(super) fn zeros<T: Zeroed>(len: usize) -> Option<NonNull<T>> {
    // SAFETY: they take space.
    NonNull::new(unsafe { alloc_zeroed(layout::<T>(len)) }.cast())
}

/// Frees what [`zeros`] made.
///
/// # Safety
/// It was made with this length, and nobody uses it any more.
pub(super) unsafe fn free<T>(start: NonNull<T>, len: usize) {
    // SAFETY: allocated in `zeros` by this layout, as promised; it needs no drop.
    unsafe { dealloc(start.as_ptr().cast(), layout::<T>(len)) };
}
