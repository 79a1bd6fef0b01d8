//! Where an allocation goes that no free extent fits: the place in address space that lacks the fewest pages.

use super::arena::Arena;
use super::donors::{DonorPage, Donors};
use super::extent::{Extent, ExtentId, ExtentState};
use super::index::Kind;
use super::search::Request;
use crate::order::ReadinessQuery;
use crate::physical::IdleMapping;
use crate::policy::fit::CANDIDATES;

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

/// What an extent of a place is to the plan.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    /// It is free: the stream uses it as it is.
    Free,
    /// The page comes back to this dormant mapping.
    ComesBack(DonorPage),
    /// Nothing is mapped: a page has to be.
    Unmapped,
    /// An idle mapping, which has to be removed, so that a page is mapped there.
    Idle(IdleMapping),
}

/// The place for the request that the fewest pages have to be mapped at. Pages that `donors` can give back to their old
/// mappings need not be. At a tie it grows what is free already. So free space stays contiguous. `None` where only a new region
/// has room.
pub(super) fn choose_place(arena: &Arena, donors: &mut Donors, request: Request<'_>) -> Option<Placement> {
    let map = &arena.map;
    let base_pages = map.layout.base_pages_for(request.units);
    let grown = Growth::new(arena, donors, request).best().filter(|grown| grown.missing <= base_pages);
    grown.or_else(|| {
        // One of which all base pages are missing, in the unmapped extent that fits best.
        let units = base_pages << map.layout.base_page_shift;
        let first = map.index.at_least(Kind::unmapped(request.zone), units).next()?.id;
        let Extent { region, start, .. } = map[first];
        Some(Placement { region, start, end: start + request.units, first, missing: base_pages })
    })
}

/// The extents of a place in the order of their addresses, with what each is to the plan; `None` for one that no plan may use. What
/// an extent needs is claimed for it, so the same walk says the same to who chooses a place and to who plans for it.
pub(super) fn walk<'a>(
    arena: &'a Arena,
    donors: &'a mut Donors,
    place: &Placement,
) -> impl Iterator<Item = (ExtentId, Option<Part>)> + use<'a> {
    let layout = &arena.map.layout;
    let window = (place.region, (layout.base_page_of(place.start), layout.base_pages_for(place.end)));
    donors.consider();
    let mut part = move |id| match arena.map[id].state {
        ExtentState::Free => Some(Part::Free),
        ExtentState::Unmapped => Some(Part::Unmapped),
        ExtentState::Dormant(page) => donors.claim(arena, page, window).map(Part::ComesBack),
        ExtentState::Idle(mapping) => {
            let donor = donors.claim(arena, mapping.page(), window);
            Some(donor.map_or(Part::Idle(mapping), Part::ComesBack))
        }
        ExtentState::Allocated
        | ExtentState::Entered
        | ExtentState::PendingUnmap(_)
        | ExtentState::Unused => None,
    };
    arena.map.until(place.first, place.end).map(move |id| (id, part(id)))
}

/// The places that begin or end with a free extent.
struct Growth<'a> {
    arena: &'a Arena,
    donors: &'a mut Donors,
    request: Request<'a>,
    ready: ReadinessQuery<'a>,
}

impl<'a> Growth<'a> {
    fn new(arena: &'a Arena, donors: &'a mut Donors, request: Request<'a>) -> Self {
        Self { arena, donors, request, ready: arena.rules.query(request.stream) }
    }

    /// The place with the fewest missing base pages that begins or ends with one of the longest free extents. Of those that
    /// lack none it is the lowest: so a program that repeats its steps gets the same one each time, and the others keep
    /// their pages.
    fn best(mut self) -> Option<Placement> {
        let (map, align) = (&self.arena.map, self.request.align);
        let mut best: Option<Placement> = None;
        let longest = map.index.below(Kind::free(self.request.zone), self.request.units);
        for id in longest.take(CANDIDATES).map(|entry| entry.id) {
            if !self.could_be_ready(id) {
                continue;
            }
            // It begins with the extent, or ends with it.
            let Extent { region, start, units, .. } = map[id];
            let up = Some(map.align_up(region, start, align)).filter(|up| *up < start + units);
            let down = (start + units).checked_sub(self.request.units);
            let down = down.and_then(|lowest| map.align_down(region, lowest, align));
            for start in [up, down].into_iter().flatten() {
                let most = best.map_or(u64::MAX, |best| best.missing);
                let grown = self.place(id, start, most);
                best = grown.filter(|grown| best.is_none_or(|best| grown.is_better(&best))).or(best);
            }
        }
        best
    }

    /// The place that starts at a unit of a region, if it lacks at most so many base pages. A free extent lies at one end of it.
    fn place(&mut self, id: ExtentId, start: u64, most: u64) -> Option<Placement> {
        let map = &self.arena.map;
        let window = (start, start + self.request.units);
        let mut first = id;
        while map[first].start > window.0 {
            first = map[first].prev?;
            let state = map[first].state;
            if matches!(state, ExtentState::Allocated | ExtentState::PendingUnmap(_)) {
                return None;
            }
        }
        let mut place = Placement { region: map[id].region, start, end: window.1, first, missing: 0 };
        let mut end = start;
        let Self { arena, donors, request, ready } = self;
        for (id, part) in walk(arena, donors, &place) {
            place.missing += match part? {
                Part::Free if request.may_wait || ready.covers(&map[id].fence) => 0,
                Part::Free => return None,
                Part::ComesBack(_) => 0,
                Part::Unmapped | Part::Idle(_) => {
                    let (first, end) = map.base_pages_in(id, window);
                    end - first
                }
            };
            if place.missing > most {
                return None;
            }
            end = map[id].end();
        }
        (end >= window.1).then_some(place)
    }

    fn could_be_ready(&mut self, id: ExtentId) -> bool {
        self.request.may_wait || self.ready.covers(&self.arena.map[id].fence)
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
