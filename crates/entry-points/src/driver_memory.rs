//! Memory that the driver gives: counted, under the limit, and watched.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millpond::Budget;
use millpond::bindings::{Mutex, PerProcess};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::code::Code;
use crate::settings::{Mode, settings};
use crate::{driver, overhead, report_due, shadow};

/// What of the driver's it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// `cuMemAlloc`, `cuMemAllocAsync` and their like.
    Plain,
    /// `cuMemAllocManaged`.
    Managed,
    /// Pages of `cuMemCreate`, by their handle.
    Pages,
    /// Pinned memory of the host, of `cuMemHostAlloc` and its like: under no limit.
    Pinned,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Plain, Self::Managed, Self::Pages, Self::Pinned];

    fn is_limited(self) -> bool {
        self != Self::Pinned
    }

    /// Whether `--watch` asks what a pool would have held for it.
    fn is_watched(self) -> bool {
        matches!(self, Self::Plain | Self::Managed) && settings().mode == Mode::Watch
    }
}

/// What was counted of a kind, in bytes but for the calls.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(crate) struct Figures {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
    pub(crate) peak: u64,
}

/// An allocation, and the context that it ends with.
#[derive(Debug, Clone, Copy)]
struct Live {
    bytes: u64,
    context: u64,
}

#[derive(Debug, Default)]
struct Counted {
    live: FxHashMap<(Kind, u64), Live>,
    figures: [Figures; Kind::ALL.len()],
    /// Of all kinds under the limit together.
    peak: u64,
}

#[derive(Debug, Default)]
struct DriverMemory {
    counted: Mutex<Counted>,
    /// Bytes of all kinds under the limit, and of allocations that are under way.
    taken: AtomicU64,
    /// Held while that changes, and with it what pools may take.
    changing: Mutex<()>,
    /// The pools' part of the process's own limit, once there is a pool.
    budget: OnceLock<Budget>,
    refused: AtomicU64,
    /// Whether nothing is given any more: what others have under a shared limit cannot be seen.
    is_closed: AtomicBool,
}

static DRIVER_MEMORY: PerProcess<DriverMemory> = PerProcess::new(Default::default);

/// What an allocation asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
    /// The stream's handle, as the program has it.
    pub(crate) stream: u64,
}

/// Asks the driver for memory, if the limit allows it. `at` then has its address, or its handle.
///
/// # Safety
/// `real` is the driver's function, and writes to `at` where it succeeds.
pub(crate) unsafe fn alloc(asked: Asked, at: *mut u64, real: impl FnOnce() -> Code) -> Code {
    let memory = DRIVER_MEMORY.get();
    if asked.kind.is_limited() && !memory.take(asked.bytes) {
        // Relaxed: a figure.
        memory.refused.fetch_add(1, Ordering::Relaxed);
        report_due::set();
        return Code::OUT_OF_MEMORY;
    }
    let code = real();
    if !code.is_success() {
        memory.give_back(asked.kind, asked.bytes);
        return code;
    }
    // SAFETY: the caller's promise.
    let at = unsafe { at.read() };
    let context = driver::current_context().map_or(0, |context| context.addr() as u64);
    memory.enter(asked.kind, at, Live { bytes: asked.bytes, context });
    if asked.kind.is_watched() {
        shadow::alloc(at, asked.bytes, asked.stream);
    }
    code
}

/// Gives memory back to the driver. It is struck out before: another thread may get the address next.
pub(crate) fn free((kind, at): (Kind, u64), stream: Option<u64>, real: impl FnOnce() -> Code) -> Code {
    let memory = DRIVER_MEMORY.get();
    let live = memory.strike(kind, at);
    let shadow = live.filter(|_| kind.is_watched());
    let shadow = shadow.and_then(|_| shadow::take(at));
    let code = real();
    match (code.is_success(), live) {
        (true, Some(live)) => memory.give_back(kind, live.bytes),
        (false, Some(live)) => memory.enter(kind, at, live),
        (_, None) => {}
    }
    if let Some(block) = shadow {
        shadow::settle(at, block, stream, code.is_success());
    }
    code
}

/// What was counted under one number is counted under another from now on.
pub(crate) fn rename(kind: Kind, from: u64, to: u64) {
    let mut counted = DRIVER_MEMORY.get().counted.lock();
    if let Some(live) = counted.live.remove(&(kind, from)) {
        counted.live.insert((kind, to), live);
    }
}

/// The driver has something back.
pub(crate) fn given_back(kind: Kind, at: u64) {
    let memory = DRIVER_MEMORY.get();
    if let Some(live) = memory.strike(kind, at) {
        memory.give_back(kind, live.bytes);
    }
}

/// A context ended, and all memory with it but for pages, which belong to none.
pub(crate) fn forget_context(context: u64) {
    let counted = DRIVER_MEMORY.get().counted.lock();
    let of_context = |(key, live): (&(Kind, u64), &Live)| {
        (live.context == context && key.0 != Kind::Pages).then_some(*key)
    };
    let gone: Vec<_> = counted.live.iter().filter_map(of_context).collect();
    drop(counted);
    for (kind, at) in gone {
        given_back(kind, at);
        if let Some(block) = shadow::take(at).filter(|_| kind.is_watched()) {
            shadow::settle(at, block, None, true);
        }
    }
}

/// Gives no memory from here on. A limit that cannot be kept is none.
pub(crate) fn close() {
    // Relaxed: as in `take`.
    DRIVER_MEMORY.get().is_closed.store(true, Ordering::Relaxed);
}

