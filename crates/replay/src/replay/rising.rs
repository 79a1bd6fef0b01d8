//! Whether a program runs with so much memory; and how much it needs, about, by one replay: on a device that gets more whenever
//! the program finds none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond::Context;
use millpond::device::sim::SimDevice;
use millpond::device::{Device, DeviceError, DevicePtr, DeviceResult, Forward, MemoryInfo, PageHandle};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::error::ReplayError;
use super::program::Program;
use super::run::Choose;
use super::stage::{Stage, options};

/// A simulated device with a limit that rises, which counts what is given back.
#[derive(Debug)]
struct Rising {
    sim: Arc<SimDevice>,
    held: Mutex<HeldMemory>,
    order: SegmentOrder,
    /// Pages and segments given back so far.
    given_back: AtomicU64,
}

/// Where the device puts segments. A real one promises no order, and allocators that look at addresses place blocks by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentOrder {
    /// A new one mostly lies behind the others.
    Rising,
    /// A new one mostly lies before the others.
    Falling,
}

/// Behind all addresses of the simulated device.
const TOP: u64 = 1 << 62;

impl SegmentOrder {
    /// The address of a segment that the device below put there.
    fn turned(self, at: DevicePtr, bytes: u64) -> DevicePtr {
        match self {
            Self::Rising => at,
            Self::Falling => DevicePtr::new(TOP - at.raw() - bytes),
        }
    }
}

/// What was taken of it, in bytes.
#[derive(Debug, Default)]
struct HeldMemory {
    limit: u64,
    bytes: u64,
    /// The least that would have been held after a call that the limit refused, since the limit rose.
    wanted: Option<u64>,
    pages: FxHashMap<PageHandle, u64>,
    segments: FxHashMap<u64, u64>,
}

impl HeldMemory {
    /// Whether so much more is within the limit.
    fn admits(&mut self, bytes: u64) -> bool {
        let wanted = self.bytes + bytes;
        let admitted = wanted <= self.limit;
        if !admitted {
            self.wanted = Some(self.wanted.map_or(wanted, |least| least.min(wanted)));
        }
        admitted
    }
}

impl Rising {
    /// Above a device of `capacity` bytes, of which the first `limit` are there from the start.
    fn new(
        program: &Program,
        (capacity, limit): (u64, u64),
        order: SegmentOrder,
    ) -> Result<Arc<Self>, ReplayError> {
        let sim = SimDevice::new(options(program, capacity))?;
        let held = Mutex::new(HeldMemory { limit, ..HeldMemory::default() });
        Ok(Arc::new(Self { sim, held, order, given_back: AtomicU64::new(0) }))
    }

    fn stage(self: &Arc<Self>, program: &Program) -> Result<Stage, ReplayError> {
        let context = Context::new(self.clone());
        Ok(Stage { sim: Some(self.sim.clone()), ..Stage::new(program, context)? })
    }

    /// Relaxed: a replay and its allocator are one thread.
    fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Relaxed)
    }

    fn count_given_back(&self) {
        self.given_back.fetch_add(1, Ordering::Relaxed);
    }

    /// Raises the limit to what was last missing, and by `step` at least. `false` where it is not the limit that refused.
    fn rise(&self, step: u64) -> bool {
        let mut held = self.held.lock();
        let wanted = held.wanted.take();
        held.limit = held.limit.saturating_add(step).max(wanted.unwrap_or_default());
        wanted.is_some()
    }
}

// SAFETY: each call goes to the device below, and its answer is given back, or it is refused and changes nothing.
unsafe impl Forward for Rising {
    fn below(&self) -> &dyn Device {
        &*self.sim
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.sim.memory_info()?;
        let held = self.held.lock();
        Ok(MemoryInfo { free: held.limit.saturating_sub(held.bytes), total: held.limit })
    }

    fn create_page(&self, bytes: u64) -> DeviceResult<PageHandle> {
        let mut held = self.held.lock();
        if !held.admits(bytes) {
            return Err(DeviceError::OutOfMemory { call: "create_page", requested: bytes });
        }
        let page = self.sim.create_page(bytes)?;
        held.bytes += bytes;
        held.pages.insert(page, bytes);
        Ok(page)
    }

    unsafe fn release_page(&self, page: PageHandle) -> DeviceResult<()> {
        // SAFETY: the caller keeps the promise of the same call of the device below.
        unsafe { self.sim.release_page(page) }?;
        self.count_given_back();
        let mut held = self.held.lock();
        held.bytes -= held.pages.remove(&page).unwrap_or_default();
        Ok(())
    }

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut held = self.held.lock();
        if !held.admits(bytes) {
            return Err(DeviceError::OutOfMemory { call: "alloc_segment", requested: bytes });
        }
        let at = self.order.turned(self.sim.alloc_segment(bytes)?, bytes);
        held.bytes += bytes;
        held.segments.insert(at.raw(), bytes);
        Ok(at)
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        let mut held = self.held.lock();
        let bytes = held.segments.get(&at.raw()).copied().unwrap_or_default();
        // SAFETY: the caller keeps the promise of the same call of the device below, whose address this one stands for.
        unsafe { self.sim.free_segment(self.order.turned(at, bytes)) }?;
        self.count_given_back();
        held.segments.remove(&at.raw());
        held.bytes -= bytes;
        Ok(())
    }
}

/// About the least memory with which a program runs, in bytes, of which it needs `least` and `enough` is enough. With exactly so
/// much a run may end otherwise: its first allocations have more memory there than here.
pub(crate) fn about_needed(
    program: &Program,
    choose: &Choose<'_>,
    (least, enough): (u64, u64),
    step: u64,
) -> Result<u64, ReplayError> {
    let rising = Rising::new(program, (enough, least), SegmentOrder::Rising)?;
    let stage = rising.stage(program)?;
    let allocator = choose(stage.context())?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let mut steps = &program.steps[..];
    loop {
        let played = stage.play(&*allocator, steps, &mut blocks)?;
        steps = &steps[played.events..];
        if played.oom.is_none() || !rising.rise(step) {
            break;
        }
    }
    // The driver's own pool grows past the limit.
    let needed = rising.held.lock().limit.max(allocator.usage().reserved.high);
    stage.clear(&*allocator, program, &mut blocks)?;
    Ok(needed)
}

/// What came of a run to the end with so much memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ran {
    /// Allocations during which memory went back to the device.
    pub(crate) retries: u64,
    /// The most that the allocator held, in bytes.
    pub(crate) held: u64,
}

/// Runs a program on a device of `capacity` bytes. `Err` has the step whose request finds no memory there.
pub(crate) fn run_with(
    program: &Program,
    choose: &Choose<'_>,
    (capacity, order): (u64, SegmentOrder),
) -> Result<Result<Ran, usize>, ReplayError> {
    let counting = Rising::new(program, (capacity, capacity), order)?;
    let stage = counting.stage(program)?;
    let allocator = choose(stage.context())?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let (mut retries, mut before) = (0, 0);
    let played = stage.play_watched(&*allocator, &program.steps, &mut blocks, |_, step, _| {
        let given_back = counting.given_back();
        retries += u64::from(step.alloc && given_back > before);
        before = given_back;
    })?;
    let held = allocator.usage().reserved.high;
    stage.clear(&*allocator, program, &mut blocks)?;
    Ok(played.oom.map_or(Ok(Ran { retries, held }), |oom| Err(oom.event)))
}
