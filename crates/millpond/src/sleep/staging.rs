//! Where the bytes of a pool that sleeps lie: pinned memory of the host, and the copies to and from there.

use std::sync::Arc;

use super::asleep::Piece;
use crate::device::{Device, DevicePtr, DeviceResult, EventHandle, StreamHandle};
use crate::pinned::PinnedMemory;

/// Pinned memory, kept from one sleep to the next.
#[derive(Debug, Default)]
pub(super) struct Staging(pub(super) PinnedMemory);

impl Staging {
    /// Makes it at least so many bytes long.
    pub(super) fn lengthen(&mut self, device: &dyn Device, bytes: u64) -> DeviceResult<()> {
        match bytes.saturating_sub(self.0.bytes()) {
            0 => Ok(()),
            lacking => self.0.add(device, lacking).map(drop),
        }
    }

    /// Shows `each` where the parts of a piece lie, there and here, and their bytes.
    pub(super) fn for_each_part(
        &self,
        Piece { at, mut offset, bytes }: Piece,
        mut each: impl FnMut(DevicePtr, DevicePtr, u64) -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let mut done = 0;
        for (here, length) in &self.0.segments {
            if offset >= *length {
                offset -= length;
                continue;
            }
            let part = (length - offset).min(bytes - done);
            if part > 0 {
                each(at.offset(done), here.offset(offset), part)?;
            }
            (done, offset) = (done + part, 0);
        }
        debug_assert_eq!(done, bytes, "it is long enough");
        Ok(())
    }
}

/// A stream for the copies of one sleep or wake.
#[derive(Debug)]
pub(super) struct Copies {
    device: Arc<dyn Device>,
    stream: StreamHandle,
}

/// Stands for the copies given before it was made.
#[derive(Debug)]
pub(super) struct Mark<'a> {
    device: &'a dyn Device,
    event: EventHandle,
}

impl Copies {
    pub(super) fn new(device: &Arc<dyn Device>) -> DeviceResult<Self> {
        Ok(Self { stream: device.create_stream()?, device: device.clone() })
    }

    /// # Safety
    /// Nothing else uses the ranges until the copy is complete, and they stay until then.
    pub(super) unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64) -> DeviceResult<()> {
        // SAFETY: the stream is ours; the rest is the caller's promise.
        unsafe { self.device.copy(to, from, bytes, self.stream) }
    }

    pub(super) fn mark(&self) -> DeviceResult<Mark<'_>> {
        let mark = Mark { device: &*self.device, event: self.device.create_event()? };
        // SAFETY: both are ours.
        unsafe { self.device.record_event(mark.event, self.stream) }?;
        Ok(mark)
    }

    /// Waits for all copies.
    pub(super) fn wait(&self) -> DeviceResult<()> {
        // SAFETY: the stream is ours.
        unsafe { self.device.synchronize_stream(self.stream) }
    }
}

impl Mark<'_> {
    /// Waits for the copies that it stands for.
    pub(super) fn wait(&self) -> DeviceResult<()> {
        // SAFETY: the event is ours.
        unsafe { self.device.synchronize_event(self.event) }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // SAFETY: the stream is ours, and goes here.
        if let Err(error) = unsafe { self.device.destroy_stream(self.stream) } {
            tracing::warn!(%error, "a stream for copies could not be destroyed");
        }
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        // SAFETY: the event is ours, and goes here.
        if let Err(error) = unsafe { self.device.destroy_event(self.event) } {
            tracing::warn!(%error, "an event for copies could not be destroyed");
        }
    }
}
