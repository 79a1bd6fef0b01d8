//! Whole blocks: copies that keep both, and when the CPU may use one in place.

use std::ffi::c_void;

use millpond::Buffer;
use millpond::bindings::{wait_for_uses, with_buffer};

use crate::failure::{Failure, boundary};
use crate::kind::{AnyStream, PoolHandle};
use crate::memory::from_c;
use crate::pool::POOLS;
use crate::status::Status;
use crate::stream::find_stream;

/// Waits until the CPU may use the block in place: for the work given to `stream` so far, which is ordered after all work
/// on the block. With `to_write` not 0, it also waits for recorded uses, such as copies on other streams. Work that is given
/// later sees what the CPU wrote. NO_HOST_ACCESS where the CPU cannot reach the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_wait_for_host_access(
    pool: *mut PoolHandle,
    ptr: *const c_void,
    stream: AnyStream,
    to_write: i32,
) -> Status {
    let wait = |buffer: &mut Buffer<u8>| match to_write {
        0 => buffer.as_slice().map(drop),
        _ => buffer.as_mut_slice().map(drop),
    };
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        let block = (&object.pool, from_c(ptr), object.pool.size_of(from_c(ptr))?);
        // SAFETY: as the header asks of its caller.
        Ok(unsafe {
            let stream = find_stream(me, &object.context, stream)?;
            with_buffer("millpond_wait_for_host_access", block, &stream, wait)
        }?)
    })
}

/// Makes later work on `stream`, the block's own, wait for the recorded uses of the block: before it is written anew. The
/// host does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_wait_for_uses(
    pool: *mut PoolHandle,
    ptr: *const c_void,
    stream: AnyStream,
) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        Ok(wait_for_uses(&object.pool, from_c(ptr), &stream)?)
    })
}

/// Copies the first `bytes` bytes of one block to another, each of any pool of the device or of another GPU, on `to_stream`. That
/// first waits for the work given to `from_stream` so far, and for recorded uses of `to`. The use of `from` is recorded: its free
/// waits for the copy. The host waits for nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_block(
    to_pool: *mut PoolHandle,
    to: *mut c_void,
    to_stream: AnyStream,
    from_pool: *mut PoolHandle,
    from: *const c_void,
    from_stream: AnyStream,
    bytes: usize,
) -> Status {
    const WHAT: &str = "millpond_copy_block";
    boundary(|me| {
        if to.cast_const() == from && !from.is_null() {
            return Err(Failure::option("from", "it is the same block as `to`"));
        }
        let (into, out_of) = (POOLS.get(me, to_pool)?, POOLS.get(me, from_pool)?);
        // SAFETY: as the header asks of its caller.
        let (to_stream, from_stream) = unsafe {
            (find_stream(me, &into.context, to_stream)?, find_stream(me, &out_of.context, from_stream)?)
        };
        let to = (&into.pool, from_c(to), bytes as u64);
        let from = (&out_of.pool, from_c(from), bytes as u64);
        // SAFETY: likewise.
        Ok(unsafe {
            with_buffer(WHAT, to, &to_stream, |to| {
                with_buffer(WHAT, from, &from_stream, |from| to.copy_from(from))
            })
        }?)
    })
}
