//! A simulated device: no bytes, and costs in virtual time. For tests and replays.
//!
//! A pool runs on it at millions of calls a second, and each call is checked. The same calls from one thread give the same
//! addresses, handles, times and errors in every run.
//!
//! **Bytes.** There are none: a [`Buffer`](crate::Buffer) refuses to have its elements read. A test that looks at them uses
//! [`Context::host`](crate::Context::host), which holds bytes and needs no GPU.
//!
//! **Time.** There is one clock, in nanoseconds. It moves when a call costs something ([`CostTable`]), when the host waits,
//! and by [`SimDevice::advance_to`]. [`SimDevice::hold`] keeps a stream's work pending until the hold is released, so that
//! a test decides what is complete.
//!
//! ```
//! use millpond::device::sim::{Call, SimDevice, SimOptions};
//! use millpond::{Context, Pool};
//!
//! let sim = SimDevice::new(SimOptions::default().capacity(1 << 30))?;
//! let context = Context::new(sim.clone());
//! let pool = Pool::builder(&context).build()?;
//! let stream = context.create_stream()?;
//! let block = pool.alloc(3 << 20, &stream)?;
//! assert!(sim.calls()[Call::CreatePage] > 0);
//! println!("device calls took {:?}", sim.time_spent().total());
//! # unsafe { pool.free(block, &stream) }?;
//! # Ok::<(), millpond::Error>(())
//! ```

// It uses nothing of the system; the records in `inventory.rs` check every call, as on the host device.
//
// A stream has the time at which its work is complete (`when.rs`); an event remembers that time; waiting for it moves the
// clock.
//
// **One request.** Each call takes the one lock, and is counted. It fails if a test asked for it (`faults.rs`). It is
// checked and done in the records (`state.rs`), and then costs its time.

mod address_space;
mod call;
mod costs;
mod exports;
mod faults;
mod implementation;
mod managed;
mod state;
#[cfg(test)]
mod tests;
mod when;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::system::lock::{Mutex, MutexGuard};

pub use self::call::{Call, PerCall};
pub use self::costs::{BySize, CostTable};
pub use self::managed::ManagedStats;
use self::state::State;
use super::inventory::invalid;
use super::{
    DeviceError, DeviceIdentity, DevicePtr, DeviceResult, Kind, MemoryKind, PeerId, Properties, StreamHandle,
};
use crate::system::process::{OfProcess, Process};

/// How a [`SimDevice`] is made. The default is an NVIDIA H200.
///
/// ```
/// use millpond::device::sim::{CostTable, SimDevice, SimOptions};
///
/// // 1 GiB, and calls that cost nothing.
/// let options = SimOptions::default().capacity(1 << 30).costs(CostTable::free());
/// let sim = SimDevice::new(options)?;
/// # Ok::<(), millpond::device::DeviceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "options do nothing until a device is made with them"]
pub struct SimOptions {
    /// Bytes of memory that the device has.
    pub capacity: u64,
    /// The smallest page in bytes, a power of two.
    pub granularity: u64,
    /// Whether pages can be mapped. Without, there are only segments.
    pub virtual_memory: bool,
    /// Whether the driver has a stream-ordered allocator of its own.
    pub memory_pools: bool,
    /// What the calls cost.
    pub costs: CostTable,
    /// Bytes of [pinned memory](super::Device::pinned) that the device can reach.
    pub pinned_capacity: u64,
    /// Bytes of [managed memory](super::Device::managed), which may be more than the device has.
    pub managed_capacity: u64,
    /// Whether the device reaches plain memory of the host. That has no bytes on the device, and only costs time.
    pub pageable_access: bool,
    /// Whether the devices of a [group](SimDevice::group) reach each other's memory.
    pub peer_access: bool,
}

impl Default for SimOptions {
    /// An NVIDIA H200: 141 GB, granularity 2 MiB, everything supported but plain memory of the host, measured costs; 128
    /// GiB of pinned memory; as much managed memory as both together have.
    fn default() -> Self {
        Self {
            capacity: 140 << 30,
            granularity: 2 << 20,
            virtual_memory: true,
            memory_pools: true,
            costs: CostTable::h200(),
            pinned_capacity: 128 << 30,
            managed_capacity: 268 << 30,
            pageable_access: false,
            peer_access: true,
        }
    }
}

