//! Memory whose segments end at addresses that nothing backs: a device over another one.

use std::collections::HashMap;
use std::sync::Arc;

use crate::device::{Device, DevicePtr, DeviceResult, Forward, MemoryKind, PageHandle};
use crate::lock::Mutex;
use crate::process::OfProcess;

/// See the [module](self). Everything else is the device's below.
#[derive(Debug)]
pub(crate) struct FencedMemory {
    below: Arc<dyn Device>,
    /// By address: the page of each segment, and its bytes.
    segments: OfProcess<Mutex<HashMap<DevicePtr, (PageHandle, u64)>>>,
}

impl FencedMemory {
    /// Whether a device can have such memory: not one without virtual memory, nor memory of another kind.
    pub(super) fn may_be_over(device: &dyn Device) -> bool {
        let properties = device.properties();
        properties.virtual_memory && properties.memory == MemoryKind::Device
    }

    /// The device, or this over it, if it can have it.
    pub(crate) fn over(device: Arc<dyn Device>) -> Arc<dyn Device> {
        if !Self::may_be_over(&*device) {
            return device;
        }
        Arc::new(Self { below: device, segments: OfProcess::default() })
    }

    /// Maps a page at addresses that have at least one more behind it.
    fn map(&self, bytes: u64) -> DeviceResult<(DevicePtr, PageHandle)> {
        let at = self.below.reserve(self.reserved(bytes))?;
        let page = self.below.create_page(bytes).inspect_err(|_| {
            // SAFETY: reserved above, and nothing is mapped there.
            unsafe { self.below.unreserve(at, self.reserved(bytes)) }.ok();
        })?;
        // SAFETY: reserved above, and nothing is mapped there.
        let mapped = unsafe { self.below.map(at, bytes, page) };
        // SAFETY: just this range was mapped.
        if let Err(error) = mapped.and_then(|()| unsafe { self.below.set_access(at, bytes) }) {
            // SAFETY: nobody was told of the addresses, or of the page. Where it is not mapped, that is the error.
            unsafe {
                self.below.unmap(at, bytes).ok();
                self.below.release_page(page).ok();
                self.below.unreserve(at, self.reserved(bytes)).ok();
            }
            return Err(error);
        }
        Ok((at, page))
    }

    fn reserved(&self, bytes: u64) -> u64 {
        bytes + self.below.properties().granularity
    }
}

// SAFETY: a segment is a page that the device below mapped, at addresses that nobody else has.
unsafe impl Forward for FencedMemory {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let bytes = bytes.next_multiple_of(self.below.properties().granularity);
        let (at, page) = self.map(bytes)?;
        self.segments.lock().insert(at, (page, bytes));
        Ok(at)
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        let known = self.segments.lock().get(&at).copied();
        let Some((page, bytes)) = known else {
            // SAFETY: the caller's promise.
            return unsafe { self.below.free_segment(at) };
        };
        self.below.synchronize()?;
        // SAFETY: the caller's promise, and the device is idle.
        unsafe { self.below.unmap(at, bytes) }?;
        self.segments.lock().remove(&at);
        // SAFETY: it is mapped nowhere, and forgotten.
        let released = unsafe { self.below.release_page(page) };
        // SAFETY: nothing is mapped there any more.
        released.and(unsafe { self.below.unreserve(at, self.reserved(bytes)) })
    }
}
