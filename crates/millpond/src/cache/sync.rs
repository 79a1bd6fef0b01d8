//! Atomics and barriers of the asymmetric lock: the real ones, or loom's.

#[cfg(not(loom))]
use std::sync::atomic;

#[cfg(loom)]
use loom::sync::atomic;

pub(super) use atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(not(loom))]
pub(super) use real::{heavy_barrier, light_barrier, pause, register};

#[cfg(loom)]
pub(super) use modelled::{heavy_barrier, light_barrier, pause, register};

#[cfg(not(loom))]
mod real {
    use std::sync::atomic::{Ordering, compiler_fence, fence};

    #[cfg(all(target_os = "linux", not(miri)))]
    use rustix::thread::{MembarrierCommand, membarrier};

    use crate::policy::waiting::{NAP, SPINS};

    /// Whether the kernel issues barriers in all threads for us, from now on. A forked child is registered as its parent was.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(crate) fn register() -> bool {
        // The second asks for a barrier, once, to see that it is granted: a sandbox may refuse.
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }

    /// Elsewhere, owners issue full barriers themselves.
    #[cfg(not(all(target_os = "linux", not(miri))))]
    pub(crate) fn register() -> bool {
        true
    }

    /// The owner's barrier: for the compiler only, since the other side has a heavy one.
    #[inline]
    pub(crate) fn light_barrier() {
        if cfg!(any(not(target_os = "linux"), miri)) {
            fence(Ordering::SeqCst);
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// The other side's barrier: in this thread, and in every other that runs. Only where a cache was open.
    #[cold]
    pub(crate) fn heavy_barrier() {
        fence(Ordering::SeqCst);
        // It was granted before, and fails for no other reason than that. Without it, nothing that follows
        // would be sound.
        #[cfg(all(target_os = "linux", not(miri)))]
        membarrier(MembarrierCommand::PrivateExpedited).expect("membarrier was granted before");
    }

    /// Spins at first. Then sleeps, so that a suspended thread gets the processor, even from a waiting one of higher
    /// real-time priority.
    pub(crate) fn pause(looks: u64) {
        if looks < SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(NAP);
        }
    }
}

/// Both barriers as full fences, which is what they amount to together.
#[cfg(loom)]
mod modelled {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn register() -> bool {
        true
    }

    pub(crate) fn light_barrier() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy_barrier() {
        fence(Ordering::SeqCst);
    }

    /// A model has no time: every look lets another thread run.
    pub(crate) fn pause(_: u64) {
        loom::thread::yield_now();
    }
}
