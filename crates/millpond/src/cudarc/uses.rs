//! Which streams read and wrote a block, and until when.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use cudarc::driver::result::{DriverError, stream};
use cudarc::driver::sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _, LaunchArgs, SyncOnDrop};
use rustc_hash::FxHashMap;

use super::builder::stream_of;
use super::chain::Chain;
use crate::device::{DevicePtr, EventHandle, StreamHandle};
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// Uses kept per stream; those of further addresses are dropped.
const MOST_KEPT: usize = 4096;

/// Uses of more streams than this, of each kind, are not kept: every later use would wait for all of them.
const MOST_STREAMS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A stream by its handle. A thread's default stream has the same handle as that of every other thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UsingStream {
    handle: StreamHandle,
    thread: Option<ThreadId>,
}

impl UsingStream {
    /// Which one the handle means on this thread.
    pub(super) fn here(handle: StreamHandle) -> Self {
        let thread = (handle == StreamHandle::PER_THREAD).then(|| thread::current().id());
        Self { handle, thread }
    }

    pub(super) fn of(stream: &CudaStream) -> Self {
        // SAFETY: cudarc's stream is borrowed.
        Self::here(unsafe { StreamHandle::from_raw(stream.cu_stream() as u64) })
    }
}

/// The stream that a buffer belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own<'a> {
    pub(super) cuda: &'a Arc<CudaStream>,
    pub(super) used_as: UsingStream,
}

/// Reads, or writes, of one stream.
#[derive(Debug)]
pub(super) struct StreamUse {
    by: UsingStream,
    access: Access,
    /// Recorded after each; `None` where cudarc tracks nothing.
    event: Option<EventHandle>,
    slice: Borrowed,
}

impl StreamUse {
    /// A slice whose event of reads is that of these uses. Nobody waits for its writes, and none is recorded.
    pub(super) fn slice(&self) -> &CudaSlice<u8> {
        &self.slice.0
    }

    /// Has a stream wait for them.
    ///
    /// # Safety
    /// The stream lives, and its context is current.
    unsafe fn precede(&self, handle: StreamHandle) -> Result<(), DriverError> {
        let Some(event) = self.event else { return Ok(()) };
        // SAFETY: the slice keeps the event. The rest is the caller's promise.
        unsafe { stream::wait_event(handle.raw() as _, event.raw() as _, CU_EVENT_WAIT_DEFAULT) }
    }
}

/// A slice over a block that belongs to the pool, never to the slice.
#[derive(Debug)]
struct Borrowed(ManuallyDrop<CudaSlice<u8>>);

impl Drop for Borrowed {
    fn drop(&mut self) {
        // SAFETY: nobody has the slice after this.
        let slice = unsafe { ManuallyDrop::take(&mut self.0) };
        // Destroys the events and leaves the memory, which dropping the slice would free.
        slice.leak();
    }
}

/// All uses of one block.
#[derive(Debug)]
pub(super) struct Uses {
    ptr: DevicePtr,
    bytes: usize,
    by_stream: Chain<StreamUse>,
    /// Whether there are uses that no event tells of: later ones wait for all work of the context. Relaxed: whoever has to wait comes
    /// behind those uses by the borrows of the buffer, and those order this, too.
    is_unknown: AtomicBool,
}

