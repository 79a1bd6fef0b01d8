//! The driver's streams, as PyTorch hands them over: by handle, with each call, and many times a microsecond.
//!
//! PyTorch's own streams live as long as the process, and `record_stream` needs more of a stream than a foreign one
//! can give (its work up to the free, not up to the call). So a handle is registered at first sight, and stays: whoever
//! gives PyTorch a stream of another library must not destroy it while tensors of it live, which PyTorch asks too
//! (`torch.cuda.ExternalStream`). A handle that turns out to be another stream's by now is told by the stream's id.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond::bindings::RwLock;
use millpond::device::StreamHandle;
use millpond::{Context, Stream};
use rustc_hash::FxHashMap;

use crate::failure::{Failure, Result};

/// The streams of one device. They are never dropped, so that a reference to one needs no counting.
#[derive(Debug)]
pub(crate) struct Streams {
    context: Context,
    default: Stream,
    by_handle: RwLock<FxHashMap<u64, &'static Known>>,
}

/// A stream that was registered.
#[derive(Debug)]
struct Known {
    stream: Stream,
    /// Whether somebody promised that it stays as long as the process.
    is_kept: bool,
}

/// How many `Streams` this process has made: at least one for each GPU in use.
static MADE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The stream that this thread used last: its `Streams`, its handle, and itself.
    static LAST: Cell<Option<(*const Streams, u64, &'static Known)>> = const { Cell::new(None) };
}

/// A stream for the time of a call.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    Known(&'a Stream),
    /// The calling thread's default stream, which is another for each thread; or one that may be destroyed after the call.
    ForCall(Stream),
}

impl Deref for Found<'_> {
    type Target = Stream;

    #[inline]
    fn deref(&self) -> &Stream {
        match self {
            Self::Known(stream) => stream,
            Self::ForCall(stream) => stream,
        }
    }
}

