//! PyTorch's memory pools for CUDA graphs: what is allocated while a graph is captured, or in a pool of the program's.
//!
//! PyTorch names such a pool by two numbers. It begins with a filter of streams, ends, and some time later is released,
//! once for each beginning; several graphs may share one. Each is a `CapturePool` of the device's pool here.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

use millpond::bindings::{self, Mutex, PerProcess, RwLock};
use millpond::{CapturePool, Capturing};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use crate::devices::device;
use crate::failure::{Failure, Result};

/// `c10::MempoolId_t`, a pair of numbers.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PoolId(u64, u64);

/// Says of a stream whether allocations for it belong to a pool.
pub(super) type Takes = dyn Fn(u64) -> bool + Send + Sync;

/// The filter of a capture, gone once the capture has ended: what it refers to may be gone then.
type Filter = RwLock<Option<Box<Takes>>>;

/// One of PyTorch's pools.
struct TorchPool {
    memory: CapturePool,
    /// Beginnings, and other claims, that were not released yet.
    uses: usize,
    /// Whether others may have its free memory before they get an out-of-memory error.
    use_on_oom: bool,
    capturing: Option<Open>,
}

/// A beginning that has not ended.
struct Open {
    capturing: Capturing,
    filter: Arc<Filter>,
    by: ThreadId,
}

static KEPT: PerProcess<Mutex<FxHashMap<(c_int, PoolId), TorchPool>>> = PerProcess::new(Default::default);

/// Pools of this process, ever. While there is none, nothing has to be asked of the table.
static MADE: AtomicUsize = AtomicUsize::new(0);

fn kept_in(
    kept: &mut FxHashMap<(c_int, PoolId), TorchPool>,
    number: c_int,
    id: PoolId,
) -> Result<&mut TorchPool> {
    let device = device(number.into())?;
    // Relaxed: who asks for a block of a pool knows that the pool was made.
    MADE.fetch_add(1, Ordering::Relaxed);
    Ok(kept.entry((number, id)).or_insert_with(|| TorchPool {
        memory: device.pool.capture_pool(),
        uses: 0,
        use_on_oom: false,
        capturing: None,
    }))
}

/// Makes the pool, or claims it once more.
pub(super) fn claim(number: c_int, id: PoolId) -> Result<()> {
    kept_in(&mut KEPT.get().lock(), number, id)?.uses += 1;
    Ok(())
}

/// Allocations for streams that the filter takes come from the pool from now on. Claims it, too.
pub(super) fn begin(number: c_int, id: PoolId, takes: Option<Box<Takes>>) -> Result<()> {
    let filter: Arc<Filter> = Arc::new(RwLock::new(takes));
    let mut kept = KEPT.get().lock();
    let kept = kept_in(&mut kept, number, id)?;
    let asked = filter.clone();
    let capturing = kept.memory.begin_where(move |stream| {
        // `end` takes the filter away before PyTorch lets go of what it refers to.
        asked.read().as_ref().is_some_and(|takes| takes(stream.handle().raw()))
    })?;
    kept.capturing = Some(Open { capturing, filter, by: std::thread::current().id() });
    kept.uses += 1;
    Ok(())
}

/// Allocations come from the device's own memory again. `false` where they did already.
pub(super) fn end(number: c_int, id: PoolId) -> bool {
    let ended = KEPT.get().lock().get_mut(&(number, id)).and_then(|kept| kept.capturing.take());
    let Some(Open { capturing, filter, .. }) = ended else { return false };
    // Waits for those who ask it at this moment.
    let takes = filter.write().take();
    drop((takes, capturing));
    true
}

/// The pools that this thread began, and that have not ended: the GPU's number, and PyTorch's name of the pool.
#[pyfunction]
pub(super) fn torch_open_captures() -> Vec<(c_int, u64, u64)> {
    let (kept, here) = (KEPT.get().lock(), std::thread::current().id());
    let open = kept.iter().filter(|(_, kept)| kept.capturing.as_ref().is_some_and(|open| open.by == here));
    open.map(|((number, PoolId(first, second)), _)| (*number, *first, *second)).collect()
}

/// A capture failed, and no graph came of it: PyTorch neither ends nor releases its pool then. Does nothing where it has ended.
#[pyfunction]
pub(super) fn torch_abandon_capture(py: Python<'_>, number: c_int, first: u64, second: u64) -> PyResult<()> {
    let id = PoolId(first, second);
    // Waits for the device.
    let released = py.detach(|| if end(number, id) { release(number, id) } else { Ok(()) });
    released.map_err(|failure| PyRuntimeError::new_err(failure.to_string()))
}

/// The graph is gone, or the program's use of the pool over. With the last of them the memory goes back.
pub(super) fn release(number: c_int, id: PoolId) -> Result<()> {
    let gone = {
        let mut kept = KEPT.get().lock();
        let Some(pool) = kept.get_mut(&(number, id)) else { return Err(unknown("released", id)) };
        // 0 already where a beginning failed.
        pool.uses = pool.uses.saturating_sub(1);
        if pool.uses > 0 {
            return Ok(());
        }
        kept.remove(&(number, id))
    };
    // Waits for the device; without the lock held.
    drop(gone);
    Ok(())
}

/// How often the pool is claimed.
pub(super) fn uses(number: c_int, id: PoolId) -> Result<usize> {
    let kept = KEPT.get().lock();
    kept.get(&(number, id)).map(|kept| kept.uses).ok_or_else(|| unknown("asked for", id))
}

/// Others may have the pool's free memory, before they get an out-of-memory error.
pub(super) fn set_use_on_oom(number: c_int, id: PoolId, use_on_oom: bool) -> Result<()> {
    let mut kept = KEPT.get().lock();
    let kept = kept.get_mut(&(number, id)).ok_or_else(|| unknown("asked for", id))?;
    kept.use_on_oom = use_on_oom;
    Ok(())
}

/// The memory of a pool.
pub(super) fn memory(number: c_int, id: PoolId) -> Result<CapturePool> {
    let kept = KEPT.get().lock();
    kept.get(&(number, id)).map(|kept| kept.memory.clone()).ok_or_else(|| unknown("asked for", id))
}

/// The pools of a device whose free memory others may have.
pub(super) fn for_others(number: c_int) -> Vec<CapturePool> {
    let kept = KEPT.get().lock();
    let of_device = kept.iter().filter(|((of, _), kept)| *of == number && kept.use_on_oom);
    of_device.map(|(_, kept)| kept.memory.clone()).collect()
}

/// Whether there was any pool yet.
pub(super) fn are_there_any() -> bool {
    // Relaxed: as in `kept_in`.
    MADE.load(Ordering::Relaxed) > 0
}

/// Whether a pool's allocations are being told from others now, as they are while a graph is captured.
pub(super) fn is_any_open() -> bool {
    are_there_any() && KEPT.get().lock().values().any(|kept| kept.capturing.is_some())
}

/// The pool with this memory.
pub(super) fn with_memory(number: c_int, memory: u64) -> Option<PoolId> {
    let kept = KEPT.get().lock();
    let mut of_device = kept.iter().filter(|((of, _), _)| *of == number);
    of_device.find(|(_, kept)| bindings::memory_number(&kept.memory) == memory).map(|((_, id), _)| *id)
}

fn unknown(what: &str, PoolId(first, second): PoolId) -> Failure {
    Failure::Broken(format!(
        "PyTorch {what} its memory pool ({first}, {second}), of which millpond knows nothing; please report it"
    ))
}
