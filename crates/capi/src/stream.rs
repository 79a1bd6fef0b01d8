//! Streams: registered ones, which are handles, and the driver's own, which are taken everywhere too.

use std::ffi::c_void;
use std::ops::Deref;
use std::sync::Arc;

use millpond::bindings::{is_registered, withdraw};
use millpond::device::StreamHandle as RawStream;
use millpond::{RegisteredStream, Stream};

use crate::arguments::Out;
use crate::context::{CONTEXTS, ContextObject};
use crate::event::EVENTS;
use crate::failure::{Failure, boundary};
use crate::handle::{Table, Using};
use crate::holds::Holds;
use crate::in_use::Record;
use crate::kind::{AnyStream, ContextHandle, EventHandle, Kind, StreamHandle};
use crate::places;
use crate::status::Status;

/// What a stream's handle stands for.
#[derive(Debug)]
pub(crate) struct StreamObject {
    /// Registered, so that calls find it by the driver's handle, too. They may leave shortcuts under that (`fast`).
    pub(crate) stream: RegisteredStream,
    pub(crate) holds: Holds,
    /// A stream's device is looked at through its context.
    pub(crate) context: Arc<ContextObject>,
}

impl Drop for StreamObject {
    fn drop(&mut self) {
        // As for a handle of ours: see `Table::release`.
        withdraw(&mut self.stream);
        places::retire(self.stream.handle().raw());
    }
}

pub(crate) static STREAMS: Table<Arc<StreamObject>> = Table::new(Kind::Stream);

/// A stream for the time of a call.
#[derive(Debug)]
pub(crate) enum FoundStream<'a> {
    /// A handle.
    Registered(Using<Arc<StreamObject>>),
    /// The legacy default stream.
    Default(&'a Stream),
    /// The driver's, registered or not.
    Raw(Stream),
}

impl FoundStream<'_> {
    /// Whether the stream stays where it is: until its `handle` is released, or all that are registered for a stream of
    /// the driver's, or the context goes.
    pub(crate) fn lasts(&self, handle: AnyStream) -> bool {
        match self {
            Self::Registered(object) => STREAMS.is_valid(handle) && object.holds.is_in_use(),
            Self::Default(_) => true,
            Self::Raw(stream) => is_registered(stream),
        }
    }

    /// What holds the stream; `None` for one that its owner keeps.
    pub(crate) fn holds(&self) -> Option<&Holds> {
        match self {
            Self::Registered(object) => Some(&object.holds),
            Self::Default(_) | Self::Raw(_) => None,
        }
    }

    /// What keeps the stream registered, for who keeps it longer than its handle.
    pub(crate) fn registration(&self) -> Option<Arc<StreamObject>> {
        match self {
            Self::Registered(object) => Some(Arc::clone(object)),
            Self::Default(_) | Self::Raw(_) => None,
        }
    }
}

impl Deref for FoundStream<'_> {
    type Target = Stream;

    #[inline]
    fn deref(&self) -> &Stream {
        match self {
            Self::Registered(object) => &object.stream,
            Self::Default(stream) => stream,
            Self::Raw(stream) => stream,
        }
    }
}

/// Finds the stream that an argument means.
///
/// # Safety
/// What is not a handle of millpond is null, or a live stream of the context's device.
#[inline]
pub(crate) unsafe fn find_stream<'a>(
    me: &'static Record,
    context: &'a ContextObject,
    stream: AnyStream,
) -> Result<FoundStream<'a>, Failure> {
    if Kind::of(stream.addr() as u64).is_some() {
        return STREAMS.get(me, stream).map(FoundStream::Registered);
    }
    // SAFETY: as promised to this function.
    unsafe { find_raw_slow(context, stream.addr() as u64) }
}

/// # Safety
/// As for [`find_stream`].
#[cold]
unsafe fn find_raw_slow(context: &ContextObject, raw: u64) -> Result<FoundStream<'_>, Failure> {
    if raw == 0 || raw == RawStream::LEGACY.raw() {
        return context.default_stream().map(FoundStream::Default);
    }
    if raw == RawStream::PER_THREAD.raw() {
        return Ok(FoundStream::Raw(context.context.per_thread_stream()?));
    }
    // SAFETY: a live stream of the device, as promised, and `FoundStream` ends with the call.
    let stream = unsafe { context.context.foreign_stream(RawStream::from_raw(raw)) }?;
    Ok(FoundStream::Raw(stream))
}

