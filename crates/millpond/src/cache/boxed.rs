//! Boxes for which the host may have no memory.

use std::alloc::{Layout, alloc};
use std::ptr::NonNull;

/// The value in a box of its own, as [`Box::into_raw`] gives it, or `None` where the host has no memory for it.
pub(super) fn try_box<T>(value: T) -> Option<NonNull<T>> {
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: the value takes space.
    let place = NonNull::new(unsafe { alloc(Layout::new::<T>()) })?.cast::<T>();
    // SAFETY: the place is new, and long enough.
    unsafe { place.write(value) };
    Some(place)
}
