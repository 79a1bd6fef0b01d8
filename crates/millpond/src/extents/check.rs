//! The arena's invariants as a recount. Property tests call it after every step.

use std::collections::HashSet;

use super::extent::{ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::layout::Zone;
use super::mapper::Mapper;
use super::regions::Region;

/// Fails with a sentence unless `holds`.
macro_rules! ensure {
    ($holds:expr, $($sentence:tt)+) => {
        if !$holds {
            return Err(format!($($sentence)+));
        }
    };
}

/// What a walk over all regions counts.
#[derive(Debug, Default)]
struct Recount {
    /// By zone.
    allocated: [u64; 2],
    units: u64,
    free: usize,
    unmapped: usize,
    old_mappings: usize,
    seen: HashSet<ExtentId>,
}

/// What is recounted.
#[derive(Debug)]
struct Check<'a> {
    map: &'a ExtentMap,
    mapper: &'a Mapper,
    old_mappings: HashSet<ExtentId>,
}

/// Recounts everything; says what is wrong, if anything is. `reserved` is what was counted.
pub(super) fn check(map: &ExtentMap, mapper: &Mapper, reserved: u64) -> Result<(), String> {
    let listed = mapper.old_mappings.ids().count();
    let old_mappings: HashSet<_> = mapper.old_mappings.ids().collect();
    ensure!(old_mappings.len() == listed, "an old mapping is listed twice");
    let mut count = Recount::default();
    let check = Check { map, mapper, old_mappings };
    for (id, region) in map.regions.iter() {
        check.check_region(id, region, &mut count)?;
    }
    ensure!(count.seen.len() == map.iter().count(), "an extent is linked in no region");
    let (allocated, units) = map.allocated();
    ensure!(count.allocated == allocated, "{allocated:?} allocated blocks, recount {:?}", count.allocated);
    ensure!(count.units == units, "allocated units: recount {}", count.units);
    let pages = &mapper.pages;
    let base_pages = pages.iter().map(|(_, page)| u64::from(page.base_pages)).sum::<u64>();
    ensure!(base_pages == pages.base_pages, "base pages: recount {base_pages}");
    let recount = pages.recount_bytes();
    ensure!(recount == reserved, "reserved: recount {recount}, counted {reserved}");
    for (what, indexed, counted) in [
        ("free", Zone::BOTH.map(|zone| map.indexes.free(zone)), count.free),
        ("unmapped", Zone::BOTH.map(|zone| map.indexes.unmapped(zone)), count.unmapped),
    ] {
        let lacks = indexed.iter().any(|index| index.lacks());
        let indexed = indexed.iter().map(|index| index.len()).sum::<usize>();
        ensure!(lacks || indexed == counted, "the index of {what} extents has others than the regions");
    }
    ensure!(count.old_mappings == listed, "an old mapping is not listed");
    check.check_pages()
}

