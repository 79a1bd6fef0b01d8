//! PyTorch's memory pools for CUDA graphs: what is allocated while a graph is captured, or in a pool of the program's.
//!
//! PyTorch names such a pool by two numbers. It begins with a filter of streams, ends, and some time later is released,
//! once for each beginning; several graphs may share one. Each is a `CapturePool` of the device's pool here.

use std::ffi::c_int;
use std::sync::Arc;

use millpond::bindings::{Mutex, PerProcess, RwLock};
use millpond::{CapturePool, Capturing};
use rustc_hash::FxHashMap;

use super::std_function::{Layout, StreamFilter};
use super::torch::{caught, fail, report};
use crate::devices::device;
use crate::failure::{Failure, Result};

/// `c10::MempoolId_t`, a pair of numbers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PoolId(u64, u64);

/// One of PyTorch's pools.
struct Kept {
    memory: CapturePool,
    /// Beginnings that were not released yet.
    uses: usize,
    capturing: Option<(Capturing, Arc<Filter>)>,
}

/// The filter of a capture, gone once the capture has ended: what it refers to may be gone then.
type Filter = RwLock<Option<StreamFilter>>;

static KEPT: PerProcess<Mutex<FxHashMap<(c_int, PoolId), Kept>>> = PerProcess::new();

/// Allocations for streams that the filter takes come from the pool from now on.
///
/// # Safety
/// `filter` points to a `std::function<bool(cudaStream_t)>`, and what that refers to lives until [`end`].
pub(super) unsafe extern "C-unwind" fn begin(number: c_int, id: PoolId, filter: *const Layout) {
    let begun = caught(|| {
        // SAFETY: as PyTorch promises.
        let filter = unsafe { StreamFilter::copy_of(filter) };
        begin_with(number, id, Arc::new(RwLock::new(filter)))
    });
    if let Err(failure) = begun {
        fail(failure);
    }
}

fn begin_with(number: c_int, id: PoolId, filter: Arc<Filter>) -> Result<()> {
    let device = device(number.into())?;
    let mut kept = KEPT.get().lock();
    let kept = kept.entry((number, id)).or_insert_with(|| Kept {
        memory: device.pool.capture_pool(),
        uses: 0,
        capturing: None,
    });
    let asked = filter.clone();
    let capturing = kept.memory.begin_where(move |stream| {
        let filter = asked.read();
        // SAFETY: `end` takes the filter away before PyTorch lets go of what it refers to.
        filter.as_ref().is_some_and(|filter| unsafe { filter.takes(stream.handle().raw()) })
    })?;
    kept.capturing = Some((capturing, filter));
    kept.uses += 1;
    Ok(())
}

/// Allocations come from the pool's own memory again.
pub(super) extern "C-unwind" fn end(number: c_int, id: PoolId) {
    let ended = KEPT.get().lock().get_mut(&(number, id)).and_then(|kept| kept.capturing.take());
    if let Some((capturing, filter)) = ended {
        // Waits for those who ask it at this moment.
        drop(filter.write().take());
        drop(capturing);
    }
}

/// The graph is gone, or the program's use of the pool over. With the last of them the memory goes back.
pub(super) extern "C-unwind" fn release(number: c_int, id: PoolId) {
    report(caught(|| {
        let gone = {
            let mut kept = KEPT.get().lock();
            let Some(pool) = kept.get_mut(&(number, id)) else { return Err(unknown(id)) };
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
    }));
}

fn unknown(PoolId(first, second): PoolId) -> Failure {
    Failure::Broken(format!(
        "PyTorch released its memory pool ({first}, {second}), of which millpond knows nothing; please report it"
    ))
}
