//! For tests: a device that gives a new stream the handle of one that is gone, as CUDA's driver does.

use std::fmt;
use std::sync::Arc;

use crate::device::{
    CaptureId, Device, DevicePtr, DeviceResult, EventHandle, Forward, HostWork, PeerId, Place, StreamHandle,
    StreamId, invalid,
};
use crate::system::lock::Mutex;

/// A device over another one, whose streams have other handles: those of streams that are gone first, the last one
/// foremost. Identities are the device's below, and never the same.
///
/// ```
/// use millpond::device::Device;
/// use millpond::device::sim::{SimDevice, SimOptions};
/// use millpond::testing::recycling::RecyclingDevice;
///
/// let device = RecyclingDevice::new(SimDevice::new(SimOptions::default())?);
/// let first = device.create_stream()?;
/// // SAFETY: the streams are the device's, and alive.
/// let (id, again, other) = unsafe {
///     let id = device.stream_id(first)?;
///     device.destroy_stream(first)?;
///     let again = device.create_stream()?;
///     (id, again, device.stream_id(again)?)
/// };
/// assert!(again == first && other != id);
/// # unsafe { device.destroy_stream(again) }?;
/// # Ok::<(), millpond::device::DeviceError>(())
/// ```
pub struct RecyclingDevice {
    below: Arc<dyn Device>,
    handles: Arc<Mutex<Handles>>,
}

/// What each handle stands for below, by its number.
#[derive(Default)]
struct Handles {
    all: Vec<Option<StreamHandle>>,
    free: Vec<usize>,
}

/// Handles are so far apart, and begin where no device below has any.
const STRIDE: u64 = 16;
const FIRST: u64 = 1 << 40;

fn number_of(handle: StreamHandle) -> Option<usize> {
    Some((handle.raw().checked_sub(FIRST)? / STRIDE) as usize)
}

impl fmt::Debug for RecyclingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecyclingDevice").field(&self.below).finish()
    }
}

impl RecyclingDevice {
    /// Over this device.
    pub fn new(below: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { below, handles: Arc::default() })
    }

    /// The handle of the device below. One that stands for no stream is left as it is: the device below refuses it.
    #[must_use]
    pub fn handle_below(&self, handle: StreamHandle) -> StreamHandle {
        let known = number_of(handle).and_then(|number| *self.handles.lock().all.get(number)?);
        known.unwrap_or(handle)
    }

    /// As [`handle_below`](Self::handle_below). The driver, too, answers where it is asked of a stream that is gone.
    fn known(&self, call: &'static str, handle: StreamHandle) -> DeviceResult<StreamHandle> {
        let below = self.handle_below(handle);
        if below == handle && number_of(handle).is_some() {
            return invalid(call, format!("no stream has the handle {handle:?}"));
        }
        Ok(below)
    }

    fn beside(&self, memory: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(Self { below: memory, handles: self.handles.clone() })
    }
}

macro_rules! on_streams {
    ($(fn $name:ident($($before:ident: $of:ty),*; stream $(, $after:ident: $type:ty)*) -> $result:ty;)*) => {
        $(unsafe fn $name(
            &self,
            $($before: $of,)*
            stream: StreamHandle,
            $($after: $type,)*
        ) -> DeviceResult<$result> {
            // SAFETY: the caller keeps the promise of the same call of the device below.
            unsafe { self.below.$name($($before,)* self.handle_below(stream), $($after,)*) }
        })*
    };
}

// SAFETY: each call goes to the device below with the handle that it knows the stream by.
unsafe impl Forward for RecyclingDevice {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
        Ok(self.beside(self.below.pinned(node)?))
    }

    fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
        Ok(self.beside(self.below.managed()?))
    }

    fn create_stream(&self) -> DeviceResult<StreamHandle> {
        let made = self.below.create_stream()?;
        let mut handles = self.handles.lock();
        let number = handles.free.pop().unwrap_or(handles.all.len());
        if number == handles.all.len() {
            handles.all.push(None);
        }
        handles.all[number] = Some(made);
        // SAFETY: it is this device's name for a stream.
        Ok(unsafe { StreamHandle::from_raw(FIRST + number as u64 * STRIDE) })
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.below.destroy_stream(self.handle_below(stream)) }?;
        let mut handles = self.handles.lock();
        if let Some(number) = number_of(stream)
            && handles.all[number].take().is_some()
        {
            handles.free.push(number);
        }
        Ok(())
    }

    unsafe fn stream_id(&self, stream: StreamHandle) -> DeviceResult<StreamId> {
        let below = self.known("stream_id", stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.below.stream_id(below) }
    }

    unsafe fn capture_of(&self, stream: StreamHandle) -> DeviceResult<Option<CaptureId>> {
        let below = self.known("capture_of", stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.below.capture_of(below) }
    }

    on_streams! {
        fn prefetch(at: DevicePtr, bytes: u64, to: Place; stream) -> ();
        fn stream_is_idle(; stream) -> bool;
        fn synchronize_stream(; stream) -> ();
        fn record_event(event: EventHandle; stream) -> ();
        fn wait_event(; stream, event: EventHandle) -> ();
        fn launch_host(; stream, work: HostWork) -> ();
        fn memset(at: DevicePtr, value: u8, bytes: u64; stream) -> ();
        fn may_differ(at: DevicePtr, value: u8, bytes: u64; stream) -> bool;
        fn copy_from_host(to: DevicePtr, from: *const u8, bytes: u64; stream) -> ();
        fn copy_to_host(to: *mut u8, from: DevicePtr, bytes: u64; stream) -> ();
        fn copy(to: DevicePtr, from: DevicePtr, bytes: u64; stream) -> ();
        fn copy_from_peer(to: DevicePtr, from: DevicePtr, bytes: u64, peer: PeerId; stream) -> ();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::device::sim::{SimDevice, SimOptions};

    #[test]
    fn work_of_the_host_goes_to_the_stream_that_has_the_handle() {
        static HAS_RUN: AtomicBool = AtomicBool::new(false);
        let device: Arc<dyn Device> = RecyclingDevice::new(SimDevice::new(SimOptions::default()).unwrap());
        let (stream, at) = (device.create_stream().unwrap(), device.alloc_segment(4096).unwrap());
        let work = Box::new(|| HAS_RUN.store(true, Ordering::Relaxed));
        // SAFETY: both are the device's, alive, and used by nothing else.
        unsafe {
            device.launch_host(stream, work).unwrap();
            device.may_differ(at, 0, 4096, stream).unwrap();
        }
        assert!(HAS_RUN.load(Ordering::Relaxed));
    }
}
