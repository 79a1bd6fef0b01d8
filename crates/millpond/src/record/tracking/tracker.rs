//! What a pool knows of its live blocks, from [start](Tracker::start) to [stop](Tracker::stop).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::dump::{self, OfPool, Origin};
use super::gaps;
use super::leaks;
use super::live::{LiveBlock, Tracked};
use super::options::Tracking;
use super::samples::{Held, Sample, Samples};
use crate::device::DevicePtr;
use crate::log::{log, warn_in_any_case};
use crate::order::Stream;
use crate::out_of_memory::OutOfMemory;
use crate::record::called_from::Wanted;
use crate::record::clock::{Moment, nanoseconds};
use crate::system::lock::Mutex;
use crate::system::process::{PerProcess, Process};

/// How long the process's end waits for a thread that is at the samples.
const AT_EXIT: Duration = Duration::from_secs(2);

/// See the [module](self). One belongs to one pool.
#[derive(Debug)]
pub(crate) struct Tracker {
    is_on: AtomicBool,
    /// Mean gaps that a byte passes, as the bits of an `f64`.
    gaps_per_byte: AtomicU64,
    samples: Samples,
    setup: Mutex<Option<Setup>>,
    /// There while it is on: bindings give the lines of interpreted programs.
    wanted: Mutex<Option<Wanted>>,
    /// Whether it was warned that no dump could be written.
    has_warned: AtomicBool,
    process: Process,
}

#[derive(Debug, Clone)]
struct Setup {
    options: Tracking,
    pool: OfPool,
    origin: Origin,
}

/// The trackers of this process that report at its end.
static REPORTING: PerProcess<Mutex<Vec<Weak<Tracker>>>> = PerProcess::new(Default::default);

