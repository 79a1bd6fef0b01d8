//! `file_limit`: writes past `ulimit -f` as errors. Any floor may use it.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Runs a write that the limit of file sizes may refuse. The system's signal then does not end the process, which may be a program
/// that nobody told of this file.
pub fn refusing<R>(write: impl FnOnce() -> R) -> R {
    let (mut limit, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: each set is this function's, and filled before it is read. The first is filled by `sigemptyset`, which does not fail, the
    // second by `pthread_sigmask`, which only fails for another first argument.
    unsafe {
        libc::sigemptyset(limit.as_mut_ptr());
        libc::sigaddset(limit.as_mut_ptr(), libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, limit.as_ptr(), before.as_mut_ptr());
    }
    let written = write();
    // The system sends it to the thread that writes, where it waits now.
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above.
    unsafe {
        libc::sigtimedwait(limit.as_ptr(), null_mut(), &at_once);
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
    }
    written
}
