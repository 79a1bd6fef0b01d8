//! Sleep and wake of pools, and of their tags.

use std::ffi::c_char;

use millpond::Keep;

use crate::arguments::{Out, text};
use crate::failure::{Failure, boundary};
use crate::kind::PoolHandle;
use crate::pool::{POOLS, PoolObject};
use crate::status::Status;

/// What becomes of the bytes of a pool that sleeps.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepCode {
    /// They are dropped: after the wake, live blocks have no defined content.
    Nothing = 0,
    /// Those in live blocks are copied to pinned memory of the host, and back by the wake.
    InPinnedMemory = 1,
}

impl KeepCode {
    fn from_c(number: i32) -> Result<Keep, Failure> {
        match number {
            0 => Ok(Keep::Nothing),
            1 => Ok(Keep::InPinnedMemory),
            _ => Err(Failure::option("keep", format!("{number}; it must be one of millpond_keep"))),
        }
    }
}

/// Gives all of the pool's memory back to the device, with that of its tags. Live blocks stay, and `millpond_pool_wake`
/// brings them back to where they were, so that captured graphs can be replayed. `keep` is one of `millpond_keep`.
/// `released` gets the bytes given back; it may be null.
///
/// Waits for the device. The memory must not be used until the pool is awake. Allocations are answered with ASLEEP; blocks
/// may be freed. After a failure, the pool is awake, or sleeps and holds some memory still. Both can be tried again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_sleep(
    pool: *mut PoolHandle,
    keep: i32,
    released: *mut usize,
) -> Status {
    boundary(|me| {
        let bytes = POOLS.get(me, pool)?.pool.sleep(KeepCode::from_c(keep)?)?;
        if !released.is_null() {
            // SAFETY: not null, and as the header asks of its caller.
            unsafe { released.write(bytes as usize) };
        }
        Ok(())
    })
}

/// Ends a sleep, with that of the pool's tags: returns once all bytes are in place. After OUT_OF_MEMORY the pool sleeps as
/// before: make room, and try again. A pool that is awake stays as it is.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_wake(pool: *mut PoolHandle) -> Status {
    boundary(|me| Ok(POOLS.get(me, pool)?.pool.wake()?))
}

/// A handle of the part of the pool for a tag, to be put to sleep on its own: a pool with the same options, under the same
/// hard limit, made when the tag is first named. It lives as long as the pool. Release the handle as any other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_tagged(
    pool: *mut PoolHandle,
    tag: *const c_char,
    out: *mut *mut PoolHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        // SAFETY: likewise.
        let tag = unsafe { text(tag, "tag") }?.ok_or(Failure::Null("tag"))?;
        let object = POOLS.get(me, pool)?;
        out.set(POOLS.insert(PoolObject::new(object.pool.tagged(tag)?, object.context.clone()))?);
        Ok(())
    })
}

/// Gives the pinned memory back that sleeps and evictions left for the next one, of the pool and its tags. Those that sleep or
/// are evicted keep theirs.
/// `released` gets the bytes given back; it may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_trim_staging(pool: *mut PoolHandle, released: *mut usize) -> Status {
    boundary(|me| {
        let bytes = POOLS.get(me, pool)?.pool.trim_staging()?;
        if !released.is_null() {
            // SAFETY: not null, and as the header asks of its caller.
            unsafe { released.write(bytes as usize) };
        }
        Ok(())
    })
}
