//! The fast path: a pool and a registered stream, or the default one, both valid.
//!
//! It differs from the general path in what it does not do: it makes no [`Failure`](crate::failure::Failure), whose
//! moves and drops cost more than the allocation, and notes both handles at once. Whatever is not as it expects it
//! leaves to the general path, which says what is wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond::{Pool, Result, Stream};

use crate::failure::{note_panic_slow, note_slow};
use crate::in_use::this_thread;
use crate::pool::{POOLS, PoolHandle};
use crate::status::Status;
use crate::stream::{AnyStream, STREAMS};

/// Calls with the pool and the stream. `Ok(None)` where the general path must be taken; nothing was done then.
/// `Err` is the answer to a call that failed.
#[inline]
pub(crate) fn call<R>(
    pool: *mut PoolHandle,
    stream: AnyStream,
    call: impl FnOnce(&Pool, &Stream) -> Result<R>,
) -> std::result::Result<Option<R>, Status> {
    match catch_unwind(AssertUnwindSafe(|| found(pool, stream, call))) {
        Ok(Some(Ok(result))) => Ok(Some(result)),
        Ok(None) => Ok(None),
        Ok(Some(Err(status))) => Err(status),
        Err(panic) => Err(note_panic_slow(&*panic)),
    }
}

#[inline]
fn found<R>(
    pool: *mut PoolHandle,
    stream: AnyStream,
    call: impl FnOnce(&Pool, &Stream) -> Result<R>,
) -> Option<std::result::Result<R, Status>> {
    let handles = [pool.addr() as u64, stream.addr() as u64];
    let _note = this_thread().note_two(handles)?;
    // SAFETY: noted above, and until the end of this function.
    let object = unsafe { POOLS.look(handles[0]) }?;
    let stream = if stream.is_null() {
        object.context.known_default_stream()?
    } else {
        // SAFETY: likewise.
        &unsafe { STREAMS.look(handles[1]) }?.stream
    };
    // An error is large: it becomes a status before it is moved on.
    Some(call(&object.pool, stream).map_err(|error| note_slow(error.into())))
}