impl Streams {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let default = context.default_stream()?;
        // Relaxed, here and where it is read: nothing is concluded about what else was written.
        MADE.fetch_add(1, Ordering::Relaxed);
        Ok(Self { context: context.clone(), default, by_handle: RwLock::default() })
    }

    /// The stream that a handle means.
    ///
    /// # Safety
    /// The handle is null or a live stream of the device, and is destroyed only after everything that was allocated,
    /// freed or used on it.
    #[inline]
    pub(crate) unsafe fn find(&'static self, handle: u64) -> Result<Found<'static>> {
        if handle == 0 || handle == StreamHandle::LEGACY.raw() {
            return Ok(Found::Known(&self.default));
        }
        if let Some(known) = self.last(handle)
            && self.is_still(known)
        {
            return Ok(Found::Known(&known.stream));
        }
        // SAFETY: as promised to this function.
        unsafe { self.find_slow(handle) }
    }

    /// The stream to free a block on that was allocated on this handle's. Where that stream ended with its context (a green one,
    /// say), this waits for the GPU: then nobody uses the block any more, and any stream will do.
    ///
    /// # Safety
    /// The handle is null, or was a live stream of the device when the block was allocated.
    #[inline]
    pub(crate) unsafe fn find_to_free(&'static self, handle: u64) -> Result<Found<'static>> {
        // SAFETY: the driver knows the handles of streams whose context it destroyed, and says so.
        unsafe { self.find(handle) }.or_else(|failure| self.any_after_a_wait(failure))
    }

    #[cold]
    fn any_after_a_wait(&'static self, failure: Failure) -> Result<Found<'static>> {
        // An error of the GPU's is told as it came first.
        self.context.synchronize().map(|()| Found::Known(&self.default)).map_err(|_| failure)
    }

    /// The stream that a handle means, whose owner may destroy it after the call: fast where it was promised that it
    /// [stays](Self::keep).
    ///
    /// # Safety
    /// The handle is null or a live stream of the device, until the call ends that this is for.
    #[inline]
    pub(crate) unsafe fn find_for_call(&'static self, handle: u64) -> Result<Found<'static>> {
        if handle == 0 || handle == StreamHandle::LEGACY.raw() {
            return Ok(Found::Known(&self.default));
        }
        if let Some(Known { stream, is_kept: true }) = self.last(handle) {
            return Ok(Found::Known(stream));
        }
        // SAFETY: as promised to this function.
        unsafe { self.find_for_call_slow(handle) }
    }

    /// # Safety
    /// As for [`find_for_call`](Self::find_for_call).
    #[cold]
    unsafe fn find_for_call_slow(&'static self, handle: u64) -> Result<Found<'static>> {
        if handle == StreamHandle::PER_THREAD.raw() {
            return Ok(Found::ForCall(self.context.per_thread_stream()?));
        }
        let known = self.by_handle.read().get(&handle).copied();
        if let Some(known @ Known { stream, is_kept: true }) = known {
            self.set_last(handle, known);
            return Ok(Found::Known(stream));
        }
        // SAFETY: as promised to this function.
        Ok(Found::ForCall(unsafe { self.context.foreign_stream(StreamHandle::from_raw(handle)) }?))
    }

    /// The stream that this thread used last, if its handle is presented again.
    #[inline]
    fn last(&self, handle: u64) -> Option<&'static Known> {
        let (of, its_handle, known) = LAST.try_with(Cell::get).ok().flatten()?;
        (std::ptr::eq(of, self) && its_handle == handle).then_some(known)
    }

    fn set_last(&self, handle: u64, known: &'static Known) {
        // Fails while the thread ends; then the next call looks again.
        LAST.try_with(|last| last.set(Some((self, handle, known)))).ok();
    }

    /// Whether the handle is the same stream's as when it was registered. A stream that is being captured cannot be
    /// identified; whoever captures it has it still, as PyTorch has its streams for good. The driver is not asked of a
    /// stream that is [kept](Self::keep): that takes about 50 ns on an H200.
    #[inline]
    fn is_still(&self, Known { stream, is_kept }: &Known) -> bool {
        if *is_kept {
            return true;
        }
        // SAFETY: the handle is the one that was presented, and live by the promise of `find`.
        let id = unsafe { self.context.device().stream_id(stream.handle()) };
        id.is_ok_and(|id| id == stream.id() || id.is_in_capture())
    }

    /// # Safety
    /// As for [`find`](Self::find).
    #[cold]
    unsafe fn find_slow(&'static self, handle: u64) -> Result<Found<'static>> {
        if handle == StreamHandle::PER_THREAD.raw() {
            return Ok(Found::ForCall(self.context.per_thread_stream()?));
        }
        let known = self.by_handle.read().get(&handle).copied();
        let known = match known {
            Some(known) if self.is_still(known) => known,
            // What was met in a capture first is named anew after it: the stream is the same.
            stale => {
                let recycled = stale.is_some_and(|stale| !stale.stream.id().is_in_capture());
                // SAFETY: as promised to this function.
                unsafe { self.register(handle, recycled) }?
            }
        };
        self.set_last(handle, known);
        Ok(Found::Known(&known.stream))
    }

    /// Registers a stream that stays, so that whoever passes its handle finds it without a question to the driver.
    ///
    /// # Safety
    /// The handle is null or a live stream of the device, which is destroyed only with the process.
    pub(crate) unsafe fn keep(&self, handle: u64) -> Result<()> {
        if handle <= StreamHandle::PER_THREAD.raw() {
            return Ok(());
        }
        // SAFETY: as promised to this function.
        let registered = unsafe { self.context.register_stream(StreamHandle::from_raw(handle)) }?;
        self.refuse_another_gpus(&registered)?;
        let mut by_handle = self.by_handle.write();
        if by_handle.get(&handle).is_some_and(|known| known.is_kept) {
            return Ok(());
        }
        let stream = registered.clone();
        // Registered for good.
        std::mem::forget(registered);
        by_handle.insert(handle, Box::leak(Box::new(Known { stream, is_kept: true })));
        Ok(())
    }

    /// # Safety
    /// As for [`find`](Self::find).
    unsafe fn register(&self, handle: u64, recycled: bool) -> Result<&'static Known> {
        if recycled {
            // The old stream is gone, and no event can be recorded on it any more. After this, none is needed: all its
            // work is complete, and the timelines know.
            self.context.synchronize()?;
        }
        // SAFETY: as promised to this function.
        let stream = unsafe { self.context.stream_from_raw(StreamHandle::from_raw(handle)) }?;
        self.refuse_another_gpus(&stream)?;
        let mut by_handle = self.by_handle.write();
        if let Some(known) = by_handle.get(&handle).copied()
            && known.stream.id() == stream.id()
        {
            // Another thread was faster.
            return Ok(known);
        }
        let known: &'static Known = Box::leak(Box::new(Known { stream, is_kept: false }));
        by_handle.insert(handle, known);
        Ok(known)
    }

    /// A stream of another GPU has a handle as good as any, but none of our events can be recorded on it, so that what
    /// uses memory there could not be waited for.
    fn refuse_another_gpus(&self, stream: &Stream) -> Result<()> {
        let device = self.context.device();
        let may_be = MADE.load(Ordering::Relaxed) > 1;
        // No event that we record in a capture tells us anything; captures of other GPUs' streams are not looked for.
        // SAFETY: the stream was registered just now.
        if !may_be || unsafe { device.capture_of(stream.handle()) }?.is_some() {
            return Ok(());
        }
        match stream.record() {
            Ok(_event) => Ok(()),
            Err(error) => Err(Failure::StreamOfAnotherGpu { gpu: device.properties().ordinal, error }),
        }
    }
}
