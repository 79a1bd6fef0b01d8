//! Memory and streams of a device that give themselves back.

use std::sync::Arc;

use millpond::device::{Device, DevicePtr, StreamHandle};

use crate::Result;

/// A segment of a device.
#[derive(Debug)]
pub(crate) struct Segment {
    device: Arc<dyn Device>,
    at: DevicePtr,
}

impl Segment {
    pub(crate) fn new(device: &Arc<dyn Device>, bytes: u64) -> Result<Self> {
        Ok(Self { at: device.alloc_segment(bytes)?, device: device.clone() })
    }

    pub(crate) fn at(&self) -> DevicePtr {
        self.at
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: it came from `alloc_segment`, nobody else knows it, and the call waits for work that uses it.
        // Refused, it stays the device's until that goes.
        unsafe { self.device.free_segment(self.at) }.ok();
    }
}

/// A stream of a device.
#[derive(Debug)]
pub(crate) struct OwnedStream {
    device: Arc<dyn Device>,
    handle: StreamHandle,
}

impl OwnedStream {
    pub(crate) fn new(device: &Arc<dyn Device>) -> Result<Self> {
        Ok(Self { handle: device.create_stream()?, device: device.clone() })
    }

    pub(crate) fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// Waits for all of its work.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the stream is valid until the drop.
        Ok(unsafe { self.device.synchronize_stream(self.handle) }?)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        // SAFETY: as above, and it is not used again.
        unsafe { self.device.destroy_stream(self.handle) }.ok();
    }
}
