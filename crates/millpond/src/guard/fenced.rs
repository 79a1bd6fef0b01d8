//! Memory whose segments end at addresses that nothing backs: a device over another one.

use std::sync::Arc;

use crate::device::{Device, DevicePtr, DeviceResult, Forward, MemoryKind};
use crate::physical::mapped::{Mapped, MappedSegments};

/// See the [module](self). Everything else is the device's below.
#[derive(Debug)]
pub(crate) struct FencedMemory {
    below: Arc<dyn Device>,
    segments: MappedSegments<()>,
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
        Arc::new(Self { below: device, segments: MappedSegments::new() })
    }
}

// SAFETY: a segment is a page that the device below mapped, at addresses that nobody else has.
unsafe impl Forward for FencedMemory {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let granularity = self.below.properties().granularity;
        let bytes = bytes.next_multiple_of(granularity);
        // Nothing is mapped at the last addresses.
        let mut mapped = Mapped::reserve(&self.below, bytes + granularity)?;
        // SAFETY: created for this, and the addresses are longer.
        unsafe { mapped.push(self.below.create_page(bytes)?, bytes) }?;
        let at = mapped.base();
        self.segments.add(at, (mapped, ()));
        Ok(at)
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        self.below.synchronize()?;
        // SAFETY: the caller's promise, and the device is idle.
        unsafe { self.segments.close(at) }
    }
}
