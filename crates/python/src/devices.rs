//! The pool of each GPU that PyTorch, CuPy and the others of this process share, made when it is first asked for.
//!
//! A pool is never dropped: tensors of it may be freed until the process ends.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use millpond::bindings::{Mutex, PerProcess, on_fork};
use millpond::device::DeviceName;
use millpond::{Budget, Context, PoolBuilder, ReusePolicies, Stream};
use millpond_replay::offload::PAGE_SIZES;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::{Failure, MOST_DEVICES, Result};
use crate::memory::Memory;
use crate::options::Options;
use crate::pool::Pool;
use crate::streams::Streams;

/// What this process has on one GPU.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) pool: millpond::Pool,
    pub(crate) context: Context,
    /// Pinned memory near the GPU, once it is asked for.
    pinned: OnceLock<Pinned>,
    /// The one of the options; else one without a limit, until `set_per_process_memory_fraction` sets it.
    budget: Budget,
    pub(crate) streams: Streams,
}

/// A pool of pinned memory that libraries share.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) pool: millpond::Pool,
    /// For memory that the CPU uses first. It is given no work.
    pub(crate) stream: Stream,
}

impl Device {
    /// The most that the pool may hold.
    pub(crate) fn limit(&self) -> u64 {
        self.budget.most()
    }

    /// Limits what the pool may hold. Under a budget that processes share, it is the claim of this one.
    pub(crate) fn set_limit(&self, bytes: u64) -> Result<()> {
        match self.budget.path() {
            Some(_) => self.budget.set_claim(bytes)?,
            None => self.budget.set_limit(bytes),
        }
        Ok(())
    }

    /// Limits what the pool may hold to a share of the GPU's memory.
    pub(crate) fn set_fraction(&self, fraction: f64) -> Result<()> {
        self.set_limit((self.total() as f64 * fraction) as u64)
    }

    /// Bytes of the GPU's memory.
    pub(crate) fn total(&self) -> u64 {
        self.pool.device().properties().total_memory
    }

    /// The pool of pinned memory. It makes no stream wait for memory, since the CPU would not wait with it.
    pub(crate) fn pinned(&self) -> Result<&Pinned> {
        if let Some(pinned) = self.pinned.get() {
            return Ok(pinned);
        }
        let builder = for_all_gpus(self.context.pinned()?.name(format!("{} pinned", self.pool.name())));
        let pool =
            builder.reuse(ReusePolicies { internal_dependencies: false, ..ReusePolicies::ALL }).build()?;
        let stream = self.context.create_stream()?;
        // Of two threads that come here at once, the second one's goes, empty.
        Ok(self.pinned.get_or_init(|| Pinned { pool, stream }))
    }

    /// The pool of pinned memory, if somebody asked for it.
    pub(crate) fn pinned_if_made(&self) -> Option<&Pinned> {
        self.pinned.get()
    }
}

/// Leaked; null where there is none yet.
static DEVICES: [AtomicPtr<Device>; MOST_DEVICES] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST_DEVICES];

/// By device, whether the parent of this process had a pool there.
static FORKED: [AtomicBool; MOST_DEVICES] = [const { AtomicBool::new(false) }; MOST_DEVICES];

/// The options of pools that are not made yet. Held while a pool is made.
static OPTIONS: PerProcess<Mutex<Option<Options>>> = PerProcess::new(Default::default);

/// The share of its GPU's memory that a new pool may hold, as bits. A forked child has its parent's.
static FRACTION: AtomicU64 = AtomicU64::new(1.0_f64.to_bits());

/// Sets the share of its GPU's memory that each pool may hold that is made from now on.
pub(crate) fn set_fraction_of_new(fraction: f64) {
    // Relaxed: a setting, read when a pool is made.
    FRACTION.store(fraction.to_bits(), Ordering::Relaxed);
}

pub(crate) fn fraction_of_new() -> f64 {
    f64::from_bits(FRACTION.load(Ordering::Relaxed))
}

