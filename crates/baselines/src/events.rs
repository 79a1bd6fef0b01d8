//! Recorded events, kept for reuse: what tells the binned and the caching allocators that a free is complete.

use std::sync::Arc;

use millpond::device::{Device, DeviceError, DeviceResult, EventHandle, StreamId};
use millpond::{Result, Stream};
use parking_lot::Mutex;

/// An event recorded on a stream.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) stream: StreamId,
    event: EventHandle,
}

/// Records events and reuses them once they are complete. They are destroyed when it is dropped, so they are valid in
/// every call of it.
#[derive(Debug)]
pub(crate) struct Events {
    device: Arc<dyn Device>,
    spare: Mutex<Vec<EventHandle>>,
}

impl Events {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, spare: Mutex::default() }
    }

    /// Records an event on each stream, all or none.
    pub(crate) fn record_all<'a>(&self, streams: impl Iterator<Item = &'a Stream>) -> Result<Vec<Recorded>> {
        let mut recorded = Vec::with_capacity(1);
        for stream in streams {
            match self.record(stream) {
                Ok(event) => recorded.push(event),
                Err(error) => {
                    self.recycle(recorded);
                    return Err(error.into());
                }
            }
        }
        Ok(recorded)
    }

    fn record(&self, stream: &Stream) -> DeviceResult<Recorded> {
        let handle = stream.handle();
        // The handle of a thread's default stream names another stream on another thread.
        // SAFETY: the stream is borrowed, so its handle is valid.
        if unsafe { self.device.stream_id(handle) }? != stream.id() {
            let what =
                "the stream is another thread's default stream; free on a stream of this thread".to_owned();
            return Err(DeviceError::Invalid { call: "free", what });
        }
        let spare = self.spare.lock().pop();
        let event = match spare {
            Some(event) => event,
            None => self.device.create_event()?,
        };
        // SAFETY: as above; the event is one of these.
        if let Err(error) = unsafe { self.device.record_event(event, handle) } {
            self.spare.lock().push(event);
            return Err(error);
        }
        Ok(Recorded { stream: stream.id(), event })
    }

    pub(crate) fn is_complete(&self, recorded: &Recorded) -> DeviceResult<bool> {
        // SAFETY: the event is one of these.
        unsafe { self.device.query_event(recorded.event) }
    }

    /// **Waits** until the event is complete.
    pub(crate) fn wait(&self, recorded: &Recorded) -> DeviceResult<()> {
        // SAFETY: the event is one of these.
        unsafe { self.device.synchronize_event(recorded.event) }
    }

    /// Keeps events for reuse that nobody will ask about any more.
    pub(crate) fn recycle(&self, recorded: impl IntoIterator<Item = Recorded>) {
        self.spare.lock().extend(recorded.into_iter().map(|recorded| recorded.event));
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in self.spare.get_mut().drain(..) {
            // SAFETY: spare events are known to nobody else.
            if let Err(error) = unsafe { self.device.destroy_event(event) } {
                tracing::warn!(%error, "an event could not be destroyed");
            }
        }
    }
}