/// What the limit leaves beside `pooled` bytes that the process's pools use, and `cached` that they have ready; `None` without a limit.
pub(crate) fn left(pooled: u64, cached: u64) -> Option<u64> {
    let limit = settings().limit?;
    Some(match budget() {
        // What all processes hold.
        Some(Ok(budget)) if settings().budget.is_some() => {
            limit.saturating_sub(budget.held().saturating_sub(cached))
        }
        Some(Err(_)) => 0,
        _ => limit.saturating_sub(pooled + bytes() + overhead::bytes()),
    })
}

/// Whether the pools hold more than the limit leaves by now.
pub(crate) fn is_beyond_limit() -> bool {
    DRIVER_MEMORY
        .get()
        .budget
        .get()
        .is_some_and(|budget| own_limit().is_some() && budget.held() > budget.limit())
}

/// The kind under which an address was counted.
pub(crate) fn kind_of(at: u64) -> Kind {
    let counted = DRIVER_MEMORY.get().counted.lock();
    if counted.live.contains_key(&(Kind::Managed, at)) { Kind::Managed } else { Kind::Plain }
}

/// Bytes that the driver gave and has not got back.
pub(crate) fn bytes() -> u64 {
    // Relaxed: a figure to read.
    DRIVER_MEMORY.get().taken.load(Ordering::Relaxed)
}

/// What was counted, of each kind; the most of all under the limit together; and how often the limit refused.
pub(crate) fn figures() -> ([Figures; Kind::ALL.len()], u64, u64) {
    let memory = DRIVER_MEMORY.get();
    let counted = memory.counted.lock();
    (counted.figures, counted.peak, memory.refused.load(Ordering::Relaxed))
}

/// The limit, where it is this process's alone, less what CUDA itself takes, where that counts.
fn own_limit() -> Option<u64> {
    let limit = settings().limit.filter(|_| settings().budget.is_none())?;
    Some(limit.saturating_sub(overhead::bytes()))
}

/// Looks again at what CUDA itself takes, where that counts, so that the pools and the driver give no more than what it leaves.
/// Returns whether that has changed. Where it need not, it looks if the last time was a while ago.
pub(crate) fn recount(must: bool) -> bool {
    let memory = DRIVER_MEMORY.get();
    let asked_for = || memory.taken.load(Ordering::Relaxed) + memory.pooled();
    let has_changed = overhead::look(must, asked_for);
    if has_changed {
        let _changing = memory.changing.lock();
        // Relaxed: under the lock.
        memory.change(memory.taken.load(Ordering::Relaxed));
    }
    has_changed
}

/// The budget of the pools: the limit, less what the driver gave. With a name, processes share it, and it is the limit alone.
pub(crate) fn budget() -> Option<millpond::Result<Budget>> {
    let limit = settings().limit?;
    let memory = DRIVER_MEMORY.get();
    if let Some(name) = &settings().budget {
        let known = memory.budget.get().cloned().map_or_else(|| Budget::named(name, limit), Ok);
        return Some(known.inspect(|budget| drop(memory.budget.set(budget.clone()))));
    }
    let _changing = memory.changing.lock();
    let budget = memory.budget.get_or_init(|| Budget::bytes(limit)).clone();
    // Relaxed: under the lock.
    memory.change(memory.taken.load(Ordering::Relaxed));
    Some(Ok(budget))
}

impl DriverMemory {
    /// Takes so many bytes of what the limit leaves, or nothing.
    fn take(&self, bytes: u64) -> bool {
        // Relaxed: who is refused a pool sees it, and asks next.
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let limit = own_limit().unwrap_or(u64::MAX);
        let _changing = self.changing.lock();
        // Relaxed, here and below: all changes are made under the lock.
        let taken = self.taken.load(Ordering::Relaxed);
        let Some(sum) = taken.checked_add(bytes).filter(|sum| *sum <= limit) else { return false };
        // First the pools may take no more, then it is seen what they hold.
        self.change(sum);
        if sum.saturating_add(self.pooled()) <= limit {
            return true;
        }
        self.change(taken);
        false
    }

    fn give_back(&self, kind: Kind, bytes: u64) {
        if !kind.is_limited() {
            return;
        }
        let _changing = self.changing.lock();
        // Relaxed: as in `take`.
        self.change(self.taken.load(Ordering::Relaxed) - bytes);
    }

    /// What the driver gave, no pool may take. Under the lock.
    fn change(&self, taken: u64) {
        self.taken.store(taken, Ordering::Relaxed);
        if let (Some(budget), Some(limit)) = (self.budget.get(), own_limit()) {
            budget.set_limit(limit.saturating_sub(taken));
        }
    }

    /// Bytes that pools hold under the process's own limit.
    fn pooled(&self) -> u64 {
        self.budget.get().map_or(0, Budget::held)
    }

    fn enter(&self, kind: Kind, at: u64, live: Live) {
        let bytes = live.bytes;
        let mut counted = self.counted.lock();
        // The driver may have freed what was there, with its context.
        let before = counted.live.insert((kind, at), live).map_or(0, |before| before.bytes);
        let figures = &mut counted.figures[kind as usize];
        figures.allocations += 1;
        figures.bytes = figures.bytes + bytes - before;
        if figures.bytes > figures.peak {
            figures.peak = figures.bytes;
            report_due::set();
        }
        let limited = Kind::ALL.iter().filter(|kind| kind.is_limited());
        counted.peak = counted.peak.max(limited.map(|kind| counted.figures[*kind as usize].bytes).sum());
        drop(counted);
        if before > 0 {
            self.give_back(kind, before);
        }
    }

    fn strike(&self, kind: Kind, at: u64) -> Option<Live> {
        let mut counted = self.counted.lock();
        let live = counted.live.remove(&(kind, at))?;
        counted.figures[kind as usize].bytes -= live.bytes;
        Some(live)
    }
}
