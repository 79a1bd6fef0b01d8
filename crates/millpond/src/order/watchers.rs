//! Streams that wait for events, and then tell whoever asked: no work of the program waits for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{Device, DeviceResult, EventHandle, StreamHandle};
use crate::log::log;
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// As many streams as were awaited at the same time so far. One for all would tell of each event behind those before it.
#[derive(Debug, Default)]
pub(super) struct Watchers(OfProcess<Mutex<Vec<Watcher>>>);

#[derive(Debug)]
struct Watcher {
    device: Arc<dyn Device>,
    stream: StreamHandle,
    is_free: Arc<AtomicBool>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // SAFETY: the stream is this object's, and what it was given still runs.
        if let Err(error) = unsafe { self.device.destroy_stream(self.stream) } {
            log!(WARN, "a stream could not be destroyed", error);
        }
    }
}

impl Watchers {
    /// Calls `tell` on a thread of the device's, once the event is complete. It is dropped where that cannot be done.
    ///
    /// # Safety
    /// The event is valid, and of no capture.
    pub(super) unsafe fn tell(
        &self,
        device: &Arc<dyn Device>,
        event: EventHandle,
        tell: impl FnOnce() + Send + 'static,
    ) -> DeviceResult<()> {
        let (stream, is_free) = self.take(device)?;
        let give_back = is_free.clone();
        let work = move || {
            // Release: pairs with the Acquire in `take`.
            is_free.store(true, Ordering::Release);
            tell();
        };
        // SAFETY: the event is valid, by the caller's promise. The stream is ours, and in no capture: the event is of none.
        unsafe {
            let waits = device.wait_event(stream, event);
            waits.and_then(|()| device.launch_host(stream, Box::new(work)))
        }
        .inspect_err(|_| give_back.store(true, Ordering::Release))
    }

    /// A stream that nobody else has until the flag is set again.
    fn take(&self, device: &Arc<dyn Device>) -> DeviceResult<(StreamHandle, Arc<AtomicBool>)> {
        let mut watchers = self.0.lock();
        // Acquire: what it was given before is done.
        let free = watchers.iter().find(|watcher| watcher.is_free.swap(false, Ordering::Acquire));
        if let Some(watcher) = free {
            return Ok((watcher.stream, watcher.is_free.clone()));
        }
        let (stream, is_free) = (device.create_stream()?, Arc::new(AtomicBool::new(false)));
        watchers.push(Watcher { device: device.clone(), stream, is_free: is_free.clone() });
        Ok((stream, is_free))
    }
}
