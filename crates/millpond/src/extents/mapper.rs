//! The mapper: which physical page backs which address, and the pages of the request under way.
//!
//! It maps pages at a [cursor](MapCursor), removes old mappings, and gives pages back. Which page goes where, others
//! decide.

use std::sync::Arc;

use super::cursor::MapCursor;
use super::extent::ExtentId;
use super::extent_map::ExtentMap;
use super::old_mappings::OldMappings;
use super::refusal::Refusal;
use super::reuse_rules::ReuseRules;
use crate::counters::Counters;
use crate::device::{DeviceError, PeerSet};
use crate::order::Fence;
use crate::physical::{MapFailure, NoPage, PageId, Pages};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Mapper {
    pages: Pages,
    old_mappings: OldMappings,
    /// Pages that the request under way created, to be given back if it fails.
    created: Vec<PageId>,
    counters: Arc<Counters>,
}

impl Mapper {
    pub(super) fn new(pages: Pages, counters: Arc<Counters>) -> Self {
        Self { pages, old_mappings: OldMappings::default(), created: Vec::new(), counters }
    }

    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(super) fn pages_mut(&mut self) -> &mut Pages {
        &mut self.pages
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(super) fn old_mappings(&self) -> &OldMappings {
        &self.old_mappings
    }

    /// Bytes that are reserved, by all that count together with this one.
    pub(super) fn reserved(&self) -> u64 {
        self.counters.reserved.current()
    }

    /// Reserves the host's memory to map one more page, wherever it comes from; `false` where it is refused.
    pub(super) fn make_room_for_page(&mut self, map: &mut ExtentMap) -> bool {
        map.make_room_for_page() && self.old_mappings.make_room() && self.created.try_reserve(1).is_ok()
    }

    // ---- old mappings ----------------------------------------------------------------------------

    /// Removes the old mappings whose work is complete.
    pub(super) fn reap(&mut self, map: &mut ExtentMap, rules: &ReuseRules) {
        self.old_mappings.reap(map, rules, &mut self.pages);
    }

    /// The same, but for the dormant ones: finds out which of them are idle.
    pub(super) fn settle(&mut self, map: &mut ExtentMap, rules: &ReuseRules) {
        self.old_mappings.settle(map, rules, &mut self.pages);
    }

    /// Notes that a page moved away from an extent, which is on no index. It may come back, if it `had_usual_peers` there:
    /// access belongs to a mapping.
    pub(super) fn leave(
        &mut self,
        map: &mut ExtentMap,
        (id, page): (ExtentId, PageId),
        had_usual_peers: bool,
    ) {
        if had_usual_peers {
            self.old_mappings.push_dormant(map, id, page);
        } else {
            self.old_mappings.push_leaving(map, id, page);
        }
    }

    /// The ids of pages that may come back to old mappings of theirs are below this; 0 where there is none.
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

    /// Notes that a page came back to a dormant mapping, which is free now, behind the fence.
    pub(super) fn come_back(
        &mut self,
        map: &mut ExtentMap,
        (id, page): (ExtentId, PageId),
        fence: &Fence,
        freed: u64,
    ) {
        self.old_mappings.take_up(map, &self.pages, (id, page));
        self.pages.set_usual_peers(page);
        let home = (map[id].region, map.base_pages_within(id).0);
        self.set_home(map, page, home);
        map.make_backed(id, fence, freed);
        map.index_free(id);
        // Its neighbours may be free too; whoever needs a longer extent joins them.
        map.list_if_unmerged(id);
    }

    /// Removes a dormant mapping, whose addresses are needed; returns the unmapped extent that they are in now. `None`
    /// where it cannot be removed yet: it is pending unmap.
    pub(super) fn clear(&mut self, map: &mut ExtentMap, dormant: (ExtentId, PageId)) -> Option<ExtentId> {
        self.old_mappings.clear(map, &mut self.pages, dormant)
    }

    // ---- mapping ---------------------------------------------------------------------------------

    /// A request begins.
    pub(super) fn begin_request(&mut self) {
        self.created.clear();
    }

    /// Creates a page for the request under way, mapped nowhere.
    pub(super) fn create(&mut self, base_pages: u32) -> Result<PageId, NoPage> {
        let page = self.pages.create(base_pages)?;
        self.created.push(page);
        Ok(page)
    }

    /// Creates a page that stays whatever becomes of a request.
    pub(super) fn create_to_stay(&mut self, base_pages: u32) -> Result<PageId, NoPage> {
        self.pages.create(base_pages)
    }

    /// The longest parked page of at most so many base pages.
    pub(super) fn take_parked(&mut self, base_pages: u32) -> Option<PageId> {
        self.pages.take_parked(base_pages)
    }

    /// Maps a page that is mapped nowhere at the cursor's next base pages; it is parked again if that fails.
    pub(super) fn map_at(
        &mut self,
        map: &mut ExtentMap,
        cursor: &mut MapCursor,
        page: PageId,
    ) -> Result<(), Refusal> {
        if let Err(refusal) = self.map_only(map, cursor, page) {
            self.pages.park(page);
            return Err(refusal);
        }
        let freed = map.frees();
        self.attach(map, cursor, page, &Fence::empty(), freed);
        Ok(())
    }

    /// Maps a page at the cursor's next base pages, which have to be [attached](Self::attach) then.
    pub(super) fn map_only(
        &mut self,
        map: &mut ExtentMap,
        cursor: &mut MapCursor,
        page: PageId,
    ) -> Result<(), Refusal> {
        // SAFETY: the extent at the cursor is unmapped, with room for the page.
        unsafe { self.map_alone(map, page, cursor.next_base_page()) }
            .map_err(|failure| self.note_failure(map, cursor, page, failure))
    }

    /// Maps a page at base pages of a region.
    ///
    /// # Safety
    /// Nothing is mapped there.
    pub(super) unsafe fn map_alone(
        &mut self,
        map: &ExtentMap,
        page: PageId,
        (region, base_page): (u32, u64),
    ) -> Result<(), MapFailure> {
        // SAFETY: the region is reserved, and the caller says that nothing is mapped.
        unsafe { self.pages.map(page, map.address_of_base_page(region, base_page)) }
    }

    /// Notes that a page could not be mapped at the cursor's next base pages. A mapping that could not be undone makes
    /// them pending unmap.
    #[cold]
    pub(super) fn note_failure(
        &mut self,
        map: &mut ExtentMap,
        cursor: &mut MapCursor,
        page: PageId,
        failure: MapFailure,
    ) -> Refusal {
        Refusal::of_mapping(match failure {
            MapFailure::Clean(error) => error,
            MapFailure::Stuck(error) => {
                let stuck = cursor.cut(map, self.pages.get(page).base_pages);
                self.old_mappings.push_leaving(map, stuck, page);
                error
            }
        })
    }

    /// Notes that a page, mapped already, now backs the cursor's next base pages: they are free.
    pub(super) fn attach(
        &mut self,
        map: &mut ExtentMap,
        cursor: &mut MapCursor,
        page: PageId,
        fence: &Fence,
        freed: u64,
    ) {
        self.set_home(map, page, cursor.next_base_page());
        cursor.advance(map, self.pages.get(page).base_pages, fence, freed);
    }

    /// Notes that a page backs the base pages of a region from `base_page` on.
    pub(super) fn set_home(&mut self, map: &mut ExtentMap, page: PageId, (region, base_page): (u32, u64)) {
        let first = u32::try_from(base_page).expect("a region has fewer than 2^32 base pages");
        let known = self.pages.get_mut(page);
        known.home = Some((region, first));
        map.regions.set_page(region, base_page, known.base_pages, Some(page));
    }

    // ---- giving back -----------------------------------------------------------------------------

    /// Unmaps a page from its home: region and first base page.
    ///
    /// # Safety
    /// The page lies there, wholly in a free extent whose fence is complete, which the caller changes.
    pub(super) unsafe fn unmap(
        &mut self,
        map: &ExtentMap,
        page: PageId,
        (region, base_page): (u32, u64),
    ) -> Result<(), DeviceError> {
        let at = map.address_of_base_page(region, base_page);
        // SAFETY: the page is mapped here; the caller says that no work uses it, and the program holds no pointer into a
        // free extent.
        unsafe { self.pages.unmap(page, at) }
    }

    /// Releases a page that is mapped nowhere; on an error it is parked.
    pub(super) fn release(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.pages.release(page).map(drop)
    }

    pub(super) fn park(&mut self, page: PageId) {
        self.pages.park(page);
    }

    /// Releases parked pages until at most `keep` bytes are reserved.
    pub(super) fn release_parked(&mut self, keep: u64) -> Result<(), DeviceError> {
        let mut at = self.pages.parked().len();
        let mut result = Ok(());
        while result.is_ok() && at > 0 && self.reserved() > keep {
            at -= 1;
            let page = self.pages.parked()[at];
            if self.pages.mappings(page) == 0 {
                self.pages.unpark_at(at);
                result = self.release(page);
            }
        }
        // Those that were looked at last are the last to be used again.
        self.pages.reverse_parked(at);
        result
    }

    /// Gives back the pages that lie wholly in a free and complete extent and for which `goes` is true; ends when it is
    /// `None`.
    pub(super) fn trim_extent(
        &mut self,
        map: &mut ExtentMap,
        id: ExtentId,
        goes: impl Fn(&Self, PageId) -> Option<bool>,
    ) -> Result<(), DeviceError> {
        let region = map[id].region;
        let (start, mut end) = map.base_pages_within(id);
        let mut result = Ok(());
        // From the end, so that `id` keeps naming the part that is left.
        while let Some((page, base_page, base_pages)) = map.regions.last_whole(region, (start, end))
            && let Some(goes) = goes(self, page)
        {
            if goes {
                result = result.and(self.trim_page(map, id, page, (base_page, base_pages)));
            }
            end = base_page;
        }
        result
    }

    /// Gives back a page that lies wholly in a free and complete extent.
    fn trim_page(
        &mut self,
        map: &mut ExtentMap,
        id: ExtentId,
        page: PageId,
        (base_page, base_pages): (u64, u32),
    ) -> Result<(), DeviceError> {
        let per_base_page = map.layout.units_per_base_page();
        let region = map[id].region;
        if !self.make_room_for_page(map) || !map.make_room_to_split(id) {
            return Err(DeviceError::HostMemory { what: "a list of blocks", bytes: map.host_bytes() });
        }
        // SAFETY: the callers' extents are free and complete, and the page lies wholly in this one. It is cut out below.
        unsafe { self.unmap(map, page, (region, base_page)) }?;
        map.regions.set_page(region, base_page, base_pages, None);
        let end = base_page + u64::from(base_pages);
        let unmapped = map.cut_free(id, base_page * per_base_page, end * per_base_page);
        map.make_unmapped(unmapped);
        if self.pages.mappings(page) > 0 {
            // An older mapping is still waiting for its work; the page goes when that has gone.
            self.pages.park(page);
            return Ok(());
        }
        self.release(page)
    }

    /// Gives back the pages that a request created before it failed. Nobody used them, whatever fence their extents
    /// have now. One that cannot be given back stays as free memory.
    #[cold]
    pub(super) fn undo_created(
        &mut self,
        map: &mut ExtentMap,
        rules: &ReuseRules,
    ) -> Result<(), DeviceError> {
        let mut created = std::mem::take(&mut self.created);
        if created.is_empty() {
            return Ok(());
        }
        created.sort_unstable();
        // Those that could not be mapped.
        self.reap(map, rules);
        let mut result = Ok(());
        created.retain(|page| {
            let is_bare = self.pages.mappings(*page) == 0;
            if is_bare && self.pages.unpark(*page) {
                result = std::mem::replace(&mut result, Ok(())).and(self.release(*page));
            }
            !is_bare
        });
        // Without memory for the list, they stay as free memory too.
        let mut free = map.list_for_free()?;
        free.extend(map.free_ids());
        for id in free {
            result =
                result.and(self.trim_extent(map, id, |_, page| Some(created.binary_search(&page).is_ok())));
        }
        created.clear();
        self.created = created;
        result
    }
}
