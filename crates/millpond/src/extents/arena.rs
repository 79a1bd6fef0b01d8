//! The arena: the address space of one pool, and the pages behind it. It holds the parts, and says what there is and where
//! pages lie. What changes it stands in files of its own: `allocation`, `coalescing`, `commit`, `segments`, `trim`.

use std::ops::Range;
use std::sync::Arc;

use super::map::block_descriptor::BlockDescriptor;
use super::map::extent::{Extent, ExtentId, ExtentState};
use super::map::extent_map::ExtentMap;
use super::map::index::Hole;
use super::map::layout::{Layout, Zone};
use super::map::page_map::PageMap;
use super::map::ranges::{Owner, Ranges};
use super::map::regions::Regions;
use super::old_mappings::OldMappings;
use super::reuse_rules::ReuseRules;
use crate::device::{DevicePtr, DeviceResult, PeerSet};
use crate::order::{ReusePolicies, Timelines};
use crate::physical::{Home, PageId, Pages, ParkedCursor, passing};
use crate::policy::growth::Growth;

#[cfg(test)]
thread_local! {
    /// How many maps were asked by this thread what a pointer is.
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

/// A page, and where the arena uses it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageAtHome {
    pub(crate) id: PageId,
    pub(crate) at: DevicePtr,
    pub(crate) bytes: u64,
}

/// The address space of one pool, used under its lock. See the [folder](super).
#[derive(Debug)]
pub(crate) struct Arena {
    pub(super) map: ExtentMap,
    pub(super) rules: ReuseRules,
    /// All pages, wherever they lie.
    pub(crate) pages: Pages,
    pub(super) old_mappings: OldMappings,
    /// The least alignment that a segment was needed with, and that the device did not give by itself.
    pub(super) never_aligned: Option<u64>,
    /// Whether blocks come back longer each time.
    pub(crate) growth: Growth,
}

impl Arena {
    pub(crate) fn new(
        timelines: Arc<Timelines>,
        layout: Layout,
        policies: ReusePolicies,
        pages: Pages,
        (ranges, owner): (Arc<Ranges>, Owner),
    ) -> Self {
        Self {
            map: ExtentMap::new(layout, Regions::new(ranges, owner)),
            rules: ReuseRules { timelines, policies, counters: pages.counters.clone() },
            pages,
            old_mappings: OldMappings::default(),
            never_aligned: None,
            growth: Growth::default(),
        }
    }

    /// The arena of this memory of captures, with the same layout, limits and counters, which keeps its pages. Free ones are
    /// neither trimmed nor exchanged, until it [lets go](Self::let_go). They are mapped at other addresses, too, where what was
    /// freed lies apart: a replay uses both, in the order of the capture. It makes no stream wait, so that what different
    /// streams freed stays apart.
    pub(crate) fn that_keeps(&self, memory: u64) -> Self {
        let policies = ReusePolicies { internal_dependencies: false, ..self.rules.policies };
        let Self { map, rules, pages, .. } = self;
        let owner = Owner { memory: Some(memory), ..map.regions.owner };
        let published = (map.regions.ranges.clone(), owner);
        let mut new = Self::new(rules.timelines.clone(), map.layout, policies, pages.none_yet(), published);
        new.old_mappings = OldMappings::that_stay();
        new
    }

    /// Where each page was mapped before, and still is, by the page: where old mappings stay.
    pub(crate) fn staying(&self) -> impl Iterator<Item = (PageId, DevicePtr)> {
        self.old_mappings.staying(&self.map)
    }

    /// Whose an address is, of all that are published where this arena's are.
    pub(crate) fn owner_of(&self, ptr: DevicePtr) -> Option<Owner> {
        self.map.regions.ranges.owner_of(ptr)
    }

    pub(crate) fn set_policies(&mut self, policies: ReusePolicies) {
        self.rules.policies = policies;
    }

    /// From now on what is free may go back to the device, as in any arena.
    pub(crate) fn let_go(&mut self) {
        self.old_mappings.let_go(&mut self.map);
    }

    /// Whether pages stay, free or not, at all addresses where they were ever mapped: unknown work uses them. See
    /// [`Arena::that_keeps`].
    pub(crate) fn keeps(&self) -> bool {
        self.old_mappings.stay()
    }

