//! Which work is ordered before which: a clock for every stream and event, and one for the host.
//!
//! A stream's clock names the work that its later work is ordered after; its own entry counts the work given
//! to it. An event holds the clock of its stream when it was recorded. The host's clock names what is known
//! to be complete: what is complete is ordered before everything given to any stream later.

use std::thread::{self, ThreadId};

use rustc_hash::FxHashMap;

use super::clock::{Clock, DeviceNumber, StreamKey, Work};
use crate::device::{EventHandle, StreamHandle};

#[derive(Debug)]
struct Stream {
    name: StreamName,
    clock: Clock,
}

/// A handle, of a device.
type StreamName = (DeviceNumber, StreamHandle);

#[derive(Debug, Default)]
pub(super) struct Event {
    stands_for: Clock,
    /// The device refused to destroy it, so that it is no leak.
    stuck: bool,
}

#[derive(Debug, Default)]
pub(super) struct Order {
    /// By key; streams that were destroyed too, since their work may still run.
    streams: Vec<Stream>,
    by_handle: FxHashMap<StreamName, StreamKey>,
    per_thread: FxHashMap<(DeviceNumber, ThreadId), StreamKey>,
    stuck_streams: Vec<StreamName>,
    events: FxHashMap<EventHandle, Event>,
    /// Events that stand for the same as another one, which was exported.
    same_as: FxHashMap<EventHandle, EventHandle>,
    exported: FxHashMap<[u8; 64], EventHandle>,
    host: Clock,
}

impl Order {
    // ---- streams ---------------------------------------------------------------------------------

    pub(super) fn add_stream(&mut self, name: StreamName) -> StreamKey {
        let key = self.new_stream(name);
        self.by_handle.insert(name, key);
        key
    }

    fn new_stream(&mut self, name: StreamName) -> StreamKey {
        let key = StreamKey(u32::try_from(self.streams.len()).expect("fewer than 2^32 streams"));
        self.streams.push(Stream { name, clock: Clock::default() });
        key
    }

    /// The stream behind the handle now, as the calling thread sees it.
    pub(super) fn stream(&mut self, (device, handle): StreamName) -> Option<StreamKey> {
        if handle == StreamHandle::PER_THREAD {
            let thread = (device, thread::current().id());
            if let Some(key) = self.per_thread.get(&thread) {
                return Some(*key);
            }
            let key = self.new_stream((device, handle));
            self.per_thread.insert(thread, key);
            return Some(key);
        }
        // The null handle is the legacy stream's other name.
        let handle = if handle.raw() == 0 { StreamHandle::LEGACY } else { handle };
        match self.by_handle.get(&(device, handle)) {
            Some(key) => Some(*key),
            None if handle == StreamHandle::LEGACY => Some(self.add_stream((device, handle))),
            None => None,
        }
    }

    pub(super) fn remove_stream(&mut self, name: StreamName) {
        self.by_handle.remove(&name);
        self.stuck_streams.retain(|stuck| *stuck != name);
    }

    pub(super) fn stream_is_stuck(&mut self, name: StreamName) {
        self.stuck_streams.push(name);
    }

