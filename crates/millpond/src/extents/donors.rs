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
    /// The last place that it was claimed for.
    claimed_for: u32,
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

/// The pages that free extents could give to one miss. Each place that is considered claims those that it needs: no page is
/// claimed twice for one place.
#[derive(Debug, Default)]
pub(super) struct Donors {
    /// In the order in which they give. A page is marked with its place here.
    pages: Vec<DonorPage>,
    /// Whether pages may come back to old mappings.
    come_back: bool,
    /// How many places were considered.
    place: u32,
    /// All pages before this one are claimed for the present place.
    next: usize,
}

impl Donors {
    /// Lists what free extents could give to a request. A donor that the stream may use without waiting gives first, then the one
    /// that has been free for longest, by the count of frees. In a program that repeats its steps, its pages are likely to be free
    /// here each time. Of one donor, the last page gives first. Where the host has no memory for more, what was found so far has to do.
    pub(super) fn gather(arena: &Arena, request: &Request<'_>) -> Self {
        let Arena { map, rules, .. } = arena;
        // Where old mappings stay, a miss goes past them.
        let mut new = Self { come_back: !arena.keeps(), ..Self::default() };
        // The rank of each donor, and where its pages are listed.
        let mut donors: Vec<(u64, usize, usize)> = Vec::new();
        let mut wanted = enough_base_pages(map.layout.base_pages_for(request.units));
        let mut query = rules.query(request.stream);
        for extent in map.free_with_page() {
            let is_ready = query.covers(&map[extent].fence);
            if !is_ready && !request.may_wait {
                continue;
            }
            // Its pages, from its end. Where old mappings stay, a page that was given to a peer by itself stays too: that access
            // belongs to its mapping.
            let (start, mut end) = map.base_pages_within(extent);
            let listed = new.pages.len();
            while wanted > 0
                && let Some((page, home)) = arena.last_whole((map[extent].region, (start, end)))
                && !arena.pages.is_segment(page)
                && (!arena.keeps() || arena.pages.has_usual_peers(page))
                && new.pages.try_reserve(1).is_ok()
            {
                let page = DonorPage { page, extent, home, claimed_for: 0 };
                new.pages.push(page);
                wanted = wanted.saturating_sub(page.base_pages());
                end = home.1.0;
            }
            if listed < new.pages.len() {
                if donors.try_reserve(1).is_err() {
                    new.pages.truncate(listed);
                    break;
                }
                donors.push((u64::from(!is_ready) << 63 | map[extent].freed, listed, new.pages.len()));
            }
            if wanted == 0 {
                break;
            }
        }
        if !donors.is_sorted() {
            donors.sort_unstable();
            let mut in_order = Vec::new();
            if in_order.try_reserve_exact(new.pages.len()).is_ok() {
                for (_, first, end) in donors {
                    in_order.extend_from_slice(&new.pages[first..end]);
                }
                new.pages = in_order;
            }
        }
        if new.come_back {
            for (page, at) in new.pages.iter().zip(0..) {
                arena.pages.get(page.page).mark.set(at);
            }
        }
        new
    }

    /// Considers another place: nothing is claimed for it yet.
    pub(super) fn consider(&mut self) {
        self.place += 1;
        self.next = 0;
    }

    /// Claims this page for the place that is considered, so that it comes back to an old mapping there. `None` where no donor has
    /// it outside of the window, or it was claimed: a page may have several old mappings, and comes back to one.
    pub(super) fn claim(&mut self, arena: &Arena, page: PageId, window: Home) -> Option<DonorPage> {
        let at = arena.pages.get(page).mark.get() as usize;
        // A mark of an earlier miss names another page.
        let donor = self.pages.get_mut(at).filter(|donor| self.come_back && donor.page == page)?;
        if donor.claimed_for == self.place || !donor.lies_outside(window) {
            return None;
        }
        donor.claimed_for = self.place;
        Some(*donor)
    }

    /// Claims the next page of at most so many base pages that lies outside of the window.
    pub(super) fn claim_next(&mut self, most: u64, window: Home) -> Option<DonorPage> {
        let Self { pages, place, next, .. } = self;
        // Most are claimed in their order.
        *next += pages[*next..].iter().take_while(|page| page.claimed_for == *place).count();
        let fits = |page: &&mut DonorPage| {
            page.claimed_for != *place && page.base_pages() <= most && page.lies_outside(window)
        };
        let found = pages[*next..].iter_mut().find(fits)?;
        found.claimed_for = *place;
        Some(*found)
    }
}
