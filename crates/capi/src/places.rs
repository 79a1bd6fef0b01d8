//! The places of this process's threads, found by the *thread pointer*. A thread-local of a shared library is reached by a call
//! of the loader, which takes 17 instructions and has all registers saved around it. This takes nine.
//!
//! The thread pointer is where the system keeps what belongs to a thread. No two living threads have the same one, and
//! reading it is one instruction.

use millpond::bindings::{on_fork, on_thread_end};

use crate::place::{Place, Places};

static ALL: Places = Places::vacant();

/// A number that no other living thread has, and not 0.
#[inline(always)]
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
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

/// Likewise, where nobody says where the thread pointer is: the address of something that each thread has.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
fn thread_pointer() -> u64 {
    use std::cell::Cell;
    thread_local! {
        static HERE: Cell<u8> = const { Cell::new(0) };
    }
    HERE.with(|here| here.as_ptr().addr() as u64)
}

/// The calling thread's place, if it has one.
#[inline(always)]
pub(crate) fn mine() -> Option<&'static Place> {
    ALL.of(thread_pointer())
}

/// The calling thread's place, which it takes if it can. The thread must be one whose end is [told](on_thread_end).
pub(crate) fn take() -> Option<&'static Place> {
    mine().or_else(|| {
        let place = ALL.take(thread_pointer())?;
        on_thread_end(leave);
        on_fork(forget_all);
        Some(place)
    })
}

fn leave() {
    ALL.leave(thread_pointer());
}

fn forget_all() {
    ALL.forget_all();
}

/// See [`Places::retire`].
pub(crate) fn retire(handle: u64) {
    ALL.retire(handle);
}

/// See [`Places::collect`].
pub(crate) fn collect(handle: u64) {
    ALL.collect(handle);
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use millpond::bindings::{Mutex, MutexGuard};

    use super::*;
    use crate::place::tests::{POOL, finds, remember};

    /// While a test holds it, no other test's thread takes a place or waits for the owner of one.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock()
    }

    #[test]
    fn a_thread_finds_what_it_remembered_until_it_ends() {
        let _alone = alone();
        let thread = std::thread::spawn(|| {
            assert!(mine().is_none());
            remember(take);
            assert!(mine().is_some_and(|place| finds(place, POOL)));
            thread_pointer()
        });
        let pointer = thread.join().unwrap();
        assert!(ALL.of(pointer).is_none());
        let place = ALL.take(pointer).expect("it was left");
        assert!(!finds(place, POOL));
        ALL.leave(pointer);
    }
}
