//! Events that the program records and waits for, and what they teach the pool about order.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use super::{Fence, OwnedEvent, Timelines};
use crate::device::EventHandle;
use crate::error::Result;
use crate::system::lock::Mutex;

/// A point in a stream's work. Made by [`Stream::record`](super::Stream::record).
///
/// Streams that [wait](super::Stream::wait) for it are ordered after it. Pools know that, and let memory pass.
///
/// ```
/// use millpond::{Buffer, Context, Pool};
///
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).build()?;
/// let (load, compute) = (device.create_stream()?, device.create_stream()?);
/// let inputs = Buffer::<f32>::from_slice(&pool, &[1.0; 256], &load)?;
/// let loaded = load.record()?;
/// compute.wait(&loaded)?; // later work on `compute` is ordered after the copy; the host does not wait
/// loaded.synchronize()?; // the host waits
/// assert!(loaded.query()?);
/// # drop(inputs);
/// # Ok::<(), millpond::Error>(())
/// ```
#[must_use = "an event orders what waits for it"]
pub struct Event {
    pub(super) timelines: Arc<Timelines>,
    pub(super) event: OwnedEvent,
    /// Everything that is complete once the event is.
    pub(super) clock: Fence,
    /// Once it was awaited.
    told: Option<Arc<Told>>,
}

/// What a thread of the device's does for who awaits an event.
#[derive(Debug, Default)]
struct Told {
    is_complete: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Told {
    fn tell(&self) {
        // Release: pairs with the Acquire in `poll`.
        self.is_complete.store(true, Ordering::Release);
        let waker = self.waker.lock().take();
        // Without the lock: it may poll the event.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Completes with the work before the event. No thread waits meanwhile: one of the device's, or its driver's, wakes the task. Where
/// the device fails meanwhile, CUDA wakes nobody: a timeout that polls once more ends in the error.
///
/// ```
/// use millpond::{Buffer, Context, Pool};
///
/// async fn sum(pool: &Pool, numbers: &[u32]) -> millpond::Result<u32> {
///     let (stream, pinned) = (pool.create_stream()?, pool.context().pinned()?.build()?);
///     let inputs = Buffer::from_slice(pool, numbers, &stream)?;
///     // … kernels on `stream` …
///     let mut results = Buffer::<u32>::uninit(&pinned, numbers.len(), &stream)?;
///     results.copy_from(&inputs)?;
///     stream.record()?.await?; // other tasks of this thread run
///     Ok(results.as_slice()?.iter().sum()) // is there
/// }
/// # use std::{future::Future, pin::pin, task::{Context as Task, Poll, Wake}, thread::{current, park, Thread}};
/// # struct Unparks(Thread);
/// # impl Wake for Unparks { fn wake(self: std::sync::Arc<Self>) { self.0.unpark() } }
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let waker = std::sync::Arc::new(Unparks(current())).into();
/// #     let mut future = pin!(future);
/// #     loop {
/// #         match future.as_mut().poll(&mut Task::from_waker(&waker)) { Poll::Ready(done) => return done, Poll::Pending => park() }
/// #     }
/// # }
///
/// let pool = Pool::builder(&Context::host()?).build()?;
/// assert_eq!(block_on(sum(&pool, &[1, 2, 3]))?, 6); // or by tokio
/// # Ok::<(), millpond::Error>(())
/// ```
///
/// # Errors
/// Those of [`query`](Event::query), and the device's own where it has no such threads.
impl Future for Event {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Result<()>> {
        let event = self.get_mut();
        // In a forked child, a thread that is gone may have the lock, and nobody would tell.
        event.timelines.check_process()?;
        if let Some(told) = &event.told {
            // Both are the program's, and may call us: without the lock.
            let waker = task.waker().clone();
            let before = told.waker.lock().replace(waker);
            drop(before);
            // After the waker is there, so that who tells later finds it. Acquire: pairs with the Release in `tell`.
            if told.is_complete.load(Ordering::Acquire) {
                event.timelines.note_synchronized(&event.clock);
                return Poll::Ready(Ok(()));
            }
            // A device that has failed tells nobody: who asks again learns of it.
            return if event.query()? { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        if event.query()? {
            return Poll::Ready(Ok(()));
        }
        let told = Arc::new(Told { waker: Mutex::new(Some(task.waker().clone())), ..Told::default() });
        let tells = told.clone();
        event.watch(move || tells.tell())?;
        event.told = Some(told);
        Poll::Pending
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.timelines.device().properties().short();
        f.debug_struct("Event")
            .field("handle", &self.event.handle.raw())
            .field("device", &device)
            .finish_non_exhaustive()
    }
}

// No invariant of an event is broken by a panic: it does not change.
impl UnwindSafe for Event {}
impl RefUnwindSafe for Event {}

impl Event {
    pub(super) fn new(timelines: Arc<Timelines>, event: OwnedEvent, clock: Fence) -> Self {
        Self { timelines, event, clock, told: None }
    }

    /// Calls `tell` on a thread of the device's, once the event is complete. It is of no capture.
    pub(super) fn watch(&self, tell: impl FnOnce() + Send + 'static) -> Result<()> {
        self.timelines.check_process()?;
        // SAFETY: the event lives as long as this, and is of no capture: who calls has asked the event, or its stream.
        Ok(unsafe { self.timelines.watchers.tell(self.timelines.device(), self.event.handle, tell) }?)
    }

    /// The driver's handle (`CUevent`), valid as long as this event lives. Pools do not see it if you record it again
    /// by other means.
    #[must_use]
    pub fn handle(&self) -> EventHandle {
        self.event.handle
    }

    /// Whether the work before the event is complete. Does not wait.
    ///
    /// # Errors
    /// The device's own.
    pub fn query(&self) -> Result<bool> {
        self.timelines.check_process()?;
        let complete = self.event.query()?;
        if complete {
            self.timelines.note_synchronized(&self.clock);
        }
        Ok(complete)
    }

    /// Waits until the work before the event is complete. Then the pools of the device give back what lies above their
    /// release thresholds.
    ///
    /// # Errors
    /// The device's own.
    pub fn synchronize(&self) -> Result<()> {
        self.timelines.check_process()?;
        self.event.synchronize()?;
        self.timelines.note_synchronized(&self.clock);
        self.timelines.after_sync();
        Ok(())
    }
}