    /// Leads from an address to its block without the lock.
    pub(crate) fn page_map(&self) -> &Arc<PageMap> {
        &self.map.page_map
    }

    // ---- what there is ---------------------------------------------------------------------------

    /// The units of the whole base pages that so many need.
    pub(crate) fn whole_pages(&self, units: u64) -> u64 {
        self.map.layout.base_pages_for(units) * self.map.layout.units_per_base_page()
    }

    /// Physical bytes held, by recount.
    pub(crate) fn held(&self) -> u64 {
        self.pages.recount_bytes()
    }

    /// Whether pages are held that lie nowhere.
    pub(crate) fn has_parked(&self) -> bool {
        ParkedCursor::of(&self.pages).take(u64::MAX).is_some()
    }

    /// How many blocks are allocated.
    pub(crate) fn blocks(&self) -> u64 {
        self.map.blocks
    }

    /// Bytes in allocated blocks, by recount.
    pub(crate) fn used(&self) -> u64 {
        self.iter_allocated().map(|(id, _)| self.bytes(id)).sum()
    }

    /// Bytes asked for in a live block.
    pub(crate) fn requested(&self, id: ExtentId) -> u64 {
        self.map.page_map.of_block(id).map_or_else(|| self.bytes(id), BlockDescriptor::requested)
    }

    /// The addresses of a block.
    pub(crate) fn range_of(&self, id: ExtentId) -> Range<DevicePtr> {
        let start = self.map.address_of(id);
        start..start.offset(self.map.bytes(id))
    }

    /// Length of an extent in bytes.
    pub(crate) fn bytes(&self, id: ExtentId) -> u64 {
        self.map.bytes(id)
    }

    /// What the pointer is.
    pub(crate) fn look_up(&self, ptr: DevicePtr) -> Pointer {
        #[cfg(test)]
        LOOKS.with(|looks| looks.set(looks.get() + 1));
        let Some((region, at)) = self.map.regions.find(ptr) else { return Pointer::Foreign };
        match self.map.page_map.find(ptr) {
            Some(descriptor) if descriptor.is_live() => Pointer::Live(descriptor.id()),
            Some(_) => Pointer::NotLive,
            None => self.look_inside(region, at >> self.map.layout.unit_shift),
        }
    }

    /// For errors only: walks the region.
    #[cold]
    fn look_inside(&self, region: u32, unit: u64) -> Pointer {
        let id = self.map.extent_at(region, unit);
        match self.map.page_map.of_block(id).is_some_and(BlockDescriptor::is_live) {
            true => Pointer::Inside(self.map.address_of(id)),
            false => Pointer::NotLive,
        }
    }

    /// Every allocated block: its descriptor.
    pub(crate) fn iter_allocated(&self) -> impl Iterator<Item = (ExtentId, &BlockDescriptor)> {
        let allocated = self.map.in_state(ExtentState::Allocated);
        allocated.filter_map(|(id, _)| Some((id, self.map.page_map.of_block(id)?)))
    }

    /// Every live block, as its start and the bytes asked for.
    pub(crate) fn live(&self) -> impl Iterator<Item = (DevicePtr, u64)> {
        let live = self.iter_allocated().filter(|(_, descriptor)| descriptor.is_live());
        live.map(|(id, _)| (self.map.address_of(id), self.requested(id)))
    }

    /// The ranges of live bytes, in the order of their addresses. Those with at most `gap` free bytes between them are one.
    pub(crate) fn live_ranges(&self, gap: u64) -> DeviceResult<Vec<(DevicePtr, u64)>> {
        self.ranges(gap, |state| state == ExtentState::Allocated)
    }

    /// The address ranges that pages back: first address and bytes of each.
    pub(crate) fn backed(&self) -> DeviceResult<Vec<(DevicePtr, u64)>> {
        self.ranges(0, |state| matches!(state, ExtentState::Allocated | ExtentState::Free))
    }

