//! Blocks: the extents that are allocated. They are cut out of free ones, and become free again.

use super::extent::{Extent, ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::page_map::DescriptorRef;
use crate::device::DevicePtr;
use crate::order::Fence;
use crate::policy::size_classes::class_of;

impl ExtentMap {
    /// Cuts `units` at `at` out of a free extent, and allocates them. What is left stays free.
    pub(super) fn allocate(&mut self, id: ExtentId, at: u64, units: u64) -> (DevicePtr, DescriptorRef) {
        let extent = &self.extents[id];
        self.blocks += 1;
        if extent.start == at && units < extent.units {
            // Nearly always.
            self.unindex(id);
            let cut = self.cut_front(id, units);
            let opened = self.open(cut);
            self.index(id);
            return opened;
        }
        let cut = self.cut(id, (at, at + units));
        self.open(cut)
    }

    /// Cuts the first units off a free extent. Both parts are on no index.
    fn cut_front(&mut self, id: ExtentId, units: u64) -> ExtentId {
        let cut = self.extents.split_front(id, units);
        let Extent { region, prev, .. } = self.extents[cut];
        if prev.is_none() {
            self.regions.set_head(region, cut);
        }
        cut
    }

    /// Opens the descriptor of a block that was cut. Its cache line is rarely at hand: the sooner it is written, the
    /// shorter the wait when the lock is released.
    #[inline]
    fn open(&mut self, id: ExtentId) -> (DevicePtr, DescriptorRef) {
        let extent = &mut self.extents[id];
        extent.state = ExtentState::Allocated;
        extent.fence = Fence::empty();
        let ptr = self.address_of(id);
        (ptr, self.page_map.open(ptr, id, self.bytes(id), class_of(self.extents[id].units)))
    }

    /// Takes back an allocated block: it is free behind what `fence` makes of the fence of its uses, and on no index.
    /// `false`, and nothing changed, where it is no block.
    pub(super) fn close(&mut self, id: ExtentId, fence: impl FnOnce(&mut Fence) -> Fence) -> bool {
        let extent = &mut self.extents[id];
        if extent.state != ExtentState::Allocated {
            return false;
        }
        self.frees += 1;
        let fence = fence(&mut extent.fence);
        (extent.state, extent.freed, extent.fence) = (ExtentState::Free, self.frees, fence);
        self.blocks -= 1;
        self.page_map.close(id);
        true
    }
}
