//! A device that watches an allocator work, and says where it is wrong.
//!
//! It wraps another device and passes every call on. Beside, it keeps vector clocks (Fidge's and Mattern's) for each stream
//! and event, and for the host. From these it knows which work is ordered before which, whatever the device below happened
//! to do first.
//!
//! Around the allocator's calls, a test says what its program does: [`allocated`], [`used`] for each kernel, and [`freed`]
//! *before* the call that frees. Copies and fills through the device are seen without being told. [`verify`] then says
//! whether all was well. [`verify_nothing_left`] also says whether everything was given back.
//!
//! ```
//! use millpond::device::sim::{SimDevice, SimOptions};
//! use millpond::testing::checker::CheckerDevice;
//! use millpond::{Context, Pool};
//!
//! let checker = CheckerDevice::new(SimDevice::new(SimOptions::default())?);
//! let context = Context::new(checker.clone());
//! let pool = Pool::builder(&context).build()?;
//! let stream = context.create_stream()?;
//!
//! let at = pool.alloc(1 << 20, &stream)?;
//! let block = checker.allocated(at, 1 << 20, stream.handle());
//! checker.used(block, stream.handle()); // a kernel
//! let _freeing = checker.freed(block, stream.handle());
//! // SAFETY: nobody else has the block, and all work on it was given to this stream.
//! unsafe { pool.free(at, &stream) }?;
//! checker.verify().expect("every rule was kept");
//! # Ok::<(), millpond::Error>(())
//! ```
//!
//! # Rules
//! - A block begins and ends as if by a kernel on its stream. When one begins, every use of the same *physical* bytes by
//!   earlier blocks, through whatever mapping, is ordered before it.
//! - No two live blocks share an address or a physical byte. A live block keeps the memory that it began with.
//! - Prefetches and advice are for live blocks, one at a time. No block begins with advice of an earlier one.
//! - A mapping goes only when the host knows that all work through it is complete.
//! - Calls are made in the process that made the device, not in one that was forked from it.
//! - A device uses memory of another one of its [group](CheckerDevice::group) only where it has access. A copy that names both
//!   devices needs none.
//! - Handles are used only while they live. A call that the device below finds invalid is a fault as well.
//! - A program that breaks the contract itself is told apart from an allocator that does: [`Rule::Program`].
//!
//! [`allocated`]: CheckerDevice::allocated
//! [`used`]: CheckerDevice::used
//! [`freed`]: CheckerDevice::freed
//! [`verify`]: CheckerDevice::verify
//! [`verify_nothing_left`]: CheckerDevice::verify_nothing_left

// It may use `device/` only, and knows nothing of pools. When a block begins, only the last block that had a byte need be
// remembered: what came before that is ordered before it already.
//
// **To add a rule**, add it to `Rule`. Report it from `state.rs` (handles) or `rules.rs` (blocks and memory). Plant a
// violation in `tests.rs`: a checker that never fails proves nothing.

mod advice;
mod blocks;
mod calls;
mod clock;
mod memory;
mod order;
mod report;
mod rules;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::log::log;
use crate::system::lock::{Mutex, MutexGuard};

use self::clock::{DeviceNumber, StreamKey};
use self::state::State;
use crate::device::{Device, DevicePtr, DeviceResult, PeerId, StreamHandle};
use crate::system::process::Process;

pub use self::blocks::Freeing;
pub use self::memory::BlockId;
pub use self::report::{Report, Rule, Violation};

/// A device that checks how an allocator uses another one. The [module](self) has an example. Its
/// [pinned](Device::pinned) and its [managed](Device::managed) memory are watched with it: one verdict is of all.
pub struct CheckerDevice {
    inner: Arc<dyn Device>,
    /// Tells the devices of a group apart.
    number: DeviceNumber,
    state: Arc<Mutex<State>>,
    process: Process,
    /// Device calls in processes that were forked from that one.
    calls_elsewhere: Arc<AtomicU64>,
}

impl fmt::Debug for CheckerDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CheckerDevice").field(&self.inner).finish()
    }
}

