//! Functions of Python that a pool calls: asked when memory is short, told when it ran out.
//!
//! The pool calls them on the thread that allocates, which has let go of the GIL for that, or never had it.

use millpond::bindings::Mutex;
use millpond::{ObserverId, OutOfMemory, ReclaimId};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::budget::Tenant;
use crate::failure::limit_of;
use crate::gil::Detached;
use crate::memory;

/// A function that a pool calls: made by ``Pool.on_reclaim`` and ``Pool.on_out_of_memory``.
///
/// The pool calls it until it is removed. ``with pool.on_reclaim(function):`` removes it at the end.
#[pyclass(frozen, module = "millpond", weakref)]
pub(crate) struct Callback {
    pool: Detached<millpond::Pool>,
    /// `None` once it is removed.
    id: Mutex<Option<Id>>,
}

#[derive(Debug, Clone, Copy)]
enum Id {
    Reclaim(ReclaimId),
    Observer(ObserverId),
}

#[pymethods]
impl Callback {
    /// Lets the pool call it no more. Returns whether it was not removed before.
    ///
    /// It does not wait for calls that other threads are in.
    fn remove(&self, py: Python<'_>) -> bool {
        py.detach(|| {
            let id = self.id.lock().take();
            id.is_some_and(|id| match id {
                Id::Reclaim(id) => self.pool.remove_reclaim(id),
                Id::Observer(id) => self.pool.remove_out_of_memory(id),
            })
        })
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.remove(py);
    }
}

/// Has the pool call a function of Python's.
fn registered(
    py: Python<'_>,
    pool: &millpond::Pool,
    function: &Bound<'_, PyAny>,
    register: impl FnOnce(Py<PyAny>) -> Id + Send,
) -> PyResult<Callback> {
    if !function.is_callable() {
        let found = function.get_type();
        let what = format!("function: something to call is expected, not {}", found.name()?);
        return Err(PyTypeError::new_err(what));
    }
    let function = function.clone().unbind();
    let id = py.detach(|| register(function));
    Ok(Callback { pool: pool.clone().into(), id: Mutex::new(Some(id)) })
}

/// Calls, and prints an exception instead of passing it on. `None` for one, and while Python ends.
fn call<R>(function: &Py<PyAny>, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>) -> Option<R> {
    Python::try_attach(|py| {
        let function = function.bind(py);
        call(function).map_err(|error| error.write_unraisable(py, Some(function))).ok()
    })
    .flatten()
}

pub(crate) fn on_reclaim(
    py: Python<'_>,
    pool: &millpond::Pool,
    function: &Bound<'_, PyAny>,
) -> PyResult<Callback> {
    registered(py, pool, function, |function| {
        let reclaim =
            move |bytes| call(&function, |function| function.call1((bytes,))?.is_truthy()).unwrap_or(false);
        Id::Reclaim(pool.on_reclaim(reclaim))
    })
}

pub(crate) fn on_out_of_memory(
    py: Python<'_>,
    pool: &millpond::Pool,
    function: &Bound<'_, PyAny>,
) -> PyResult<Callback> {
    registered(py, pool, function, |function| {
        let tell = move |report: &OutOfMemory| {
            call(&function, |function| function.call1((Report::from(report),)).map(|_| ()));
        };
        Id::Observer(pool.on_out_of_memory(tell))
    })
}

/// Where the memory is when it ran out. Sizes in bytes; ``str()`` is the text of the error.
#[pyclass(frozen, get_all, module = "millpond", name = "OutOfMemory")]
#[derive(Debug)]
pub(crate) struct Report {
    /// The pool's name.
    pool: String,
    /// What memory the pool is of: ``"device"``, ``"pinned"`` or ``"managed"``. *The device*, below, is what has that memory.
    memory: &'static str,
    /// Bytes asked for.
    requested: u64,
    /// What stood in the way: ``"device"``, ``"hard_limit"``, ``"budget"`` or ``"headroom"``.
    limit: &'static str,
    /// Bytes of that limit; ``None`` for the device.
    limit_bytes: Option<u64>,
    /// Bytes in live blocks of the pool.
    live: u64,
    /// Live blocks of the pool.
    blocks: u64,
    /// Bytes that the pool holds but that are in no live block.
    cached: u64,
    /// Physical bytes that the pool holds.
    reserved: u64,
    /// Bytes that other pools of the device hold.
    other_pools: u64,
    /// Bytes free on the device, as its driver counts.
    device_free: u64,
    /// Bytes that the device has.
    device_total: u64,
    /// Bytes of the longest free range.
    largest_free: u64,
    /// The other processes under the pool's named budget.
    tenants: Vec<Tenant>,
    /// What would have let the request succeed.
    advice: String,
    /// The text of the error.
    message: String,
}

impl From<&OutOfMemory> for Report {
    fn from(report: &OutOfMemory) -> Self {
        let (limit, limit_bytes) = limit_of(report);
        Self {
            pool: report.pool.clone(),
            memory: memory::word(report.memory),
            requested: report.requested,
            limit,
            limit_bytes,
            live: report.live,
            blocks: report.blocks,
            cached: report.cached,
            reserved: report.reserved,
            other_pools: report.other_pools,
            device_free: report.device_free,
            device_total: report.device_total,
            largest_free: report.largest_free,
            tenants: report.tenants.iter().cloned().map(Tenant::from).collect(),
            advice: report.advice(),
            message: report.to_string(),
        }
    }
}

#[pymethods]
impl Report {
    fn __str__(&self) -> &str {
        &self.message
    }

    fn __repr__(&self) -> String {
        format!("<millpond.OutOfMemory of pool '{}': {}>", self.pool, self.message)
    }
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Callback>()?;
    module.add_class::<Report>()
}
