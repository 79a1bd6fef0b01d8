//! What the timelines of one device share: the device, events for their marks, and whether a capture is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::device::{Device, DeviceResult, EventHandle};
use crate::log::log;
use crate::policy::streams::MANY;
use crate::system::lock::Mutex;
use crate::system::process::{OfProcess, Process};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Events {
    pub(super) device: Arc<dyn Device>,
    /// Events that stand for nothing, ready to be recorded.
    spare: OfProcess<Mutex<Vec<OwnedEvent>>>,
    /// Captures under way that pools were told of.
    pub(super) captures: AtomicUsize,
}

/// An event for a mark. Once it is dropped, another mark may have it.
#[derive(Debug)]
pub(super) struct MarkEvent {
    /// `None` once this is being dropped.
    event: Option<OwnedEvent>,
    events: Arc<Events>,
    /// Whether a capture recorded it: then no other mark may have it.
    is_spoilt: AtomicBool,
}

impl MarkEvent {
    pub(super) fn event(&self) -> &OwnedEvent {
        self.event.as_ref().expect("it is not being dropped")
    }

    /// A capture recorded it: it is destroyed with the mark. To ask or to wait for it would be an error.
    pub(super) fn spoil(&self) {
        // Relaxed: who drops it comes after.
        self.is_spoilt.store(true, Ordering::Relaxed);
    }
}

/// An event that nobody else may destroy: it goes with this.
#[derive(Debug)]
pub(crate) struct OwnedEvent {
    device: Arc<dyn Device>,
    pub(crate) handle: EventHandle,
    process: Process,
}

impl OwnedEvent {
    /// # Safety
    /// The event is the caller's alone, and of this device.
    pub(crate) unsafe fn new(device: &Arc<dyn Device>, handle: EventHandle) -> Self {
        Self { device: device.clone(), handle, process: Process::here() }
    }

    pub(crate) fn create(device: &Arc<dyn Device>) -> DeviceResult<Self> {
        let handle = device.create_event()?;
        // SAFETY: it was created above.
        Ok(unsafe { Self::new(device, handle) })
    }

    /// Whether the work before it is complete. Does not wait.
    pub(crate) fn query(&self) -> DeviceResult<bool> {
        // SAFETY: it lives as long as this.
        unsafe { self.device.query_event(self.handle) }
    }

    /// Waits for the work before it.
    pub(crate) fn synchronize(&self) -> DeviceResult<()> {
        // SAFETY: as in `query`.
        unsafe { self.device.synchronize_event(self.handle) }
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        // In a forked child, the event is the parent's.
        if self.process.is_here()
            // SAFETY: it is this object's alone, and goes with it. The device keeps it for what waits for it.
            && let Err(error) = unsafe { self.device.destroy_event(self.handle) }
        {
            log!(WARN, "an event could not be destroyed", error);
        }
    }
}

impl Events {
    pub(super) fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { device, spare: OfProcess::default(), captures: AtomicUsize::new(0) })
    }

    /// Whether a capture is under way that a pool was told of.
    #[inline]
    pub(super) fn is_capturing(&self) -> bool {
        // Relaxed: whoever gives something to a stream that is being captured knows that the capture began. Who asks
        // a stream of another thread's looks within the timeline's lock, through which it sees the store.
        self.captures.load(Ordering::Relaxed) > 0
    }

    pub(super) fn spare(self: &Arc<Self>) -> DeviceResult<MarkEvent> {
        let spare = self.spare.lock().pop();
        let event = spare.map_or_else(|| OwnedEvent::create(&self.device), Ok)?;
        Ok(MarkEvent { event: Some(event), events: self.clone(), is_spoilt: AtomicBool::new(false) })
    }
}

impl Drop for MarkEvent {
    fn drop(&mut self) {
        if *self.is_spoilt.get_mut() {
            return;
        }
        // In a forked child, the event is the parent's.
        let Some(spare) = OfProcess::here(&self.events.spare) else { return };
        let mut spare = spare.lock();
        if spare.len() < 2 * MANY && spare.try_reserve(1).is_ok() {
            spare.extend(self.event.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::{SimDevice, SimOptions};

    #[test]
    fn an_event_that_a_capture_recorded_is_not_used_again() {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let events = Events::new(sim);
        let spare = || events.spare.lock().len();
        let spoilt = events.spare().unwrap();
        spoilt.spoil();
        drop(spoilt);
        assert_eq!(spare(), 0);
        drop(events.spare().unwrap());
        assert_eq!(spare(), 1);
    }

    #[test]
    fn no_more_events_are_kept_than_two_streams_need() {
        let events = Events::new(SimDevice::new(SimOptions::default()).unwrap());
        drop((0..3 * MANY).map(|_| events.spare().unwrap()).collect::<Vec<_>>());
        assert_eq!(events.spare.lock().len(), 2 * MANY);
    }
}
