//! What a pointer is to an arena.

use super::block_descriptor::BlockDescriptor;
use super::extent::ExtentId;
use super::extent_map::ExtentMap;
use crate::device::DevicePtr;

#[cfg(test)]
thread_local! {
    /// How many maps were asked by this thread what a pointer is.
    pub(crate) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pointer {
    /// The start of a live block.
    Live(ExtentId),
    /// Inside the live block that starts at the address.
    Inside(DevicePtr),
    /// In the arena's address space, but in no live block.
    NotLive,
    /// Elsewhere.
    Foreign,
}

pub(super) fn look_up(map: &ExtentMap, ptr: DevicePtr) -> Pointer {
    #[cfg(test)]
    LOOKS.with(|looks| looks.set(looks.get() + 1));
    let Some((region, at)) = map.regions.find(ptr) else { return Pointer::Foreign };
    match map.page_map.find(ptr) {
        Some(descriptor) if descriptor.is_live() => Pointer::Live(descriptor.id()),
        Some(_) => Pointer::NotLive,
        None => look_inside(map, region, at >> map.layout.unit_shift),
    }
}

/// For errors only: walks the region.
#[cold]
fn look_inside(map: &ExtentMap, region: u32, unit: u64) -> Pointer {
    let id = map.extent_at(region, unit);
    match map.page_map.of_block(id).is_some_and(BlockDescriptor::is_live) {
        true => Pointer::Inside(map.address_of(id)),
        false => Pointer::NotLive,
    }
}
