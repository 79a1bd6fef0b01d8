//! The copies between a pool that sleeps and pinned memory of the host.

use std::sync::Arc;

use super::asleep::Piece;
use crate::device::{Device, DeviceResult, StreamHandle};
use crate::order::OwnedEvent;
use crate::physical::staging::PinnedMemory;

/// Copies a piece to where it lies in the pinned memory, or `back` from there, on the stream that goes with that.
///
/// # Safety
/// Nothing else uses either until the copy is complete, and both stay until then.
pub(crate) unsafe fn copy(
    (device, stream): (&dyn Device, StreamHandle),
    pinned: &PinnedMemory,
    piece: Piece,
    back: bool,
) -> DeviceResult<()> {
    let (mut done, mut offset) = (0, piece.offset);
    for (start, length) in &pinned.segments {
        let part = length.saturating_sub(offset).min(piece.bytes - done);
        if part > 0 {
            let (there, here) = (piece.at.offset(done), start.offset(offset));
            let (to, from) = if back { (there, here) } else { (here, there) };
            // SAFETY: the caller's promise.
            unsafe { device.copy(to, from, part, stream) }?;
        }
        (done, offset) = (done + part, offset.saturating_sub(*length));
    }
    debug_assert_eq!(done, piece.bytes, "it is long enough");
    Ok(())
}

/// Stands for the copies given to the stream so far.
pub(crate) fn mark(device: &Arc<dyn Device>, stream: StreamHandle) -> DeviceResult<OwnedEvent> {
    let mark = OwnedEvent::create(device)?;
    // SAFETY: both are ours.
    unsafe { device.record_event(mark.handle, stream) }?;
    Ok(mark)
}
