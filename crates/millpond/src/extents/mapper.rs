//! The mapper: which physical page backs which address, and where pages were mapped before.

use super::extent::ExtentId;
use super::extent_map::ExtentMap;
use super::old_mappings::OldMappings;
use super::page_table::{Home, PageTable};
use crate::device::{DeviceError, PeerSet};
use crate::physical::{PageId, Pages};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Mapper {
    pub(super) pages: Pages,
    pub(super) table: PageTable,
    pub(super) old_mappings: OldMappings,
}

impl Mapper {
    pub(super) fn new(pages: Pages) -> Self {
        Self { pages, table: PageTable::default(), old_mappings: OldMappings::default() }
    }

    /// Bytes that are reserved, by all that count together with this one.
    pub(super) fn reserved(&self) -> u64 {
        self.pages.counters.reserved.current()
    }

    // ---- old mappings ----------------------------------------------------------------------------

    /// Reserves the host's memory for so many more old mappings, and to note pages behind base pages of a region; `false` where
    /// it is refused.
    pub(super) fn make_room_for(&mut self, more: usize, region: u32, base_pages: (u64, u64)) -> bool {
        self.old_mappings.make_room(more) && self.table.make_room(region, base_pages, self.pages.records())
    }

    /// Notes that an extent, which is on no index, is an old mapping of the page. The page may come back or not.
    pub(super) fn leave(&mut self, map: &mut ExtentMap, (id, page): (ExtentId, PageId), may_come_back: bool) {
        if may_come_back {
            self.old_mappings.push_dormant(map, id, page);
        } else {
            self.old_mappings.push_leaving(map, id, page);
        }
    }

    /// The ids of pages that a miss may bring back to old mappings of theirs are below this; 0 where there is none. Where old
    /// mappings stay, a miss goes past them.
    pub(super) fn ids_of_dormant(&self) -> usize {
        if self.old_mappings.is_empty() { 0 } else { self.pages.records() }
    }

    /// Lets these devices use all pages as soon as they are mapped, and no others. No page comes back to a mapping that
    /// others may use.
    pub(super) fn set_peers(&mut self, map: &mut ExtentMap, peers: PeerSet) {
        if peers != self.pages.peers {
            self.old_mappings.retire(map, &mut self.pages);
            self.pages.peers = peers;
        }
    }

    // ---- where pages lie -------------------------------------------------------------------------

    /// Notes that a page leaves the free extent that it lies in, or one of the pieces that this was cut into. It may come back,
    /// if the usual devices could use it there: access belongs to a mapping. Returns the count of frees when it became free.
    pub(super) fn move_out(
        &mut self,
        map: &mut ExtentMap,
        (page, from): (PageId, ExtentId),
        may_come_back: bool,
    ) -> u64 {
        let home = self.table.leave(page).expect("the page of a free extent is at home");
        let (start, end) = map.layout.units_of(home.span());
        let old = map.cut(map.piece_at(from, start), (start, end));
        self.leave(map, (old, page), may_come_back || self.old_mappings.stay());
        map[old].freed
    }

    /// Notes that a page came back to a dormant mapping, which is free now.
    pub(super) fn come_back(&mut self, map: &mut ExtentMap, (id, page): (ExtentId, PageId), freed: u64) {
        self.old_mappings.take_up(map, &self.pages, (id, page));
        self.pages.get_mut(page).peers = self.pages.peers;
        self.set_home(page, (map[id].region, map.base_pages_within(id).0));
        map.make_backed(id, freed);
    }

    /// Notes that a page backs the base pages of a region from `base_page` on.
    pub(super) fn set_home(&mut self, page: PageId, (region, base_page): (u32, u64)) {
        let first = u32::try_from(base_page).expect("a region has fewer than 2^32 base pages");
        self.table.enter(page, Home { region, first, base_pages: self.pages.get(page).base_pages });
    }

    // ---- giving back -----------------------------------------------------------------------------

    /// Gives back the pages that lie wholly in a free and complete extent and for which `goes` is true; ends when it is
    /// `None`.
    pub(super) fn trim_extent(
        &mut self,
        map: &mut ExtentMap,
        id: ExtentId,
        mut goes: impl FnMut(&mut Self, PageId) -> Option<bool>,
    ) -> Result<(), DeviceError> {
        let region = map[id].region;
        let (start, mut end) = map.base_pages_within(id);
        let mut result = Ok(());
        // From the end, so that `id` keeps naming the part that is left.
        while let Some((page, home)) = self.table.last_whole(region, (start, end))
            && let Some(goes) = goes(self, page)
        {
            if goes {
                result = result.and(self.trim_page(map, id, (page, home)));
            }
            end = home.span().0;
        }
        result
    }

    /// Gives back a page that lies wholly in a free and complete extent.
    fn trim_page(
        &mut self,
        map: &mut ExtentMap,
        id: ExtentId,
        (page, home): (PageId, Home),
    ) -> Result<(), DeviceError> {
        if self.pages.is_segment(page) {
            return self.free_segment(map, (page, home));
        }
        if !map.make_room_for(2, map[id].fence.len()) {
            return Err(DeviceError::HostMemory { what: "a list of blocks", bytes: map.host_bytes() });
        }
        // SAFETY: the page is mapped here, wholly in an extent that is free and complete: no work uses it, and the program
        // holds no pointer into it.
        unsafe { self.pages.unmap(page, map.address_of_home(home)) }?;
        self.table.leave(page);
        let (start, end) = map.layout.units_of(home.span());
        let unmapped = map.cut(id, (start, end));
        map.make_unmapped(unmapped);
        if self.pages.get(page).mappings > 0 {
            // An older mapping is still waiting for its work; the page goes when that has gone.
            self.pages.park(page);
            return Ok(());
        }
        self.pages.release(page).map(drop)
    }

    /// Gives back a segment that is one free and complete extent.
    fn free_segment(&mut self, map: &mut ExtentMap, (page, home): (PageId, Home)) -> Result<(), DeviceError> {
        map.remove_region(home.region, |_, _, _| {
            // SAFETY: no pending work uses it, and no program holds a pointer into it. The region goes with it.
            unsafe { self.pages.free_segment(page) }
        })?;
        self.table.leave(page);
        Ok(())
    }
}
