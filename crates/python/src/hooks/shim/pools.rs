//! Pools of PyTorch's: memory of graphs, and `MemPool`.

use std::ffi::{c_int, c_void};

use super::super::captures::{self, PoolId};
use super::super::outcome::{Outcome, or_default, outcome};
use super::super::torch::{caught, report};
use crate::devices;

/// A C++ function that says of a stream whether its allocations belong to a pool.
#[repr(C)]
#[derive(Debug)]
pub(super) struct CFilter {
    filter: *mut c_void,
    takes: unsafe extern "C" fn(*mut c_void, *mut c_void) -> bool,
    drop: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: PyTorch's filters look at the calling thread, or at a capture's number; it calls them from any thread too.
unsafe impl Send for CFilter {}
// SAFETY: likewise: calling does not change the function.
unsafe impl Sync for CFilter {}

impl CFilter {
    fn takes(&self, stream: u64) -> bool {
        // SAFETY: `begin_pool` was promised that the function may be called until it is dropped.
        unsafe { (self.takes)(self.filter, std::ptr::without_provenance_mut(stream as usize)) }
    }
}

impl Drop for CFilter {
    fn drop(&mut self) {
        // SAFETY: made for this, and dropped once.
        unsafe { (self.drop)(self.filter) }
    }
}

pub(super) extern "C" fn claim_pool(gpu: c_int, id: PoolId) -> Outcome {
    outcome(|| captures::claim(gpu, id))
}

/// # Safety
/// The filter may be called from any thread, until it is dropped, which [`end_pool`] does.
pub(super) unsafe extern "C" fn begin_pool(gpu: c_int, id: PoolId, filter: CFilter) -> Outcome {
    outcome(|| captures::begin(gpu, id, Some(Box::new(move |stream| filter.takes(stream)))))
}

/// `false` where the pool was not being allocated from.
pub(super) extern "C" fn end_pool(gpu: c_int, id: PoolId) -> bool {
    or_default(|| Ok(captures::end(gpu, id)))
}

/// Called by destructors, which must not throw.
pub(super) extern "C" fn release_pool(gpu: c_int, id: PoolId) {
    if !devices::is_forked() {
        report(caught(|| captures::release(gpu, id)));
    }
}

/// # Safety
/// `out` may be written.
pub(super) unsafe extern "C" fn pool_uses(gpu: c_int, id: PoolId, out: *mut c_int) -> Outcome {
    outcome(|| {
        let uses = captures::uses(gpu, id)?;
        // SAFETY: as promised to this function.
        unsafe { out.write(uses as c_int) };
        Ok(())
    })
}

/// Also called by destructors, with `false`.
pub(super) extern "C" fn set_use_on_oom(gpu: c_int, id: PoolId, use_on_oom: bool) -> Outcome {
    if devices::is_forked() {
        return std::ptr::null_mut();
    }
    outcome(|| captures::set_use_on_oom(gpu, id, use_on_oom))
}
