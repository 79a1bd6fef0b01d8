//! The copies between a pool that sleeps and pinned memory of the host.

use std::sync::Arc;

use super::asleep::Piece;
use crate::device::{Device, DeviceResult, EventHandle, StreamHandle};
use crate::pinned::PinnedMemory;

/// A stream for the copies of sleeps and wakes.
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
    /// Those that there are, or the first.
    pub(super) fn of<'a>(known: &'a mut Option<Self>, device: &Arc<dyn Device>) -> DeviceResult<&'a Self> {
        match known {
            Some(known) => Ok(known),
            none => Ok(none.insert(Self { stream: device.create_stream()?, device: device.clone() })),
        }
    }

    /// Copies a piece to where it lies in the pinned memory, or `back` from there.
    ///
    /// # Safety
    /// Nothing else uses either until the copy is complete, and both stay until then.
    pub(super) unsafe fn copy(&self, pinned: &PinnedMemory, piece: Piece, back: bool) -> DeviceResult<()> {
        let (mut done, mut offset) = (0, piece.offset);
        for (start, length) in &pinned.segments {
            let part = length.saturating_sub(offset).min(piece.bytes - done);
            if part > 0 {
                let (there, here) = (piece.at.offset(done), start.offset(offset));
                let (to, from) = if back { (there, here) } else { (here, there) };
                // SAFETY: the stream is ours; the rest is the caller's promise.
                unsafe { self.device.copy(to, from, part, self.stream) }?;
            }
            (done, offset) = (done + part, offset.saturating_sub(*length));
        }
        debug_assert_eq!(done, piece.bytes, "it is long enough");
        Ok(())
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