    /// The ranges of the extents of which `counts` is true, in the order of their addresses: first address and bytes of each.
    /// Between two parts of one range lie at most `gap` bytes.
    fn ranges(&self, gap: u64, counts: impl Fn(ExtentState) -> bool) -> DeviceResult<Vec<(DevicePtr, u64)>> {
        let mut ranges: Vec<(DevicePtr, u64)> = Vec::new();
        for (_, region) in self.map.regions.iter() {
            let of_others = ranges.len();
            for id in self.map.until(region.head, u64::MAX).filter(|id| counts(self.map[*id].state)) {
                let (at, bytes) = (self.map.address_of(id), self.map.bytes(id));
                match ranges[of_others..].last_mut() {
                    Some((first, length)) if at.raw() - first.raw() <= *length + gap => {
                        *length = at.raw() - first.raw() + bytes;
                    }
                    _ => {
                        self.map.ensure(ranges.try_reserve(1).is_ok())?;
                        ranges.push((at, bytes));
                    }
                }
            }
        }
        ranges.sort_unstable();
        Ok(ranges)
    }

    /// Whether best fit would put a block of this allocated one's length just here, if this one was free: it lies at the start of the
    /// hole that would be there, and no other hole fits better.
    pub(crate) fn is_best_fit(&self, id: ExtentId) -> bool {
        let map = &self.map;
        if !map.is(id, ExtentState::Allocated) {
            return false;
        }
        let Extent { region, zone, start, units, link, .. } = map[id];
        let hole = map.hole_between(region, link);
        // Parts of it are holes now.
        let is_elsewhere = |other: &&Hole| {
            let (of, at) = other.place();
            of != region || !(start..start + hole.units()).contains(&at)
        };
        hole.place() == (region, start)
            && map.index.at_least(zone, units).find(is_elsewhere).is_none_or(|best| hole.fits_before(best))
    }

    /// Bytes of the longest free extent: the largest request that needs no page.
    pub(crate) fn largest_free(&self) -> u64 {
        self.map.free().map(|id| self.map.bytes(id)).max().unwrap_or(0)
    }

    /// Bytes that are reserved, by all that count together with this one, without what leaves.
    pub(super) fn reserved(&self) -> u64 {
        self.pages.counters.staying()
    }

    /// Whether addresses are reserved.
    pub(crate) fn has_addresses(&self) -> bool {
        self.map.regions.iter().next().is_some()
    }

    /// Removes the mappings elsewhere of pages that other pools gave, as far as the work on them is complete. What the device says
    /// where it refuses to remove one, which is then tried again at the next call.
    pub(crate) fn reap_arriving(&mut self) -> DeviceResult<()> {
        let Self { rules, pages, .. } = self;
        passing::reap_arriving(pages, |fence| {
            rules.poll(fence);
            rules.timelines.reached(fence)
        })
    }

    // ---- where pages lie -------------------------------------------------------------------------

    /// The page that backs an address. It stays the same while a block lies there.
    pub(crate) fn page_at(&self, ptr: DevicePtr) -> Option<PageAtHome> {
        let (region, at) = self.map.regions.find(ptr)?;
        self.home_of(self.map.regions.page_at(region, at / self.map.layout.base_page_bytes)?)
    }

    /// The pages that back a range of addresses, as far as it is backed, in their order.
    pub(crate) fn pages_under(&self, range: Range<DevicePtr>) -> impl Iterator<Item = PageAtHome> {
        let next = move |at| self.page_at(at).filter(|_| at < range.end);
        std::iter::successors(next(range.start), move |page| next(page.at.offset(page.bytes)))
    }

    /// The page with this id, if it lies somewhere.
    pub(crate) fn home_of(&self, id: PageId) -> Option<PageAtHome> {
        let (region, (first, _)) = self.pages.home(id)?;
        let at = self.map.address_of_base_page(region, first);
        Some(PageAtHome { id, at, bytes: self.pages.bytes_of(id) })
    }

    /// The last page that lies wholly in base pages of a region, which are all backed, or none.
    pub(super) fn last_whole(&self, (region, (start, mut end)): Home) -> Option<(PageId, Home)> {
        while start < end
            && let Some(page) = self.map.regions.page_at(region, end - 1)
            && let Some(home) = self.pages.home(page)
        {
            let (first, behind) = home.1;
            if start <= first && behind <= end {
                return Some((page, home));
            }
            end = first;
        }
        None
    }

