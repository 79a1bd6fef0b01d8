//! The process's allocator, which refuses what it is told to.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The system's allocator, which refuses memory to the calls of a pool that a soak picks. A program that is to soak with refused
/// host memory makes it its `#[global_allocator]`. Elsewhere it costs one test.
#[derive(Debug)]
pub struct RefusingAllocator;

thread_local! {
    /// Allocations of this thread until the one that is refused; 0 for none.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Whether a soak was ever begun in this process.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Refusals so far.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// How many allocations were refused so far.
pub(crate) fn refused() -> u64 {
    // Relaxed: a count.
    REFUSED.load(Ordering::Relaxed)
}

/// Calls `call`, of which the allocation with this number is refused; with 0, none is.
pub(crate) fn refuse_within<R>(number: u64, call: impl FnOnce() -> R) -> R {
    if number == 0 {
        return call();
    }
    // Relaxed: the calling thread reads what it wrote.
    IN_USE.store(true, Ordering::Relaxed);
    LEFT.set(number);
    let done = call();
    LEFT.set(0);
    done
}

/// What this does is refused nothing.
pub(crate) fn spared<R>(work: impl FnOnce() -> R) -> R {
    let left = LEFT.replace(0);
    let done = work();
    if left > 0 {
        LEFT.set(left);
    }
    done
}

#[inline]
fn is_refused() -> bool {
    // Relaxed: as above.
    IN_USE.load(Ordering::Relaxed) && counts_down()
}

#[cold]
fn counts_down() -> bool {
    let is_refused = LEFT.try_with(|left| left.replace(left.get().saturating_sub(1)) == 1).unwrap_or(false);
    // Relaxed: a count.
    REFUSED.fetch_add(u64::from(is_refused), Ordering::Relaxed);
    is_refused
}

// SAFETY: the system's allocator, which may refuse anything.
unsafe impl GlobalAlloc for RefusingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.realloc(ptr, layout, new) } }
    }
}