    /// Streams that were created, not destroyed, and could have been.
    pub(super) fn streams_left(&self) -> impl Iterator<Item = StreamHandle> + '_ {
        let names = self.by_handle.keys().filter(|name| !self.stuck_streams.contains(name));
        names.map(|(_, handle)| *handle).filter(|handle| *handle != StreamHandle::LEGACY)
    }

    /// The device that the stream is of.
    pub(super) fn device_of(&self, stream: StreamKey) -> DeviceNumber {
        self.streams[stream.0 as usize].name.0
    }

    /// One more piece of work on the stream.
    pub(super) fn submit(&mut self, stream: StreamKey) -> Work {
        let clock = &mut self.streams[stream.0 as usize].clock;
        let work = Work { stream, tick: clock.tick_of(stream) + 1 };
        clock.raise(work);
        work
    }

    // ---- events ----------------------------------------------------------------------------------

    pub(super) fn add_event(&mut self, event: EventHandle) {
        self.events.insert(event, Event::default());
    }

    pub(super) fn export_event(&mut self, event: EventHandle, to: [u8; 64]) {
        self.add_event(event);
        self.exported.insert(to, event);
    }

    pub(super) fn open_event(&mut self, event: EventHandle, from: &[u8; 64]) {
        self.add_event(event);
        self.same_as.extend(self.exported.get(from).map(|exported| (event, *exported)));
    }

    /// The event that says what this one stands for.
    fn original(&self, event: EventHandle) -> EventHandle {
        self.same_as.get(&event).copied().unwrap_or(event)
    }

    pub(super) fn knows_event(&self, event: EventHandle) -> bool {
        self.events.contains_key(&event)
    }

    pub(super) fn remove_event(&mut self, event: EventHandle) {
        self.events.remove(&event);
        self.same_as.remove(&event);
    }

    pub(super) fn event_is_stuck(&mut self, event: EventHandle) {
        if let Some(event) = self.events.get_mut(&event) {
            event.stuck = true;
        }
    }

    /// Events that were created, not destroyed, and could have been.
    pub(super) fn events_left(&self) -> impl Iterator<Item = EventHandle> + '_ {
        self.events.iter().filter(|(_, event)| !event.stuck).map(|(handle, _)| *handle)
    }

    pub(super) fn record(&mut self, event: EventHandle, stream: StreamKey) {
        let stands_for = self.streams[stream.0 as usize].clock.clone();
        let event = self.original(event);
        if let Some(event) = self.events.get_mut(&event) {
            event.stands_for = stands_for;
        }
    }

    pub(super) fn wait(&mut self, stream: StreamKey, event: EventHandle) {
        if let Some(event) = self.events.get(&self.original(event)) {
            self.streams[stream.0 as usize].clock.join(&event.stands_for);
        }
    }

    // ---- the host --------------------------------------------------------------------------------

    /// Everything that the event stands for.
    pub(super) fn event_clock(&self, event: EventHandle) -> Clock {
        self.events.get(&self.original(event)).map(|event| event.stands_for.clone()).unwrap_or_default()
    }

    /// All work given to the stream so far, and what that waited for.
    pub(super) fn stream_clock(&self, stream: StreamKey) -> Clock {
        self.streams[stream.0 as usize].clock.clone()
    }

    /// All work given to a device so far.
    pub(super) fn all_work(&self, device: DeviceNumber) -> Clock {
        let mut all = Clock::default();
        let streams = self.streams.iter().filter(|stream| stream.name.0 == device);
        streams.for_each(|stream| all.join(&stream.clock));
        all
    }

    /// The host learned that this is complete.
    pub(super) fn complete(&mut self, clock: &Clock) {
        self.host.join(clock);
    }

    // ---- questions -------------------------------------------------------------------------------

    pub(super) fn is_known_complete(&self, work: Work) -> bool {
        self.host.covers(work)
    }

    /// Whether work given to `stream` now would be ordered after `work`.
    pub(super) fn is_before(&self, work: Work, stream: StreamKey) -> bool {
        self.host.covers(work) || self.streams[stream.0 as usize].clock.covers(work)
    }

    /// The stream's name in reports.
    pub(super) fn name(&self, stream: StreamKey) -> String {
        let (device, handle) = self.streams[stream.0 as usize].name;
        let of = if device == DeviceNumber(0) { String::new() } else { format!(" of device {}", device.0) };
        format!("stream #{}{of} (handle {:#x})", stream.0, handle.raw())
    }

    /// Why work given to `stream` now is not ordered after `work`, for reports.
    pub(super) fn explain(&self, work: Work, stream: StreamKey) -> String {
        let Work { stream: of, tick } = work;
        format!(
            "tick {tick} of {} must come first, but {} is ordered after tick {} of it, and the host knows it \
             complete up to tick {}",
            self.name(of),
            self.name(stream),
            self.streams[stream.0 as usize].clock.tick_of(of),
            self.host.tick_of(of),
        )
    }

    /// How far the host knows the stream of `work` to have come, for reports.
    pub(super) fn explain_pending(&self, work: Work) -> String {
        format!(
            "tick {} of {} may still run: the host knows it complete up to tick {}",
            work.tick,
            self.name(work.stream),
            self.host.tick_of(work.stream),
        )
    }
}
