//! Streams as the program holds them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::timeline::Promise;
use super::timelines::HeldTimeline;
use super::{Event, Fence, OwnedEvent, Tick, Timeline, Timelines};
use crate::device::{Device, DeviceError, DeviceResult, StreamHandle, StreamId};
use crate::error::Result;

/// A stream of a device: work given to it runs in order. Clones are the same stream.
///
/// A stream made by millpond is destroyed with its last clone. Work already given to it still runs.
///
/// [`wait`](Self::wait) and [`synchronize`](Self::synchronize) tell the pools what is ordered after what. Waiting by other
/// means is safe, too, but pools do not learn from it.
///
/// ```
/// use millpond::{Context, Pool};
///
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).build()?;
/// let (one, two) = (device.create_stream()?, device.create_stream()?);
/// let block = pool.alloc(1 << 20, &one)?;
/// // … give `one` work that uses the block …
/// two.wait_for(&one)?; // later work on `two` is ordered after it
/// // SAFETY: nobody else has the block, and `two` is ordered after all work on it.
/// unsafe { pool.free(block, &two) }?;
/// two.synchronize()?;
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Clone)]
pub struct Stream {
    pub(super) inner: Arc<HeldTimeline>,
    /// What tells it from others: looked at on every allocation and free.
    key: StreamKey,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device().properties().short();
        f.debug_struct("Stream").field("id", &self.id().0).field("device", &device).finish_non_exhaustive()
    }
}

/// Whether both are the same stream.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Stream {}

impl Hash for Stream {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.serial.hash(state);
    }
}

// No invariant of a stream is broken by a panic: none unwinds through a change of it.
impl UnwindSafe for Stream {}
impl RefUnwindSafe for Stream {}

/// What tells a stream from all others without a look at its timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamKey {
    /// [`Timeline::serial`].
    pub(crate) serial: u64,
    /// The timeline's slot, as wide as an index is.
    pub(crate) slot: usize,
}

impl Stream {
    pub(super) fn new(inner: Arc<HeldTimeline>) -> Self {
        let key = StreamKey { serial: inner.timeline.serial, slot: inner.timeline.id.slot as usize };
        Self { inner, key }
    }

    /// Creates a stream of our own.
    pub(crate) fn create(timelines: &Arc<Timelines>) -> Result<Self> {
        Ok(Self::new(timelines.create(Promise::Stays)?.keep_context()))
    }

    /// Creates a stream of our own for copies of memory that nobody else uses meanwhile.
    pub(crate) fn for_copies(timelines: &Arc<Timelines>) -> DeviceResult<Self> {
        let stream = Self::new(timelines.create(Promise::Stays)?);
        // Relaxed: nobody else has the stream yet.
        stream.inner.timeline.is_for_copies.store(true, Ordering::Relaxed);
        Ok(stream)
    }

