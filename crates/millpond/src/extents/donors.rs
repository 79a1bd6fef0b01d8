//! Where pages come from that lie in free extents: they move to another address, or back to one that they had.

use super::arena::Arena;
use super::extent::ExtentId;
use super::search::Request;
use crate::physical::{Home, PageId};
use crate::policy::donating::enough_base_pages;

/// A page that a free extent can give.
#[derive(Debug, Clone, Copy)]
pub(super) struct DonorPage {
    pub(super) page: PageId,
    /// The free extent that it lies in.
    pub(super) extent: ExtentId,
    pub(super) home: Home,
    /// The least gives first. A donor that the stream may use without waiting comes first, then the one that has been free for
    /// longest, by the count of frees. In a program that repeats its steps, its pages are likely to be free here each time.
    /// Of one donor, the last page gives first.
    rank: (u64, usize),
    is_taken: bool,
}

impl DonorPage {
    fn lies_outside(&self, (region, (start, end)): Home) -> bool {
        let (of, (first, behind)) = self.home;
        of != region || behind <= start || end <= first
    }

    pub(super) fn base_pages(&self) -> u64 {
        self.home.1.1 - self.home.1.0
    }
}

/// The pages that free extents could give to one miss.
#[derive(Debug, Default)]
pub(super) struct Donors {
    /// In the order in which they give.
    pages: Vec<DonorPage>,
    /// By page id: the place in the list of pages, and 1; 0 where no donor has the page. Empty where no page may come back.
    by_page: Vec<u32>,
    /// All pages before this one are taken.
    next: usize,
}

impl Donors {
    /// Lists what free extents could give to a request. Where the host has no memory for more, what was found so far has to do.
    pub(super) fn gather(arena: &Arena, request: &Request<'_>) -> Self {
        let Arena { map, rules, old_mappings, .. } = arena;
        let mut new = Self::default();
        let mut wanted = enough_base_pages(map.layout.base_pages_for(request.units));
        let mut query = rules.query(request.stream);
        for extent in map.index.free_of(map.layout.units_per_base_page()) {
            let is_ready = query.covers(&map[extent].fence);
            if !is_ready && !request.may_wait {
                continue;
            }
            // Its pages, from its end. Where old mappings stay, a page that was given to a peer by itself stays too: that access
            // belongs to its mapping.
            let (start, mut end) = map.base_pages_within(extent);
            while wanted > 0
                && let Some((page, home)) = arena.last_whole((map[extent].region, (start, end)))
                && !arena.pages.is_segment(page)
                && (!arena.keeps() || arena.pages.has_usual_peers(page))
                && new.pages.try_reserve(1).is_ok()
            {
                let rank = (u64::from(!is_ready) << 63 | map[extent].freed, new.pages.len());
                let page = DonorPage { page, extent, home, rank, is_taken: false };
                new.pages.push(page);
                wanted = wanted.saturating_sub(page.base_pages());
                end = home.1.0;
            }
        }
        new.pages.sort_unstable_by_key(|page| page.rank);
        // Where old mappings stay, a miss goes past them.
        let ids = if old_mappings.is_empty(map) { 0 } else { arena.pages.records() };
        if new.by_page.try_reserve_exact(ids).is_ok() {
            new.by_page.resize(ids, 0);
        }
        for (page, at) in new.pages.iter().zip(1..) {
            if let Some(place) = new.by_page.get_mut(page.page.0 as usize) {
                *place = at;
            }
        }
        new
    }

    /// The place in the list of this page, if a donor has it outside of the window.
    pub(super) fn find(&self, page: PageId, window: Home) -> Option<usize> {
        let at = (*self.by_page.get(page.0 as usize)? as usize).checked_sub(1)?;
        let found = &self.pages[at];
        (!found.is_taken && found.lies_outside(window)).then_some(at)
    }

    /// Takes this page, if a donor has it outside of the window. A page may have several old mappings, and comes back to one.
    pub(super) fn take(&mut self, page: PageId, window: Home) -> Option<DonorPage> {
        let at = self.find(page, window)?;
        self.pages[at].is_taken = true;
        Some(self.pages[at])
    }

    /// Takes the next page of at most so many base pages that lies outside of the window.
    pub(super) fn take_next(&mut self, most: u64, window: Home) -> Option<DonorPage> {
        // Most are taken in their order.
        self.next += self.pages[self.next..].iter().take_while(|page| page.is_taken).count();
        let fits =
            |page: &&mut DonorPage| !page.is_taken && page.base_pages() <= most && page.lies_outside(window);
        let found = self.pages[self.next..].iter_mut().find(fits)?;
        found.is_taken = true;
        Some(*found)
    }
}
