//! What is told when the process ends: a file for the command, which sums over processes.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use millpond::Stats;
use serde::Serialize;

use crate::gpus;
use crate::outside::{self, Figures};
use crate::said;
use crate::settings::{Mode, settings};
use crate::shadow;

/// Sizes in bytes. The command reads it with types of its own: no program can link this library, whose `dlsym` it would get.
#[derive(Debug, Serialize)]
struct Account {
    pid: u32,
    program: String,
    mode: &'static str,
    /// A pool for each GPU; with `--watch`, the one that there would have been.
    pools: Vec<Pool>,
    outside: Outside,
    said: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Pool {
    /// The GPU's number; `None` for a pool that there would have been.
    gpu: Option<usize>,
    held: u64,
    held_peak: u64,
    allocated_peak: u64,
    requested: u64,
    requested_peak: u64,
    allocations: u64,
    frees: u64,
    hits: u64,
    device_calls: u64,
    out_of_memory: u64,
}

/// What the driver gave.
#[derive(Debug, Serialize)]
struct Outside {
    plain: Figures,
    managed: Figures,
    pages: Figures,
    pinned: Figures,
    /// Of all but pinned memory.
    peak: u64,
    refused: u64,
}

impl Pool {
    fn new(gpu: Option<usize>, stats: &Stats) -> Self {
        Self {
            gpu,
            held: stats.reserved.current,
            held_peak: stats.reserved.high,
            allocated_peak: stats.allocated.high,
            requested: stats.requested.current,
            requested_peak: stats.requested.high,
            allocations: stats.allocations,
            frees: stats.frees,
            hits: stats.hits,
            device_calls: stats.calls.memory(),
            out_of_memory: stats.out_of_memory,
        }
    }
}

/// The process that tells at its exit; 0 before it allocates.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Has this process tell what it did when it ends. A forked child tells of itself, once it allocates.
#[inline]
pub(crate) fn write_at_exit() {
    // Relaxed: a number that each thread of a process finds or writes alike.
    if PROCESS.load(Ordering::Relaxed) == 0 {
        begin();
    }
}

#[cold]
fn begin() {
    extern "C" fn at_exit() {
        write();
    }
    extern "C" fn in_child() {
        PROCESS.store(0, Ordering::Relaxed);
    }
    if PROCESS.swap(std::process::id(), Ordering::Relaxed) != 0 || settings().accounts.is_none() {
        return;
    }
    // SAFETY: functions of this library, which is never unloaded. Where the system refuses, the process tells nothing.
    unsafe {
        libc::atexit(at_exit);
        libc::pthread_atfork(None, None, Some(in_child));
    }
}

/// Writes the account, once. After `vfork`, the child has its parent's memory, and is not the process that tells.
fn write() {
    let here = std::process::id();
    if PROCESS.compare_exchange(here, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let Some(folder) = &settings().accounts else { return };
    let mut pools: Vec<_> = gpus::stats().iter().map(|(gpu, stats)| Pool::new(Some(*gpu), stats)).collect();
    if settings().mode == Mode::Watch {
        pools.extend(shadow::stats().map(|stats| Pool::new(None, &stats)));
    }
    let ([plain, managed, pages, pinned], peak, refused) = outside::figures();
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
    let account = Account {
        pid: here,
        program: program.to_string_lossy().into_owned(),
        mode: settings().mode.name(),
        pools,
        outside: Outside { plain, managed, pages, pinned, peak, refused },
        said: said::all(),
    };
    // Where the folder is gone, nobody waits for it.
    if let Ok(text) = serde_json::to_vec(&account) {
        std::fs::write(folder.join(format!("{here}.json")), text).ok();
    }
}

/// As the C library's: it runs no handler of `atexit`, so the account is written here. Python ends its children by it.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn _exit(status: c_int) -> ! {
    // A panic must not keep the process from its end.
    std::panic::catch_unwind(write).ok();
    // SAFETY: ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    std::process::abort()
}
