//! Whether two handles stand for the same thing.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use millpond::bindings::is_same_pool;

use crate::arguments::Out;
use crate::context::CONTEXTS;
use crate::failure::{Failure, boundary};
use crate::in_use::Record;
use crate::kind::Kind;
use crate::pool::POOLS;
use crate::status::Status;
use crate::stream::STREAMS;

/// Whether two handles stand for the same context, pool or stream (1 or 0): each `millpond_context_default_pool` gives
/// another handle of one pool. A `CUstream` may stand for a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_is_same(one: *const c_void, other: *const c_void, out: *mut i32) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::new(out, "out", 0) }?;
        out.set(i32::from(is_same(me, one, other)?));
        Ok(())
    })
}

fn is_same(me: &'static Record, one: *const c_void, other: *const c_void) -> Result<bool, Failure> {
    let kinds = [one, other].map(|handle| Kind::of(handle.addr() as u64));
    Ok(match kinds {
        _ if ptr::addr_eq(one, other) => true,
        [Some(Kind::Context), Some(Kind::Context)] => {
            let (one, other) = (CONTEXTS.get(me, one.cast_mut())?, CONTEXTS.get(me, other.cast_mut())?);
            Arc::ptr_eq(&one, &other)
        }
        [Some(Kind::Pool), Some(Kind::Pool)] => {
            let (one, other) = (POOLS.get(me, one.cast_mut())?, POOLS.get(me, other.cast_mut())?);
            is_same_pool(&one.pool, &other.pool)
        }
        [Some(Kind::Stream), Some(Kind::Stream)] => {
            let (one, other) = (STREAMS.get(me, one.cast_mut())?, STREAMS.get(me, other.cast_mut())?);
            one.stream.id() == other.stream.id() && Arc::ptr_eq(&one.context, &other.context)
        }
        [Some(Kind::Stream), None] => is_driver_s(me, one, other)?,
        [None, Some(Kind::Stream)] => is_driver_s(me, other, one)?,
        _ => false,
    })
}

/// Whether the driver's handle is that of our stream. Null is the legacy default stream, which is also 1.
fn is_driver_s(me: &'static Record, ours: *const c_void, raw: *const c_void) -> Result<bool, Failure> {
    let handle = STREAMS.get(me, ours.cast_mut())?.stream.handle().raw();
    Ok(handle.max(1) == (raw.addr() as u64).max(1))
}