    /// The stream behind a handle that somebody else made and keeps.
    ///
    /// # Safety
    /// The handle is valid until the last clone of the returned stream is gone.
    pub(crate) unsafe fn adopt(timelines: &Arc<Timelines>, handle: StreamHandle) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(Self::new(unsafe { timelines.adopt(handle, Promise::UntilDropped) }?.keep_context()))
    }

    /// The stream behind a handle that somebody else made and may destroy at any time: a registered one, or one whose
    /// ticks are closed [at once](Timeline::is_marked_at_once).
    ///
    /// # Safety
    /// The handle is valid now and in each later call that is given the returned stream.
    pub(crate) unsafe fn present(timelines: &Arc<Timelines>, handle: StreamHandle) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(Self::new(unsafe { timelines.adopt(handle, Promise::InCalls) }?.keep_context()))
    }

    #[inline]
    pub(crate) fn key(&self) -> StreamKey {
        self.key
    }

    /// Keeps `owner`, whose end would destroy the stream, until the last clone of the stream is gone. The first
    /// owner stays: it promised that the stream is there as long as it is.
    #[cfg(feature = "cudarc")]
    pub(crate) fn keep_owner(&self, owner: Arc<dyn std::any::Any + Send + Sync>) {
        self.inner.owner.set(owner).ok();
    }

    /// The driver's handle (`CUstream`), valid as long as a clone of this stream lives. That of a
    /// [thread's default stream](crate::Context::per_thread_stream) means another stream on each thread: see
    /// [`handle_here`](Self::handle_here).
    #[inline]
    #[must_use]
    pub fn handle(&self) -> StreamHandle {
        self.inner.timeline.handle
    }

    /// The driver's handle, for calls on this thread. It is an error where the handle would mean another stream here.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for another thread's default stream, for a foreign stream whose handle was recycled, and for
    /// one that is [registered](super::RegisteredStream) no longer; or the device's own.
    pub fn handle_here(&self) -> Result<StreamHandle> {
        self.inner.timelines.check_process()?;
        Ok(self.inner.timeline.handle_here()?)
    }

    /// The stream's identity, which the device never gives to another.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.inner.timeline.stream
    }

    /// The device that the stream belongs to.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        self.inner.timelines.device()
    }

    /// Records an event after all work given to the stream so far. While the stream is being captured, the event
    /// orders nodes of the graph, and teaches the pools nothing.
    ///
    /// # Errors
    /// As for [`handle_here`](Self::handle_here).
    pub fn record(&self) -> Result<Event> {
        let timelines = &self.inner.timelines;
        timelines.check_process()?;
        let event = OwnedEvent::create(timelines.device())?;
        // SAFETY: the event was created above, by this device.
        let clock = unsafe { self.inner.timeline.record(event.handle) }?;
        Ok(Event::new(timelines.clone(), event, clock))
    }

    /// Makes later work on this stream wait for `event`. The host does not wait. The event may be of another GPU; pools learn
    /// nothing from that.
    ///
    /// # Errors
    /// As for [`record`](Self::record). An event of a device that does not work together with this one is
    /// [`DeviceError::Invalid`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        let timelines = &self.inner.timelines;
        let is_own = Arc::ptr_eq(&event.timelines, timelines);
        if !is_own && !timelines.is_beside(&event.timelines) {
            return Err(DeviceError::Invalid {
                call: "Stream::wait",
                what:
                    "the event is of another context: record and wait on streams of one context, or of GPUs"
                        .to_owned(),
            }
            .into());
        }
        timelines.check_process()?;
        // The other device's ticks mean nothing here.
        let none = Fence::empty();
        let after = if is_own { &event.clock } else { &none };
        // SAFETY: the event is borrowed, so it lives, and of this device or one of its group, as was seen above.
        Ok(unsafe { timelines.wait(&self.inner.timeline, event.handle(), after) }?)
    }

    /// Makes later work on this stream wait for all work given to `other` so far.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        self.wait(&other.record()?)
    }

    /// Waits until all work given to the stream so far is complete. Then the pools of the device give back what lies
    /// above their release thresholds.
    ///
    /// # Errors
    /// As for [`handle_here`](Self::handle_here).
    pub fn synchronize(&self) -> Result<()> {
        self.inner.timelines.check_process()?;
        let handle = self.handle_here()?;
        // Without memory of the host's, only that its own work is complete is learned.
        let mut complete = self.inner.timeline.ordered_after().unwrap_or_default();
        complete.raise(self.inner.timeline.id, self.inner.timeline.turn());
        // SAFETY: the handle is valid as long as this lives, or by the promise of who adopted it.
        unsafe { self.device().synchronize_stream(handle) }?;
        self.inner.timelines.note_synchronized(&complete);
        self.inner.timelines.after_sync();
        Ok(())
    }

    /// Runs `work` on a thread of the device's or its driver's, once all work given to the stream so far is complete. Later work
    /// on the stream waits for it. It must not wait for the device, nor call CUDA, as a drop of a buffer may: have it wake
    /// another thread. Beginning a capture waits for pools that go to sleep, and ending a decay for memory that is given back. Both
    /// wait for the device, so neither belongs here.
    ///
    /// ```
    /// # let stream = millpond::Context::host()?.create_stream()?;
    /// let (send, receive) = std::sync::mpsc::channel();
    /// stream.launch_host(move || send.send("done").unwrap())?;
    /// assert_eq!(receive.recv().unwrap(), "done");
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] while the stream is being captured, since a graph would run it at each replay.
    /// [`DeviceError::Unsupported`] for a device of another crate that cannot. Else the device's own. `work` is dropped then.
    pub fn launch_host(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.inner.timelines.check_process()?;
        self.check_not_captured("Stream::launch_host", "run a function of the program once")?;
        let handle = self.handle_here()?;
        // SAFETY: the handle is valid, as in `synchronize`, and in no capture.
        Ok(unsafe { self.device().launch_host(handle, Box::new(work)) }?)
    }

    /// As [`launch_host`](Self::launch_host), but later work on the stream does not wait for `work`.
    ///
    /// # Errors
    /// As for [`launch_host`](Self::launch_host).
    pub fn on_complete(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.inner.timelines.check_process()?;
        self.check_not_captured("Stream::on_complete", "run a function of the program once")?;
        // The event is destroyed while the wait for it is pending, which a device allows.
        self.record()?.watch(work)
    }

    /// Whether all work given to the stream so far is complete. Does not wait.
    ///
    /// # Errors
    /// As for [`handle_here`](Self::handle_here).
    pub fn is_idle(&self) -> Result<bool> {
        self.inner.timelines.check_process()?;
        let handle = self.handle_here()?;
        // SAFETY: as in `synchronize`.
        Ok(unsafe { self.device().stream_is_idle(handle) }?)
    }

    /// Refuses to go on while the stream is being captured, into a graph that cannot do what is asked for.
    pub(crate) fn check_not_captured(&self, call: &'static str, to: &str) -> Result<()> {
        let handle = self.handle_here()?;
        // SAFETY: the stream is valid, as `handle_here` says, and stays so while this lives.
        if unsafe { self.device().capture_of(handle) }?.is_some() {
            let what =
                format!("the stream is being captured, and a graph cannot {to}: end the capture first");
            return Err(DeviceError::Invalid { call, what }.into());
        }
        Ok(())
    }

    pub(crate) fn timelines(&self) -> &Arc<Timelines> {
        &self.inner.timelines
    }

    #[inline]
    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.inner.timeline
    }

    /// The tick of the work given to the stream so far, for the fence of a free. A load; on a foreign stream
    /// ([marked at once](Timeline::is_marked_at_once)) also a mark.
    #[inline]
    pub(crate) fn tick(&self) -> Tick {
        let timeline = &self.inner.timeline;
        if timeline.is_marked_at_once() { timeline.close_tick_slow() } else { timeline.now() }
    }

    /// The fence of the work given to the stream so far.
    #[inline]
    pub(crate) fn fence(&self) -> Fence {
        Fence::at(self.inner.timeline.id, self.tick())
    }

    /// Whether an event comes after all work that the stream was given up to a tick.
    pub(crate) fn was_at(&self, tick: Tick, event: &Event) -> bool {
        Arc::ptr_eq(&event.timelines, self.timelines()) && event.clock.tick_of(self.timeline().id) >= tick
    }

    /// Whether the stream is [registered](super::RegisteredStream), now.
    pub(crate) fn is_registered(&self) -> bool {
        // Relaxed: it may end at any time.
        self.inner.registrations.load(Ordering::Relaxed) > 0
    }

    /// A stream of `timelines`, which is ordered after all work that this one was given so far: it stands for this one where
    /// memory of another device is used, since a device's fences name its own timelines only. It has no work, and waits for
    /// this one's events.
    pub(crate) fn stand_in(&self, timelines: &Arc<Timelines>) -> Result<Self> {
        // It would become a part of the capture.
        self.check_not_captured("record_use", "order work of another device")?;
        let event = self.record()?;
        let mut stand_ins = self.inner.stand_ins.lock();
        let known = stand_ins.iter().find(|known| Arc::ptr_eq(&known.timelines, timelines)).cloned();
        let held = match known {
            Some(held) => held,
            None => {
                // Each tick is closed by an event. Whether a stream that only waits is idle, a driver need not know.
                stand_ins.push(timelines.create(Promise::InCalls)?);
                stand_ins[stand_ins.len() - 1].clone()
            }
        };
        drop(stand_ins);
        let stand_in = Self::new(held);
        stand_in.wait(&event)?;
        Ok(stand_in)
    }
}