    /// The first base page of the first page that lies wholly in base pages of a region, which are all backed, or their end.
    pub(super) fn first_whole(&self, (region, (start, end)): Home) -> u64 {
        let home = self.map.regions.page_at(region, start).and_then(|page| self.pages.home(page));
        match home {
            Some((_, (first, _))) if start <= first => first,
            Some((_, (_, behind))) => behind.min(end),
            None => end,
        }
    }

    /// The base pages of the whole pages that a free extent gives. Where old mappings stay, a page that was given to a peer by itself
    /// stays too, and those before it: that access belongs to its mapping.
    pub(super) fn given(&self, extent: ExtentId) -> Home {
        let (region, within) = (self.map[extent].region, self.map.base_pages_within(extent));
        let last = self.last_whole((region, within)).filter(|(page, _)| !self.pages.is_segment(*page));
        let Some((_, (_, (_, end)))) = last else { return (region, (0, 0)) };
        // All pages between the first and the last that are whole are whole.
        let mut first = self.first_whole((region, (within.0, end)));
        if self.keeps() {
            let least = std::mem::replace(&mut first, end);
            while let Some((page, (_, (start, _)))) = self.last_whole((region, (least, first)))
                && self.pages.has_usual_peers(page)
            {
                first = start;
            }
        }
        (region, (first, end))
    }

    /// Notes that a page lies nowhere from now on. Returns the units where it was.
    pub(super) fn leave(&mut self, page: PageId) -> (u64, u64) {
        let home = self.pages.home(page).expect("a page leaves where it lies");
        self.pages.get_mut(page).home = None;
        self.map.regions.note_backing(home, None);
        self.map.layout.units_of(home.1)
    }

    /// Notes that a page leaves the free extent that it lies in, or one of the pieces that this was cut into. It may come back,
    /// if the usual devices could use it there: access belongs to a mapping.
    pub(super) fn move_out(&mut self, page: PageId, from: ExtentId) {
        let (start, end) = self.leave(page);
        let old = self.map.cut(self.map.piece_at(from, start), (start, end));
        let may_come_back = self.pages.has_usual_peers(page) || self.keeps();
        let state = if may_come_back { ExtentState::Dormant } else { ExtentState::PendingUnmap };
        self.old_mappings.push(&mut self.map, &self.pages, old, state(page));
    }

    /// Notes that a page came back from a free extent to a dormant mapping, which is entered now.
    pub(super) fn bring_back(&mut self, page: PageId, from: ExtentId, to: ExtentId) {
        self.move_out(page, from);
        self.old_mappings.take_up(&mut self.map, &self.pages, to);
        self.move_in(page, (self.map[to].region, self.map.base_pages_within(to).0));
        self.map.enter(to);
    }

    /// Notes that a page lies elsewhere now, where the usual devices may use it.
    pub(super) fn move_in(&mut self, page: PageId, place: (u32, u64)) {
        self.pages.get_mut(page).peers = self.pages.peers;
        self.set_home(page, place);
    }

    /// Notes that a page backs the base pages of a region from one on.
    pub(super) fn set_home(&mut self, page: PageId, place: (u32, u64)) {
        self.pages.get_mut(page).home = Some(place);
        let home = self.pages.home(page).expect("it lies there now");
        self.map.regions.note_backing(home, Some(page));
    }

    /// Lets these devices use all memory as soon as it is mapped, and no others. What is mapped already stays as it is. No page
    /// comes back to a mapping that others may use.
    pub(crate) fn set_peers(&mut self, peers: PeerSet) {
        if peers != self.pages.peers {
            self.old_mappings.retire(&mut self.map, &mut self.pages);
            self.pages.peers = peers;
        }
    }

    /// Makes one page of two that have no memory now, are equally long, and lie side by side in the large zone. Of at most
    /// so many base pages.
    pub(crate) fn join_pages(&mut self, first: &mut PageAtHome, next: &PageAtHome, most: u32) -> bool {
        let Some((region, (at, next_at))) = self.pages.home(first.id) else { return false };
        let end = 2 * next_at - at;
        let may_join = self.map[self.map.regions.get(region).head].zone == Zone::Large
            && self.pages.home(next.id) == Some((region, (next_at, end)))
            && end - at <= u64::from(most.min(self.map.layout.largest_page));
        if !may_join || !self.pages.join_gone(first.id, next.id) {
            return false;
        }
        self.set_home(first.id, (region, at));
        first.bytes *= 2;
        true
    }
}
