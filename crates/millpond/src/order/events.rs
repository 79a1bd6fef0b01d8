//! What the timelines of one device share: the device, events for their marks, and whether a capture is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{Device, DeviceResult, EventHandle};
use crate::lock::Mutex;
use crate::policy::streams::MANY;
use crate::process::OfProcess;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Events {
    pub(super) device: Arc<dyn Device>,
    /// Events that stand for nothing, ready to be recorded.
    spare: OfProcess<Mutex<Vec<EventHandle>>>,
    /// Whether pools were told of a capture that is under way.
    pub(super) is_capturing: AtomicBool,
}

/// An event for a mark. Once it is dropped, another mark may have it.
#[derive(Debug)]
pub(super) struct MarkEvent {
    pub(super) handle: EventHandle,
    events: Arc<Events>,
}

impl Events {
    pub(super) fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { device, spare: OfProcess::default(), is_capturing: AtomicBool::new(false) })
    }

    /// Whether a capture is under way that a pool was told of.
    #[inline]
    pub(super) fn is_capturing(&self) -> bool {
        // Relaxed: whoever gives something to a stream that is being captured knows that the capture began. Who asks
        // a stream of another thread's looks within the timeline's lock, through which it sees the store.
        self.is_capturing.load(Ordering::Relaxed)
    }

    pub(super) fn spare(self: &Arc<Self>) -> DeviceResult<MarkEvent> {
        let spare = self.spare.lock().pop();
        let handle = spare.map_or_else(|| self.device.create_event(), Ok)?;
        Ok(MarkEvent { handle, events: self.clone() })
    }
}

impl Drop for MarkEvent {
    fn drop(&mut self) {
        // In a forked child, the event is the parent's.
        let Some(spare) = OfProcess::here(&self.events.spare) else { return };
        let mut spare = spare.lock();
        if spare.len() < 2 * MANY && spare.try_reserve(1).is_ok() {
            spare.push(self.handle);
        } else {
            // SAFETY: nobody else uses the event.
            unsafe { self.events.device.destroy_event(self.handle) }.ok();
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let Some(spare) = OfProcess::here(&self.spare) else { return };
        for event in spare.lock().drain(..) {
            // SAFETY: no mark is left that could use the event.
            unsafe { self.device.destroy_event(event) }.ok();
        }
    }
}
