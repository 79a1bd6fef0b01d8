//! The calling thread's index by its *thread pointer*: for code in a shared library, where a thread-local is reached by
//! a call of the loader, which takes 17 instructions and has all registers saved around it. This takes ten.
//!
//! The thread pointer is where the system keeps what belongs to a thread. No two living threads have the same one, and
//! reading it is one instruction. So a table that anybody may read says whose index is which; a thread enters itself
//! when it gets an index, and takes itself out before it gives that back. Where the pointers of two threads fall on the same
//! place, who came first has it, and the other one is known to have an index by its thread-local only.

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod table {
    use std::hint::cold_path;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::super::thread_index::NO_THREAD;

    const PLACES: usize = 1 << 12;

    /// One thread's, while `pointer` is not 0, which is no thread's.
    struct Place {
        pointer: AtomicU64,
        index: AtomicUsize,
    }

    static TABLE: [Place; PLACES] =
        [const { Place { pointer: AtomicU64::new(0), index: AtomicUsize::new(0) } }; PLACES];

    #[inline(always)]
    fn thread_pointer() -> u64 {
        let pointer: u64;
        // SAFETY: the ABI has the thread pointer there, on x86-64 as the first word of what it points at (ELF
        // Handling for Thread-Local Storage, its part on x86-64). Reading it changes nothing.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
            #[cfg(target_arch = "aarch64")]
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
        }
        pointer
    }

    /// Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4) of the lower half: pointers differ by multiples
    /// of the threads' stacks.
    #[inline(always)]
    fn place(pointer: u64) -> &'static Place {
        let hash = (pointer as u32).wrapping_mul(0x9e37_79b9);
        &TABLE[(hash >> (u32::BITS - PLACES.trailing_zeros())) as usize]
    }

    /// The calling thread's index, or [`NO_THREAD`] where it has none or has no place here.
    #[inline(always)]
    pub(crate) fn index_by_pointer() -> usize {
        let pointer = thread_pointer();
        let place = place(pointer);
        // Relaxed: only the thread itself writes its pointer, and its index after it.
        if place.pointer.load(Ordering::Relaxed) != pointer {
            cold_path();
            return NO_THREAD;
        }
        place.index.load(Ordering::Relaxed)
    }

    /// The calling thread got this index.
    pub(crate) fn enter(index: usize) {
        let pointer = thread_pointer();
        let place = place(pointer);
        // Acquire: who left the place wrote its index before this thread does.
        if place.pointer.compare_exchange(0, pointer, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            place.index.store(index, Ordering::Relaxed);
        }
    }

    /// The calling thread is about to give its index back.
    pub(crate) fn leave() {
        let pointer = thread_pointer();
        let place = place(pointer);
        if place.pointer.load(Ordering::Relaxed) == pointer {
            // Release: see `enter`.
            place.pointer.store(0, Ordering::Release);
        }
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod table {
    pub(crate) use super::super::thread_index::thread_index as index_by_pointer;

    pub(crate) fn enter(_: usize) {}

    pub(crate) fn leave() {}
}

pub(crate) use table::index_by_pointer;
pub(super) use table::{enter, leave};
