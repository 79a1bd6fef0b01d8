//! A device's memory of a kind, as a device of its own: all allocators work over that.

use std::sync::Arc;

use millpond::device::{Device, DeviceError, DeviceResult, MemoryKind};

/// The kinds of memory, by the names that users choose them by.
pub const MEMORIES: [(&str, MemoryKind); 3] =
    [("device", MemoryKind::Device), ("pinned", MemoryKind::Pinned), ("managed", MemoryKind::Managed)];

/// The memory of this kind that the device has, as a device: its own, or one that shares its streams.
///
/// # Errors
/// [`DeviceError::Unsupported`] where it has none.
pub fn memory_of(device: Arc<dyn Device>, kind: MemoryKind) -> DeviceResult<Arc<dyn Device>> {
    match kind {
        MemoryKind::Device => Ok(device),
        MemoryKind::Pinned => device.pinned(None),
        MemoryKind::Managed => device.managed(),
        _ => {
            let device = device.properties().name.clone();
            Err(DeviceError::Unsupported { device, what: "this kind of memory" })
        }
    }
}

/// The name that users choose the kind by.
pub fn name_of(kind: MemoryKind) -> &'static str {
    MEMORIES.iter().find(|(_, known)| *known == kind).map_or("other", |(name, _)| name)
}