impl CheckerDevice {
    /// Watches `inner`, which nobody has used yet: streams and memory from before are not known.
    pub fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Self::group([inner]).remove(0)
    }

    /// Watches several devices that work together. One verdict is of all.
    ///
    /// ```
    /// use millpond::device::sim::{SimDevice, SimOptions};
    /// use millpond::testing::checker::CheckerDevice;
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let gpus = SimDevice::group(2, SimOptions::default())?;
    /// let checkers = CheckerDevice::group(gpus.into_iter().map(|gpu| gpu as _));
    /// let [first, second] = [0, 1].map(|number| Context::new(checkers[number].clone()));
    /// let pool = Pool::builder(&first).accessible_from([&second]).build()?;
    /// let buffer = Buffer::<u8>::zeroed(&pool, 1 << 20, &first.create_stream()?)?;
    /// // … work of both devices …
    /// checkers[0].verify().expect("every rule was kept");
    /// # Ok::<(), millpond::Error>(())
    /// ```
    pub fn group(devices: impl IntoIterator<Item = Arc<dyn Device>>) -> Vec<Arc<Self>> {
        let (state, calls_elsewhere) = <(Arc<Mutex<State>>, _)>::default();
        let checker = |inner: Arc<dyn Device>| {
            let (state, calls_elsewhere) = (Arc::clone(&state), Arc::clone(&calls_elsewhere));
            let number = DeviceNumber(inner.peer_id().map_or(0, PeerId::number));
            Arc::new(Self { inner, number, state, process: Process::here(), calls_elsewhere })
        };
        devices.into_iter().map(checker).collect()
    }

    /// The allocator gave out `bytes` at `at` for work on `stream`.
    pub fn allocated(&self, at: DevicePtr, bytes: u64, stream: StreamHandle) -> BlockId {
        let mut state = self.note("· allocated", [at.raw(), bytes, stream.raw()]);
        let key = self.key(&mut state, "allocated", stream);
        state.begin(at, bytes, key)
    }

    /// A kernel that uses the block was given to `stream`. To be said once the device has the kernel.
    pub fn used(&self, block: BlockId, stream: StreamHandle) {
        let mut state = self.note("· used", [stream.raw(), 0, 0]);
        let key = self.key(&mut state, "used", stream);
        state.check_block_access(block, key);
        state.work_on(block, key);
    }

    /// The program told the allocator that `stream` uses the block (`record_use`), and so need not order its
    /// free after that stream's work.
    pub fn use_recorded(&self, block: BlockId, stream: StreamHandle) {
        let mut state = self.note("· use_recorded", [stream.raw(), 0, 0]);
        let key = self.key(&mut state, "use_recorded", stream);
        state.recorded(block, key);
    }

    /// The block is about to be freed on `stream`. To be said *before* the allocator is called, since from
    /// that call on it may give the memory to others.
    pub fn freed(&self, block: BlockId, stream: StreamHandle) -> Freeing {
        let mut state = self.note("· freed", [stream.raw(), 0, 0]);
        let key = self.key(&mut state, "freed", stream);
        state.end(block, key)
    }

    /// The allocator refused the free: the block is live as before.
    pub fn free_refused(&self, freeing: Freeing) {
        self.note("· free_refused", [0; 3]).undo_end(freeing);
    }

    /// Whether every rule was kept so far.
    ///
    /// # Errors
    /// What was broken, and the calls that led to it.
    pub fn verify(&self) -> Result<(), Report> {
        self.verdict_elsewhere()?;
        self.state.lock().verdict()
    }

    /// Whether every rule was kept, and everything was given back: blocks, mappings, pages, segments, address
    /// ranges, events and streams. What the device itself refused to take back does not count.
    ///
    /// # Errors
    /// As for [`verify`](Self::verify), with what is left.
    pub fn verify_nothing_left(&self) -> Result<(), Report> {
        self.verdict_elsewhere()?;
        let state = self.state.lock();
        let leaks = state.leaks();
        match state.verdict() {
            Ok(()) if leaks.is_empty() => Ok(()),
            Ok(()) => Err(Report { violations: leaks, calls: state.trace.text() }),
            Err(mut report) => {
                report.violations.extend(leaks);
                Err(report)
            }
        }
    }

    /// Whether a device call is made in the process that made the device.
    fn check_process(&self, call: &'static str) -> DeviceResult<()> {
        let checked = self.process.check();
        if checked.is_err() {
            // Relaxed: a count. No lock: its holder may be a thread that this process does not have.
            self.calls_elsewhere.fetch_add(1, Ordering::Relaxed);
            log!(ERROR, "a device call in a forked process", call);
        }
        Ok(checked?)
    }

    /// What is wrong if there were calls in a forked process: asked there. What else its parent had is not known then.
    fn verdict_elsewhere(&self) -> Result<(), Report> {
        let calls = self.calls_elsewhere.load(Ordering::Relaxed);
        if calls == 0 {
            return Ok(());
        }
        let text = format!("{calls} device calls in a process that was forked from the device's");
        Err(Report { violations: vec![Violation { rule: Rule::Forked, text }], calls: Vec::new() })
    }

    /// As [`note`](Self::note), for a device call.
    fn note_call(&self, call: &'static str, arguments: [u64; 3]) -> DeviceResult<MutexGuard<'_, State>> {
        self.check_process(call)?;
        Ok(self.note(call, arguments))
    }

    fn note(&self, call: &'static str, arguments: [u64; 3]) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.trace.note(call, arguments);
        state
    }

    /// The stream that the program names; a stream of its own where there is none, so that checking goes on.
    fn key(&self, state: &mut State, call: &'static str, stream: StreamHandle) -> StreamKey {
        match state.stream(call, (self.number, stream)) {
            Ok(key) => key,
            Err(_) => state.order.add_stream((self.number, stream)),
        }
    }
}
