//! Where the bytes of a pool that sleeps lie: pinned memory of the host, and the copies to and from there.

use std::sync::Arc;

use crate::device::{Device, DeviceError, DevicePtr, DeviceResult, EventHandle, StreamHandle};

/// What segments of pinned memory are a multiple of, in bytes.
const UNIT: u64 = 2 << 20;

/// Pinned memory, kept from one sleep to the next: to lock it takes longer than to copy to it.
#[derive(Debug, Default)]
pub(super) struct Staging {
    /// The pinned memory, as a device, once there was any.
    pinned: Option<Arc<dyn Device>>,
    /// First address and bytes of each segment.
    segments: Vec<(DevicePtr, u64)>,
}

impl Staging {
    /// Makes it at least so many bytes long.
    pub(super) fn lengthen(&mut self, device: &dyn Device, bytes: u64) -> DeviceResult<()> {
        let lacking = bytes.saturating_sub(self.bytes());
        if lacking == 0 {
            return Ok(());
        }
        if self.segments.try_reserve(1).is_err() {
            let bytes = size_of::<(DevicePtr, u64)>() as u64;
            return Err(DeviceError::HostMemory { what: "a list of segments", bytes });
        }
        let pinned = match &self.pinned {
            Some(pinned) => pinned,
            None => self.pinned.insert(device.pinned(None)?),
        };
        let bytes = lacking.next_multiple_of(UNIT);
        self.segments.push((pinned.alloc_segment(bytes)?, bytes));
        Ok(())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Shows `each` the parts of `bytes` bytes, from `offset` on: how far in, address, length.
    pub(super) fn for_each_part(
        &self,
        (mut offset, bytes): (u64, u64),
        mut each: impl FnMut(u64, DevicePtr, u64) -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let mut done = 0;
        for (at, length) in &self.segments {
            if offset >= *length {
                offset -= length;
                continue;
            }
            let part = (length - offset).min(bytes - done);
            if part > 0 {
                each(done, at.offset(offset), part)?;
            }
            (done, offset) = (done + part, 0);
        }
        debug_assert_eq!(done, bytes, "it is long enough");
        Ok(())
    }

    /// Gives all of it back to the host. What cannot be given back stays. Returns the bytes given back.
    pub(super) fn release(&mut self) -> DeviceResult<u64> {
        let (before, mut done) = (self.bytes(), Ok(()));
        if let Some(pinned) = &self.pinned {
            self.segments.retain(|(at, _)| {
                // SAFETY: the segment is ours, and nobody is told of it. The device waits for copies to and from it.
                let freed = unsafe { pinned.free_segment(*at) };
                let stays = freed.is_err();
                done = std::mem::replace(&mut done, Ok(())).and(freed);
                stays
            });
        }
        done.map(|()| before - self.bytes())
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

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, "pinned memory of a pool could not be given back");
        }
    }
}
