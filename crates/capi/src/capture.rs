//! Captures into CUDA graphs: memory that stays as long as the graph.

use std::ffi::c_void;
use std::sync::Arc;

use millpond::bindings::Mutex;
use millpond::bindings::Process;
use millpond::{CapturePool, Capturing, Stream};

use crate::arguments::Out;
use crate::context::ContextObject;
use crate::failure::{Failure, boundary};
use crate::gate::Gate;
use crate::handle::Table;
use crate::kind::{AnyStream, CaptureHandle, Kind, PoolHandle};
use crate::pool::POOLS;
use crate::status::Status;
use crate::stream::find_stream;

/// What a capture's handle stands for.
#[derive(Debug)]
pub(crate) struct CaptureObject {
    memory: CapturePool,
    /// Asked before the lock is taken.
    process: Process,
    /// While allocations are routed here through this handle.
    under_way: Mutex<Option<UnderWay>>,
    context: Arc<ContextObject>,
}

/// Allocations are routed to the memory as long as this lives. Its end waits for filters that other threads are in.
#[derive(Debug)]
struct UnderWay {
    capturing: Option<Capturing>,
    gate: Arc<Gate>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        drop(self.capturing.take());
        self.gate.shut();
    }
}

pub(crate) static CAPTURES: Table<CaptureObject> = Table::new(Kind::Capture);

impl CaptureObject {
    fn new(memory: CapturePool, context: Arc<ContextObject>) -> Self {
        Self { memory, process: Process::here(), under_way: Mutex::new(None), context }
    }
}

/// Makes memory for captures. It holds nothing yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_create(
    pool: *mut PoolHandle,
    out: *mut *mut CaptureHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = POOLS.get(me, pool)?;
        let capture = CaptureObject::new(object.pool.capture_pool(), object.context.clone());
        out.set(CAPTURES.insert(capture)?);
        Ok(())
    })
}

/// Another handle of the same memory, for another graph that shares it. Graphs that share memory are replayed in the
/// order of their captures, and never at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_share(
    capture: *mut CaptureHandle,
    out: *mut *mut CaptureHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = CAPTURES.get(me, capture)?;
        out.set(CAPTURES.insert(CaptureObject::new(object.memory.clone(), object.context.clone()))?);
        Ok(())
    })
}

/// Until `millpond_capture_end`, the pool's allocations for work on `stream`, and on streams that are part of the same
/// capture, come from this memory. Call it before the capture begins, or after if no other thread uses pools meanwhile.
/// CAPTURE_UNDER_WAY where another call, through any handle of the memory, has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_begin(capture: *mut CaptureHandle, stream: AnyStream) -> Status {
    boundary(|me| {
        let object = CAPTURES.get(me, capture)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        let capturing = Some(object.memory.begin(&stream)?);
        *object.under_way.lock() = Some(UnderWay { capturing, gate: Arc::default() });
        Ok(())
    })
}

/// Whether allocations for work on a stream (a `CUstream`) belong to a capture: not 0 if so. Called for each allocation
/// of the pool between begin and end, on the allocating thread without locks held; it must not throw, nor allocate.
pub type Takes = Option<unsafe extern "C" fn(raw: *mut c_void, data: *mut c_void) -> i32>;

/// A filter with what it is called with.
struct Filter {
    takes: unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32,
    data: *mut c_void,
    gate: Arc<Gate>,
}

// SAFETY: the header asks that filters may be called with their data from any thread, also at the same time.
unsafe impl Send for Filter {}
// SAFETY: likewise.
unsafe impl Sync for Filter {}

impl Filter {
    fn ask(&self, stream: &Stream) -> bool {
        let raw = std::ptr::without_provenance_mut(stream.handle().raw() as usize);
        // SAFETY: as above; the data is valid until the gate is shut.
        self.gate.pass(|| unsafe { (self.takes)(raw, self.data) != 0 }).unwrap_or(false)
    }
}

/// As `millpond_capture_begin`, for allocations on streams of which `takes` says so. It and its data must stay valid
/// until `millpond_capture_end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_begin_where(
    capture: *mut CaptureHandle,
    takes: Takes,
    data: *mut c_void,
) -> Status {
    boundary(|me| {
        let takes = takes.ok_or(Failure::Null("takes"))?;
        let gate = Arc::new(Gate::default());
        let filter = Filter { takes, data, gate: gate.clone() };
        let object = CAPTURES.get(me, capture)?;
        let capturing = Some(object.memory.begin_where(move |stream| filter.ask(stream))?);
        *object.under_way.lock() = Some(UnderWay { capturing, gate });
        Ok(())
    })
}

/// Ends what `millpond_capture_begin` began, and waits for calls of `takes` that other threads are in. Call it once the
/// capture has ended, through the handle that began. Until then, unregistered streams that were allocated on must exist.
/// BAD_OPTION where nothing began.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_capture_end(capture: *mut CaptureHandle) -> Status {
    boundary(|me| {
        let object = CAPTURES.get(me, capture)?;
        object.process.check()?;
        let under_way = object.under_way.lock().take();
        if under_way.is_none() {
            return Err(Failure::option("capture", "nothing began through this handle"));
        }
        Ok(())
    })
}

/// Physical bytes that the memory holds, and bytes in live blocks of it. Each output may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_capture_read(
    capture: *mut CaptureHandle,
    reserved: *mut usize,
    used: *mut usize,
) -> Status {
    boundary(|me| {
        let memory = &CAPTURES.get(me, capture)?.memory;
        for (at, bytes) in [(reserved, memory.reserved()), (used, memory.allocated())] {
            if !at.is_null() {
                // SAFETY: not null, and as the header asks of its caller.
                unsafe { at.write(bytes as usize) };
            }
        }
        Ok(())
    })
}

/// Gives up the handle, and ends what began through it. The last handle of a memory says that its graphs will not be
/// launched again: the host waits for the device, and what is free goes back; blocks that are live stay valid until
/// they are freed. While another capture is under way, that is put off until it ends.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_capture_release(capture: *mut CaptureHandle) -> Status {
    boundary(|me| CAPTURES.release(me, capture))
}
