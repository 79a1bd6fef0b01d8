//! Atomics and barriers of the gate: the real ones, or loom's.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

#[cfg(not(loom))]
pub(super) use real::{full_barrier, heavy_barrier, is_asymmetric, light_barrier, yield_now};

#[cfg(loom)]
pub(super) use modelled::{full_barrier, heavy_barrier, is_asymmetric, light_barrier, yield_now};

#[cfg(not(loom))]
mod real {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

    /// Whether the kernel issues barriers in all threads for us.
    pub(crate) fn is_asymmetric() -> bool {
        const UNKNOWN: u8 = 2;
        // No `OnceLock`: a fork may come in between, and the child would wait for ever. A child is registered as its
        // parent was.
        static REGISTERED: AtomicU8 = AtomicU8::new(UNKNOWN);
        // Relaxed: the answer is always the same, and nothing else is concluded from it.
        match REGISTERED.load(Ordering::Relaxed) {
            UNKNOWN => {
                let registered = register();
                REGISTERED.store(u8::from(registered), Ordering::Relaxed);
                registered
            }
            known => known == 1,
        }
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn register() -> bool {
        use rustix::thread::{MembarrierCommand, membarrier};
        // The second asks for a barrier, once, to see that it is granted: a sandbox may refuse.
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn register() -> bool {
        false
    }

    /// The owner's barrier where the other side has a heavy one: for the compiler only.
    #[inline]
    pub(crate) fn light_barrier() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The owner's barrier elsewhere.
    pub(crate) fn full_barrier() {
        fence(Ordering::SeqCst);
    }

    /// The other side's barrier: in this thread, and in every other that runs.
    #[cold]
    pub(crate) fn heavy_barrier() {
        fence(Ordering::SeqCst);
        #[cfg(all(target_os = "linux", not(miri)))]
        if is_asymmetric() {
            use rustix::thread::{MembarrierCommand, membarrier};
            // It was granted before, and fails for no other reason than that. Without it, nothing that follows
            // would be sound.
            membarrier(MembarrierCommand::PrivateExpedited).expect("membarrier was granted before");
        }
    }

    pub(crate) fn yield_now() {
        std::thread::yield_now();
    }
}

/// Both barriers as full fences, which is what they amount to together.
#[cfg(loom)]
mod modelled {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn is_asymmetric() -> bool {
        true
    }

    pub(crate) fn light_barrier() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn full_barrier() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy_barrier() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn yield_now() {
        loom::thread::yield_now();
    }
}
