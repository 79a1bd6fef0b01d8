//! A device whose calls fail, by chance or where a step asks for it; and one whose own host memory is never refused.

use std::sync::Arc;

use fastrand::Rng;
use millpond::device::{
    Advice, Device, DeviceError, DevicePtr, DeviceResult, EventHandle, Forward, PageHandle, Place,
    StreamHandle,
};
use parking_lot::Mutex;

use crate::refusing::spared;

/// Which calls fail, for all memory of a device.
#[derive(Debug)]
pub(crate) struct Faults(Mutex<State>);

#[derive(Debug)]
struct State {
    rng: Rng,
    /// Out of 2³².
    chance: u32,
    /// Calls until those that are to fail.
    planned: Vec<u32>,
    is_off: bool,
    /// The step that is being run, and its calls so far.
    step: (u32, u32),
    /// The step and the number of each call that failed by chance.
    failed: Vec<(u32, u32)>,
    count: u64,
}

impl Faults {
    pub(crate) fn new(seed: u64, chance: f64) -> Self {
        let chance = (chance.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        Self(Mutex::new(State {
            rng: Rng::with_seed(seed),
            chance,
            planned: Vec::new(),
            is_off: false,
            step: (0, 0),
            failed: Vec::new(),
            count: 0,
        }))
    }

    /// Makes the `nth` call from here fail (1: the very next).
    pub(crate) fn plan(&self, nth: u32) {
        self.0.lock().planned.push(nth);
    }

    /// No call fails from now on.
    pub(crate) fn stop(&self) {
        self.0.lock().is_off = true;
    }

    /// No call fails while this is done.
    pub(crate) fn undisturbed<R>(&self, act: impl FnOnce() -> R) -> R {
        let was_off = std::mem::replace(&mut self.0.lock().is_off, true);
        let done = act();
        self.0.lock().is_off = was_off;
        done
    }

    /// The step with this number begins.
    pub(crate) fn begin_step(&self, number: u32) {
        self.0.lock().step = (number, 0);
    }

    /// Calls that failed.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// The steps in which calls failed by chance, with the calls' numbers in them.
    pub(crate) fn failed(&self) -> Vec<(u32, u32)> {
        self.0.lock().failed.clone()
    }

    fn check(&self, call: &'static str, takes_memory: bool) -> DeviceResult<()> {
        let mut state = self.0.lock();
        if state.is_off {
            return Ok(());
        }
        state.step.1 += 1;
        state.planned.iter_mut().for_each(|left| *left -= 1);
        let is_planned = state.planned.contains(&0);
        state.planned.retain(|left| *left > 0);
        let by_chance = state.chance > 0 && state.rng.u32(..) <= state.chance;
        if by_chance {
            let at = state.step;
            state.failed.push(at);
        }
        if !is_planned && !by_chance {
            return Ok(());
        }
        state.count += 1;
        drop(state);
        if takes_memory {
            return Err(DeviceError::OutOfMemory { call, requested: 0 });
        }
        let (name, text) = ("SOAK".to_owned(), "this call was made to fail".to_owned());
        Err(DeviceError::Driver { call, code: 999, name, text })
    }
}

/// A device over another one, whose calls fail.
#[derive(Debug)]
pub(crate) struct FailingDevice {
    pub(crate) below: Arc<dyn Device>,
    pub(crate) faults: Arc<Faults>,
}

/// Calls of `Forward` that fail, with whether they take memory.
macro_rules! fail {
    (
        safe { $(fn $safe:ident($($given:ident: $its:ty),*) -> $yields:ty, $safe_takes:literal;)* }
        unsafe { $(fn $name:ident($($argument:ident: $of:ty),*) -> $result:ty;)* }
    ) => {
        $(fn $safe(&self, $($given: $its),*) -> DeviceResult<$yields> {
            self.faults.check(stringify!($safe), $safe_takes)?;
            self.below.$safe($($given),*)
        })*
        $(unsafe fn $name(&self, $($argument: $of),*) -> DeviceResult<$result> {
            self.faults.check(stringify!($name), false)?;
            // SAFETY: the caller's promise.
            unsafe { self.below.$name($($argument),*) }
        })*
    };
}

// SAFETY: all is passed on, but for calls that are refused and change nothing.
unsafe impl Forward for FailingDevice {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
        Ok(Arc::new(Self { below: self.below.pinned(node)?, faults: self.faults.clone() }))
    }

    fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
        Ok(Arc::new(Self { below: self.below.managed()?, faults: self.faults.clone() }))
    }

    fail! {
        safe {
            fn reserve(bytes: u64) -> DevicePtr, true;
            fn create_page(bytes: u64) -> PageHandle, true;
            fn alloc_segment(bytes: u64) -> DevicePtr, true;
            fn advise(at: DevicePtr, bytes: u64, advice: Advice) -> (), false;
            fn create_stream() -> StreamHandle, false;
            fn create_event() -> EventHandle, false;
            fn synchronize() -> (), false;
        }
        unsafe {
            fn unreserve(at: DevicePtr, bytes: u64) -> ();
            fn map(at: DevicePtr, bytes: u64, page: PageHandle) -> ();
            fn set_access(at: DevicePtr, bytes: u64) -> ();
            fn unmap(at: DevicePtr, bytes: u64) -> ();
            fn release_page(page: PageHandle) -> ();
            fn free_segment(at: DevicePtr) -> ();
            fn prefetch(at: DevicePtr, bytes: u64, to: Place, stream: StreamHandle) -> ();
            fn destroy_stream(stream: StreamHandle) -> ();
            fn stream_is_idle(stream: StreamHandle) -> bool;
            fn synchronize_stream(stream: StreamHandle) -> ();
            fn destroy_event(event: EventHandle) -> ();
            fn record_event(event: EventHandle, stream: StreamHandle) -> ();
            fn query_event(event: EventHandle) -> bool;
            fn wait_event(stream: StreamHandle, event: EventHandle) -> ();
            fn synchronize_event(event: EventHandle) -> ();
            fn memset(at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) -> ();
            fn copy(to: DevicePtr, from: DevicePtr, bytes: u64, stream: StreamHandle) -> ();
        }
    }
}

/// A device over another one, which is refused no memory of the host's: a driver allocates in its own ways.
#[derive(Debug)]
pub(crate) struct SparedDevice(pub(crate) Arc<dyn Device>);

// SAFETY: all is passed on.
unsafe impl Forward for SparedDevice {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn pass_on<R>(&self, call: impl FnOnce(&dyn Device) -> R) -> R {
        spared(|| call(self.below()))
    }

    fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
        spared(|| Ok(Arc::new(Self(self.0.pinned(node)?)) as Arc<dyn Device>))
    }

    fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
        spared(|| Ok(Arc::new(Self(self.0.managed()?)) as Arc<dyn Device>))
    }
}
