//! All timelines of one device: the table, and streams coming and going. What a pool asks of it is in `questions`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::stream::Inner;
use super::timeline::{Mark, Marking};
use super::{Fence, Stream, Tick, Timeline, TimelineId};
use crate::device::{Device, DeviceResult, EventHandle, StreamHandle, StreamId};

/// Who wants to know that the host has waited for the device. Called without locks held.
pub(crate) trait AfterSync: Send + Sync {
    fn after_sync(&self);
}

/// A slot of the table: the generation of its present or next owner, and the owner.
#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    timeline: Option<Arc<Timeline>>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots of retired timelines whose last mark is not yet complete.
    retired: Vec<u32>,
}

impl Table {
    /// The timeline, unless it is gone: then all of it is reached.
    #[inline]
    pub(super) fn get(&self, id: TimelineId) -> Option<&Arc<Timeline>> {
        let slot = self.slots.get(id.slot as usize)?;
        if slot.generation == id.generation { slot.timeline.as_ref() } else { None }
    }
}

/// See the [module](super).
pub(crate) struct Timelines {
    device: Arc<dyn Device>,
    table: RwLock<Table>,
    /// Streams alive now, so that one stream has one timeline however often it is presented.
    alive: Mutex<HashMap<StreamId, Weak<Inner>>>,
    /// Events that stand for nothing, ready to be recorded.
    spare_events: Mutex<Vec<EventHandle>>,
    listeners: Mutex<Vec<Weak<dyn AfterSync>>>,
    /// Captures under way that pools were told of. Locked while the device is synchronised for a pool's own sake,
    /// which would end a capture.
    captures: Mutex<usize>,
    /// Whether there are any.
    is_capturing: AtomicBool,
}

impl std::fmt::Debug for Timelines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timelines").field("device", &self.device).finish_non_exhaustive()
    }
}

/// Spare events kept; more are destroyed.
const SPARE_EVENTS: usize = 64;

