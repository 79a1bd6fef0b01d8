//! Blocks: the extents that are allocated. They are cut out of free ones, and become free again.

use super::extent::{ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::page_map::DescriptorRef;
use crate::device::DevicePtr;
use crate::order::Fence;
use crate::policy::size_classes::class_of;

impl ExtentMap {
    /// Cuts `units` at `at` out of a free extent, and allocates them. What is left stays free.
    pub(super) fn allocate(&mut self, id: ExtentId, at: u64, units: u64) -> (DevicePtr, DescriptorRef) {
        self.blocks += 1;
        let extent = &mut self.extents[id];
        let (is_first, end) = (extent.start == at, extent.end());
        // What is left behind the block takes the fence over: a copy might take memory of the host's. Only what is left before
        // the block, which is rare, needs one.
        let fence = if is_first { std::mem::take(&mut extent.fence) } else { Fence::empty() };
        let cut = self.cut(id, (at, at + units));
        if is_first
            && at + units < end
            && let Some(rest) = self.extents[cut].next
        {
            self.extents[rest].fence = fence;
        }
        self.open(cut)
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