impl SimOptions {
    /// As [`capacity`](field@Self::capacity).
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = capacity;
        self
    }

    /// As [`granularity`](field@Self::granularity).
    pub fn granularity(mut self, granularity: u64) -> Self {
        self.granularity = granularity;
        self
    }

    /// As [`virtual_memory`](field@Self::virtual_memory).
    pub fn virtual_memory(mut self, virtual_memory: bool) -> Self {
        self.virtual_memory = virtual_memory;
        self
    }

    /// As [`memory_pools`](field@Self::memory_pools).
    pub fn memory_pools(mut self, memory_pools: bool) -> Self {
        self.memory_pools = memory_pools;
        self
    }

    /// As [`costs`](field@Self::costs).
    pub fn costs(mut self, costs: CostTable) -> Self {
        self.costs = costs;
        self
    }

    /// As [`pinned_capacity`](field@Self::pinned_capacity).
    pub fn pinned_capacity(mut self, capacity: u64) -> Self {
        self.pinned_capacity = capacity;
        self
    }

    /// As [`managed_capacity`](field@Self::managed_capacity).
    pub fn managed_capacity(mut self, capacity: u64) -> Self {
        self.managed_capacity = capacity;
        self
    }

    /// As [`pageable_access`](field@Self::pageable_access).
    pub fn pageable_access(mut self, access: bool) -> Self {
        self.pageable_access = access;
        self
    }

    /// As [`peer_access`](field@Self::peer_access).
    pub fn peer_access(mut self, access: bool) -> Self {
        self.peer_access = access;
        self
    }
}

/// A simulated [`Device`](super::Device). The [module](self) has an example. Its [pinned](super::Device::pinned) and its
/// [managed](super::Device::managed) memory are devices of this type, too, with the same clock, accounts and failures. So are
/// the devices of a [group](Self::group).
pub struct SimDevice {
    properties: Properties,
    id: PeerId,
    shared: Arc<Shared>,
}

/// What a device, its other memory, and the devices of its group share.
struct Shared {
    identity: DeviceIdentity,
    /// The time that the clock was last advanced to, in nanoseconds. A replay does that at every event, and most
    /// events make no call: so it takes no lock.
    advanced: AtomicU64,
    process: Process,
    /// Of all but managed memory.
    virtual_memory: bool,
    pinned_capacity: u64,
    managed_capacity: u64,
    peer_access: bool,
    state: OfProcess<Mutex<State>>,
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice").field("memory", &self.properties.total_memory).finish_non_exhaustive()
    }
}

/// A stream whose work does not complete, from [`SimDevice::hold`] to [`SimDevice::release`].
///
/// ```
/// use millpond::device::sim::{SimDevice, SimOptions};
/// use millpond::Context;
///
/// let sim = SimDevice::new(SimOptions::default())?;
/// let stream = Context::new(sim.clone()).create_stream()?;
/// let hold = sim.hold(stream.handle())?;
/// assert!(!stream.is_idle()?);
/// sim.release(hold);
/// assert!(stream.is_idle()?);
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the stream's work is pending until the hold is given to `SimDevice::release`"]
pub struct Hold(u64);

/// Virtual time that the host spent in the device's calls, in nanoseconds. The [module](self) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimTime {
    /// What the calls themselves cost.
    pub by_call: PerCall<u64>,
    /// What calls waited for work, besides.
    pub waited: u64,
}

impl SimTime {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.by_call.total() + self.waited)
    }
}

impl SimDevice {
    /// A device as the options say, at time 0.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] where the granularity is not a power of two of at least 512.
    pub fn new(options: SimOptions) -> DeviceResult<Arc<Self>> {
        Ok(Self::group(1, options)?.remove(0))
    }

