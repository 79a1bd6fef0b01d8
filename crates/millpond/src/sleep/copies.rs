//! The copies between a pool that sleeps and pinned memory of the host.

use std::sync::Arc;

use super::asleep::Piece;
use crate::device::DeviceResult;
use crate::order::{OwnedEvent, Stream, Timelines};
use crate::pinned::PinnedMemory;

/// A stream for the copies of sleeps and wakes.
#[derive(Debug)]
pub(super) struct Copies {
    stream: Stream,
}

impl Copies {
    /// Those that there are, or the first.
    pub(super) fn of<'a>(known: &'a mut Option<Self>, timelines: &Arc<Timelines>) -> DeviceResult<&'a Self> {
        match known {
            Some(known) => Ok(known),
            none => Ok(none.insert(Self { stream: Stream::create(timelines)? })),
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
                unsafe { self.stream.device().copy(to, from, part, self.stream.handle()) }?;
            }
            (done, offset) = (done + part, offset.saturating_sub(*length));
        }
        debug_assert_eq!(done, piece.bytes, "it is long enough");
        Ok(())
    }

    /// Stands for the copies given so far.
    pub(super) fn mark(&self) -> DeviceResult<OwnedEvent> {
        let mark = OwnedEvent::create(self.stream.device())?;
        // SAFETY: both are ours.
        unsafe { self.stream.device().record_event(mark.handle, self.stream.handle()) }?;
        Ok(mark)
    }

    /// Waits for all copies.
    pub(super) fn wait(&self) -> DeviceResult<()> {
        // No pool is told, as `Stream::synchronize` would: the lock of this one is held.
        // SAFETY: the stream is ours.
        unsafe { self.stream.device().synchronize_stream(self.stream.handle()) }
    }
}
