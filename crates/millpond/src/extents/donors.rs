//! Where pages come from that lie in free extents: they move to another address, or back to one that they had.

use std::cmp::Reverse;

use super::extent::ExtentId;
use super::extent_map::ExtentMap;
use super::layout::Zone;
use super::mapper::Mapper;
use super::page_table::Home;
use super::reuse_rules::ReuseRules;
use crate::order::Stream;
use crate::physical::PageId;
use crate::policy::donating::enough_base_pages;

/// A page that a free extent can give.
#[derive(Debug, Clone, Copy)]
pub(super) struct DonorPage {
    pub(super) page: PageId,
    /// The free extent that it lies in.
    pub(super) extent: ExtentId,
    pub(super) home: Home,
    is_taken: bool,
}

/// Base pages of a region: its number, the first, and the first behind them.
pub(super) type Window = (u32, (u64, u64));

impl DonorPage {
    fn lies_outside(&self, (region, (start, end)): Window) -> bool {
        let (first, behind) = self.home.span();
        self.home.region != region || behind <= start || end <= first
    }
}

/// A free extent that gives pages.
#[derive(Debug)]
struct Donor {
    /// The least gives first. A donor that the stream may use without waiting comes first, then the one that has been free for
    /// longest, by the count of frees. In a program that repeats its steps, its pages are likely to be free here each time.
    rank: (Reverse<bool>, u64),
    /// Its places in the list of pages. The first of them is its last page.
    pages: (usize, usize),
}

/// The pages that free extents could give to one miss.
#[derive(Debug, Default)]
pub(super) struct Donors {
    list: Vec<Donor>,
    pages: Vec<DonorPage>,
    /// By page id: the place in the list of pages, and 1; 0 where no donor has the page. Empty where no page may come back.
    by_page: Vec<u32>,
    /// Whether old mappings stay where they are: no place may hold one.
    pub(super) old_mappings_stay: bool,
}

impl Donors {
    /// Forgets all of them. Their memory stays for the next miss.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.pages.clear();
        self.by_page.clear();
    }

    /// Lists what free extents could give to the stream, enough for so many base pages. Where the host has no memory for more,
    /// what was found so far has to do.
    pub(super) fn gather(
        &mut self,
        (map, mapper): (&ExtentMap, &Mapper),
        rules: &ReuseRules,
        (base_pages, stream): (u64, &Stream),
    ) {
        self.clear();
        let ids = mapper.ids_of_dormant();
        if self.by_page.try_reserve(ids).is_ok() {
            self.by_page.resize(ids, 0);
        }
        let mut wanted = enough_base_pages(base_pages);
        let mut query = rules.query(stream);
        let longer_than_a_page = map.layout.units_per_base_page();
        for extent in Zone::BOTH.iter().flat_map(|zone| map.indexes.free(*zone).at_least(longer_than_a_page))
        {
            if wanted == 0 {
                break;
            }
            let is_ready = query.covers(&map[extent].fence);
            if is_ready || rules.policies.internal_dependencies {
                let first = self.pages.len();
                wanted = self.list_pages((map, mapper), extent, wanted);
                if first < self.pages.len() && self.list.try_reserve(1).is_ok() {
                    let rank = (Reverse(is_ready), map[extent].freed);
                    self.list.push(Donor { rank, pages: (first, self.pages.len()) });
                }
            }
        }
        self.list.sort_unstable_by_key(|donor| (donor.rank, donor.pages));
    }

    /// Lists pages of a free extent, from its end; returns how many base pages are wanted still. Where old mappings stay, a page
    /// that was given to a peer by itself stays too: that access belongs to its mapping.
    fn list_pages(&mut self, (map, mapper): (&ExtentMap, &Mapper), extent: ExtentId, mut wanted: u64) -> u64 {
        let region = map[extent].region;
        let (start, mut end) = map.base_pages_within(extent);
        while wanted > 0
            && let Some((page, home)) = mapper.table.last_whole(region, (start, end))
            && !mapper.pages.is_segment(page)
            && (!self.old_mappings_stay || mapper.pages.has_usual_peers(page))
            && self.pages.try_reserve(1).is_ok()
        {
            self.pages.push(DonorPage { page, extent, home, is_taken: false });
            if let Some(place) = self.by_page.get_mut(page.0 as usize) {
                *place = self.pages.len() as u32;
            }
            wanted = wanted.saturating_sub(u64::from(home.base_pages));
            end = home.span().0;
        }
        wanted
    }

    /// Whether a donor has the page, outside of the window.
    pub(super) fn have(&self, page: PageId, window: Window) -> bool {
        self.place_of(page).is_some_and(|at| self.pages[at].lies_outside(window))
    }

    fn place_of(&self, page: PageId) -> Option<usize> {
        (self.by_page.get(page.0 as usize).copied()? as usize).checked_sub(1)
    }

    /// Takes this page, if a donor has it outside of the window. A page may have several old mappings, and comes back to one.
    pub(super) fn take(&mut self, page: PageId, window: Window) -> Option<DonorPage> {
        let at = self.place_of(page)?;
        let found = Some(&mut self.pages[at]).filter(|page| !page.is_taken && page.lies_outside(window))?;
        found.is_taken = true;
        Some(*found)
    }

    /// Takes the next page of at most so many base pages that lies outside of the window.
    pub(super) fn take_next(&mut self, most: u32, window: Window) -> Option<DonorPage> {
        let Self { list, pages, .. } = self;
        for donor in list {
            // Most are taken in their order.
            while donor.pages.0 < donor.pages.1 && pages[donor.pages.0].is_taken {
                donor.pages.0 += 1;
            }
            let mut left = pages[donor.pages.0..donor.pages.1].iter_mut();
            let fits = |page: &&mut DonorPage| {
                !page.is_taken && page.home.base_pages <= most && page.lies_outside(window)
            };
            if let Some(found) = left.find(fits) {
                found.is_taken = true;
                return Some(*found);
            }
        }
        None
    }
}
