//! What `place`, `holds` and `in_use` ask of the machine and of the library. Models have their own.

use std::sync::atomic::compiler_fence;

pub(crate) use millpond::bindings::{Mutex, Shortcut};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU64, Ordering, fence};
pub(crate) use std::thread::yield_now;

/// Places of threads. A power of two.
pub(crate) const PLACES: usize = 1 << 12;

/// Pairs that a thread remembers; of those that fall on the same one, the one used last on the general path. So many that a
/// thread may go round a pool of 16 streams, as RMM's has, and mostly find them. A power of two.
pub(crate) const PAIRS: usize = 32;

/// Handles that one thread can have in use at once: two or three a call, and calls nest through callbacks.
pub(crate) const DEPTH: usize = 16;

/// Whether `membarrier` fences this process's threads. Registered with the first question; the answer never changes.
pub(crate) fn has_membarrier() -> bool {
    const UNKNOWN: u8 = 2;
    // No `OnceLock`: a fork may come in between, and the child would wait for ever. A child is registered as its parent
    // was.
    static HAS: AtomicU8 = AtomicU8::new(UNKNOWN);
    // Relaxed: the answer is always the same, and nothing else is concluded from it.
    match HAS.load(Ordering::Relaxed) {
        UNKNOWN => {
            let has = register_membarrier();
            HAS.store(u8::from(has), Ordering::Relaxed);
            has
        }
        known => known == 1,
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn register_membarrier() -> bool {
    rustix::thread::membarrier(rustix::thread::MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn register_membarrier() -> bool {
    false
}

/// The using side's fence: for the compiler only, since the other side has a heavy one. Where the system has no `membarrier`, it
/// is not enough.
#[inline(always)]
pub(crate) fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}

/// A full fence, in this thread and every running one of the process.
pub(crate) fn heavy_fence() {
    fence(Ordering::SeqCst);
    #[cfg(all(target_os = "linux", not(miri)))]
    if has_membarrier()
        && rustix::thread::membarrier(rustix::thread::MembarrierCommand::PrivateExpedited).is_err()
    {
        // It was registered, and the kernel documents no other cause; going on would be a use after free.
        std::process::abort();
    }
}
