//! What costs next to nothing while the process has one thread, as when its libraries are loaded.

/// The caches of pools need the kernel's barriers (`membarrier`). It grants them to a process with one thread at once. Beside the threads
/// that the driver starts, it takes 10 to 16 ms.
///
/// Where the kernel refuses, a pool finds that later.
extern "C" fn ask_for_barriers() {
    /// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED`
    const REGISTER: libc::c_int = 1 << 4;
    // SAFETY: it takes two numbers, and changes nothing that the program sees.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER, 0) };
}

/// Called when the library is loaded, before the program begins.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = ask_for_barriers;
