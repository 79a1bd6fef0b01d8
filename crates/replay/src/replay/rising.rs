//! How much memory a program needs, about, by one replay: on a device that gets more whenever the program finds none.

use std::sync::Arc;

use millpond::Context;
use millpond::device::sim::SimDevice;
use millpond::device::{Device, DeviceError, DevicePtr, DeviceResult, Forward, MemoryInfo, PageHandle};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{Choose, Program, ReplayError, Stage, options};

/// A simulated device with a limit that rises.
#[derive(Debug)]
struct Rising {
    sim: Arc<SimDevice>,
    held: Mutex<Held>,
}

/// What was taken of it, in bytes.
#[derive(Debug, Default)]
struct Held {
    limit: u64,
    bytes: u64,
    /// The least that would have been held after a call that the limit refused, since the limit rose.
    wanted: Option<u64>,
    pages: FxHashMap<PageHandle, u64>,
    segments: FxHashMap<u64, u64>,
}

impl Held {
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
        let mut held = self.held.lock();
        held.bytes -= held.pages.remove(&page).unwrap_or_default();
        Ok(())
    }

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut held = self.held.lock();
        if !held.admits(bytes) {
            return Err(DeviceError::OutOfMemory { call: "alloc_segment", requested: bytes });
        }
        let at = self.sim.alloc_segment(bytes)?;
        held.bytes += bytes;
        held.segments.insert(at.raw(), bytes);
        Ok(at)
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        // SAFETY: the caller keeps the promise of the same call of the device below.
        unsafe { self.sim.free_segment(at) }?;
        let mut held = self.held.lock();
        held.bytes -= held.segments.remove(&at.raw()).unwrap_or_default();
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
    let sim = SimDevice::new(options(program, enough))?;
    let rising =
        Arc::new(Rising { sim: sim.clone(), held: Mutex::new(Held { limit: least, ..Held::default() }) });
    let context = Context::new(rising.clone());
    let stage = Stage { sim: Some(sim), ..Stage::new(program, context)? };
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