impl Check<'_> {
    fn check_region(&self, id: u32, region: &Region, count: &mut Recount) -> Result<(), String> {
        let (mut at, mut unit, mut before) = (Some(region.head), 0, None);
        while let Some(extent_id) = at {
            let extent = &self.map[extent_id];
            ensure!(count.seen.insert(extent_id), "extent {extent_id:?} is linked twice");
            ensure!(extent.region == id && extent.zone == region.zone, "extent {extent_id:?} is elsewhere");
            ensure!(
                extent.start == unit && extent.units > 0,
                "extent {extent_id:?} leaves a gap or overlaps"
            );
            ensure!(extent.prev == before, "extent {extent_id:?} has another extent before it");
            self.check_block(extent_id, count)?;
            (unit, before, at) = (extent.end(), Some(extent_id), extent.next);
        }
        ensure!(
            unit * self.map.layout.unit_bytes == region.bytes,
            "the extents of region {id} do not fill it"
        );
        Ok(())
    }

    fn check_block(&self, id: ExtentId, count: &mut Recount) -> Result<(), String> {
        let extent = &self.map[id];
        let zone = extent.zone as usize;
        let descriptor =
            self.map.page_map.of_block(id).map(|descriptor| (descriptor.id(), descriptor.bytes()));
        let expected = (extent.state == ExtentState::Allocated).then_some((id, self.map.bytes(id)));
        ensure!(descriptor == expected, "the descriptor of {id:?} is {descriptor:?}");
        match extent.state {
            ExtentState::Allocated => {
                count.allocated[zone] += 1;
                count.units += extent.units;
            }
            ExtentState::Free => {
                count.free += 1;
                let index = self.map.indexes.free(extent.zone);
                ensure!(index.lacks() || index.contains(extent, id), "free extent {id:?} is not indexed");
                let next = extent.next.map(|next| &self.map[next]).filter(|b| b.state == ExtentState::Free);
                let mergeable = next.is_some_and(|next| next.fence.same_streams(&extent.fence));
                let known = self.map.unmerged().contains(&id)
                    || extent.next.is_some_and(|next| self.map.unmerged().contains(&next));
                ensure!(!mergeable || known, "free extent {id:?} and the next could be one");
            }
            ExtentState::Unmapped => {
                count.unmapped += 1;
                let index = self.map.indexes.unmapped(extent.zone);
                ensure!(index.lacks() || index.contains(extent, id), "unmapped {id:?} is not indexed");
                let twin = extent.next.is_some_and(|next| self.map.is(next, ExtentState::Unmapped));
                ensure!(!twin, "unmapped {id:?} and the next could be one");
            }
            ExtentState::PendingUnmap(page) | ExtentState::Dormant(page) => {
                count.old_mappings += 1;
                ensure!(self.old_mappings.contains(&id), "old mapping {id:?} is not listed");
                ensure!(
                    self.mapper.pages.get(page).mappings > 0,
                    "old mapping {id:?} is of a page mapped nowhere"
                );
                let bytes = self.mapper.pages.bytes_of(page);
                ensure!(self.map.bytes(id) == bytes, "old mapping {id:?} is not as long as its page");
            }
            ExtentState::Unused => return Err(format!("unused extent {id:?} is linked")),
        }
        self.check_backing(id)
    }

    /// Allocated and free extents are backed in every base page they touch; unmapped and pending ones in none.
    fn check_backing(&self, id: ExtentId) -> Result<(), String> {
        let (extent, per_base_page) = (&self.map[id], self.map.layout.units_per_base_page());
        let backed = matches!(extent.state, ExtentState::Allocated | ExtentState::Free);
        if !backed {
            ensure!(
                extent.start % per_base_page == 0 && extent.end() % per_base_page == 0,
                "{id:?} is not whole base pages"
            );
        }
        let base_pages = extent.start / per_base_page..extent.end().div_ceil(per_base_page);
        // An unmapped extent may be a terabyte long; nothing beyond the highest base page ever backed can be in the
        // table.
        let table = &self.mapper.table;
        for base_page in base_pages.take_while(|base_page| *base_page < table.covered(extent.region)) {
            let page = table.page_at(extent.region, base_page);
            ensure!(
                page.is_some() == backed,
                "base page {base_page} of {id:?} ({:?}) has {page:?}",
                extent.state
            );
            if let Some((page, home)) = page {
                let (first, end) = home.span();
                let inside = home.region == extent.region && (first..end).contains(&base_page);
                ensure!(inside, "base page {base_page} of {id:?} names a page that lies at {home:?}");
                let base_pages = self.mapper.pages.get(page).base_pages;
                ensure!(base_pages == home.base_pages, "{page:?} has {base_pages} base pages, not {home:?}");
            }
        }
        if backed {
            let end = extent.end().div_ceil(per_base_page);
            ensure!(end <= table.covered(extent.region), "{id:?} lies beyond the page table");
        }
        Ok(())
    }

    /// Every page is either at home or parked, and is mapped as often as extents say.
    fn check_pages(&self) -> Result<(), String> {
        for (id, _) in self.mapper.pages.iter() {
            let is_of = |extent: &&ExtentId| {
                self.map.is(**extent, ExtentState::PendingUnmap(id))
                    || self.map.is(**extent, ExtentState::Dormant(id))
            };
            let old = self.old_mappings.iter().filter(is_of).count() as u32;
            let parked = self.mapper.pages.parked.contains(&id);
            let home = self.mapper.table.home(id);
            ensure!(parked != home.is_some(), "{id:?} is parked and at home, or neither");
            let mappings = old + u32::from(home.is_some());
            ensure!(
                self.mapper.pages.get(id).mappings == mappings,
                "{id:?}: {mappings} mappings were counted"
            );
            if let Some(home) = home {
                let there = self.mapper.table.page_at(home.region, home.span().0);
                ensure!(there == Some((id, home)), "where {id:?} lies there is {there:?}");
            }
        }
        Ok(())
    }
}
