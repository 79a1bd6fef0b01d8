//! Workspaces that were not measured, told to the hook of `millpond predict` when they are asked for: it knows the program's line.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A library whose workspaces were not measured. The hook knows these by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmeasured {
    Fft = 1,
    Solver = 2,
    Sparse = 3,
}

type Tell = extern "C" fn(library: c_int, bytes: usize);

/// The hook's function, and 0 before it has one.
static TELL: AtomicUsize = AtomicUsize::new(0);

/// What is called from now on whenever such a library is asked for a workspace.
#[unsafe(no_mangle)]
extern "C" fn millpond_card_tell(tell: Tell) {
    // Release, with the Acquire below: what the hook did before is seen by who calls it.
    TELL.store(tell as usize, Ordering::Release);
}

/// Says that a library was asked for a workspace, which is taken to have so many bytes.
pub(crate) fn used(library: Unmeasured, bytes: usize) {
    let tell = TELL.load(Ordering::Acquire);
    if tell != 0 {
        // SAFETY: it is what the hook gave, a function of this type that stays for as long as the process.
        let tell: Tell = unsafe { std::mem::transmute::<usize, Tell>(tell) };
        tell(library as c_int, bytes);
    }
}
