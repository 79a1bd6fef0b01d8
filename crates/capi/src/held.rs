//! Blocks that own themselves, as a buffer of C++ does: they keep the handles of their pool and their stream, and a free of
//! one has nobody to tell that it failed.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond::Error;
use millpond::bindings::warn;

use crate::arguments::Out;
use crate::failure::{Failure, boundary, last_message};
use crate::fast;
use crate::handle::Table;
use crate::holds::{Ended, Holds, ToTell};
use crate::in_use::Record;
use crate::kind::{AnyStream, PoolHandle, StreamHandle};
use crate::memory::{ALWAYS_ALIGNED, from_c, to_c};
use crate::places;
use crate::pool::POOLS;
use crate::status::Status;
use crate::stream::{STREAMS, find_stream};

/// As `millpond_alloc_aligned`, of a block that holds its pool and its stream: after `millpond_pool_give_up` and
/// `millpond_stream_give_up`, both handles stay valid for it. Zero bytes give null, which holds them, too. Free it by
/// `millpond_free_held` with the same pool and stream, once for each allocation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_alloc_held(
    pool: *mut PoolHandle,
    bytes: usize,
    align: usize,
    stream: AnyStream,
    out: *mut *mut c_void,
) -> Status {
    if !out.is_null()
        && align <= ALWAYS_ALIGNED
        && align.is_power_of_two()
        // SAFETY: as `fast::call` says.
        && let Some(ptr) = fast::call_counting(pool, stream, 1, |shortcut| unsafe { shortcut.alloc(bytes as u64) })
    {
        // SAFETY: not null, and as the header asks of its caller.
        unsafe { out.write(to_c(ptr)) };
        return Status::Ok;
    }
    // SAFETY: as promised to this function.
    unsafe { alloc_held_slow(pool, bytes, align, stream, out) }
}

/// # Safety
/// As for [`millpond_alloc_held`].
#[cold]
#[inline(never)]
unsafe extern "C" fn alloc_held_slow(
    pool: *mut PoolHandle,
    bytes: usize,
    align: usize,
    stream: AnyStream,
    out: *mut *mut c_void,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = POOLS.get(me, pool)?;
        // SAFETY: likewise.
        let found = unsafe { find_stream(me, &object.context, stream) }?;
        out.set(to_c(object.pool.alloc_aligned(bytes as u64, align as u64, &found)?));
        object.holds.add(1);
        found.holds().inspect(|holds| holds.add(1));
        fast::remember(pool, stream, &object, &found);
        Ok(())
    })
}

/// Frees a block of `millpond_alloc_held`, or null, and ends its hold in any case. Where its stream is gone, it waits for the
/// device first. What else fails is counted (`millpond_failed_frees`) and logged. In a forked child it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free_held(pool: *mut PoolHandle, ptr: *mut c_void, stream: AnyStream) {
    // SAFETY: as `fast::call` says.
    let free = |shortcut: &millpond::bindings::Shortcut| unsafe { shortcut.free(from_c(ptr)) }.then_some(());
    if fast::call_counting(pool, stream, -1, free).is_none() {
        // SAFETY: as promised to this function.
        unsafe { free_held_slow(pool, ptr, stream) };
    }
}

/// # Safety
/// As for [`millpond_free_held`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_held_slow(pool: *mut PoolHandle, ptr: *mut c_void, stream: AnyStream) {
    if !ptr.is_null() {
        // SAFETY: as promised to this function.
        unsafe { free_or_log_slow(pool, ptr, stream) };
    }
    count(pool, stream, -1);
}

/// Lets a block that was allocated otherwise hold its pool and its stream, as one of `millpond_alloc_held` does.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_hold(pool: *mut PoolHandle, stream: AnyStream) {
    count(pool, stream, 1);
}

/// Ends the hold of a block of `millpond_alloc_held`, without freeing it: it is as one of `millpond_alloc` then.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_end_hold(pool: *mut PoolHandle, stream: AnyStream) {
    count(pool, stream, -1);
}

/// Counts one block more or less, and ends what nothing holds any more.
fn count(pool: *mut PoolHandle, stream: AnyStream, by: i64) {
    // What is no handle, or one that was released by hand, is held by nothing.
    boundary_unsaid(|me| {
        if let Ok(object) = POOLS.get(me, pool) {
            object.holds.add(by);
        }
        if let Ok(object) = STREAMS.get(me, stream) {
            object.holds.add(by);
        }
        Ok(())
    });
    end_if_over(&STREAMS, stream, |object| &object.holds);
    end_if_over(&POOLS, pool, |object| &object.holds);
}

