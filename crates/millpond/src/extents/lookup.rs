//! What an arena says of its blocks: what a pointer is, what is allocated, and how much is held.

use super::Arena;
use super::extent::{ExtentId, ExtentState};
use super::page_map::BlockDescriptor;
use super::regions::RegionOrigin;
use crate::device::DevicePtr;

#[cfg(test)]
thread_local! {
    /// How many arenas were asked by this thread what a pointer is.
    pub(crate) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// What a pointer is to an arena.
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

impl Arena {
    /// Physical bytes held, by recount.
    pub(crate) fn held(&self) -> u64 {
        let segments = self.regions.iter().filter(|(_, region)| region.origin == RegionOrigin::Segment);
        self.pages.recount_bytes() + segments.map(|(_, region)| region.bytes).sum::<u64>()
    }

    /// Allocated blocks, and the bytes in them.
    pub(crate) fn allocated(&self) -> (u64, u64) {
        (self.allocated_blocks.iter().sum(), self.allocated_units * self.layout.unit_bytes)
    }

    pub(super) fn descriptor_of(&self, id: ExtentId) -> Option<&BlockDescriptor> {
        let extent = &self.extents[id];
        self.regions.allocated_at(extent.region, extent.start * self.layout.unit_bytes)
    }

    /// Bytes asked for in a live block.
    pub(crate) fn requested(&self, id: ExtentId) -> u64 {
        let bytes = self.bytes(id);
        self.descriptor_of(id).map_or(bytes, BlockDescriptor::requested)
    }

    /// Length of an extent in bytes.
    pub(crate) fn bytes(&self, id: ExtentId) -> u64 {
        self.extents[id].units * self.layout.unit_bytes
    }

    /// Every live block, as its start and the bytes asked for.
    #[cfg(feature = "record")]
    pub(crate) fn live(&self) -> impl Iterator<Item = (DevicePtr, u64)> {
        let live = self.iter_allocated().filter(|(_, descriptor)| descriptor.is_live());
        live.map(|(id, _)| (self.address_of(id), self.requested(id)))
    }

    /// What the pointer is.
    pub(crate) fn look_up(&self, ptr: DevicePtr) -> Pointer {
        #[cfg(test)]
        LOOKS.with(|looks| looks.set(looks.get() + 1));
        let Some((region, at)) = self.regions.find(ptr) else { return Pointer::Foreign };
        match self.regions.allocated_at(region, at) {
            Some(descriptor) if descriptor.is_live() => Pointer::Live(descriptor.id()),
            Some(_) => Pointer::NotLive,
            None => self.look_inside(region, at >> self.layout.unit_shift()),
        }
    }

    /// The slow half of [`look_up`](Self::look_up), for errors only: walks the region.
    #[cold]
    fn look_inside(&self, region: u32, unit: u64) -> Pointer {
        let mut at = self.regions.head(region);
        while let Some(id) = at {
            let extent = &self.extents[id];
            if unit < extent.start + extent.units {
                let live = self.descriptor_of(id).is_some_and(BlockDescriptor::is_live);
                return if live { Pointer::Inside(self.address_of(id)) } else { Pointer::NotLive };
            }
            at = extent.next;
        }
        Pointer::NotLive
    }

    /// Whether an extent with this name is allocated, and starts there.
    pub(super) fn is_allocated_at(&self, id: ExtentId, ptr: DevicePtr) -> bool {
        self.extents.get(id).is_some_and(|extent| extent.state == ExtentState::Allocated)
            && self.address_of(id) == ptr
    }

    pub(super) fn address_of(&self, id: ExtentId) -> DevicePtr {
        let extent = &self.extents[id];
        self.regions.address(extent.region, extent.start, &self.layout)
    }

    /// Every allocated block: its descriptor.
    pub(crate) fn iter_allocated(&self) -> impl Iterator<Item = (ExtentId, &BlockDescriptor)> {
        let allocated = self.extents.iter().filter(|(_, extent)| extent.state == ExtentState::Allocated);
        allocated.filter_map(|(id, _)| Some((id, self.descriptor_of(id)?)))
    }
}
