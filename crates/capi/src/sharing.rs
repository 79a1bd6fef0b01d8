//! Memory that several processes use, over Unix sockets.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use millpond::{Pool, Received, Shared, SharedEvent, bindings};

use crate::arguments::Out;
use crate::context::{CONTEXTS, ContextObject};
use crate::failure::{Failure, boundary};
use crate::handle::Table;
use crate::kind::{AnyStream, ContextHandle, Kind, PoolHandle, SharedHandle};
use crate::memory::{from_c, to_c};
use crate::pool::{POOLS, PoolObject};
use crate::status::Status;
use crate::stream::find_stream;

/// What a handle stands for.
#[derive(Debug)]
pub(crate) struct SharedObject {
    side: Side,
    context: Arc<ContextObject>,
}

#[derive(Debug)]
enum Side {
    /// In the process that has the block.
    Own(Shared),
    /// In one that opened it: the pool that the block is of, and the event.
    Opened(Pool, SharedEvent),
}

impl SharedObject {
    fn event(&self) -> &SharedEvent {
        match &self.side {
            Side::Own(shared) => shared.event(),
            Side::Opened(_, event) => event,
        }
    }
}

pub(crate) static SHARED: Table<SharedObject> = Table::new(Kind::Shared);

/// The socket of a descriptor, which stays open.
///
/// # Safety
/// Nobody closes it during the call.
unsafe fn socket(descriptor: c_int) -> Result<UnixStream, Failure> {
    let failed = |why: String| Failure::option("socket", why);
    if descriptor < 0 {
        return Err(failed(format!("{descriptor} is no descriptor: pass a connected Unix socket")));
    }
    // SAFETY: it is not -1, and as the caller promises. One that is not open is an error of the next call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let own = borrowed.try_clone_to_owned().map_err(|error| failed(format!("{descriptor}: {error}")))?;
    Ok(own.into())
}

/// Lets other processes open a live block. They find there what the work given to `stream` so far writes. They reach
/// the whole pages that the block lies on. The block stays allocated as long as the handle, or another process that
/// has it open, also when it is freed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_share(
    pool: *mut PoolHandle,
    ptr: *const c_void,
    stream: AnyStream,
    out: *mut *mut SharedHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = POOLS.get(me, pool)?;
        // SAFETY: likewise.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        let side = Side::Own(object.pool.share(from_c(ptr), &stream)?);
        out.set(SHARED.insert(SharedObject { side, context: object.context.clone() })?);
        Ok(())
    })
}

/// Sends a shared block over a connected Unix socket (SOCK_STREAM), to one process for each call. The socket stays open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_shared_send(shared: *mut SharedHandle, socket: c_int) -> Status {
    boundary(|me| {
        let object = SHARED.get(me, shared)?;
        // SAFETY: as the header asks of its caller.
        let socket = unsafe { self::socket(socket) }?;
        match &object.side {
            Side::Own(shared) => Ok(shared.send(&socket)?),
            Side::Opened(..) => {
                let why = "this process opened the block: the process that has it sends it";
                Err(Failure::option("shared", why))
            }
        }
    })
}

/// Waits for what another process sends over a Unix socket, and opens it for work on `stream`. That comes after what the
/// other process gave its stream before it shared the block, or recorded since. Free the block with
/// `millpond_context_free`, and release the handle: then the other process may use the memory for something else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_shared_receive(
    context: *mut ContextHandle,
    socket: c_int,
    stream: AnyStream,
    ptr: *mut *mut c_void,
    bytes: *mut usize,
    out: *mut *mut SharedHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let (ptr, bytes, out) =
            unsafe { (Out::pointer(ptr, "ptr")?, Out::new(bytes, "bytes", 0)?, Out::pointer(out, "out")?) };
        let object = CONTEXTS.get(me, context)?;
        // SAFETY: likewise.
        let (stream, socket) = unsafe { (find_stream(me, &object, stream)?, self::socket(socket)?) };
        let received = Received::receive(&socket)?;
        let (pool, at, length, event) = bindings::open_shared(&object.context, received, &stream)?;
        let side = Side::Opened(pool.clone(), event);
        match SHARED.insert(SharedObject { side, context: object.clone() }) {
            Ok(handle) => out.set(handle),
            Err(failure) => {
                // SAFETY: nobody else knows the block.
                unsafe { pool.free(at, &stream) }?;
                return Err(failure);
            }
        }
        ptr.set(to_c(at));
        bytes.set(length as usize);
        Ok(())
    })
}

/// A handle of the pool that an opened block is of, for calls that take a pool. Release it as any other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_shared_pool(
    shared: *mut SharedHandle,
    out: *mut *mut PoolHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = SHARED.get(me, shared)?;
        let Side::Opened(pool, _) = &object.side else {
            let why = "the block is of a pool of this process: use that one";
            return Err(Failure::option("shared", why));
        };
        out.set(POOLS.insert(PoolObject::new(pool.clone(), object.context.clone()))?);
        Ok(())
    })
}

/// Lets the block's event stand for all work given to `stream` so far. Tell the other process then, over the socket for
/// example. OWNER_GONE where the process that shared the block is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_shared_record(shared: *mut SharedHandle, stream: AnyStream) -> Status {
    boundary(|me| {
        let object = SHARED.get(me, shared)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        Ok(object.event().record(&stream)?)
    })
}

/// Makes later work on `stream` wait for what the block's event stands for now, whichever process recorded it. The host
/// does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_shared_wait(shared: *mut SharedHandle, stream: AnyStream) -> Status {
    boundary(|me| {
        let object = SHARED.get(me, shared)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        Ok(object.event().wait(&stream)?)
    })
}

/// Gives up the handle. The block is freed apart from it, on either side.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_shared_release(shared: *mut SharedHandle) -> Status {
    boundary(|me| SHARED.release(me, shared))
}
