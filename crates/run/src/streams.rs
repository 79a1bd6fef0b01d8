//! The program's streams, as the pools know them: registered at their first use, until the program destroys them.

use std::cell::RefCell;
use std::ptr;
use std::sync::{Arc, Once};

use millpond::bindings::{Mutex, PerProcess, RwLock, Shortcut, on_fork, on_thread_end};
use millpond::device::{DevicePtr, StreamHandle};
use millpond::{RegisteredStream, Stream};
use rustc_hash::FxHashMap;

use crate::driver;
use crate::gpus::{self, Gpu};

/// A stream of the program's.
#[derive(Debug)]
struct Known {
    gpu: Arc<Gpu>,
    stream: Stream,
    /// Until the program destroys it.
    registered: Mutex<Option<RegisteredStream>>,
}

#[derive(Debug, Default)]
struct Streams(RwLock<FxHashMap<u64, Arc<Known>>>);

static STREAMS: PerProcess<Streams> = PerProcess::new();

/// The stream that a thread used last, and what was the generation then.
#[derive(Debug)]
struct Last {
    generation: u64,
    handle: u64,
    known: Arc<Known>,
    /// The thread's way to the blocks that it has ready there. None where the stream does not stay.
    shortcut: Option<Shortcut>,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// A stream of the program's as a thread has it, for one call.
pub(crate) struct Found<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) stream: &'a Stream,
    shortcut: Option<&'a Shortcut>,
}

impl Found<'_> {
    /// Allocates for work on the stream.
    #[inline]
    pub(crate) fn alloc(&self, bytes: u64) -> millpond::Result<DevicePtr> {
        // SAFETY: pool and stream are alive, and the thread made the shortcut: it is taken away when that ends or forks.
        match self.shortcut.and_then(|ready| unsafe { ready.alloc(bytes) }) {
            Some(ptr) => Ok(ptr),
            None => self.gpu.pool.alloc(bytes, self.stream),
        }
    }

    /// Frees a block after the work that the stream was given.
    ///
    /// # Safety
    /// As for [`Pool::free`](millpond::Pool::free).
    #[inline]
    pub(crate) unsafe fn free(&self, ptr: DevicePtr) -> millpond::Result<()> {
        // SAFETY: as in `alloc`; and the caller's promise.
        if self.shortcut.is_some_and(|ready| unsafe { ready.free(ptr) }) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.gpu.pool.free(ptr, self.stream) }
    }
}

/// The handle of each thread's own default stream.
pub(crate) const PER_THREAD: u64 = StreamHandle::PER_THREAD.raw();

/// Calls with the stream that a handle means here, and its GPU. `None` where its memory is not a pool's.
///
/// # Safety
/// The handle is null or a live stream.
#[inline]
pub(crate) unsafe fn with<R>(handle: u64, call: impl FnOnce(Found<'_>) -> R) -> Option<R> {
    let mut call = Some(call);
    let done = LAST.try_with(|last| {
        let last = last.try_borrow().ok()?;
        let Last { known, shortcut, .. } = last.as_ref().filter(|last| last.is(handle))?;
        Some(call.take()?(Found { gpu: &known.gpu, stream: &known.stream, shortcut: shortcut.as_ref() }))
    });
    match done {
        Ok(Some(done)) => Some(done),
        // SAFETY: the caller's promise.
        _ => unsafe { with_slow(handle, call?) },
    }
}

impl Last {
    /// Whether the handle means this stream. The default ones' are those of the thread's context.
    #[inline]
    fn is(&self, handle: u64) -> bool {
        let is_of_context = || driver::current_context().is_some_and(|context| self.known.gpu.is_of(context));
        self.handle == handle
            && self.generation == gpus::generation()
            && (handle > PER_THREAD || is_of_context())
    }
}

#[cold]
unsafe fn with_slow<R>(handle: u64, call: impl FnOnce(Found<'_>) -> R) -> Option<R> {
    // Before the look: what is found is of this generation or a later one.
    let generation = gpus::generation();
    let known = if handle <= PER_THREAD {
        default(handle)?
    } else {
        let known = STREAMS.get().0.read().get(&handle).cloned();
        // SAFETY: the caller's promise.
        known.or_else(|| unsafe { meet(handle) })?
    };
    let done = call(Found { gpu: &known.gpu, stream: &known.stream, shortcut: None });
    // There once the thread has had a block. A thread's own default stream is another one for each thread, for a call.
    let shortcut = if handle == PER_THREAD { None } else { Shortcut::new(&known.gpu.pool, &known.stream) };
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        on_thread_end(forget_last);
        on_fork(gpus::begin_generation);
    });
    // Fails while the thread ends; then the next call looks again.
    LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Some(Last { generation, handle, known, shortcut });
        }
    })
    .ok();
    Some(done)
}

/// The thread ends, and its shortcuts with it.
fn forget_last() {
    LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut()
            && let Some(last) = &mut *last
        {
            last.shortcut = None;
        }
    })
    .ok();
}

/// A default stream of the thread's context, which needs no registration.
fn default(handle: u64) -> Option<Arc<Known>> {
    let gpu = gpus::current()?;
    let context = &gpu.context;
    let stream =
        if handle == PER_THREAD { context.per_thread_stream() } else { context.default_stream() }.ok()?;
    Some(Arc::new(Known { gpu, stream, registered: Mutex::new(None) }))
}

/// # Safety
/// The handle is a live stream, and none of the default ones.
unsafe fn meet(handle: u64) -> Option<Arc<Known>> {
    let mut context = ptr::null_mut();
    let raw = ptr::without_provenance_mut(handle as usize);
    // SAFETY: the stream lives by the caller's promise, and `context` is writable.
    if !unsafe { driver::cuStreamGetCtx(raw, &mut context) }.is_success() || context.is_null() {
        return None;
    }
    let gpu = gpus::of_context(context)?;
    // SAFETY: it is alive, and `forget` ends the registration before the program's call destroys it.
    let registered = unsafe { gpu.context.register_stream(StreamHandle::from_raw(handle)) }.ok()?;
    let stream = (*registered).clone();
    let known = Arc::new(Known { gpu, stream, registered: Mutex::new(Some(registered)) });
    // Of two threads, the second one's registration ends here, and the first one's stays.
    Some(STREAMS.get().0.write().entry(handle).or_insert(known).clone())
}

/// The program destroys a stream.
pub(crate) fn forget(handle: u64) {
    let forgotten = STREAMS.get().0.write().remove(&handle);
    if let Some(known) = forgotten {
        end(&known);
    }
}

/// The program resets a GPU, and so ends all of its streams.
pub(crate) fn forget_all_of(ordinal: usize) {
    let mut forgotten = Vec::new();
    STREAMS.get().0.write().retain(|_, known| {
        let is_of = known.gpu.ordinal == ordinal;
        if is_of {
            forgotten.push(known.clone());
        }
        !is_of
    });
    forgotten.iter().for_each(|known| end(known));
}

fn end(known: &Known) {
    gpus::begin_generation();
    let registered = known.registered.lock().take();
    drop(registered);
}