/// In a forked child: the pools are its parent's, and the fast way to them ends here.
fn forget() {
    for (device, forked) in DEVICES.iter().zip(&FORKED) {
        // Relaxed, all: there is one thread.
        let had = !device.swap(ptr::null_mut(), Ordering::Relaxed).is_null();
        forked.store(had || forked.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The libraries do not say which GPUs they need, and expect what `cudaMalloc` and peer access give.
fn for_all_gpus(builder: PoolBuilder) -> PoolBuilder {
    let is_off = std::env::var_os("MILLPOND_PEER_ACCESS").is_some_and(|value| value == "0");
    if is_off { builder } else { builder.accessible_from_all() }
}

/// `MILLPOND_OFFLOAD` says that optimizers are offloaded.
fn for_offload(builder: PoolBuilder) -> PoolBuilder {
    let is_on = std::env::var_os("MILLPOND_OFFLOAD").is_some_and(|value| !value.is_empty());
    let (smallest, largest) = PAGE_SIZES;
    if is_on { builder.page_sizes(smallest, largest) } else { builder }
}

/// Publishes a device. The caller holds the lock of `OPTIONS`.
fn publish(ordinal: usize, device: Device) -> Result<&'static Device> {
    if fraction_of_new() < 1.0 {
        device.set_fraction(fraction_of_new())?;
    }
    on_fork(forget);
    let device = Box::leak(Box::new(device));
    // Release: whoever sees the device sees what is in it.
    DEVICES[ordinal].store(device, Ordering::Release);
    Ok(device)
}

#[inline]
fn known(device: &AtomicPtr<Device>) -> Option<&'static Device> {
    // Acquire: pairs with the Release of `publish`.
    // SAFETY: null, or leaked there.
    unsafe { device.load(Ordering::Acquire).as_ref() }
}

/// The device with this number, with its pool.
#[inline]
pub(crate) fn device(number: i64) -> Result<&'static Device> {
    let at = usize::try_from(number).ok().and_then(|ordinal| DEVICES.get(ordinal));
    match at.and_then(known) {
        Some(device) => Ok(device),
        None => make_slow(number),
    }
}

/// Whether this process was forked from one that had a pool.
pub(crate) fn is_forked() -> bool {
    // Relaxed: written in a child before its only thread goes on.
    FORKED.iter().any(|forked| forked.load(Ordering::Relaxed))
}

/// The devices that have a pool.
pub(crate) fn present() -> impl Iterator<Item = (usize, &'static Device)> {
    DEVICES.iter().enumerate().filter_map(|(ordinal, device)| Some((ordinal, known(device)?)))
}

#[cold]
fn make_slow(number: i64) -> Result<&'static Device> {
    let ordinal = usize::try_from(number).ok().filter(|ordinal| *ordinal < MOST_DEVICES);
    let ordinal = ordinal.ok_or(Failure::NoSuchDevice(number))?;
    // Relaxed: written in a child before its only thread goes on.
    if FORKED[ordinal].load(Ordering::Relaxed) {
        return Err(millpond::Error::Forked.into());
    }
    let options = OPTIONS.get().lock();
    if let Some(device) = known(&DEVICES[ordinal]) {
        return Ok(device);
    }
    let context = Context::cuda(ordinal)?;
    let given = options.as_ref().and_then(|options| options.budget.clone());
    let budget = given.unwrap_or_else(|| Budget::bytes(u64::MAX));
    let builder = millpond::Pool::builder(&context).name(DeviceName::cuda(ordinal).to_string());
    let builder = for_offload(for_all_gpus(builder));
    let builder = match &*options {
        Some(options) => options.set_all(builder),
        None => builder,
    };
    let pool = builder.budget(&budget).build()?;
    let streams = Streams::new(&context)?;
    publish(ordinal, Device { pool, context, pinned: OnceLock::new(), budget, streams })
}

