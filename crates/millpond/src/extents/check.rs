//! The arena's invariants as a recount. Property tests call it after every step.

use std::collections::HashSet;

use super::extent::ExtentState;
use super::regions::{Region, RegionOrigin};
use super::shorten::SHORT;
use super::{Arena, ExtentId};

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
    pending_unmap: usize,
    segment_bytes: u64,
    seen: HashSet<ExtentId>,
}

impl Arena {
    /// Recounts everything; says what is wrong, if anything is.
    ///
    /// `reserved` is what was counted, less what other arenas that count together with this one hold.
    pub(crate) fn check(&self, reserved: u64) -> Result<(), String> {
        let mut count = Recount::default();
        for (id, region) in self.regions.iter() {
            self.check_region(id, region, &mut count)?;
        }
        ensure!(count.seen.len() == self.extents.iter().count(), "an extent is linked in no region");
        ensure!(
            count.allocated == self.allocated_blocks,
            "{:?} allocated blocks were counted",
            count.allocated
        );
        ensure!(count.units == self.allocated_units, "allocated units: recount {}", count.units);
        let base_pages = self.pages.iter().map(|(_, page)| u64::from(page.base_pages)).sum::<u64>();
        ensure!(base_pages == self.pages.base_pages(), "base pages: recount {base_pages}");
        let recount = count.segment_bytes + self.pages.recount_bytes();
        ensure!(recount == reserved, "reserved: recount {recount}, counted {reserved}");
        let indexed = |zones: &[super::index::FreeIndex; 2]| zones.iter().map(|z| z.len()).sum::<usize>();
        let lacks = |zones: &[super::index::FreeIndex; 2]| zones.iter().any(super::index::FreeIndex::lacks);
        ensure!(
            lacks(&self.free) || count.free == indexed(&self.free),
            "the free index has other extents than the regions"
        );
        ensure!(
            lacks(&self.unmapped) || count.unmapped == indexed(&self.unmapped),
            "the index of unmapped extents has other extents than the regions"
        );
        let listed: HashSet<_> = self.pending_unmap.iter().collect();
        ensure!(listed.len() == self.pending_unmap.len(), "an extent pending unmap is listed twice");
        ensure!(count.pending_unmap == self.pending_unmap.len(), "an extent pending unmap is not listed");
        self.check_pages()
    }

    fn check_region(&self, id: u32, region: &Region, count: &mut Recount) -> Result<(), String> {
        let (mut at, mut unit, mut before) = (Some(region.head), 0, None);
        while let Some(extent_id) = at {
            let extent = &self.extents[extent_id];
            ensure!(count.seen.insert(extent_id), "extent {extent_id:?} is linked twice");
            ensure!(extent.region == id && extent.zone == region.zone, "extent {extent_id:?} is elsewhere");
            ensure!(
                extent.start == unit && extent.units > 0,
                "extent {extent_id:?} leaves a gap or overlaps"
            );
            ensure!(extent.prev == before, "extent {extent_id:?} has another extent before it");
            self.check_block(extent_id, region, count)?;
            (unit, before, at) = (extent.end(), Some(extent_id), extent.next);
        }
        ensure!(unit * self.layout.unit_bytes == region.bytes, "the extents of region {id} do not fill it");
        if region.origin == RegionOrigin::Segment {
            count.segment_bytes += region.bytes;
        }
        Ok(())
    }

