//! Several GPUs: which of them may use a pool's memory.

use std::ffi::c_void;

use crate::arguments::Out;
use crate::context::CONTEXTS;
use crate::failure::boundary;
use crate::kind::{ContextHandle, PoolHandle};
use crate::memory::from_c;
use crate::pool::POOLS;
use crate::status::Status;

/// Lets the GPU of another context use all memory of the pool at its addresses: what there is, and what comes. It costs about
/// 40 µs for each page, and 1 ms for the first one (H100), and as much more for new pages. DEVICE_UNSUPPORTED for a GPU that does
/// not reach the memory, and for a device that cannot work together with the pool's.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_allow_access(pool: *mut PoolHandle, peer: *mut ContextHandle) -> Status {
    boundary(|me| {
        let (object, peer) = (POOLS.get(me, pool)?, CONTEXTS.get(me, peer)?);
        Ok(object.pool.allow_access(&peer.context)?)
    })
}

/// Takes the access of another context's GPU back, from all memory of the pool. Waits for all work of that GPU. Memory in
/// segments stays within its reach. BAD_OPTION for a pool that is for all GPUs.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_take_back_access(pool: *mut PoolHandle, peer: *mut ContextHandle) -> Status {
    boundary(|me| {
        let (object, peer) = (POOLS.get(me, pool)?, CONTEXTS.get(me, peer)?);
        Ok(object.pool.take_back_access(&peer.context)?)
    })
}

/// Lets the GPU of another context use one block. Its pages get access, about 40 µs for each that has none (H100), and keep it for
/// later blocks. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_allow_access(
    pool: *mut PoolHandle,
    ptr: *const c_void,
    peer: *mut ContextHandle,
) -> Status {
    boundary(|me| {
        let (object, peer) = (POOLS.get(me, pool)?, CONTEXTS.get(me, peer)?);
        Ok(object.pool.allow_access_to(from_c(ptr), &peer.context)?)
    })
}

/// Whether the GPU of another context may use a block: 1 or 0. Of memory in segments: whether all of the pool's is for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_is_accessible_from(
    pool: *mut PoolHandle,
    ptr: *const c_void,
    peer: *mut ContextHandle,
    out: *mut u32,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::new(out, "out", 0) }?;
        let (object, peer) = (POOLS.get(me, pool)?, CONTEXTS.get(me, peer)?);
        out.set(object.pool.is_accessible_from(from_c(ptr), &peer.context)?.into());
        Ok(())
    })
}