/// # Safety
/// The stream is one of the device, and stays until the handle is released.
unsafe fn keep(raw: RawStream, context: &Arc<ContextObject>) -> Result<*mut StreamHandle, Failure> {
    // SAFETY: the caller's promise.
    let stream = unsafe { context.context.register_stream(raw) }?;
    STREAMS.insert(Arc::new(StreamObject { stream, holds: Holds::default(), context: context.clone() }))
}

/// Creates a stream. Releasing the handle destroys it; work already given to it still runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_create(
    context: *mut ContextHandle,
    out: *mut *mut StreamHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = CONTEXTS.get(me, context)?;
        let stream = object.context.create_stream()?;
        // SAFETY: it is ours, and stays as long as anybody has it.
        out.set(unsafe { keep(stream.handle(), &object) }?);
        Ok(())
    })
}

/// Registers a `CUstream` of the device (null or 1: the legacy default stream) for the fast path, which calls with the
/// `CUstream` itself then take, too. The stream must not be destroyed before all handles registered for it, and all workspaces
/// made with these, are released: what was freed on it could be used by others too early. 2 is the calling thread's default
/// stream: on another thread its handle frees late but safely, and other calls with it are DEVICE_INVALID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_register(
    context: *mut ContextHandle,
    raw: *mut c_void,
    out: *mut *mut StreamHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = CONTEXTS.get(me, context)?;
        let number = raw.addr() as u64;
        if Kind::of(number).is_some() {
            return Err(Failure::option("raw", "a handle of millpond's own; it is registered already"));
        }
        // SAFETY: the caller keeps the stream until the handle is released, as asked above.
        out.set(unsafe { keep(RawStream::from_raw(number.max(RawStream::LEGACY.raw())), &object) }?);
        Ok(())
    })
}

/// Gives up the handle. A stream that millpond created is destroyed, once nothing made on it is left. One that was
/// registered may be destroyed by its owner. The host does not wait for the stream's work.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_stream_release(stream: *mut StreamHandle) -> Status {
    boundary(|me| STREAMS.release(me, stream))
}

/// The driver's handle (`CUstream`) of a stream, for launches and driver calls. Valid until the stream is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_raw(stream: *mut StreamHandle, out: *mut *mut c_void) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = STREAMS.get(me, stream)?;
        out.set(std::ptr::without_provenance_mut(object.stream.handle().raw() as usize));
        Ok(())
    })
}

/// The stream's identity, which the device never gives to another (`cuStreamGetId`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_id(stream: *mut StreamHandle, out: *mut u64) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::new(out, "out", 0) }?;
        out.set(STREAMS.get(me, stream)?.stream.id().0);
        Ok(())
    })
}

/// Records an event after all work given to the stream so far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_record(
    context: *mut ContextHandle,
    stream: AnyStream,
    out: *mut *mut EventHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = CONTEXTS.get(me, context)?;
        // SAFETY: likewise.
        let event = unsafe { find_stream(me, &object, stream) }?.record()?;
        out.set(EVENTS.insert(event)?);
        Ok(())
    })
}

/// Makes later work on the stream wait for the event. The host does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_wait(
    context: *mut ContextHandle,
    stream: AnyStream,
    event: *mut EventHandle,
) -> Status {
    boundary(|me| {
        let object = CONTEXTS.get(me, context)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object, stream) }?;
        Ok(stream.wait(&*EVENTS.get(me, event)?)?)
    })
}

/// Makes later work on the stream wait for all work given to `other` so far. The host does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_wait_for(
    context: *mut ContextHandle,
    stream: AnyStream,
    other: AnyStream,
) -> Status {
    boundary(|me| {
        let object = CONTEXTS.get(me, context)?;
        // SAFETY: as the header asks of its caller.
        let (stream, other) =
            unsafe { (find_stream(me, &object, stream)?, find_stream(me, &object, other)?) };
        Ok(stream.wait_for(&other)?)
    })
}

/// Waits until all work given to the stream so far is complete, then lets the pools of the device give back what
/// lies above their release thresholds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_synchronize(
    context: *mut ContextHandle,
    stream: AnyStream,
) -> Status {
    boundary(|me| {
        let object = CONTEXTS.get(me, context)?;
        // SAFETY: as the header asks of its caller.
        Ok(unsafe { find_stream(me, &object, stream) }?.synchronize()?)
    })
}

