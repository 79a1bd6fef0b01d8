//! The arena: the address space of one pool, and the pages behind it. It holds the parts, and says what there is and where
//! pages lie. What changes it stands in files of its own: `allocation`, `coalescing`, `commit`, `segments`, `shorten`, `trim`.

use std::ops::Range;
use std::sync::Arc;

use super::block_descriptor::BlockDescriptor;
use super::extent::{ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::index::Kind;
use super::layout::{Layout, Zone};
use super::old_mappings::OldMappings;
use super::page_map::PageMap;
use super::page_table::{Home, PageTable};
use super::pointers::{self, Pointer};
use super::ranges::{Owner, Ranges};
use super::regions::Regions;
use super::reuse_rules::ReuseRules;
use crate::device::{DevicePtr, DeviceResult, PeerSet};
use crate::order::{ReusePolicies, Timelines};
use crate::physical::{PageId, Pages};
use crate::policy::shortening::Shortening;

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
    pub(super) table: PageTable,
    pub(super) old_mappings: OldMappings,
    pub(super) shortening: Shortening,
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
            rules: ReuseRules::new(timelines, policies, pages.counters.clone()),
            pages,
            table: PageTable::default(),
            old_mappings: OldMappings::default(),
            shortening: Shortening::default(),
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
        let new = Self::new(rules.timelines.clone(), map.layout, policies, pages.none_yet(), published);
        Self { old_mappings: OldMappings::that_stay(), ..new }
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
        self.old_mappings.let_go();
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
        pointers::look_up(&self.map, ptr)
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
        self.map.ranges(gap, |state| match state {
            ExtentState::Allocated => Some(true),
            ExtentState::Free => Some(false),
            _ => None,
        })
    }

    /// The address ranges that pages back: first address and bytes of each.
    pub(crate) fn backed(&self) -> DeviceResult<Vec<(DevicePtr, u64)>> {
        self.map
            .ranges(0, |state| matches!(state, ExtentState::Allocated | ExtentState::Free).then_some(true))
    }

    /// Bytes of the longest free extent: the largest request that needs no page.
    pub(crate) fn largest_free(&self) -> u64 {
        let longest = Zone::BOTH.map(|zone| self.map.index.longest(Kind::free(zone)));
        longest.into_iter().max().unwrap_or(0) * self.map.layout.unit_bytes
    }

    /// Bytes that are reserved, by all that count together with this one.
    pub(super) fn reserved(&self) -> u64 {
        self.pages.counters.reserved.current()
    }

    /// Whether long pages should be exchanged for short ones before a block of so many units is allocated, if there is time.
    #[inline]
    pub(crate) fn is_shortening_due(&self, units: u64) -> bool {
        let layout = &self.map.layout;
        layout.policy.splitting
            && layout.zone_of(units) == Zone::Large
            && self.shortening.is_due(self.map.frees)
    }

    // ---- where pages lie -------------------------------------------------------------------------

    fn at_home(&self, (id, home): (PageId, Home)) -> PageAtHome {
        PageAtHome { id, at: self.map.address_of_home(home), bytes: self.pages.bytes_of(id) }
    }

    /// The page that backs an address. It stays the same while a block lies there.
    pub(crate) fn page_at(&self, ptr: DevicePtr) -> Option<PageAtHome> {
        let (region, at) = self.map.regions.find(ptr)?;
        let found = self.table.page_at(region, at / self.map.layout.base_page_bytes)?;
        Some(self.at_home(found))
    }

    /// The page with this id, if it lies somewhere.
    pub(crate) fn home_of(&self, id: PageId) -> Option<PageAtHome> {
        self.table.home(id).map(|home| self.at_home((id, home)))
    }

    /// Notes that a page leaves the free extent that it lies in, or one of the pieces that this was cut into. It may come back,
    /// if the usual devices could use it there: access belongs to a mapping. Returns the count of frees when it became free.
    pub(super) fn move_out(&mut self, page: PageId, from: ExtentId) -> u64 {
        let home = self.table.leave(page).expect("the page of a free extent is at home");
        let (start, end) = self.map.layout.units_of(home.span());
        let old = self.map.cut(self.map.piece_at(from, start), (start, end));
        let may_come_back = self.pages.has_usual_peers(page) || self.keeps();
        self.old_mappings.push(&mut self.map, (old, page), may_come_back);
        self.map[old].freed
    }

    /// Notes that a page came back from a free extent to a dormant mapping, which is free now.
    pub(super) fn bring_back(&mut self, page: PageId, from: ExtentId, to: ExtentId) {
        let freed = self.move_out(page, from);
        self.old_mappings.take_up(&self.map, &self.pages, (to, page));
        self.move_in(page, (self.map[to].region, self.map.base_pages_within(to).0));
        self.map.make_backed(to, freed);
    }

    /// Notes that a page lies elsewhere now, where the usual devices may use it.
    pub(super) fn move_in(&mut self, page: PageId, place: (u32, u64)) {
        self.pages.get_mut(page).peers = self.pages.peers;
        self.set_home(page, place);
    }

    /// Notes that a page backs the base pages of a region from `base_page` on.
    pub(super) fn set_home(&mut self, page: PageId, (region, base_page): (u32, u64)) {
        let first = u32::try_from(base_page).expect("a region has fewer than 2^32 base pages");
        self.table.enter(page, Home { region, first, base_pages: self.pages.get(page).base_pages });
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
        let Some((region, at)) = self.map.regions.find(first.at) else { return false };
        let most = u64::from(most.min(self.map.layout.largest_page)) * self.map.layout.base_page_bytes;
        let may_join = self.map[self.map.regions.get(region).head].zone == Zone::Large
            && self.map.regions.find(next.at) == Some((region, at + first.bytes))
            && first.bytes == next.bytes
            && first.bytes + next.bytes <= most;
        if !may_join || !self.pages.join_gone(first.id, next.id) {
            return false;
        }
        self.table.leave(next.id);
        self.table.leave(first.id);
        self.set_home(first.id, (region, at / self.map.layout.base_page_bytes));
        first.bytes *= 2;
        true
    }
}
