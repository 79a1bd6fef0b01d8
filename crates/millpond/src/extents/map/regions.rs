//! Regions: ranges of address space, each cut into extents.

use std::sync::Arc;

use super::extent::ExtentId;
use super::index::is_region;
use super::layout::Layout;
use super::ranges::{Owner, Range, Ranges};
use crate::device::{DeviceError, DevicePtr, DeviceResult};
use crate::physical::{Home, PageId};

/// See the [module](self).
#[derive(Debug)]
pub(in crate::extents) struct Region {
    pub(in crate::extents) base: DevicePtr,
    pub(in crate::extents) bytes: u64,
    pub(in crate::extents) head: ExtentId,
    /// The first block.
    pub(in crate::extents) first_block: Option<ExtentId>,
    /// By base page: the id + 1 of the page that backs it, 0 for none. As long as the highest base page ever backed.
    pub(in crate::extents) backing: Vec<u32>,
}

/// All regions of one arena.
#[derive(Debug)]
pub(in crate::extents) struct Regions {
    list: Vec<Option<Region>>,
    /// Where they are published, and as whose.
    pub(in crate::extents) ranges: Arc<Ranges>,
    pub(in crate::extents) owner: Owner,
}

impl Regions {
    pub(in crate::extents) fn new(ranges: Arc<Ranges>, owner: Owner) -> Self {
        Self { list: Vec::new(), ranges, owner }
    }

    /// Reserves the host's memory for one more region. Returns the list of what backs it, with so many base pages.
    pub(in crate::extents) fn make_room_for_one(&mut self, base_pages: u64) -> DeviceResult<Vec<u32>> {
        let mut backing = Vec::new();
        if self.list.try_reserve(1).is_ok() && self.ranges.make_room() && lengthen(&mut backing, base_pages) {
            return Ok(backing);
        }
        let bytes = (self.list.len().max(1) * size_of::<Region>()) as u64;
        Err(DeviceError::HostMemory { what: "a list of regions", bytes })
    }

    /// Reserves the host's memory to note pages behind base pages below `end`; `false` where it is refused.
    pub(in crate::extents) fn make_room_to_back(&mut self, id: u32, end: u64) -> bool {
        lengthen(&mut self.get_mut(id).backing, end)
    }

    /// The id of the region that is added next.
    pub(in crate::extents) fn next_id(&self) -> u32 {
        let at = self.list.iter().position(Option::is_none).unwrap_or(self.list.len());
        u32::try_from(at).ok().filter(|id| is_region(*id)).expect("fewer than 2^24 regions")
    }

    /// Enters a region, under the [next id](Self::next_id). It is to be [published](Self::publish).
    pub(in crate::extents) fn add(&mut self, region: Region) {
        let id = self.next_id();
        match self.list.get_mut(id as usize) {
            Some(vacant) => *vacant = Some(region),
            None => self.list.push(Some(region)),
        }
    }

    /// Says to all pools whose its addresses are.
    pub(in crate::extents) fn publish(&self, id: u32) {
        let Region { base, bytes, .. } = *self.get(id);
        self.ranges.enter(Range { base, bytes, owner: self.owner, region: id });
    }

    /// From now on they are nobody's.
    pub(in crate::extents) fn withdraw(&self, id: u32) {
        let base = self.get(id).base;
        self.ranges.leave(|range| range.base == base);
    }

    /// Forgets a region that was [withdrawn](Self::withdraw).
    pub(in crate::extents) fn forget(&mut self, id: u32) {
        self.list[id as usize] = None;
    }

    #[inline]
    pub(in crate::extents) fn get(&self, id: u32) -> &Region {
        self.list[id as usize].as_ref().expect("a region id in use names a region")
    }

    pub(in crate::extents) fn get_mut(&mut self, id: u32) -> &mut Region {
        self.list[id as usize].as_mut().expect("a region id in use names a region")
    }

    /// The page that backs a base page.
    #[inline]
    pub(in crate::extents) fn page_at(&self, id: u32, base_page: u64) -> Option<PageId> {
        let number = self.get(id).backing.get(base_page as usize)?;
        number.checked_sub(1).map(PageId)
    }

    /// Notes that a page backs these base pages, or none. There is [room](Self::make_room_to_back).
    pub(in crate::extents) fn note_backing(&mut self, (id, (first, end)): Home, page: Option<PageId>) {
        self.get_mut(id).backing[first as usize..end as usize].fill(page.map_or(0, |page| page.0 + 1));
    }

    pub(in crate::extents) fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.list.iter().zip(0..).filter_map(|(region, id)| Some((id, region.as_ref()?)))
    }

    /// The region that holds the address, and how far in it lies, in bytes.
    pub(in crate::extents) fn find(&self, ptr: DevicePtr) -> Option<(u32, u64)> {
        let range = self.ranges.find(ptr).filter(|range| range.owner == self.owner)?;
        Some((range.region, ptr.raw() - range.base.raw()))
    }

    pub(in crate::extents) fn address(&self, region: u32, unit: u64, layout: &Layout) -> DevicePtr {
        self.get(region).base.offset(unit * layout.unit_bytes)
    }
}

/// Sees to it that a list has so many entries; `false` where the host has no memory for them.
fn lengthen(list: &mut Vec<u32>, entries: u64) -> bool {
    let more = (entries as usize).saturating_sub(list.len());
    let has_room = list.try_reserve(more).is_ok();
    if has_room {
        list.resize(list.len() + more, 0);
    }
    has_room
}

impl Drop for Regions {
    fn drop(&mut self) {
        // What could not be given back is nobody's from here on.
        self.ranges.leave(|range| range.owner == self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_regions_that_are_gone_are_nobodys() {
        let ranges = Arc::new(Ranges::default());
        let owner = |pool| Owner { pool, memory: None };
        let [gone, stays] = [1, 2].map(|pool| {
            let mut regions = Regions::new(ranges.clone(), owner(pool));
            let (base, head) = (DevicePtr::new(pool << 30), ExtentId(0));
            regions.add(Region { base, bytes: 4096, head, backing: Vec::new(), first_block: None });
            regions.publish(0);
            regions
        });
        let owners = || [1, 2].map(|pool| ranges.owner_of(DevicePtr::new(pool << 30)));
        assert_eq!(owners(), [Some(owner(1)), Some(owner(2))]);
        drop(gone);
        assert_eq!(owners(), [None, Some(owner(2))]);
        drop(stays);
    }
}