    /// Several devices that work together, as the GPUs of one machine, each as the options say: at least one, and
    /// [`PeerId::MOST`] at most. They have one clock, one account of calls and time, and one plan of failures.
    ///
    /// ```
    /// use millpond::device::sim::{SimDevice, SimOptions};
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let gpus = SimDevice::group(2, SimOptions::default())?;
    /// let [first, second] = [0, 1].map(|number| Context::new(gpus[number].clone()));
    /// let (source, target) = (Pool::builder(&first).build()?, Pool::builder(&second).build()?);
    /// let from = Buffer::<u8>::zeroed(&source, 1 << 20, &first.create_stream()?)?;
    /// let mut to = Buffer::<u8>::new(&target, 1 << 20, &second.create_stream()?)?;
    /// to.copy_from(&from)?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn group(devices: usize, options: SimOptions) -> DeviceResult<Vec<Arc<Self>>> {
        let granularity = options.granularity;
        if !granularity.is_power_of_two() || granularity < super::inventory::SEGMENT_ALIGNMENT {
            let what = format!("the granularity is {granularity} bytes: use a power of two, at least 512");
            return invalid("SimDevice::new", what);
        }
        let ids: Vec<_> = PeerId::new_group(devices.max(1)).collect();
        let properties = Properties {
            kind: Kind::Sim,
            ordinal: 0,
            name: "simulated".to_owned(),
            total_memory: options.capacity,
            granularity,
            virtual_memory: options.virtual_memory,
            memory_pools: options.memory_pools,
            memory: MemoryKind::Device,
            host_access: false,
            pageable_access: options.pageable_access,
        };
        let shared = Arc::new(Shared {
            identity: exports::new_identity(),
            advanced: AtomicU64::new(0),
            process: Process::here(),
            virtual_memory: options.virtual_memory,
            pinned_capacity: options.pinned_capacity,
            managed_capacity: options.managed_capacity,
            peer_access: options.peer_access,
            state: OfProcess::new(Mutex::new(State::new(options, &ids))),
        });
        let device = |id: PeerId| {
            let properties = Properties { ordinal: id.number() as usize, ..properties.clone() };
            Arc::new(Self { properties, id, shared: shared.clone() })
        };
        Ok(ids.into_iter().map(device).collect())
    }

    // ---- time ------------------------------------------------------------------------------------

    /// The virtual clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.state().now)
    }

    /// Moves the clock to `time`, if it is not there or beyond already.
    #[inline]
    pub fn advance_to(&self, time: Duration) {
        self.advance_to_nanoseconds(nanoseconds(time));
    }

    /// As [`advance_to`](Self::advance_to), for a time in nanoseconds: it saves the division that a [`Duration`] takes.
    #[inline]
    pub fn advance_to_nanoseconds(&self, time: u64) {
        // Relaxed: whoever was told of it sees it, since that ordered the two threads.
        self.shared.advanced.fetch_max(time, Ordering::Relaxed);
    }

    /// The state, by the present time, for a call of this device.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.shared.state.lock();
        state.current = self.id.number() as usize;
        state.now = state.now.max(self.shared.advanced.load(Ordering::Relaxed));
        state
    }

    /// Puts work of this length on a stream. It starts when the stream is done with what it has.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for an unknown stream.
    pub fn launch(&self, stream: StreamHandle, duration: Duration) -> DeviceResult<()> {
        self.state().launch("launch", stream, nanoseconds(duration))
    }

    /// Puts work on a stream that uses a range. What of it is [managed memory](super::Device::managed), and not on the
    /// device, moves there first, which takes the stream's time.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for an unknown stream, and for memory that the device cannot use.
    pub fn touch(&self, at: DevicePtr, bytes: u64, stream: StreamHandle) -> DeviceResult<()> {
        if bytes == 0 { Ok(()) } else { self.state().touch("touch", at, bytes, stream) }
    }

    /// Puts work on a stream that does not complete before the hold is [released](Self::release). Until then,
    /// calls that would wait for it fail with [`DeviceError::Invalid`].
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for an unknown stream, and where there are 64 holds already.
    pub fn hold(&self, stream: StreamHandle) -> DeviceResult<Hold> {
        self.state().hold(stream).map(Hold)
    }

    /// Completes the work that a hold stands for, now. The stream may have been destroyed since.
    pub fn release(&self, hold: Hold) {
        self.state().release_hold(hold.0);
    }

    // ---- accounts --------------------------------------------------------------------------------

    /// How often each call was made so far, failed ones too.
    #[must_use]
    pub fn calls(&self) -> PerCall<u64> {
        self.shared.state.lock().calls
    }

    /// What the calls cost so far.
    #[must_use]
    pub fn time_spent(&self) -> SimTime {
        self.shared.state.lock().spent
    }

    /// What [managed memory](super::Device::managed) cost so far: page faults, moves, and their time.
    ///
    /// ```
    /// use millpond::Context;
    /// use millpond::device::sim::{SimDevice, SimOptions};
    ///
    /// // A device of 64 MiB, and a job that uses 96 MiB, twice.
    /// let sim = SimDevice::new(SimOptions::default().capacity(64 << 20))?;
    /// let context = Context::new(sim.clone());
    /// let pool = context.managed()?.build()?;
    /// let stream = context.create_stream()?;
    /// let block = pool.alloc(96 << 20, &stream)?;
    /// sim.touch(block, 96 << 20, stream.handle())?;
    /// sim.touch(block, 96 << 20, stream.handle())?;
    /// let stats = sim.managed_stats();
    /// assert_eq!((stats.faults, stats.bytes_to_device), (96, 96 << 20));
    /// println!("the streams waited {:?} for pages", stats.time);
    /// # unsafe { pool.free(block, &stream) }?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    #[must_use]
    pub fn managed_stats(&self) -> ManagedStats {
        self.shared.state.lock().managed.stats()
    }

    // ---- failures --------------------------------------------------------------------------------

    /// Makes the `nth` next call of a kind fail with `error` (1: the very next). Such a call changes nothing.
    /// Several may be planned.
    pub fn fail_next(&self, call: Call, nth: u64, error: DeviceError) {
        self.shared.state.lock().faults.plan(call, nth, error);
    }

    /// Makes each later call of a kind fail with this chance (0 to 1): with [`DeviceError::OutOfMemory`] where
    /// it takes memory, else with [`DeviceError::Driver`].
    pub fn fail_randomly(&self, call: Call, chance: f64) {
        self.shared.state.lock().faults.set_chance(call, chance);
    }

    /// Seeds the failures of [`fail_randomly`](Self::fail_randomly). The seed is 0 at first.
    pub fn seed_failures(&self, seed: u64) {
        self.shared.state.lock().faults.seed(seed);
    }

    /// Forgets all failures that were asked for, and the seed.
    pub fn fail_no_more(&self) {
        self.shared.state.lock().faults = faults::Faults::new();
    }
}

#[inline]
fn nanoseconds(duration: Duration) -> u64 {
    // As `as_nanos` has it, without numbers of 128 bits.
    let whole = duration.as_secs().saturating_mul(1_000_000_000);
    whole.saturating_add(u64::from(duration.subsec_nanos()))
}
