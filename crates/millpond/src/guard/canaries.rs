//! What is read of device memory: canaries as they were when a block was freed, and the poison in a block that was.

use std::ops::Range;

use crate::core::Core;
use crate::device::{Device, DevicePtr, DeviceResult, StreamHandle};
use crate::physical::staging::PinnedMemory;
use crate::policy::watching::REDZONE;

/// What memory is filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Fill {
    /// Redzones.
    Canary = 0xCA,
    /// Fresh memory: a large negative number in most types.
    Fresh = 0xFA,
    /// Freed memory.
    Freed = 0xFD,
    /// Either, if so asked. In each floating-point type, of whatever length, a number of these bytes is not a number.
    Nan = 0xFF,
}

/// Pinned memory for the canaries of one block, which a copy may be writing to.
#[derive(Debug)]
pub(super) struct Slot(DevicePtr);

/// Where the CPU finds pinned memory.
fn on_host(at: DevicePtr) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at.raw() as usize)
}

/// Pinned memory, with a stream that reads poison.
#[derive(Debug, Default)]
pub(super) struct Staging {
    pinned: PinnedMemory,
    free: Vec<Slot>,
    /// Where poison is read to, and its bytes.
    window: Option<(DevicePtr, u64)>,
}

/// Bytes that are not as they should be: the first of them, how many, and what they are.
pub(super) type Changed = (u64, u64, Vec<u8>);

/// What differs from `expected`.
pub(super) fn changed(bytes: &[u8], expected: Fill) -> Option<Changed> {
    let expected = expected as u8;
    // The same as a comparison of each byte, and many times as fast.
    let (first, rest) = bytes.split_first()?;
    if *first == expected && rest == &bytes[..rest.len()] {
        return None;
    }
    let first = bytes.iter().position(|byte| *byte != expected)?;
    let count = bytes.iter().filter(|byte| **byte != expected).count();
    let found = bytes[first..].iter().copied().take_while(|byte| *byte != expected).take(16).collect();
    Some((first as u64, count as u64, found))
}

impl Staging {
    /// Copies these ranges of device memory, each of at most a redzone, in stream order.
    pub(super) fn copy(
        &mut self,
        device: &dyn Device,
        ranges: [Range<DevicePtr>; 2],
        stream: StreamHandle,
    ) -> DeviceResult<Slot> {
        if self.free.is_empty() {
            let (segment, bytes) = self.pinned.add(device, 1)?;
            self.free.extend((0..bytes).step_by(2 * REDZONE as usize).map(|at| Slot(segment.offset(at))));
        }
        let slot = self.free.pop().expect("there are some now");
        let mut at = 0;
        for Range { start, end } in ranges {
            let bytes = end.raw() - start.raw();
            debug_assert!(at + bytes <= 2 * REDZONE);
            // SAFETY: the slot is ours until it is given back, which is after the copy. The block was the caller's until now, and
            // its redzones are its own. After an error, the slot is not used again: the first copy may be under way.
            unsafe { device.copy_to_host(on_host(slot.0.offset(at)), start, bytes, stream) }?;
            at += bytes;
        }
        Ok(slot)
    }

    /// Fills ranges of device memory that are the guard's, and waits for that.
    pub(super) fn fill(
        &mut self,
        core: &Core,
        ranges: impl Iterator<Item = Range<DevicePtr>>,
        fill: Fill,
    ) -> DeviceResult<()> {
        let device = &*core.device;
        let stream = self.pinned.stream(&core.device)?;
        for Range { start, end } in ranges {
            // SAFETY: the stream is ours. No work of the program's may use the ranges, which lie beside its blocks.
            unsafe { device.memset(start, fill as u8, end.raw() - start.raw(), stream) }?;
        }
        // SAFETY: as above.
        unsafe { device.synchronize_stream(stream) }
    }

    /// Shows `look` so many bytes of a slot, whose copies are complete, and takes it back.
    pub(super) fn read<R>(&mut self, slot: Slot, bytes: u64, look: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: the copies wrote so many bytes, and are complete.
        let result = look(unsafe { std::slice::from_raw_parts(on_host(slot.0), bytes as usize) });
        self.free.push(slot);
        result
    }

    /// What differs from `expected` in a range of device memory that nobody uses.
    pub(super) fn compare(
        &mut self,
        core: &Core,
        Range { start, end }: Range<DevicePtr>,
        expected: Fill,
    ) -> DeviceResult<Option<Changed>> {
        let device = &*core.device;
        let stream = self.pinned.stream(&core.device)?;
        let (window, room) = match self.window {
            Some(window) => window,
            None => *self.window.insert(self.pinned.add(device, 1)?),
        };
        let to = on_host(window);
        // SAFETY: the stream is ours. The range is an allocated block's, which is quarantined.
        if !unsafe { device.may_differ(start, expected as u8, end.raw() - start.raw(), stream) }? {
            return Ok(None);
        }
        let (mut at, mut all): (u64, Option<Changed>) = (start.raw(), None);
        while at < end.raw() {
            let bytes = room.min(end.raw() - at);
            // SAFETY: the window and the stream are ours, and waited for. The range is an allocated block's, which is quarantined.
            unsafe { device.copy_to_host(to, DevicePtr::new(at), bytes, stream) }?;
            // SAFETY: as above.
            unsafe { device.synchronize_stream(stream) }?;
            // SAFETY: the copy wrote so many bytes, and is complete.
            let read = unsafe { std::slice::from_raw_parts(to, bytes as usize) };
            if let Some((first, count, found)) = changed(read, expected) {
                let all = all.get_or_insert((at - start.raw() + first, 0, found));
                all.1 += count;
            }
            at += bytes;
        }
        Ok(all)
    }
}