/// Sets the options of the GPUs' shared pools, by the names of ``Pool``'s. Before the first of them is made.
#[pyfunction]
#[pyo3(signature = (**options))]
fn configure(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    let options = Options::from_keywords(options)?;
    // Another thread may be making a pool.
    Ok(py.detach(move || {
        let mut present_options = OPTIONS.get().lock();
        if let Some((ordinal, _)) = present().next() {
            return Err(Failure::InUse(ordinal));
        }
        *present_options = Some(options);
        Ok(())
    })?)
}

/// The shared pool of a GPU's own memory, or of pinned memory near it.
#[pyfunction]
#[pyo3(signature = (ordinal, memory=None))]
fn device_pool(py: Python<'_>, ordinal: i64, memory: Option<&Bound<'_, PyAny>>) -> PyResult<Pool> {
    let memory = Memory::read(memory, None)?;
    if memory == Memory::Managed {
        return Err(PyValueError::new_err(
            "memory: libraries share pools of 'device' and 'pinned' memory: make a Pool of your own for 'managed'",
        ));
    }
    let shared = py.detach(|| -> Result<Pool> {
        let device = device(ordinal)?;
        let pool = match memory {
            Memory::Pinned(_) => &device.pinned()?.pool,
            _ => &device.pool,
        };
        Ok(Pool::over(pool.clone(), device.context.clone()))
    });
    Ok(shared?)
}

/// The GPUs that have a shared pool now.
#[pyfunction]
fn devices_in_use() -> Vec<usize> {
    present().map(|(ordinal, _)| ordinal).collect()
}

/// The most that the shared pool of a GPU may hold, in bytes; ``None`` without a limit.
#[pyfunction]
fn device_limit(py: Python<'_>, ordinal: i64) -> PyResult<Option<u64>> {
    let limit = py.detach(|| device(ordinal).map(Device::limit))?;
    Ok((limit < u64::MAX).then_some(limit))
}

/// Limits what the shared pool of a GPU may hold; ``None`` takes the limit back. Under a budget that processes share, it is
/// the claim of this one.
#[pyfunction]
#[pyo3(signature = (ordinal, bytes))]
fn set_device_limit(py: Python<'_>, ordinal: i64, bytes: Option<u64>) -> PyResult<()> {
    Ok(py.detach(|| device(ordinal)?.set_limit(bytes.unwrap_or(u64::MAX)))?)
}

/// Lets a pool of another device stand for a GPU's, for tests without one. It has the budget that it was made with, if any.
#[pyfunction]
#[pyo3(signature = (ordinal, pool, budget=None))]
fn stand_in(
    py: Python<'_>,
    ordinal: usize,
    pool: &Bound<'_, Pool>,
    budget: Option<&Bound<'_, crate::budget::Budget>>,
) -> PyResult<()> {
    let budget = budget.map_or_else(|| Budget::bytes(u64::MAX), |budget| Budget::clone(&budget.get().inner));
    let pool = pool.get();
    Ok(py.detach(|| {
        let slot = DEVICES.get(ordinal).ok_or(Failure::NoSuchDevice(ordinal as i64))?;
        let (pool, context) = (millpond::Pool::clone(&pool.pool), Context::clone(&pool.context));
        let streams = Streams::new(&context)?;
        let _making = OPTIONS.get().lock();
        if known(slot).is_some() {
            return Err(Failure::InUse(ordinal));
        }
        publish(ordinal, Device { pool, context, pinned: OnceLock::new(), budget, streams })?;
        Ok(())
    })?)
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(configure, module)?)?;
    module.add_function(wrap_pyfunction!(device_pool, module)?)?;
    module.add_function(wrap_pyfunction!(devices_in_use, module)?)?;
    module.add_function(wrap_pyfunction!(device_limit, module)?)?;
    module.add_function(wrap_pyfunction!(set_device_limit, module)?)?;
    module.add_function(wrap_pyfunction!(stand_in, module)?)
}
