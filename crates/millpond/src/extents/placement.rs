//! Where an allocation goes that no free extent fits: the place in address space that lacks the fewest pages.

use super::donors::Donors;
use super::extent::{Extent, ExtentId, ExtentState};
use super::extent_map::ExtentMap;
use super::reuse_rules::ReuseRules;
use super::search::Request;
use crate::policy::fit::GROWTH_CANDIDATES;

/// A place for an allocation that is not wholly backed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement {
    pub(super) region: u32,
    /// The unit that the allocation will start at.
    pub(super) start: u64,
    pub(super) end: u64,
    /// The extent that holds `start`.
    pub(super) first: ExtentId,
    /// Base pages in `start..end` that a page has to be mapped at.
    pub(super) missing: u64,
}

impl Placement {
    fn is_better(&self, other: &Self) -> bool {
        let lies_lower = (self.region, self.start) < (other.region, other.start);
        self.missing < other.missing || self.missing == 0 && other.missing == 0 && lies_lower
    }
}

/// The place for the request that the fewest pages have to be mapped at. Pages that `donors` can give back to their old
/// mappings need not be. At a tie it grows what is free already, unless the stream would have to wait for that. So free space
/// stays contiguous. `None` where only a new region has room.
pub(super) fn choose_place(
    map: &ExtentMap,
    rules: &ReuseRules,
    donors: &Donors,
    request: Request<'_>,
) -> Option<Placement> {
    let base_pages = map.layout.base_pages_for(request.units);
    let growth = Growth { map, rules, donors, request };
    let grown = growth
        .best()
        .filter(|grown| grown.missing < base_pages || grown.missing == base_pages && growth.is_ready(grown));
    grown.or_else(|| {
        // One of which all base pages are missing, in the unmapped extent that fits best.
        let first = map.unmapped_with(request.zone, base_pages)?;
        let Extent { region, start, .. } = map[first];
        Some(Placement { region, start, end: start + request.units, first, missing: base_pages })
    })
}

/// The places that begin or end with a free extent.
#[derive(Debug, Clone, Copy)]
struct Growth<'a> {
    map: &'a ExtentMap,
    rules: &'a ReuseRules,
    donors: &'a Donors,
    request: Request<'a>,
}

impl Growth<'_> {
    /// The place with the fewest missing base pages that begins or ends with one of the longest free extents. Of those that
    /// lack none it is the lowest: so a program that repeats its steps gets the same one each time, and the others keep
    /// their pages.
    fn best(&self) -> Option<Placement> {
        let mut best: Option<Placement> = None;
        let longest = self.map.indexes.free(self.request.zone).below(self.request.units);
        for id in longest.take(GROWTH_CANDIDATES) {
            if !self.may_grow(id) || !self.could_be_ready(id) {
                continue;
            }
            for grow in [Self::up, Self::down] {
                let most = best.map_or(u64::MAX, |best| best.missing);
                best = grow(self, id, most)
                    .filter(|grown| best.is_none_or(|best| grown.is_better(&best)))
                    .or(best);
            }
        }
        best
    }

    /// Whether there is room for pages beside a free extent.
    fn may_grow(&self, id: ExtentId) -> bool {
        let is_open = |id| {
            matches!(self.map[id].state, ExtentState::Unmapped | ExtentState::Dormant(_) | ExtentState::Free)
        };
        let extent = &self.map[id];
        extent.next.is_some_and(is_open) || extent.prev.is_some_and(is_open)
    }

    /// The place that starts with a free extent, if it lacks at most so many base pages.
    fn up(&self, id: ExtentId, most: u64) -> Option<Placement> {
        let Extent { region, start, .. } = self.map[id];
        let start = self.map.align_up(region, start, self.request.align);
        let end = start + self.request.units;
        let mut missing = 0;
        let mut at = id;
        while self.map[at].end() < end {
            at = self.map[at].next?;
            missing += self.missing_in(at, (start, end))?;
            if missing > most {
                return None;
            }
        }
        (start < self.map[id].end()).then_some(Placement { region, start, end, first: id, missing })
    }

    /// The place that ends with a free extent, if it lacks at most so many base pages.
    fn down(&self, id: ExtentId, most: u64) -> Option<Placement> {
        let region = self.map[id].region;
        let lowest = self.map[id].end().checked_sub(self.request.units)?;
        let start = self.map.align_down(region, lowest, self.request.align)?;
        let end = start + self.request.units;
        let mut missing = 0;
        let mut at = id;
        while self.map[at].start > start {
            at = self.map[at].prev?;
            missing += self.missing_in(at, (start, end))?;
            if missing > most {
                return None;
            }
        }
        Some(Placement { region, start, end, first: at, missing })
    }

    /// Base pages to be mapped in the part of an extent that lies in `window`. `None` where no place may hold the extent.
    fn missing_in(&self, id: ExtentId, window: (u64, u64)) -> Option<u64> {
        let Extent { state, region, ref fence, .. } = self.map[id];
        let all = || {
            let (first, end) = self.map.base_pages_in(id, window);
            end - first
        };
        match state {
            ExtentState::Free => self.could_be_ready(id).then_some(0),
            ExtentState::Unmapped => Some(all()),
            ExtentState::Dormant(page) => {
                let layout = &self.map.layout;
                let place = (layout.base_page_of(window.0), layout.base_pages_for(window.1));
                if self.donors.have(page, (region, place)) {
                    return Some(0);
                }
                (fence.is_empty() && !self.donors.old_mappings_stay).then(all)
            }
            _ => None,
        }
    }

    fn could_be_ready(&self, id: ExtentId) -> bool {
        self.rules.could_be_ready(&self.map[id].fence, self.request.stream)
    }

    /// Whether the stream may use what is free in a place, by what is known already.
    fn is_ready(&self, place: &Placement) -> bool {
        let extents = self.map.until(place.first, place.end).map(|id| &self.map[id]);
        extents
            .filter(|extent| extent.state == ExtentState::Free)
            .all(|extent| self.rules.is_ready(&extent.fence, self.request.stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_better_that_lacks_less_or_lies_lower_lacking_nothing() {
        let place =
            |region, start, missing| Placement { region, start, end: start + 4, first: ExtentId(0), missing };
        let is_better = |a: Placement, b: Placement| (a.is_better(&b), b.is_better(&a));
        assert_eq!(is_better(place(1, 8, 1), place(0, 0, 2)), (true, false));
        assert_eq!(is_better(place(0, 0, 0), place(0, 8, 0)), (true, false));
        assert_eq!(is_better(place(0, 8, 0), place(1, 0, 0)), (true, false));
        assert_eq!(is_better(place(0, 0, 1), place(0, 8, 1)), (false, false));
        assert_eq!(is_better(place(0, 8, 0), place(0, 8, 0)), (false, false));
    }
}
