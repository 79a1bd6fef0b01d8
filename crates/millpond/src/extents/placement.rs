//! Where an allocation goes that no free extent fits: the hole that fits best, or one that lacks fewer pages.

use super::arena::Arena;
use super::donors::{DonorPage, Donors};
use super::map::extent::{ExtentId, ExtentState};
use super::map::extent_map::ExtentMap;
use super::map::index::Hole;
use super::search::Request;
use crate::order::ReadinessQuery;
use crate::physical::IdleMapping;
use crate::policy::fit::{CANDIDATES, misfit, most_missing};

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

/// Chooses a place for a request. Pages that `donors` can give back to their old mappings lack nowhere.
pub(super) struct Placer<'a, 'b> {
    arena: &'a Arena,
    donors: &'b mut Donors,
    request: Request<'a>,
    ready: ReadinessQuery<'a>,
}

impl<'a, 'b> Placer<'a, 'b> {
    pub(super) fn new(arena: &'a Arena, donors: &'b mut Donors, request: Request<'a>) -> Self {
        Self { arena, donors, request, ready: arena.rules.query(request.stream) }
    }

    /// The start or the end of a hole that fits well and lacks few pages. `None` where only a new region has room.
    pub(super) fn choose(mut self) -> Option<Placement> {
        let (map, request, mut best) = (&self.arena.map, self.request, None);
        for hole in request.holes(map) {
            let over = (hole.units() - request.units) >> map.layout.base_page_shift;
            for start in starts(map, hole, &request).into_iter().flatten() {
                let least = best.map_or(u64::MAX, |(least, _)| least);
                let Some(most) = most_missing(over, least) else { return best.map(|(_, place)| place) };
                let place = self.place(hole, start, most);
                best = place.map(|place| (misfit(over, place.missing), place)).or(best);
            }
        }
        // Work may be under way in all of these. What no block was in yet is the longest.
        let mut longest = map.index.at_least(request.zone, request.units).rev().take(CANDIDATES);
        let of_longest = || {
            longest.find_map(|hole| {
                let start = starts(map, hole, &request)[0]?;
                self.place(hole, start, u64::MAX)
            })
        };
        best.map(|(_, place)| place).or_else(of_longest)
    }

    /// The place in a hole that starts at a unit, if it lacks at most so many base pages.
    fn place(&mut self, hole: &Hole, start: u64, most: u64) -> Option<Placement> {
        let Self { arena, donors, request, ready } = self;
        let map = &arena.map;
        let window = (start, start + request.units);
        let first = map.piece_at(map.first_of(hole), start);
        let mut place = Placement { region: hole.place().0, start, end: window.1, first, missing: 0 };
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
        }
        Some(place)
    }
}

/// The first and the last unit of a hole at which the request may start.
fn starts(map: &ExtentMap, hole: &Hole, request: &Request<'_>) -> [Option<u64>; 2] {
    let (region, start) = hole.place();
    let last = start + hole.units() - request.units;
    let first = map.align_up(region, start, request.align);
    if first > last {
        return [None; 2];
    }
    // A region's end is as far as can be from what is mapped.
    let is_end = start + hole.units() == map.regions.get(region).bytes >> map.layout.unit_shift;
    let last = map.align_down(region, last, request.align).filter(|last| !is_end && *last > first);
    [Some(first), last]
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
    donors.consider(arena);
    let part = move |id| match arena.map[id].state {
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
        | ExtentState::Leaving(_)
        | ExtentState::Unused => None,
    };
    arena.map.until(place.first, place.end).map(move |id| (id, part(id)))
}
