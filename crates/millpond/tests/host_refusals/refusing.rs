//! The process's allocator, which refuses what it is told to; and a device whose own allocations it leaves alone.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millpond::device::{Device, DeviceResult, Forward};

/// Refuses one allocation of the thread that asked for it.
struct Refusing;

thread_local! {
    /// Allocations until the one that is refused; 0 for none.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Whether all that come after it are refused too.
static FOR_GOOD: AtomicBool = AtomicBool::new(false);

/// From now on, all that come after an allocation that is refused are refused too.
pub(crate) fn refuse_for_good() {
    FOR_GOOD.store(true, Ordering::Relaxed);
}

/// Refusals so far.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// From now on, the calling thread's allocation with this number is refused; with 0, none is.
pub(crate) fn refuse(number: u64) {
    LEFT.set(number);
}

pub(crate) fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

fn is_refused() -> bool {
    let counted = LEFT.try_with(|left| {
        let now = left.get();
        let is_last = now == 1 && FOR_GOOD.load(Ordering::Relaxed);
        left.set(if is_last { 1 } else { now.saturating_sub(1) });
        now == 1
    });
    let is_refused = counted.unwrap_or(false);
    if is_refused {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    is_refused
}

// SAFETY: the system's allocator, which may refuse anything.
unsafe impl GlobalAlloc for Refusing {
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

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// What this does is refused nothing.
pub(crate) fn spared<R>(work: impl FnOnce() -> R) -> R {
    let left = LEFT.replace(0);
    let done = work();
    LEFT.set(left);
    done
}

/// A simulated device that is refused nothing: a driver allocates in its own ways.
#[derive(Debug)]
pub(crate) struct Spared(pub Arc<dyn Device>);

// SAFETY: the simulated device's, as it is.
unsafe impl Forward for Spared {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn pass_on<R>(&self, call: impl FnOnce(&dyn Device) -> R) -> R {
        spared(|| call(self.below()))
    }

    fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
        let below = spared(|| self.below().pinned(node))?;
        Ok(spared(|| Arc::new(Self(below))))
    }

    fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
        let below = spared(|| self.below().managed())?;
        Ok(spared(|| Arc::new(Self(below))))
    }
}