impl Tracker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            is_on: AtomicBool::new(false),
            gaps_per_byte: AtomicU64::new(0),
            samples: Samples::new(),
            setup: Mutex::default(),
            wanted: Mutex::default(),
            has_warned: AtomicBool::new(false),
            process: Process::here(),
        })
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        // Relaxed: the value alone is used.
        self.is_on.load(Ordering::Relaxed)
    }

    pub(crate) fn start(self: &Arc<Self>, options: &Tracking, pool: OfPool) {
        self.stop();
        let gaps_per_byte = (options.interval as f64).recip();
        // Relaxed: a setting, seen sooner or later.
        self.gaps_per_byte.store(gaps_per_byte.to_bits(), Ordering::Relaxed);
        if options.reports_leaks {
            let mut reporting = REPORTING.get().lock();
            reporting.retain(|tracker| tracker.strong_count() > 0);
            reporting.push(Arc::downgrade(self));
            report_at_exit();
        }
        *self.setup.lock() = Some(Setup { options: options.clone(), pool, origin: Origin::now() });
        *self.wanted.lock() = Some(Wanted::new());
        self.is_on.store(true, Ordering::Relaxed);
    }

    pub(crate) fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        *self.setup.lock() = None;
        *self.wanted.lock() = None;
        self.samples.clear();
    }

    // ---- the hooks -----------------------------------------------------------------------------------

    /// Whether this allocation is a sample.
    #[inline]
    pub(crate) fn samples(&self, bytes: u64) -> bool {
        gaps::pass(bytes as f64 * self.gaps_per_byte())
    }

    /// Keeps a sample.
    pub(crate) fn add(&self, ptr: DevicePtr, bytes: u64, stream: &Stream, (tag, site): (u32, u32)) {
        let sample = Sample { ptr, bytes, allocated: Moment::now(), stream: stream.id().0, tag, site };
        self.samples.add(sample);
    }

    /// Whether the live block at this address may be a sample.
    #[inline]
    pub(crate) fn may_have(&self, ptr: DevicePtr) -> bool {
        self.samples.may_have(ptr)
    }

    /// A block was freed; `before` was taken when nobody else could have it.
    pub(crate) fn free(&self, ptr: DevicePtr, before: Moment) {
        if self.may_have(ptr) {
            self.samples.remove(ptr, before);
        }
    }

    fn gaps_per_byte(&self) -> f64 {
        // Relaxed: a setting.
        f64::from_bits(self.gaps_per_byte.load(Ordering::Relaxed))
    }

    // ---- what is said of it --------------------------------------------------------------------------

    /// The blocks that the pool says are live, with what is known of them.
    pub(crate) fn live_blocks(&self, live: impl FnOnce() -> Vec<(DevicePtr, u64)>) -> Vec<LiveBlock> {
        // The samples first: those that are freed meanwhile are not live.
        let (held, now) = (self.samples.held(), Moment::now());
        let block = |(ptr, bytes)| {
            let tracked = held.live.get(&ptr).map(|sample| self.tracked(sample, now));
            LiveBlock { ptr, bytes, tracked }
        };
        live().into_iter().map(block).collect()
    }

    fn tracked(&self, sample: &Sample, now: Moment) -> Tracked {
        let age = Duration::from_nanos(nanoseconds(now.since(sample.allocated)));
        let blocks = gaps::blocks_for(sample.bytes as f64 * self.gaps_per_byte());
        Tracked::new(age, sample.stream, blocks, (sample.tag, sample.site))
    }

    /// Lists what is live, once, if that was asked for: the pool ends, or the process.
    pub(crate) fn report_leaks(&self) {
        let mut setup = self.setup.lock();
        let Some(Setup { options, pool, .. }) = setup.as_mut() else { return };
        if !std::mem::replace(&mut options.reports_leaks, false) {
            return;
        }
        let (name, is_sampled) = (pool.name.clone(), options.interval > 0);
        drop(setup);
        let Some(held) = self.samples.held_within(AT_EXIT) else { return };
        say(&leaks::report(&name, &self.sampled(&held), is_sampled));
    }

    fn sampled(&self, held: &Held) -> Vec<LiveBlock> {
        let now = Moment::now();
        let block = |sample: &Sample| LiveBlock {
            ptr: sample.ptr,
            bytes: sample.bytes,
            tracked: Some(self.tracked(sample, now)),
        };
        held.live.values().map(block).collect()
    }

    /// Dumps what is live and the last events, where that is asked for. `live` is called if so.
    #[cold]
    pub(crate) fn dump(&self, failed: &OutOfMemory, live: impl FnOnce() -> Vec<(DevicePtr, u64)>) {
        let Some(Setup { options, pool, origin }) = self.setup.lock().clone() else { return };
        let Some(path) = options.dump else { return };
        let made = dump::create(&path);
        let warn = |text: &str| {
            if !self.has_warned.swap(true, Ordering::Relaxed) {
                warn_in_any_case(text);
            }
        };
        let (file, path) = match made {
            Ok(Some(made)) => made,
            Ok(None) => {
                let path = path.display();
                return warn(&format!(
                    "out of memory: nothing is dumped, since {path} and its numbered files are there"
                ));
            }
            Err(error) => {
                let path = path.display();
                return warn(&format!(
                    "out of memory: nothing is dumped, since {path} cannot be made: {error}"
                ));
            }
        };
        // The samples first, as above.
        let held = self.samples.held();
        let bytes = dump::encode(origin, &pool, &held, &live(), failed);
        let shown = path.display();
        match dump::write((file, &path), &bytes) {
            Ok(()) => warn_in_any_case(&format!(
                "out of memory in pool '{}': `millpond replay {shown}` shows who held what",
                pool.name
            )),
            Err(error) => warn(&format!("out of memory: the dump {shown} could not be written: {error}")),
        }
    }
}

/// To the standard error, whatever `tracing` does: it was asked for.
fn say(text: &str) {
    use std::io::Write;
    // Where that is closed, there is nobody to be told.
    writeln!(std::io::stderr(), "{text}").ok();
}

/// Lets the pools that are left report when the process ends.
fn report_at_exit() {
    // Also in a forked child, which has the parent's handler: its list is its own.
    static ONCE: AtomicBool = AtomicBool::new(false);
    extern "C" fn report_all() {
        // A panic must not leave this function; nothing is left to be told of it.
        let report = || {
            let Some(reporting) = REPORTING.get().try_lock_for(AT_EXIT) else { return };
            let trackers: Vec<_> = reporting.iter().filter_map(Weak::upgrade).collect();
            drop(reporting);
            trackers
                .iter()
                .filter(|tracker| tracker.process.is_here())
                .for_each(|tracker| tracker.report_leaks());
        };
        std::panic::catch_unwind(report).ok();
    }
    // Relaxed: only that it is done matters.
    if !ONCE.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this library, which the C runtime calls before it unloads it,
        // and it does not unwind.
        if unsafe { libc::atexit(report_all) } != 0 {
            log!(DEBUG, "no handler at exit: pools that are left will not report what is live");
        }
    }
}
