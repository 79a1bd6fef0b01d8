//! The program's streams, as the pools know them: registered at their first use, until the program destroys them.

use std::cell::{Cell, RefCell};
use std::mem::take;
use std::ptr;
use std::sync::{Arc, Once};

use millpond::bindings::{Mutex, PerProcess, RwLock, Shortcut, on_fork, on_thread_end};
use millpond::device::{DevicePtr, StreamHandle};
use millpond::{RegisteredStream, Stream};
use rustc_hash::FxHashMap;

use crate::gpus::{self, Gpu};
use crate::{captures, driver};

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

static STREAMS: PerProcess<Streams> = PerProcess::new(Default::default);

/// The stream that a thread used last, and what was the generation then.
#[derive(Debug)]
struct Last {
    generation: u64,
    handle: u64,
    known: Arc<Known>,
}

impl Drop for Last {
    fn drop(&mut self) {
        READY.set(None);
    }
}

/// A thread's way to the blocks that it has ready, for the stream that it used last.
#[derive(Debug, Clone, Copy)]
struct Ready {
    generation: u64,
    handle: u64,
    gpu: usize,
    /// The GPU's primary context, which the default stream is of.
    context: u64,
    shortcut: Shortcut,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    /// Of the stream in `LAST`, as long as that is there. It has no destructor, so that it can be looked at any time.
    static READY: Cell<Option<Ready>> = const { Cell::new(None) };
    static DEFAULT: RefCell<Defaults> = const { RefCell::new(Vec::new()) };
}

/// The default streams of the GPUs that a thread used, by handle.
type Defaults = Vec<(u64, Arc<Known>)>;

/// A block that the thread has ready for work on a stream, on the GPU if one is named; `None`, and nothing done, where it is not as simple as that.
#[inline]
pub(crate) fn alloc_ready(handle: u64, bytes: u64, gpu: Option<usize>) -> Option<DevicePtr> {
    let ready = ready(handle).filter(|ready| gpu.is_none_or(|gpu| gpu == ready.gpu))?;
    // SAFETY: `LAST` keeps pool and stream alive. The thread made the shortcut, which goes when that ends or forks.
    unsafe { ready.shortcut.alloc(bytes) }
}

/// Takes a block into the thread's magazines; `false`, and nothing done, where it is not as simple as that.
///
/// # Safety
/// As for [`Pool::free`](millpond::Pool::free), if it is a block of the stream's pool.
#[inline]
pub(crate) unsafe fn free_ready(handle: u64, ptr: DevicePtr) -> bool {
    // SAFETY: as in `alloc_ready`; and the caller's promise.
    ready(handle).is_some_and(|ready| unsafe { ready.shortcut.free(ptr) })
}

#[inline]
fn ready(handle: u64) -> Option<Ready> {
    READY
        .get()
        .filter(|ready| ready.handle == handle && ready.generation == gpus::generation() && ready.is_here())
}

impl Ready {
    /// Whether the handle means this stream: the default one is of the thread's context.
    #[inline]
    fn is_here(&self) -> bool {
        let is_current =
            || driver::current_context().is_some_and(|context| context.addr() as u64 == self.context);
        self.handle > PER_THREAD || is_current()
    }
}

/// The handle of each thread's own default stream.
pub(crate) const PER_THREAD: u64 = StreamHandle::PER_THREAD.raw();

