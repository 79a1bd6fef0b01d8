//! The pool of each GPU that PyTorch, CuPy and the others of this process share, made when it is first asked for.
//!
//! A pool is never dropped: tensors of it may be freed until the process ends.

use std::sync::OnceLock;

use millpond::{Budget, Context};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::{Failure, Result};
use crate::options::Options;
use crate::pool::Pool;
use crate::streams::Streams;

/// GPUs that a process can have: more than a machine has.
pub(crate) const MOST_DEVICES: usize = 64;

/// What this process has on one GPU.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) pool: millpond::Pool,
    pub(crate) context: Context,
    /// Without a limit until `set_per_process_memory_fraction` sets one.
    pub(crate) budget: Budget,
    pub(crate) streams: Streams,
}

static DEVICES: [OnceLock<Device>; MOST_DEVICES] = [const { OnceLock::new() }; MOST_DEVICES];

/// The options of pools that are not made yet. Held while a pool is made.
static OPTIONS: Mutex<Option<Options>> = Mutex::new(None);

/// The device with this number, with its pool.
#[inline]
pub(crate) fn device(number: i64) -> Result<&'static Device> {
    let at = usize::try_from(number).ok().and_then(|ordinal| DEVICES.get(ordinal));
    match at.and_then(OnceLock::get) {
        Some(device) => Ok(device),
        None => make_slow(number),
    }
}

/// The devices that have a pool.
pub(crate) fn present() -> impl Iterator<Item = (usize, &'static Device)> {
    DEVICES.iter().enumerate().filter_map(|(ordinal, device)| Some((ordinal, device.get()?)))
}

#[cold]
fn make_slow(number: i64) -> Result<&'static Device> {
    let ordinal = usize::try_from(number).ok().filter(|ordinal| *ordinal < MOST_DEVICES);
    let ordinal = ordinal.ok_or(Failure::NoSuchDevice(number))?;
    let options = OPTIONS.lock();
    if let Some(device) = DEVICES[ordinal].get() {
        return Ok(device);
    }
    let context = Context::cuda(ordinal)?;
    let budget = Budget::bytes(u64::MAX);
    let default = Options::default();
    let builder = options.as_ref().unwrap_or(&default).builder(&context, &format!("cuda:{ordinal}"));
    let pool = builder.budget(&budget).build()?;
    let streams = Streams::new(&context)?;
    Ok(DEVICES[ordinal].get_or_init(|| Device { pool, context, budget, streams }))
}

/// Sets the options of the pools. Only before the first of them is made.
#[pyfunction]
#[pyo3(signature = (**options))]
fn configure(options: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    let options = Options::from_keywords(options)?;
    let mut present_options = OPTIONS.lock();
    if let Some((ordinal, _)) = present().next() {
        return Err(Failure::InUse(ordinal).into());
    }
    *present_options = Some(options);
    Ok(())
}

/// The shared pool of a GPU.
#[pyfunction]
fn device_pool(py: Python<'_>, ordinal: i64) -> PyResult<Pool> {
    let Device { pool, context, .. } = py.detach(|| device(ordinal))?;
    Ok(Pool { context: context.clone(), pool: pool.clone() })
}

/// The GPUs that have a shared pool now.
#[pyfunction]
fn devices_in_use() -> Vec<usize> {
    present().map(|(ordinal, _)| ordinal).collect()
}

/// Lets a pool of another device stand for a GPU's, for tests without one.
#[pyfunction]
fn stand_in(ordinal: usize, pool: &Bound<'_, Pool>) -> PyResult<()> {
    let Pool { pool, context } = pool.get();
    let streams = Streams::new(context)?;
    let slot = DEVICES.get(ordinal).ok_or(Failure::NoSuchDevice(ordinal as i64))?;
    let _making = OPTIONS.lock();
    let device =
        Device { pool: pool.clone(), context: context.clone(), budget: Budget::bytes(u64::MAX), streams };
    slot.set(device).map_err(|_| Failure::InUse(ordinal))?;
    Ok(())
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(configure, module)?)?;
    module.add_function(wrap_pyfunction!(device_pool, module)?)?;
    module.add_function(wrap_pyfunction!(devices_in_use, module)?)?;
    module.add_function(wrap_pyfunction!(stand_in, module)?)
}