/// As [`boundary`], where a failure is no news: it leaves the thread's last error as it is.
fn boundary_unsaid(call: impl FnOnce(&'static Record) -> Result<(), Failure>) {
    boundary(|me| {
        call(me).ok();
        Ok(())
    });
}

/// Ends the handle if it was given up and nothing holds it.
fn end_if_over<H, T: Send + Sync>(table: &'static Table<T>, handle: *mut H, holds: fn(&T) -> &Holds) {
    let mut due = None;
    boundary_unsaid(|me| {
        due = holds(&*table.get(me, handle)?).end();
        Ok(())
    });
    if let Some(ToTell { ended, data }) = due {
        boundary_unsaid(|me| table.release(me, handle));
        if let Some(ended) = ended {
            // SAFETY: as the header asks of whoever gave the handle up.
            unsafe { ended(data) };
        }
    }
}

/// Gives a handle up, once for all blocks that hold it.
fn give_up<H, T: Send + Sync>(
    table: &'static Table<T>,
    handle: *mut H,
    to_tell: ToTell,
    holds: fn(&T) -> &Holds,
) -> Status {
    let status = boundary(|me| {
        let object = table.get(me, handle)?;
        if !holds(&object).give_up(to_tell) {
            return Err(Failure::option("handle", "it was given up before"));
        }
        // As for a release: no thread remembers it, and none is inside with it. So all counts for it are at rest.
        let bits = handle.addr() as u64;
        places::retire(bits);
        places::collect(bits);
        holds(&object).collected();
        Ok(())
    });
    if status == Status::Ok {
        end_if_over(table, handle, holds);
    }
    status
}

/// Gives up the handle of a pool, as `millpond_pool_release` does, but only once no block of `millpond_alloc_held` is left that
/// holds it. Then `ended` is called with `data`, perhaps before this returns; not after a failure. It may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_give_up(
    pool: *mut PoolHandle,
    ended: Ended,
    data: *mut c_void,
) -> Status {
    give_up(&POOLS, pool, ToTell { ended, data }, |object| &object.holds)
}

/// The same for a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_give_up(
    stream: *mut StreamHandle,
    ended: Ended,
    data: *mut c_void,
) -> Status {
    give_up(&STREAMS, stream, ToTell { ended, data }, |object| &object.holds)
}

// ---- frees that nobody can be told of ---------------------------------------------------------------

static FAILED: AtomicU64 = AtomicU64::new(0);

/// As `millpond_free`, for whoever cannot fail, as a destructor. Where the stream is gone, it waits for the device first. What
/// else fails is counted (`millpond_failed_frees`) and logged. In a forked child it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free_or_log(pool: *mut PoolHandle, ptr: *mut c_void, stream: AnyStream) {
    // SAFETY: as `fast::call` says.
    let freed = fast::call(pool, stream, |shortcut| unsafe { shortcut.free(from_c(ptr)) }.then_some(()));
    if freed.is_none() && !ptr.is_null() {
        // SAFETY: as promised to this function.
        unsafe { free_or_log_slow(pool, ptr, stream) };
    }
}

/// # Safety
/// As for [`millpond_free_or_log`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_or_log_slow(pool: *mut PoolHandle, ptr: *mut c_void, stream: AnyStream) {
    let mut is_parents = false;
    let status = boundary(|me| {
        let object = POOLS.get(me, pool)?;
        let ptr = from_c(ptr);
        // SAFETY: as the header asks of its caller.
        let freed = unsafe { find_stream(me, &object.context, stream) }.and_then(|found| {
            // SAFETY: the block is the caller's, as the header asks.
            unsafe { object.pool.free(ptr, &found) }?;
            fast::remember(pool, stream, &object, &found);
            Ok(())
        });
        match freed {
            Err(Failure::Pool(Error::Forked)) => is_parents = true,
            // What the stream was given may run still. The block is looked at first: it may be the mistake.
            Err(failure) if object.pool.size_of(ptr).is_ok() && is_about_the_stream(&failure) => {
                object.context.context.synchronize()?;
                // SAFETY: likewise, and no work uses it any more.
                unsafe { object.pool.free(ptr, object.context.default_stream()?) }?;
            }
            freed => freed?,
        }
        Ok(())
    });
    if status != Status::Ok && !is_parents && status != Status::Forked {
        // Relaxed: a figure.
        let failed = FAILED.fetch_add(1, Ordering::Relaxed) + 1;
        // Each would fill a log with the same line.
        if failed.is_power_of_two() {
            warn(&format!("free {failed} that failed where no program is told: {}", last_message()));
        }
    }
}

/// Whether the free failed since the stream is gone.
fn is_about_the_stream(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Released { .. } | Failure::UnknownHandle { .. } | Failure::Pool(Error::Device(_))
    )
}

/// How many frees by `millpond_free_or_log` and `millpond_free_held` failed since the process began.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_failed_frees() -> u64 {
    FAILED.load(Ordering::Relaxed)
}