impl Timelines {
    pub(crate) fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self {
            device,
            table: RwLock::default(),
            alive: Mutex::default(),
            spare_events: Mutex::default(),
            listeners: Mutex::default(),
            captures: Mutex::default(),
            is_capturing: AtomicBool::new(false),
        })
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    // ---- streams ---------------------------------------------------------------------------------

    /// Creates a stream of our own.
    pub(crate) fn create_stream(self: &Arc<Self>) -> DeviceResult<Stream> {
        let handle = self.device.create_stream()?;
        match self.device.stream_id(handle) {
            Ok(id) => Ok(self.register(handle, id, Marking::WhenNeeded, true)),
            Err(error) => {
                // SAFETY: the stream was created above and nobody else knows it.
                unsafe { self.device.destroy_stream(handle) }.ok();
                Err(error)
            }
        }
    }

    /// The stream behind a handle that somebody else made. With [`Marking::WhenNeeded`] the handle must be
    /// valid until the last clone of the returned stream is gone.
    pub(crate) fn adopt_stream(
        self: &Arc<Self>,
        handle: StreamHandle,
        marking: Marking,
    ) -> DeviceResult<Stream> {
        let id = self.device.stream_id(handle)?;
        if let Some(inner) = self.alive.lock().get(&id).and_then(Weak::upgrade) {
            return Ok(Stream::from_inner(inner));
        }
        Ok(self.register(handle, id, marking, false))
    }

    fn register(
        self: &Arc<Self>,
        handle: StreamHandle,
        id: StreamId,
        marking: Marking,
        owned: bool,
    ) -> Stream {
        self.sweep_retired();
        let timeline = {
            let mut table = self.table.write();
            let slot = table.free.pop().unwrap_or_else(|| {
                table.slots.push(Slot::default());
                u32::try_from(table.slots.len() - 1).expect("fewer than 2^32 streams at once")
            });
            let entry = &mut table.slots[slot as usize];
            let name = TimelineId { slot, generation: entry.generation };
            let timeline = Arc::new(Timeline::new(name, handle, id, marking));
            entry.timeline = Some(timeline.clone());
            timeline
        };
        let stream = Stream::new(self.clone(), timeline, handle, owned);
        self.alive.lock().insert(id, Arc::downgrade(stream.inner()));
        stream
    }

    /// The last clone of a stream is gone: closes its last tick while the handle is still valid, destroys
    /// the stream if it is ours, and leaves the timeline to [`sweep_retired`](Self::sweep_retired).
    pub(super) fn retire(&self, timeline: &Arc<Timeline>, handle: StreamHandle, owned: bool) {
        {
            let mut alive = self.alive.lock();
            // The same stream may have been presented again since: then the entry is the newcomer's.
            if alive.get(&timeline.stream).is_some_and(|entry| entry.strong_count() == 0) {
                alive.remove(&timeline.stream);
            }
        }
        if timeline.marking == Marking::WhenNeeded {
            let closed = match timeline.poll_idle(self.device.as_ref(), || self.is_capturing()) {
                Ok(true) => Ok(true),
                _ => self.close(timeline, timeline.now(), false),
            };
            match closed {
                Ok(true) => {}
                // Being captured: as after an error, the last tick stays open, and the counter goes past it, so that
                // the timeline is not taken for complete.
                Ok(false) => _ = timeline.turn(),
                Err(error) => {
                    tracing::warn!(%error, "a stream's last event could not be recorded; its memory waits for a device synchronise");
                }
            }
        }
        timeline.retire();
        if owned {
            // SAFETY: the stream is ours, and this was the last clone.
            if let Err(error) = unsafe { self.device.destroy_stream(handle) } {
                tracing::warn!(%error, "a stream could not be destroyed");
            }
        }
        self.table.write().retired.push(timeline.id.slot);
        self.sweep_retired();
    }

    /// Frees the slots of retired timelines that are complete.
    fn sweep_retired(&self) {
        let mut table = self.table.write();
        let retired = std::mem::take(&mut table.retired);
        for slot in retired {
            let entry = &mut table.slots[slot as usize];
            let Some(timeline) = entry.timeline.clone() else { continue };
            let polled = timeline.poll(self.device.as_ref(), |event| self.let_go(event));
            // The turn at retirement closed every tick below `now`.
            if polled.is_ok() && timeline.observed() + 1 >= timeline.now() {
                entry.timeline = None;
                entry.generation += 1;
                table.free.push(slot);
            } else {
                table.retired.push(slot);
            }
        }
    }

    /// All timelines, for several questions. To be dropped before any other is asked: streams that come or go wait.
    pub(super) fn all(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read()
    }

    /// What `look` says of the timeline, or `None` where it is gone: then all of it is reached.
    pub(super) fn with<R>(&self, id: TimelineId, look: impl FnOnce(&Arc<Timeline>) -> R) -> Option<R> {
        self.all().get(id).map(look)
    }

    /// Whether the stream is gone, and all its work is complete.
    pub(crate) fn is_gone(&self, id: TimelineId) -> bool {
        self.with(id, |_| ()).is_none()
    }

    pub(super) fn get(&self, id: TimelineId) -> Option<Arc<Timeline>> {
        self.with(id, Arc::clone)
    }

    /// All timelines that there are now.
    fn each(&self) -> Vec<Arc<Timeline>> {
        self.table.read().slots.iter().filter_map(|slot| slot.timeline.clone()).collect()
    }

    // ---- marks -----------------------------------------------------------------------------------

    fn spare_event(&self) -> DeviceResult<EventHandle> {
        if let Some(event) = self.spare_events.lock().pop() {
            return Ok(event);
        }
        self.device.create_event()
    }

    fn keep_spare(&self, event: EventHandle) {
        let mut spare = self.spare_events.lock();
        if spare.len() < SPARE_EVENTS {
            spare.push(event);
        } else {
            // SAFETY: the mark that used the event is gone.
            unsafe { self.device.destroy_event(event) }.ok();
        }
    }

    /// Gives up a share in a mark's event; the last share makes it spare.
    pub(super) fn let_go(&self, event: Arc<EventHandle>) {
        if let Some(event) = Arc::into_inner(event) {
            self.keep_spare(event);
        }
    }

    /// The mark that closes `tick`, recorded now if need be; `None` where the stream can no longer be marked.
    pub(super) fn mark(
        &self,
        timeline: &Timeline,
        tick: Tick,
        presented: bool,
    ) -> DeviceResult<Option<Mark>> {
        timeline.mark(self.device.as_ref(), || self.spare_event(), tick, presented)
    }

    /// Makes sure that a mark closes `tick`; `false` where the stream can no longer be marked.
    pub(super) fn close(&self, timeline: &Timeline, tick: Tick, presented: bool) -> DeviceResult<bool> {
        let mark = self.mark(timeline, tick, presented)?;
        let closed = mark.is_some();
        mark.into_iter().for_each(|mark| self.let_go(mark.event));
        Ok(closed)
    }

    /// The present tick of a foreign stream, closed at once. Where that fails the tick stays open, and is
    /// reached only when the device is synchronised: late, but safe.
    #[cold]
    pub(super) fn close_tick_slow(&self, timeline: &Timeline) -> Tick {
        let tick = timeline.now();
        if let Err(error) = timeline.poll(self.device.as_ref(), |event| self.let_go(event)) {
            tracing::warn!(%error, "a stream's events could not be queried");
        }
        let closed = self.close(timeline, tick, true);
        match &closed {
            Ok(true) => {}
            Ok(false) if timeline.is_captured(self.device.as_ref(), true) == Ok(true) => {}
            Ok(false) => tracing::warn!("a stream was used after its handle became another's"),
            Err(error) => tracing::warn!(%error, "no event could be recorded on a stream"),
        }
        if !matches!(closed, Ok(true)) {
            // No mark closes the tick that is handed out. The counter goes past it, so that a retired timeline
            // is not taken for complete by what was seen before.
            timeline.turn();
        }
        tick
    }

    // ---- waiting for the device --------------------------------------------------------------------

    /// Waits on the host for all work on the device, and notes it.
    pub(crate) fn synchronize_device(&self) -> DeviceResult<()> {
        let timelines = self.each();
        let ticks: Vec<_> = timelines.iter().map(|timeline| timeline.turn()).collect();
        self.device.synchronize()?;
        for (timeline, tick) in timelines.iter().zip(ticks) {
            timeline.note_synchronized(tick);
        }
        Ok(())
    }

    // ---- captures --------------------------------------------------------------------------------------

    /// A pool was told that a stream is about to be captured. Waits while the device is synchronised, and while a
    /// stream is asked whether it is idle: once this has returned, neither is done until the capture has ended.
    pub(crate) fn begin_capture(&self) {
        {
            let mut captures = self.captures.lock();
            *captures += 1;
            // Relaxed: as for `is_capturing`.
            self.is_capturing.store(true, Ordering::Relaxed);
        }
        // Who adds a timeline after this look sees the store above, through the table's lock.
        self.each().iter().for_each(|timeline| timeline.let_calls_end());
    }

    /// Whether a capture is under way that a pool was told of.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        // Relaxed: whoever gives something to a stream that is being captured knows that the capture began. Who asks
        // a stream of another thread's looks within the timeline's lock, through which it sees the store.
        self.is_capturing.load(Ordering::Relaxed)
    }

    /// A capture that [began](Self::begin_capture) has ended; whether it was the last.
    pub(crate) fn end_capture(&self) -> bool {
        let mut captures = self.captures.lock();
        *captures -= 1;
        // Relaxed: as for `is_capturing`.
        self.is_capturing.store(*captures > 0, Ordering::Relaxed);
        *captures == 0
    }

    /// As [`synchronize_device`](Self::synchronize_device), but where a capture is under way, which that would end:
    /// `false`, and nothing is done.
    pub(crate) fn synchronize_device_unless_capturing(&self) -> DeviceResult<bool> {
        let captures = self.captures.lock();
        if *captures > 0 {
            return Ok(false);
        }
        self.synchronize_device().map(|()| true)
    }

    /// Notes that the host has waited for everything in `clock`.
    pub(crate) fn note_synchronized(&self, clock: &Fence) {
        for (id, tick) in clock.iter() {
            self.with(id, |timeline| timeline.note_synchronized(tick));
        }
    }

    // ---- listeners ---------------------------------------------------------------------------------

    pub(crate) fn listen(&self, listener: Weak<dyn AfterSync>) {
        self.listeners.lock().push(listener);
    }

    /// Tells the pools that the host has waited.
    pub(crate) fn after_sync(&self) {
        let listeners: Vec<_> = {
            let mut listeners = self.listeners.lock();
            listeners.retain(|listener| listener.strong_count() > 0);
            listeners.iter().filter_map(Weak::upgrade).collect()
        };
        for listener in listeners {
            listener.after_sync();
        }
    }
}

impl Drop for Timelines {
    fn drop(&mut self) {
        // Streams hold this table, so none is left: every timeline is retired.
        let slots = std::mem::take(&mut self.table.get_mut().slots);
        let marks =
            slots.into_iter().filter_map(|slot| slot.timeline).flat_map(|timeline| timeline.take_marks());
        let events = marks.filter_map(Arc::into_inner);
        for event in events.chain(self.spare_events.get_mut().drain(..)) {
            // SAFETY: no timeline is left that could use the event.
            unsafe { self.device.destroy_event(event) }.ok();
        }
    }
}
