//! Memory of the host's that may be refused: what the standard library would end the process for.

use std::alloc::{Layout, alloc};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The value in a box of its own, as [`Box::into_raw`] gives it, or `None` where the host has no memory for it.
pub(crate) fn try_box<T>(value: T) -> Option<NonNull<T>> {
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: the value takes space.
    let place = NonNull::new(unsafe { alloc(Layout::new::<T>()) })?.cast::<T>();
    // SAFETY: the place is new, and long enough.
    unsafe { place.write(value) };
    Some(place)
}

/// Gives back what a list does not need, but for room for `least` items. It stays as it is where the host has no memory to
/// copy it to.
pub(crate) fn shrink<T>(list: &mut Vec<T>, least: usize) {
    let room = list.len().max(least);
    let mut short = Vec::new();
    if room < list.capacity() && short.try_reserve_exact(room).is_ok() {
        short.append(list);
        *list = short;
    }
}

/// A copy of a name, for an error; none of it where the host has no memory for that.
#[cold]
pub(crate) fn name_for_error(name: &str) -> String {
    let mut copy = String::new();
    if copy.try_reserve_exact(name.len()).is_ok() {
        copy.push_str(name);
    }
    copy
}

/// An [`Arc`](std::sync::Arc) that the host may refuse.
#[derive(Debug)]
pub(crate) struct Shared<T>(NonNull<Held<T>>);

#[derive(Debug)]
struct Held<T> {
    holders: AtomicUsize,
    value: T,
}

// SAFETY: as for `Arc`: holders on several threads share the value, and the last of them has it alone.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// `None` where the host has no memory for it.
    pub(crate) fn try_new(value: T) -> Option<Self> {
        try_box(Held { holders: AtomicUsize::new(1), value }).map(Self)
    }

    fn held(&self) -> &Held<T> {
        // SAFETY: made by `try_box`, and freed by the last holder only.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        // Relaxed: who clones holds it.
        let before = self.held().holders.fetch_add(1, Ordering::Relaxed);
        assert!(before < usize::MAX / 2, "fewer holders than addresses");
        Self(self.0)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.held().value
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Release: what this holder did with the value comes before its end.
        if self.held().holders.fetch_sub(1, Ordering::Release) == 1 {
            // Acquire: pairs with the Release of the others. ThreadSanitizer follows a load, and no fence.
            _ = self.held().holders.load(Ordering::Acquire);
            // SAFETY: made by `try_box`, and nobody else holds it.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_last_holder_drops_the_value() {
        let value = Arc::new(7);
        let first = Shared::try_new(value.clone()).unwrap();
        let second = first.clone();
        assert_eq!((**first, **second), (7, 7));
        drop(first);
        let third = second.clone();
        let other = std::thread::spawn(move || drop(third));
        other.join().unwrap();
        assert_eq!(Arc::strong_count(&value), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