    fn check_block(&self, id: ExtentId, region: &Region, count: &mut Recount) -> Result<(), String> {
        let extent = &self.extents[id];
        let zone = extent.zone as usize;
        let descriptor = self.descriptor_of(id).map(|descriptor| (descriptor.id(), descriptor.bytes()));
        let expected = (extent.state == ExtentState::Allocated).then_some((id, self.bytes(id)));
        ensure!(descriptor == expected, "the descriptor of {id:?} is {descriptor:?}");
        match extent.state {
            ExtentState::Allocated => {
                count.allocated[zone] += 1;
                count.units += extent.units;
            }
            ExtentState::Free => {
                count.free += 1;
                let index = &self.free[zone];
                ensure!(index.lacks() || index.contains(extent, id), "free extent {id:?} is not indexed");
                let base_pages =
                    (self.layout.base_pages_for(extent.start), self.layout.base_page_of(extent.end()));
                let whole = self.regions.whole_within(extent.region, base_pages, |_| true);
                ensure!(
                    extent.whole.is_none_or(|known| known == whole),
                    "{id:?} has {whole:?}, not what is noted"
                );
                let next =
                    extent.next.map(|next| &self.extents[next]).filter(|b| b.state == ExtentState::Free);
                let mergeable = next.is_some_and(|next| next.fence.same_streams(&extent.fence));
                let known = self.unmerged.contains(&id)
                    || extent.next.is_some_and(|next| self.unmerged.contains(&next));
                ensure!(!mergeable || known, "free extent {id:?} and the next could be one");
            }
            ExtentState::Unmapped => {
                count.unmapped += 1;
                let index = &self.unmapped[zone];
                ensure!(index.lacks() || index.contains(extent, id), "unmapped {id:?} is not indexed");
                let twin = extent.next.is_some_and(|next| self.extents.is(next, ExtentState::Unmapped));
                ensure!(!twin, "unmapped {id:?} and the next could be one");
            }
            ExtentState::PendingUnmap(page) => {
                count.pending_unmap += 1;
                ensure!(self.pending_unmap.contains(&id), "extent pending unmap {id:?} is not listed");
                ensure!(
                    self.pages.mappings(page) > 0,
                    "extent pending unmap {id:?} is of a page mapped nowhere"
                );
            }
            ExtentState::Unused => return Err(format!("unused extent {id:?} is linked")),
        }
        self.check_backing(id, region)
    }

    /// Allocated and free extents are backed in every base page they touch; unmapped and pending ones in none.
    fn check_backing(&self, id: ExtentId, region: &Region) -> Result<(), String> {
        let (extent, per_base_page) = (&self.extents[id], self.layout.units_per_base_page());
        if region.origin == RegionOrigin::Segment {
            ensure!(
                matches!(extent.state, ExtentState::Allocated | ExtentState::Free),
                "{id:?} cannot be in a segment"
            );
            return Ok(());
        }
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
        for base_page in
            base_pages.take_while(|base_page| *base_page < self.regions.page_table_len(extent.region))
        {
            let page = self.regions.page_at(extent.region, base_page);
            ensure!(
                page.is_some() == backed,
                "base page {base_page} of {id:?} ({:?}) has {page:?}",
                extent.state
            );
            if let Some(page) = page {
                let span = self.regions.page_span(extent.region, base_page);
                let page = self.pages.get(page);
                let home = page.home.map(|(region, first)| (region, u64::from(first)));
                let inside = home.is_some_and(|(region, first)| {
                    region == extent.region
                        && (first..first + u64::from(page.base_pages)).contains(&base_page)
                });
                ensure!(inside, "base page {base_page} of {id:?} names a page whose home is {home:?}");
                let whole = home.map(|(_, first)| (first, first + u64::from(page.base_pages)));
                ensure!(
                    span == whole,
                    "base page {base_page} of {id:?}: its page spans {span:?}, not {whole:?}"
                );
            }
            let starts =
                page.and_then(|page| self.pages.get(page).home) == Some((extent.region, base_page as u32));
            let is_long = starts && page.is_some_and(|page| self.pages.get(page).base_pages > SHORT);
            ensure!(
                self.regions.is_long_from(extent.region, base_page) == is_long,
                "base page {base_page} of {id:?}: {page:?} is not noted for as long as it is"
            );
        }
        if backed {
            let end = extent.end().div_ceil(per_base_page);
            ensure!(end <= self.regions.page_table_len(extent.region), "{id:?} lies beyond the page table");
        }
        Ok(())
    }

    /// Every page is either at home or parked, and is mapped as often as extents say.
    fn check_pages(&self) -> Result<(), String> {
        for (id, page) in self.pages.iter() {
            let pending_unmap = self
                .pending_unmap
                .iter()
                .filter(|extent| self.extents.is(**extent, ExtentState::PendingUnmap(id)))
                .count() as u32;
            let parked = self.pages.parked().contains(&id);
            ensure!(parked != page.home.is_some(), "{id:?} is parked and at home, or neither");
            let mappings = pending_unmap + u32::from(page.home.is_some());
            ensure!(self.pages.mappings(id) == mappings, "{id:?}: {mappings} mappings were counted");
            if let Some((region, base_page)) = page.home {
                let there = self.regions.page_at(region, u64::from(base_page));
                ensure!(there == Some(id), "the home of {id:?} holds {there:?}");
            }
        }
        Ok(())
    }
}