/// Whether all work given to the stream so far is complete: 1 or 0. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_is_idle(
    context: *mut ContextHandle,
    stream: AnyStream,
    out: *mut i32,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::new(out, "out", 0) }?;
        let object = CONTEXTS.get(me, context)?;
        // SAFETY: likewise.
        let idle = unsafe { find_stream(me, &object, stream) }?.is_idle()?;
        out.set(i32::from(idle));
        Ok(())
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ptr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::in_use::this_thread;
    use crate::kind::PoolHandle;
    use crate::memory::{millpond_alloc, millpond_free};
    use crate::places::{mine, tests::alone};

    /// A pool, and a stream of the device that millpond did not make.
    struct Bench {
        context: *mut ContextHandle,
        pool: *mut PoolHandle,
        device: Arc<dyn millpond::device::Device>,
        raw: AnyStream,
    }

    // SAFETY: handles are for every thread.
    unsafe impl Sync for Bench {}

    impl Bench {
        fn new() -> Self {
            let (mut context, mut pool) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: both may be written, and no options are the default ones.
            unsafe {
                assert_eq!(crate::context::millpond_context_sim(ptr::null(), &mut context), Status::Ok);
                assert_eq!(crate::pool::millpond_pool_create(context, ptr::null(), &mut pool), Status::Ok);
            }
            let device = CONTEXTS.get(this_thread(), context).unwrap().context.device().clone();
            let raw = ptr::without_provenance_mut(device.create_stream().unwrap().raw() as usize);
            Self { context, pool, device, raw }
        }

        fn register(&self) -> *mut StreamHandle {
            let mut handle = ptr::null_mut();
            // SAFETY: the stream stays as long as the device.
            let status = unsafe { millpond_stream_register(self.context, self.raw, &mut handle) };
            assert_eq!(status, Status::Ok);
            handle
        }

        fn pairs(&self, count: usize) {
            for _ in 0..count {
                let mut block = ptr::null_mut();
                // SAFETY: the block is this one's, and there is no work on it.
                unsafe {
                    assert_eq!(millpond_alloc(self.pool, 4096, self.raw, &mut block), Status::Ok);
                    assert_eq!(millpond_free(self.pool, block, self.raw), Status::Ok);
                }
            }
        }

        /// Whether the calling thread has a shortcut under the driver's handle.
        fn is_fast(&self) -> bool {
            let finds = |place: &crate::place::Place| {
                // SAFETY: the place is this thread's, which does not use what it finds.
                unsafe { place.call((self.pool, self.raw), None, |_| Some(())) }.is_some()
            };
            mine().is_some_and(finds)
        }
    }

    #[test]
    fn a_raw_stream_is_fast_while_it_is_registered() {
        let _alone = alone();
        let bench = Bench::new();
        bench.pairs(3);
        assert!(!bench.is_fast());
        let (one, two) = (bench.register(), bench.register());
        bench.pairs(3);
        assert!(bench.is_fast() || !crate::sync::has_membarrier());
        assert_eq!(millpond_stream_release(one), Status::Ok);
        assert!(!bench.is_fast(), "until it is asked once more");
        bench.pairs(3);
        assert!(bench.is_fast() || !crate::sync::has_membarrier());
        assert_eq!(millpond_stream_release(two), Status::Ok);
        bench.pairs(3);
        assert!(!bench.is_fast());
        // SAFETY: nobody uses it any more.
        unsafe { bench.device.destroy_stream(RawStream::from_raw(bench.raw.addr() as u64)) }.unwrap();
    }

    #[test]
    fn threads_use_a_raw_stream_whose_registrations_come_and_go() {
        let _alone = alone();
        let bench = Bench::new();
        let is_done = AtomicBool::new(false);
        let rounds = if cfg!(miri) { 3 } else { 300 };
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        bench.pairs(10);
                    }
                });
            }
            for _ in 0..rounds {
                let handle = bench.register();
                bench.pairs(10);
                assert_eq!(millpond_stream_release(handle), Status::Ok);
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(crate::pool::millpond_pool_release(bench.pool), Status::Ok);
        assert_eq!(crate::context::millpond_context_release(bench.context), Status::Ok);
    }
}