/// Calls with the stream that a handle means here, and its GPU. `None` where its memory is not a pool's.
///
/// # Safety
/// The handle is null or a live stream.
#[inline]
pub(crate) unsafe fn with<R>(handle: u64, call: impl FnOnce(&Gpu, &Stream) -> R) -> Option<R> {
    let mut call = Some(call);
    let done = LAST.try_with(|last| {
        let last = last.try_borrow().ok()?;
        let Last { known, .. } = last.as_ref().filter(|last| last.is(handle))?;
        Some(call.take()?(&known.gpu, &known.stream))
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
unsafe fn with_slow<R>(handle: u64, call: impl FnOnce(&Gpu, &Stream) -> R) -> Option<R> {
    // Before the look: what is found is of this generation or a later one.
    let generation = gpus::generation();
    let known = if handle <= PER_THREAD {
        default(handle)?
    } else {
        let known = STREAMS.get().0.read().get(&handle).cloned();
        // SAFETY: the caller's promise.
        match known.or_else(|| unsafe { meet(handle) }) {
            Some(known) => known,
            // SAFETY: as above.
            None => return unsafe { with_captured(handle, call) },
        }
    };
    let done = call(&known.gpu, &known.stream);
    remember(generation, handle, known);
    Some(done)
}

/// As [`with`], for a stream that is met while it is captured: the driver does not say which one it is. After the capture it is met
/// anew.
///
/// # Safety
/// As for [`with`].
unsafe fn with_captured<R>(handle: u64, call: impl FnOnce(&Gpu, &Stream) -> R) -> Option<R> {
    if !captures::is_any() {
        return None;
    }
    // SAFETY: the caller's promise.
    let gpu = unsafe { gpu_of(handle) }?;
    // SAFETY: it is alive as long as this call. Only this presents it.
    let stream = unsafe { gpu.context.foreign_stream(StreamHandle::from_raw(handle)) }.ok()?;
    Some(call(&gpu, &stream))
}

/// The thread's next call with the stream finds it at once.
fn remember(generation: u64, handle: u64, known: Arc<Known>) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        on_thread_end(|| READY.set(None));
        on_fork(gpus::begin_generation);
    });
    // There is one once the thread has had a block.
    let pool = known.gpu.pool_of_thread().ok();
    let shortcut = pool.and_then(|pool| Shortcut::new(&pool, &known.stream));
    // Fails while the thread ends; then the next call looks again.
    LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            let (gpu, context) = (known.gpu.ordinal, known.gpu.primary());
            *last = Some(Last { generation, handle, known });
            // After the one before was dropped, which takes its own away.
            READY.set(shortcut.map(|shortcut| Ready { generation, handle, gpu, context, shortcut }));
        }
    })
    .ok();
}

/// A default stream of the thread's context, which needs no registration.
fn default(handle: u64) -> Option<Arc<Known>> {
    let gpu = gpus::current()?;
    let find = |all: &RefCell<Defaults>| {
        let all = all.borrow();
        let found = all.iter().find(|(of, known)| *of == handle && Arc::ptr_eq(&known.gpu, &gpu));
        found.map(|(_, known)| known.clone())
    };
    // Fails while the thread ends; then each call makes it anew.
    let found = DEFAULT.try_with(find).ok().flatten();
    found.or_else(|| meet_default(handle, gpu))
}

#[cold]
fn meet_default(handle: u64, gpu: Arc<Gpu>) -> Option<Arc<Known>> {
    let context = &gpu.context;
    let stream =
        if handle == PER_THREAD { context.per_thread_stream() } else { context.default_stream() }.ok()?;
    let ordinal = gpu.ordinal;
    let met = Arc::new(Known { gpu, stream, registered: Mutex::new(None) });
    let keep = |all: &RefCell<Defaults>| {
        let mut all = all.borrow_mut();
        // That of a GPU which was reset is gone.
        let (kept, gone) = take(&mut *all)
            .into_iter()
            .partition(|(of, known)| *of != handle || known.gpu.ordinal != ordinal);
        *all = kept;
        all.push((handle, met.clone()));
        gone
    };
    // What is gone is let go of outside of the borrow.
    let gone: Option<Defaults> = DEFAULT.try_with(keep).ok();
    drop(gone);
    Some(met)
}

/// # Safety
/// The handle is a live stream, and none of the default ones.
unsafe fn gpu_of(handle: u64) -> Option<Arc<Gpu>> {
    // SAFETY: the caller's promise.
    gpus::of_context(unsafe { driver::context_of(ptr::without_provenance_mut(handle as usize)) }?)
}

/// # Safety
/// As for [`gpu_of`].
unsafe fn meet(handle: u64) -> Option<Arc<Known>> {
    // SAFETY: the caller's promise.
    let gpu = unsafe { gpu_of(handle) }?;
    // SAFETY: it is alive, and `forget` ends the registration before the program's call destroys it.
    let registered = unsafe { gpu.context.register_stream(StreamHandle::from_raw(handle)) }.ok()?;
    let stream = (*registered).clone();
    let known = Arc::new(Known { gpu, stream, registered: Mutex::new(Some(registered)) });
    // Of two threads, the second one's registration ends here, and the first one's stays.
    Some(STREAMS.get().0.write().entry(handle).or_insert(known).clone())
}

/// The calling thread's next call looks again: it has another tag.
pub(crate) fn forget_last() {
    LAST.try_with(|last| last.try_borrow_mut().ok().and_then(|mut last| last.take())).ok();
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
    forget_last();
    DEFAULT.try_with(|all| all.try_borrow_mut().map(|mut all| take(&mut *all)).ok()).ok();
}

fn end(known: &Known) {
    gpus::begin_generation();
    let registered = known.registered.lock().take();
    drop(registered);
}
