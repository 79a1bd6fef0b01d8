//! What CUDA itself takes of the GPUs for this process: contexts, the code of libraries, stacks. It is under the limit where that is
//! asked for.
//!
//! Where the management library tells what the process uses, it is that without what the program asked for. It is looked at again
//! where memory grows, and before the limit refuses. Elsewhere it is what the use of a GPU grew by when the context was made.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millpond::HumanBytes;
use millpond::bindings::{Mutex, PerProcess};
use rustc_hash::FxHashMap;

use crate::messages;
use crate::nvml::Nvml;
use crate::report_due;
use crate::settings::settings;

/// How old a figure may be when memory grows. A look takes some tenths of a millisecond.
const FRESH: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct Overhead {
    bytes: AtomicU64,
    peak: AtomicU64,
    looking: Mutex<Looking>,
}

#[derive(Debug, Default)]
struct Looking {
    /// Once it was looked for.
    nvml: Option<Option<Nvml>>,
    last: Option<Instant>,
    /// What the context of each GPU took when it was made; 0 once it is gone.
    reserves: FxHashMap<c_int, u64>,
}

static OVERHEAD: PerProcess<Overhead> = PerProcess::new(Default::default);

/// Bytes, as they were seen last; none where they are not asked for.
pub(crate) fn bytes() -> u64 {
    if !settings().counts_overhead {
        return 0;
    }
    // Relaxed: a figure.
    OVERHEAD.get().bytes.load(Ordering::Relaxed)
}

/// The most that was seen.
pub(crate) fn peak() -> u64 {
    // Relaxed: a figure.
    OVERHEAD.get().peak.load(Ordering::Relaxed)
}

/// Looks again, unless the last figure is fresh enough. `asked_for` is what the program and the pools have. Returns whether it
/// has changed.
pub(crate) fn look(must: bool, asked_for: impl FnOnce() -> u64) -> bool {
    if !settings().counts_overhead {
        return false;
    }
    let overhead = OVERHEAD.get();
    let mut looking = overhead.looking.lock();
    if !must && looking.last.is_some_and(|last| last.elapsed() < FRESH) {
        return false;
    }
    // What is asked for meanwhile makes it too small until the next look, and never too large.
    let used = looking.nvml().and_then(Nvml::used_here);
    if used.is_none() && looking.reserves.is_empty() {
        messages::say(
            "what CUDA itself takes cannot be measured: libnvidia-ml.so.1 is missing, or may not look. \
             The limit counts what the program asks for",
        );
    }
    let bytes = used.map_or_else(|| looking.reserves.values().sum(), |used| used.saturating_sub(asked_for()));
    looking.last = Some(Instant::now());
    // Relaxed, both: figures. One thread at a time writes them.
    let before = overhead.bytes.swap(bytes, Ordering::Relaxed);
    if overhead.peak.fetch_max(bytes, Ordering::Relaxed) < bytes {
        report_due::set();
    }
    before != bytes
}

impl Looking {
    fn nvml(&mut self) -> Option<&Nvml> {
        self.nvml.get_or_insert_with(Nvml::open).as_ref()
    }
}

/// What a GPU's memory is used for before its context is made; `None` where nobody asks.
pub(crate) fn before_context(gpu: c_int) -> Option<u64> {
    if !settings().counts_overhead {
        return None;
    }
    OVERHEAD.get().looking.lock().nvml()?.used_of(gpu)
}

/// The GPU's context is made: what it took is kept, where the process itself cannot be asked about.
pub(crate) fn after_context(gpu: c_int, before: Option<u64>) {
    let Some(before) = before else { return };
    let mut looking = OVERHEAD.get().looking.lock();
    let Some(nvml) = looking.nvml().filter(|nvml| nvml.used_here().is_none()) else { return };
    let Some(took) = nvml.used_of(gpu).map(|after| after.saturating_sub(before)) else { return };
    looking.reserves.insert(gpu, took);
    looking.last = None;
    messages::say(&format!(
        "GPU {gpu}: CUDA's context took {}, by the GPU's free memory before and after; the limit counts that. What libraries \
         take later is not seen here",
        HumanBytes(took)
    ));
}

/// The context of a GPU has ended.
pub(crate) fn forget(gpu: c_int) {
    if settings().counts_overhead {
        let mut looking = OVERHEAD.get().looking.lock();
        looking.last = None;
        looking.reserves.entry(gpu).and_modify(|took| *took = 0);
    }
}
