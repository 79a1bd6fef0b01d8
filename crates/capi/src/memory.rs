//! Allocate, free, and what belongs to them: the fast path first.

use std::ffi::c_void;
use std::ptr;

use millpond::device::DevicePtr;
use millpond::{Pool, Stream};

use crate::arguments::Out;
use crate::context::CONTEXTS;
use crate::failure::boundary;
use crate::fast;
use crate::kind::{AnyStream, ContextHandle, PoolHandle};
use crate::pool::POOLS;
use crate::status::Status;
use crate::stream::find_stream;

#[inline]
pub(crate) fn to_c(ptr: DevicePtr) -> *mut c_void {
    ptr::without_provenance_mut(ptr.raw() as usize)
}

#[inline]
pub(crate) fn from_c(ptr: *const c_void) -> DevicePtr {
    DevicePtr::new(ptr.addr() as u64)
}

/// Allocates `bytes` for work on `stream`, aligned to the pool's minimum alignment (512 bytes by default). Zero
/// bytes give null. `*out` is null after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_alloc(
    pool: *mut PoolHandle,
    bytes: usize,
    stream: AnyStream,
    out: *mut *mut c_void,
) -> Status {
    if !out.is_null()
        // SAFETY: as `call` says.
        && let Some(ptr) = fast::call(pool, stream, |shortcut| unsafe { shortcut.alloc(bytes as u64) })
    {
        // SAFETY: not null, and as the header asks of its caller.
        unsafe { out.write(to_c(ptr)) };
        return Status::Ok;
    }
    // SAFETY: as promised to this function.
    unsafe { alloc_plain_slow(pool, bytes, stream, out) }
}

/// Takes what its caller was called with, so that the fast path need not keep that anywhere.
///
/// # Safety
/// As for [`millpond_alloc`].
#[cold]
#[inline(never)]
unsafe extern "C" fn alloc_plain_slow(
    pool: *mut PoolHandle,
    bytes: usize,
    stream: AnyStream,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: as promised to this function.
    unsafe { alloc_slow(pool, stream, out, |pool, stream| pool.alloc(bytes as u64, stream)) }
}

/// Allocates in one of the pool's ways, for any stream.
///
/// # Safety
/// As for [`millpond_alloc`].
#[cold]
unsafe fn alloc_slow(
    pool: *mut PoolHandle,
    stream: AnyStream,
    out: *mut *mut c_void,
    alloc: impl FnOnce(&Pool, &Stream) -> millpond::Result<DevicePtr>,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = POOLS.get(me, pool)?;
        // SAFETY: likewise.
        let found = unsafe { find_stream(me, &object.context, stream) }?;
        out.set(to_c(alloc(&object.pool, &found)?));
        fast::remember(pool, stream, &object, &found);
        Ok(())
    })
}

/// Frees a block after the work given to `stream` so far, and to the streams of recorded uses. Null is freed at no
/// cost. After a failure nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free(pool: *mut PoolHandle, ptr: *mut c_void, stream: AnyStream) -> Status {
    // SAFETY: as `call` says.
    let freed = fast::call(pool, stream, |shortcut| unsafe { shortcut.free(from_c(ptr)) }.then_some(()));
    if freed.is_some() {
        return Status::Ok;
    }
    // SAFETY: as promised to this function.
    unsafe { free_slow(pool, ptr, stream) }
}

/// # Safety
/// As for [`millpond_free`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(pool: *mut PoolHandle, ptr: *mut c_void, stream: AnyStream) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        // SAFETY: as the header asks of its caller.
        let found = unsafe { find_stream(me, &object.context, stream) }?;
        // SAFETY: the block is the caller's, as the header asks.
        unsafe { object.pool.free(from_c(ptr), &found) }?;
        fast::remember(pool, stream, &object, &found);
        Ok(())
    })
}

/// Frees a block of any pool of this device, also of one that was destroyed or whose last handle was released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_context_free(
    context: *mut ContextHandle,
    ptr: *mut c_void,
    stream: AnyStream,
) -> Status {
    boundary(|me| {
        let object = CONTEXTS.get(me, context)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object, stream) }?;
        // SAFETY: the block is the caller's, as the header asks.
        Ok(unsafe { object.context.free(from_c(ptr), &stream) }?)
    })
}

/// What every pool aligns to at least: the smallest alignment that one can be built with.
pub(crate) const ALWAYS_ALIGNED: usize = 256;

/// Allocates at an address that is a multiple of `align` bytes, a power of two up to the device's granularity
/// (2 MiB).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_alloc_aligned(
    pool: *mut PoolHandle,
    bytes: usize,
    align: usize,
    stream: AnyStream,
    out: *mut *mut c_void,
) -> Status {
    if align <= ALWAYS_ALIGNED && align.is_power_of_two() {
        // SAFETY: as promised to this function.
        return unsafe { millpond_alloc(pool, bytes, stream, out) };
    }
    // SAFETY: as promised to this function.
    unsafe {
        alloc_slow(pool, stream, out, |pool, stream| pool.alloc_aligned(bytes as u64, align as u64, stream))
    }
}

/// Allocates, and sets all bytes to zero in stream order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_alloc_zeroed(
    pool: *mut PoolHandle,
    bytes: usize,
    stream: AnyStream,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: as promised to this function.
    unsafe { alloc_slow(pool, stream, out, |pool, stream| pool.alloc_zeroed(bytes as u64, stream)) }
}

/// Notes that work on `stream` uses the block: the free will wait for all work given to `stream` by then. The host never
/// waits. With a `CUstream` that is not registered, the free waits for the work given to it so far. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_record_use(
    pool: *mut PoolHandle,
    ptr: *mut c_void,
    stream: AnyStream,
) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        Ok(object.pool.record_use(from_c(ptr), &stream)?)
    })
}

/// Bytes asked for in the live block that starts at `ptr`; 0 for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_size_of(
    pool: *mut PoolHandle,
    ptr: *const c_void,
    out: *mut usize,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::new(out, "out", 0) }?;
        out.set(POOLS.get(me, pool)?.pool.size_of(from_c(ptr))? as usize);
        Ok(())
    })
}