impl Uses {
    /// # Safety
    /// The block is live, and holds `bytes`, as long as these are used.
    unsafe fn new(ptr: DevicePtr, bytes: usize) -> Self {
        Self { ptr, bytes, by_stream: Chain::default(), is_unknown: AtomicBool::new(false) }
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Has the stream wait for what such a use comes after. Returns the use, to be recorded once it was given to the stream. There
    /// is none where cudarc records nothing. Errors are noted in cudarc's context.
    pub(super) fn order(&self, access: Access, by: UsingStream, own: Own<'_>) -> Option<&StreamUse> {
        let context = own.cuda.context();
        if self.needs_no_order(own) {
            return None;
        }
        // What was noted before is for the next call that can return it.
        let noted = context.check_err();
        let used = self.try_order(access, by, own);
        context.record_err(noted);
        used.unwrap_or_else(|error| {
            context.record_err(Err::<(), _>(error));
            self.is_unknown.store(true, Ordering::Relaxed);
            None
        })
    }

    fn try_order(
        &self,
        access: Access,
        by: UsingStream,
        own: Own<'_>,
    ) -> Result<Option<&StreamUse>, DriverError> {
        let context = own.cuda.context();
        if self.is_unknown.load(Ordering::Relaxed) {
            context.synchronize()?;
        }
        context.bind_to_thread()?;
        for earlier in self.by_stream.iter() {
            // The buffer's own stream is in order with itself. The handle of another may have been an earlier stream's, whose reads
            // the same event tells of until it is recorded anew.
            let is_same = earlier.by == by;
            let is_before = earlier.access == Access::Write || access == Access::Write || is_same;
            if is_before && !(is_same && by == own.used_as) {
                // SAFETY: the stream is the caller's.
                unsafe { earlier.precede(by.handle) }?;
            }
        }
        Ok(context.is_managing_stream_synchronization().then(|| self.of(access, by, own)))
    }

    /// As [`order`](Self::order), for an argument of a launch.
    pub(super) fn order_launch(
        &self,
        access: Access,
        builder: &LaunchArgs<'_>,
        own: Own<'_>,
    ) -> Option<&StreamUse> {
        if self.needs_no_order(own) {
            return None;
        }
        let Some(handle) = stream_of(builder) else {
            let context = own.cuda.context();
            self.is_unknown.store(true, Ordering::Relaxed);
            context.record_err(context.synchronize());
            return None;
        };
        self.order(access, UsingStream::here(handle), own)
    }

    /// The uses of one stream.
    ///
    /// # Panics
    /// Inside cudarc, where the driver refuses to create an event.
    pub(super) fn of(&self, access: Access, by: UsingStream, own: Own<'_>) -> &StreamUse {
        let is_wanted = |used: &StreamUse| used.by == by && used.access == access;
        self.by_stream.find_or_add(is_wanted, || {
            // SAFETY: the block is live, by `new`; any byte is a `u8`.
            let slice = unsafe { own.cuda.upgrade_device_ptr::<u8>(self.ptr.raw(), self.bytes) };
            let slice = Borrowed(ManuallyDrop::new(slice));
            let (_, read) = slice.0.device_ptr(own.cuda);
            let event = match &read {
                SyncOnDrop::Record(Some((event, _))) => {
                    // SAFETY: an event of the context's.
                    Some(unsafe { EventHandle::from_raw(event.cu_event() as u64) })
                }
                _ => None,
            };
            // Its drop would record it. It owns nothing.
            std::mem::forget(read);
            StreamUse { by, access, event, slice }
        })
    }

    /// Records the allocation as a write, so that other streams' uses wait for it. The own stream waited for all uses before it.
    pub(super) fn begin(&self, own: Own<'_>) {
        let context = own.cuda.context();
        if self.ptr.is_null() || !context.is_managing_stream_synchronization() {
            return;
        }
        let noted = context.check_err();
        match context.bind_to_thread() {
            Ok(()) => drop(recorded(Some(self.of(Access::Write, own.used_as, own)), own.cuda)),
            Err(error) => context.record_err(Err::<(), _>(error)),
        }
        context.record_err(noted);
    }

    /// Has the own stream wait for all uses. Errors are noted in cudarc's context.
    pub(super) fn end(&mut self, own: Own<'_>) {
        if self.is_unused() {
            return;
        }
        let (context, by) = (own.cuda.context(), own.used_as);
        let noted = context.check_err();
        if std::mem::take(self.is_unknown.get_mut()) {
            context.record_err(context.synchronize());
        }
        context.record_err(context.bind_to_thread());
        for earlier in self.by_stream.iter().filter(|earlier| earlier.by != by) {
            // SAFETY: the own stream is kept.
            context.record_err(unsafe { earlier.precede(by.handle) });
        }
        context.record_err(noted);
    }

    /// Whether nothing was used, and cudarc records nothing.
    fn needs_no_order(&self, own: Own<'_>) -> bool {
        let is_managed = || own.cuda.context().is_managing_stream_synchronization();
        self.ptr.is_null() || (self.is_unused() && !is_managed())
    }

    fn is_unused(&self) -> bool {
        self.by_stream.is_empty() && !self.is_unknown.load(Ordering::Relaxed)
    }
}

/// Records the use when it is dropped.
pub(super) fn recorded<'a>(used: Option<&'a StreamUse>, stream: &'a CudaStream) -> SyncOnDrop<'a> {
    used.map_or(SyncOnDrop::Record(None), |used| used.slice().device_ptr(stream).1)
}

/// The uses of blocks that were freed, by address. A pool hands out the same addresses again and again. To create and
/// destroy events costs many times what a pair of the pool's costs.
#[derive(Debug, Default)]
pub(super) struct KeptUses {
    by_address: OfProcess<Mutex<FxHashMap<DevicePtr, Uses>>>,
}

impl KeptUses {
    /// Those that were kept for the block, or new ones.
    ///
    /// # Safety
    /// As for [`Uses::new`], and these are the uses kept for this stream.
    pub(super) unsafe fn take(&self, ptr: DevicePtr, bytes: usize, stream: &Arc<CudaStream>) -> Uses {
        if stream.context().is_managing_stream_synchronization() {
            // A statement: those of a shorter block go without the lock.
            let kept = self.by_address.lock().remove(&ptr);
            if let Some(kept) = kept.filter(|kept| kept.bytes >= bytes) {
                return kept;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { Uses::new(ptr, bytes) }
    }

    /// Keeps the uses of a block that is about to be freed and whose stream has waited for them.
    pub(super) fn keep(&self, uses: Uses) {
        if !(1..=2 * MOST_STREAMS).contains(&uses.by_stream.iter().count()) {
            return;
        }
        let mut by_address = self.by_address.lock();
        let replaced =
            if by_address.len() < MOST_KEPT { by_address.insert(uses.ptr, uses) } else { Some(uses) };
        drop(by_address);
        // Here, not under the lock: it makes device calls.
        drop(replaced);
    }
}
