//! Tags of pools that are evicted and restored.

use crate::failure::boundary;
use crate::kind::{AnyStream, PoolHandle};
use crate::pool::POOLS;
use crate::status::Status;
use crate::stream::find_stream;

/// Has the memory of a tag (`millpond_pool_tagged`) serve its pool for a while. Behind all work that streams were given so far, the
/// bytes of live blocks are copied to pinned memory of the host. From the end of the copies on, the pages serve other addresses of
/// the pool. The host does not wait. `moved` gets the bytes that the pool got; it may be null.
///
/// The memory must not be used until `millpond_pool_restore`: the addresses lead nowhere soon. Allocations are answered with
/// EVICTED; blocks may be freed. After a failure all is as before.
///
/// Of a stream without `millpond_stream_register`, only the work before the last call that named it is known, unless it is `stream`:
/// order the rest before `stream`. Where another thread uses its own default stream, the host waits for the device once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_evict(
    tag: *mut PoolHandle,
    stream: AnyStream,
    moved: *mut usize,
) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, tag)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        let bytes = object.pool.evict(&stream)?;
        if !moved.is_null() {
            // SAFETY: not null, and as the header asks of its caller.
            unsafe { moved.write(bytes as usize) };
        }
        Ok(())
    })
}

/// Ends an eviction: takes memory again, maps it where it was, and copies the bytes back. Later work on `stream` comes behind the
/// copies: have other streams wait for that one first. After OUT_OF_MEMORY the tag is evicted as before: make room, and try again. A
/// pool that is not evicted stays as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_restore(tag: *mut PoolHandle, stream: AnyStream) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, tag)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        Ok(object.pool.restore(&stream)?)
    })
}

/// Begins a restore, which then only has its stream wait: the copies run beside other work until then.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_restore_ahead(tag: *mut PoolHandle) -> Status {
    boundary(|me| Ok(POOLS.get(me, tag)?.pool.restore_ahead()?))
}

/// As `millpond_pool_restore_ahead`, for as much of the tag as the pool has free memory. It can be called again as more becomes
/// free; the rest comes with `millpond_pool_restore`. `away` gets the bytes that are still away; it may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_restore_free(tag: *mut PoolHandle, away: *mut usize) -> Status {
    boundary(|me| {
        let left = POOLS.get(me, tag)?.pool.restore_free()?;
        if !away.is_null() {
            // SAFETY: not null, and as the header asks of its caller.
            unsafe { away.write(left as usize) };
        }
        Ok(())
    })
}
