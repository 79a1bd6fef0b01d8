//! Where pages come from that lie in free extents: they move to another address, or back to one that they had.

use super::arena::Arena;
use super::map::extent::ExtentId;
use super::search::Request;
use crate::physical::{Home, PageId};
use crate::policy::donating::are_enough;

/// A page that a free extent can give.
#[derive(Debug, Clone, Copy)]
pub(super) struct DonorPage {
    pub(super) page: PageId,
    /// The free extent that it lies in.
    pub(super) extent: ExtentId,
    pub(super) home: Home,
}

impl DonorPage {
    pub(super) fn base_pages(&self) -> u64 {
        self.home.1.1 - self.home.1.0
    }
}

/// A free extent that gives pages: all those in a range of base pages.
#[derive(Debug, Clone, Copy)]
struct Donor {
    /// The count of frees when it was freed. Those that the stream would have to wait for come behind all others. Of those that are as
    /// old, the first that was found comes first.
    rank: (u64, usize),
    extent: ExtentId,
    pages: Home,
}

/// Where in the order of pages one is looked for: at the donor with this number, before this base page.
type Cursor = (usize, u64);

/// What free extents could give to one miss. Each place that is considered claims the pages that it needs: no page is claimed twice
/// for one place. A page is marked with the number of the last place that claimed it.
#[derive(Debug, Default)]
pub(super) struct Donors {
    /// In the order in which they give.
    donors: Vec<Donor>,
    /// First base pages, and the number of the donor, by place. Empty where no page may come back to an old mapping.
    by_place: Vec<((u32, u64), usize)>,
    /// The place that is considered.
    place: u32,
    /// No page before this one, of at most so many base pages, can be claimed for it.
    next: (u64, Cursor),
}

impl Donors {
    /// Lists what free extents could give to a request. A donor that the stream may use without waiting gives first, then the one
    /// that has been free for longest, by the count of frees. In a program that repeats its steps, its pages are likely to be free
    /// here each time. Of one donor, the last page gives first. Where the host has no memory for more, what was found so far has to do.
    pub(super) fn gather(arena: &Arena, request: &Request<'_>) -> Self {
        let Arena { map, rules, .. } = arena;
        let mut donors: Vec<Donor> = Vec::new();
        let mut missing = map.layout.base_pages_for(request.units);
        let mut query = rules.query(request.stream);
        for extent in map.free_with_page() {
            let is_ready = query.covers(&map[extent].fence);
            if !is_ready && !request.may_wait {
                continue;
            }
            let pages = arena.given(extent);
            if pages.1.0 == pages.1.1 {
                continue;
            }
            if donors.try_reserve(1).is_err() {
                break;
            }
            let rank = (u64::from(!is_ready) << 63 | map[extent].freed, donors.len());
            donors.push(Donor { rank, extent, pages });
            missing = missing.saturating_sub(pages.1.1 - pages.1.0);
            if are_enough(donors.len(), missing) {
                break;
            }
        }
        donors.sort_unstable_by_key(|donor| donor.rank);
        // Where old mappings stay, a miss goes past them.
        let mut by_place = Vec::new();
        if !arena.keeps() && by_place.try_reserve_exact(donors.len()).is_ok() {
            let first = |donor: &Donor| (donor.pages.0, donor.pages.1.0);
            by_place.extend(donors.iter().map(first).zip(0..));
            by_place.sort_unstable();
        }
        Self { donors, by_place, place: 0, next: (0, (0, 0)) }
    }

    /// Considers another place: nothing is claimed for it yet.
    pub(super) fn consider(&mut self, arena: &Arena) {
        self.place = arena.pages.next_mark();
        self.next = (0, self.first());
    }

    /// Claims this page for the place that is considered, so that it comes back to an old mapping there. `None` where no donor has
    /// it outside of the window, or it was claimed: a page may have several old mappings, and comes back to one.
    pub(super) fn claim(&self, arena: &Arena, page: PageId, window: Home) -> Option<DonorPage> {
        let home =
            arena.pages.home(page).filter(|home| !self.by_place.is_empty() && lie_apart(*home, window))?;
        let (region, (first, end)) = home;
        let behind = self.by_place.partition_point(|(place, _)| *place <= (region, first));
        let (_, donor) = self.by_place.get(behind.checked_sub(1)?)?;
        let Donor { extent, pages: (of, (_, last)), .. } = self.donors[*donor];
        let is_there = of == region && end <= last && !self.is_claimed(arena, page);
        is_there.then(|| self.note(arena, DonorPage { page, extent, home }))
    }

    /// Claims the next page of at most so many base pages that lies outside of the window.
    pub(super) fn claim_next(&mut self, arena: &Arena, most: u64, window: Home) -> Option<DonorPage> {
        let (longest, next) = self.next;
        let mut at = if most <= longest { next } else { self.first() };
        let mut found = None;
        while found.is_none()
            && let Some((page, next)) = self.page_from(arena, at, window)
        {
            let may_give = !self.is_claimed(arena, page.page) && lie_apart(page.home, window);
            found = Some(page).filter(|page| may_give && page.base_pages() <= most);
            at = next;
        }
        self.next = (most, at);
        found.map(|page| self.note(arena, page))
    }

    /// Where the first page is.
    fn first(&self) -> Cursor {
        (0, self.donors.first().map_or(0, |donor| donor.pages.1.1))
    }

    /// The next page in the order of giving, and where the one behind it is. Most that lie in the window are left out at once.
    fn page_from(
        &self,
        arena: &Arena,
        (mut at, mut end): Cursor,
        (region, (from, to)): Home,
    ) -> Option<(DonorPage, Cursor)> {
        loop {
            let Donor { extent, pages: (of, (first, _)), .. } = *self.donors.get(at)?;
            if of == region && from < end && end <= to {
                end = from;
            }
            if let Some((page, home)) = arena.last_whole((of, (first, end))) {
                return Some((DonorPage { page, extent, home }, (at, home.1.0)));
            }
            at += 1;
            end = self.donors.get(at)?.pages.1.1;
        }
    }

    fn is_claimed(&self, arena: &Arena, page: PageId) -> bool {
        arena.pages.get(page).mark.get() == self.place
    }

    fn note(&self, arena: &Arena, page: DonorPage) -> DonorPage {
        arena.pages.get(page.page).mark.set(self.place);
        page
    }
}

fn lie_apart((of, (first, behind)): Home, (region, (start, end)): Home) -> bool {
    of != region || behind <= start || end <= first
}
