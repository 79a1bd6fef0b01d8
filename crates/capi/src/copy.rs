//! Bytes: copies, and kernels of the host device.

use std::ffi::c_void;

use millpond::Stream;
use millpond::bindings::while_there;
use millpond::device::{Device, StreamHandle};

use crate::context::CONTEXTS;
use crate::failure::{Failure, boundary};
use crate::kind::{AnyStream, ContextHandle, PoolHandle};
use crate::memory::from_c;
use crate::pool::POOLS;
use crate::status::Status;
use crate::stream::find_stream;

/// Gives a stream work on `bytes` of device memory; none where there are none.
///
/// # Safety
/// `stream` is as [`find_stream`] wants it.
unsafe fn in_stream_order(
    context: *mut ContextHandle,
    bytes: usize,
    stream: AnyStream,
    give: impl FnOnce(&dyn Device, &Stream) -> Result<(), Failure>,
) -> Status {
    boundary(|me| {
        let object = CONTEXTS.get(me, context)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as promised to this function.
        let stream = unsafe { find_stream(me, &object, stream) }?;
        give(object.context.device().as_ref(), &stream)
    })
}

/// Sets `bytes` bytes of device memory at `at` to the low byte of `value`, in stream order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memset(
    context: *mut ContextHandle,
    at: *mut c_void,
    value: i32,
    bytes: usize,
    stream: AnyStream,
) -> Status {
    let give = |device: &dyn Device, stream: &Stream| {
        // SAFETY: the memory is a live block's, as the header asks of its caller.
        Ok(unsafe { device.memset(from_c(at), value as u8, bytes as u64, stream.handle_here()?) }?)
    };
    // SAFETY: as the header asks of its caller.
    unsafe { in_stream_order(context, bytes, stream, give) }
}

/// Copies from host memory to the device, in stream order. `from` has been read when this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_from_host(
    context: *mut ContextHandle,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: AnyStream,
) -> Status {
    let give = |device: &dyn Device, stream: &Stream| {
        if from.is_null() {
            return Err(Failure::Null("from"));
        }
        // SAFETY: `from` is readable and `to` is a live block's, as the header asks of its caller.
        Ok(unsafe { device.copy_from_host(from_c(to), from.cast(), bytes as u64, stream.handle_here()?) }?)
    };
    // SAFETY: as the header asks of its caller.
    unsafe { in_stream_order(context, bytes, stream, give) }
}

/// Copies from the device to host memory, in stream order, and waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_to_host(
    context: *mut ContextHandle,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: AnyStream,
) -> Status {
    let give = |device: &dyn Device, stream: &Stream| {
        if to.is_null() {
            return Err(Failure::Null("to"));
        }
        let handle = stream.handle_here()?;
        // SAFETY: `to` is writable and `from` is a live block's, as the header asks of its caller; the stream is
        // synchronised before `to` is the caller's again.
        let copied = unsafe { device.copy_to_host(to.cast(), from_c(from), bytes as u64, handle) };
        // Also after an error: part of the copy may be under way.
        Ok(stream.synchronize().and(copied.map_err(millpond::Error::from))?)
    };
    // SAFETY: as the header asks of its caller.
    unsafe { in_stream_order(context, bytes, stream, give) }
}

/// Copies between memory of the device's pools, of any kind, in stream order: the host does not wait. The ranges do
/// not overlap. Who frees one of them on another stream records the use first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy(
    context: *mut ContextHandle,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: AnyStream,
) -> Status {
    let give = |device: &dyn Device, stream: &Stream| {
        // SAFETY: both ranges are of live blocks, as the header asks of its caller.
        Ok(unsafe { device.copy(from_c(to), from_c(from), bytes as u64, stream.handle_here()?) }?)
    };
    // SAFETY: as the header asks of its caller.
    unsafe { in_stream_order(context, bytes, stream, give) }
}

/// As [`in_stream_order`], of a pool's memory: it stays until the stream has the work, which comes behind a restore.
///
/// # Safety
/// `stream` is as [`find_stream`] wants it.
unsafe fn on_pool(
    pool: *mut PoolHandle,
    bytes: usize,
    stream: AnyStream,
    give: impl FnOnce(&dyn Device, StreamHandle) -> Result<(), Failure>,
    then: impl FnOnce(&Stream) -> millpond::Result<()>,
) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as promised to this function.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        let given = while_there(&object.pool, &stream, give)?;
        // Also after an error: part of the work may be under way.
        then(&stream).map_err(Failure::from).and(given)
    })
}

/// As `millpond_memset`, of a live block of the pool, of which `at` need not be the start. EVICTED or ASLEEP where its memory is
/// away. Behind a restore's copies, whatever stream they are on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_memset(
    pool: *mut PoolHandle,
    at: *mut c_void,
    value: i32,
    bytes: usize,
    stream: AnyStream,
) -> Status {
    let give = |device: &dyn Device, stream| {
        // SAFETY: the memory is a live block's, as the header asks of its caller.
        Ok(unsafe { device.memset(from_c(at), value as u8, bytes as u64, stream) }?)
    };
    // SAFETY: as the header asks of its caller.
    unsafe { on_pool(pool, bytes, stream, give, |_| Ok(())) }
}

/// As `millpond_copy_from_host`, likewise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_copy_from_host(
    pool: *mut PoolHandle,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: AnyStream,
) -> Status {
    let give = |device: &dyn Device, stream| {
        if from.is_null() {
            return Err(Failure::Null("from"));
        }
        // SAFETY: `from` is readable and `to` is a live block's, as the header asks of its caller.
        Ok(unsafe { device.copy_from_host(from_c(to), from.cast(), bytes as u64, stream) }?)
    };
    // SAFETY: as the header asks of its caller.
    unsafe { on_pool(pool, bytes, stream, give, |_| Ok(())) }
}

/// As `millpond_copy_to_host`, likewise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_copy_to_host(
    pool: *mut PoolHandle,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: AnyStream,
) -> Status {
    let give = |device: &dyn Device, stream| {
        if to.is_null() {
            return Err(Failure::Null("to"));
        }
        // SAFETY: `to` is writable and `from` is a live block's, as the header asks of its caller; the stream is
        // synchronised before `to` is the caller's again.
        Ok(unsafe { device.copy_to_host(to.cast(), from_c(from), bytes as u64, stream) }?)
    };
    // SAFETY: as the header asks of its caller.
    unsafe { on_pool(pool, bytes, stream, give, Stream::synchronize) }
}

/// Work for a stream of the host device. Must not throw.
pub type HostWork = Option<unsafe extern "C" fn(data: *mut c_void)>;

/// The work of a kernel with what it is called with.
struct Job {
    work: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the header asks that `work` may be called with `data` on another thread.
unsafe impl Send for Job {}

impl Job {
    fn run(self) {
        // SAFETY: as above.
        unsafe { (self.work)(self.data) }
    }
}

/// Runs `work(data)` in stream order, on the stream's thread: a kernel of the host device, which may read and
/// write device memory. It must not call millpond. DEVICE_UNSUPPORTED on other devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_launch(
    context: *mut ContextHandle,
    stream: AnyStream,
    work: HostWork,
    data: *mut c_void,
) -> Status {
    boundary(|me| {
        let object = CONTEXTS.get(me, context)?;
        let work = work.ok_or(Failure::Null("work"))?;
        let host = object.host.as_ref().ok_or_else(|| Failure::not_host(&object.context))?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object, stream) }?;
        let job = Job { work, data };
        Ok(host.launch(stream.handle_here()?, move || job.run())?)
    })
}
