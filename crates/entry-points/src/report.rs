//! What the process tells the command, which sums over processes: in memory of a file that the command has. It is kept while the
//! process runs, so it is there however that ends.

use std::fs::OpenOptions;
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use millpond::Stats;
use millpond::bindings::{Mutex, PerProcess, watch_mappings, within_file_limit};
use serde::Serialize;

use crate::driver_memory::{self, Figures};
use crate::messages;
use crate::settings::{Mode, settings};
use crate::{gpus, overhead, report_due, shadow};

/// Sizes in bytes. The command reads it with types of its own: no program can link this library, whose `dlsym` it would get.
#[derive(Debug, Serialize)]
struct Report {
    pid: u32,
    program: String,
    mode: &'static str,
    /// A pool for each GPU; with `--watch`, the one that there would have been.
    pools: Vec<Pool>,
    outside: DriverFigures,
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
struct DriverFigures {
    plain: Figures,
    managed: Figures,
    pages: Figures,
    pinned: Figures,
    /// Of all but pinned memory.
    peak: u64,
    refused: u64,
    /// What CUDA itself took at most, where the limit counts it.
    overhead: u64,
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

/// Of one process, in the file of the command. Its first four bytes say which of two texts is whole: 1, 2, or 0 for none. Each ends
/// with a zero. So what was told last is whole whenever the process ends.
pub(crate) const SLOT_BYTES: usize = 16 << 10;
const FIRST_TEXT: usize = 64;
const TEXT_BYTES: usize = (SLOT_BYTES - FIRST_TEXT) / 2;

#[derive(Debug, Default)]
struct Told {
    slot: Mutex<Option<Slot>>,
}

/// A part of the file, as memory. It stays mapped.
#[derive(Debug)]
struct Slot {
    at: NonNull<u8>,
    /// The text that is whole.
    whole: u32,
}

// SAFETY: who has the lock uses the memory, and nobody else in this process.
unsafe impl Send for Slot {}

static TOLD: PerProcess<Told> = PerProcess::new(Default::default);

/// Keeps the report: after an allocation that was no fast one. A forked child has one of its own, once it allocates.
#[inline]
pub(crate) fn keep() {
    if report_due::is_due() {
        keep_slow();
    }
}

#[cold]
fn keep_slow() {
    extern "C" fn at_exit() {
        write(true);
    }
    extern "C" fn in_child() {
        report_due::set();
    }
    static BEGUN: Once = Once::new();
    report_due::clear();
    gpus::recount(false);
    if settings().reports.is_none() {
        return;
    }
    BEGUN.call_once(|| {
        watch_mappings(|_| report_due::set());
        // What the fast path did since is told by a process that returns from `main` or calls `exit`. One that ends otherwise runs
        // nothing of ours.
        // SAFETY: functions of this library, which is never unloaded. Where the system refuses, less is told.
        unsafe {
            libc::atexit(at_exit);
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
    write(false);
}

/// Writes the report. After `vfork`, the child has its parent's memory, and ends without.
fn write(is_last: bool) {
    let Some(path) = &settings().reports else { return };
    // A handler of a signal may have come between.
    let Some(mut slot) = TOLD.get().slot.try_lock() else { return };
    // A child that did not allocate tells nothing.
    if slot.is_none() && !is_last {
        *slot = Slot::new(path);
    }
    if let Some(slot) = &mut *slot {
        slot.put(&report());
    }
}

fn report() -> Vec<u8> {
    let mut pools: Vec<_> = gpus::stats().iter().map(|(gpu, stats)| Pool::new(Some(*gpu), stats)).collect();
    if settings().mode == Mode::Watch {
        pools.extend(shadow::stats().map(|stats| Pool::new(None, &stats)));
    }
    let ([plain, managed, pages, pinned], peak, refused) = driver_memory::figures();
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
    let mut report = Report {
        pid: std::process::id(),
        program: program.to_string_lossy().into_owned(),
        mode: settings().mode.name(),
        pools,
        outside: DriverFigures { plain, managed, pages, pinned, peak, refused, overhead: overhead::peak() },
        said: messages::all(),
    };
    let text = |report: &Report| serde_json::to_vec(report).unwrap_or_default();
    let whole = text(&report);
    if whole.len() < TEXT_BYTES {
        return whole;
    }
    report.said.clear();
    text(&report)
}

impl Slot {
    /// A new one at the end of the file. `None` where the command is gone.
    fn new(path: &Path) -> Option<Self> {
        let mut file = OpenOptions::new().read(true).append(true).open(path).ok()?;
        // What is appended at once, no other process's lies in.
        within_file_limit(|| file.write_all(&[0; SLOT_BYTES])).ok()?;
        let start = (file.stream_position().ok()? as usize).checked_sub(SLOT_BYTES)?;
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let before = start % page;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (bytes, offset) = (before + SLOT_BYTES, (start - before) as libc::off_t);
        // SAFETY: new addresses, of a part of the file that is there.
        let at =
            unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), offset) };
        if at == libc::MAP_FAILED {
            return None;
        }
        Some(Self { at: NonNull::new(at.cast::<u8>().wrapping_add(before))?, whole: 0 })
    }

    /// Writes the text that is not the whole one, and then says that this is it.
    fn put(&mut self, text: &[u8]) {
        if text.len() >= TEXT_BYTES {
            return;
        }
        let next = if self.whole == 1 { 2 } else { 1 };
        let to = self.at.as_ptr().wrapping_add(FIRST_TEXT + (next as usize - 1) * TEXT_BYTES);
        // SAFETY: the slot has room for two texts and the number before them, which is aligned as the slot is.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), to, text.len());
            to.add(text.len()).write(0);
            // Release: the command, which reads the number, finds the text.
            AtomicU32::from_ptr(self.at.as_ptr().cast()).store(next, Ordering::Release);
        }
        self.whole = next;
    }
}
