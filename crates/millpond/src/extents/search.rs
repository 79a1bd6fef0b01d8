//! Finding a free extent that the stream may use: the hit path of an allocation, in three steps of rising cost.
//!
//! A block goes into the hole that fits best, whether pages back that or not: so holes stay long where pages come and go. Next to
//! that counts whether there are pages: docs/lab/pages.md.

use super::arena::Arena;
use super::coalescing;
use super::map::extent::ExtentId;
use super::map::extent::ExtentState;
use super::map::extent_map::ExtentMap;
use super::map::index::Hole;
use super::map::layout::Zone;
use crate::order::{Fence, Stream};
use crate::physical::Refusal;
use crate::policy::fit::{CANDIDATES, MOST_EXTENTS, misfit};

/// How far the arena goes to allocate a block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Effort {
    /// It takes what is ready.
    Ready,
    /// The same, wherever that lies; else new pages. Nothing is taken from anybody.
    Grow,
    /// All steps: those that map nothing come first. New pages double so often.
    Map(u32),
    /// As [`Map`](Self::Map), but pages stay where they are, and what lacks one gets a new one.
    MapNew(u32),
    /// As [`Map`](Self::Map), but where no free range is long enough, the block gets a segment of its own.
    TakeSegment,
}

/// What an allocation needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) zone: Zone,
    pub(super) units: u64,
    /// In bytes, at least a unit.
    pub(super) align: u64,
    /// The stream that will use it first.
    pub(super) stream: &'a Stream,
    pub(super) effort: Effort,
    /// Whether the stream may be made to wait for others.
    pub(super) may_wait: bool,
    /// Base pages in the longest page that may be created.
    pub(super) longest: u32,
}

impl Request<'_> {
    /// The holes that are looked at, the best fit first: the shortest, then the shortest that have room wherever they start.
    #[inline(always)]
    pub(super) fn holes<'a>(&self, map: &'a ExtentMap) -> impl Iterator<Item = &'a Hole> + use<'a> {
        let at_least = |units| map.index.at_least(self.zone, units).take(CANDIDATES);
        let more = (self.align >> map.layout.unit_shift) - 1;
        let with_room = (more > 0).then(|| at_least(self.units + more));
        at_least(self.units).chain(with_room.into_iter().flatten())
    }
}

/// A free extent, and the unit in it to start at.
pub(super) type Found = (ExtentId, u64);

/// Finds a free extent for the request, and makes the stream wait for it if need be.
pub(super) fn find(arena: &mut Arena, request: &Request<'_>) -> Result<Option<Found>, Refusal> {
    loop {
        let now = Search { arena, request };
        if let found @ Some(_) = now.ready() {
            return Ok(found);
        }
        if let found @ Some(_) = now.by_waiting_slow()? {
            return Ok(found);
        }
        if !arena.map.has_unmerged || !coalescing::join_what_is_complete(arena) {
            return Ok(None);
        }
    }
}

/// One look through the free extents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) arena: &'a Arena,
    pub(super) request: &'a Request<'a>,
}

impl Search<'_> {
    /// An extent that is ready, at the start of the hole that fits best, or of one that fits worse and lacks no page.
    pub(super) fn ready(&self) -> Option<Found> {
        let (found, passed_over) = self.look();
        // A better fit might be complete by now. Else the next best is cut up for nothing.
        let learns = passed_over && self.arena.rules.policies.opportunistic && self.ask_slow();
        if learns { self.look().0 } else { found }
    }

    /// The same, by what is known already. No device call. Also whether one that fits better than the best that is ready is not.
    #[inline(always)]
    fn look(&self) -> (Option<Found>, bool) {
        let Self { arena: Arena { map, rules, .. }, request } = *self;
        let mut query = rules.query(request.stream);
        let (mut found, mut passed_over) = (None, false);
        self.search(|id, at| {
            let is_ready = query.covers(&map[id].fence);
            passed_over |= !is_ready;
            found = is_ready.then_some((id, at));
            is_ready
        });
        (found, passed_over)
    }

    /// Shows the free extents that the request fits into, from the start of a hole on, and the unit to start at, until one `is_enough`.
    /// The hole that fits best comes first. It ends where one that lacks a page fits better than what is left.
    #[inline(always)]
    fn search(&self, mut is_enough: impl FnMut(ExtentId, u64) -> bool) {
        let Self { arena: Arena { map, .. }, request } = *self;
        let base_pages = |units| units >> map.layout.base_page_shift;
        let mut least = u64::MAX;
        for hole in request.holes(map) {
            let over = base_pages(hole.units() - request.units);
            if misfit(over, 0) > least {
                return;
            }
            let (region, start) = hole.place();
            let at = map.align_up(region, start, request.align);
            if at + request.units > start + hole.units() {
                continue;
            }
            let (first, mut is_backed) = (map.first_of(hole), false);
            // What different streams freed lies side by side.
            let all = map.until(first, start + hole.units()).take(CANDIDATES);
            for id in all.take_while(|id| map.is(*id, ExtentState::Free)) {
                let at = map.align_up(region, map[id].start, request.align);
                let fits = at + request.units <= map[id].end();
                if fits && is_enough(id, at) {
                    return;
                }
                is_backed |= fits;
            }
            if !is_backed {
                least = least.min(misfit(over, missing(map, first, (at, at + request.units))));
            }
        }
    }

    /// Asks the device about the extents that fit better than the best that is ready. Returns whether more is complete.
    #[cold]
    fn ask_slow(&self) -> bool {
        let stream = self.request.stream;
        let (mut all, mut query) = (Fence::empty(), self.arena.rules.query(stream));
        self.search(|id, _| {
            let fence = &self.arena.map[id].fence;
            // Without memory of the host's, the first few are asked about.
            query.covers(fence) || !all.try_join(fence)
        });
        // It may hold a lock, which a thread that waits to write keeps whoever asks next from taking again.
        drop(query);
        // Each stream is asked once, however many extents it freed. This stream comes after its own work anyway.
        all.retain(|id, _| id != stream.timeline().id);
        self.arena.rules.poll(&all)
    }

    /// The best fit, for whose fence the stream is made to wait.
    #[cold]
    fn by_waiting_slow(&self) -> Result<Option<Found>, Refusal> {
        let mut found = None;
        self.search(|id, at| {
            found = Some((id, at));
            true
        });
        let Some(best) = found else { return Ok(None) };
        let may = self.arena.rules.wait_for(&self.arena.map[best.0].fence, self.request.stream)?;
        Ok(may.then_some(best))
    }
}

/// How many base pages lack a page in a window that begins in or behind this extent: one at least, and as far as it is looked.
fn missing(map: &ExtentMap, first: ExtentId, window: (u64, u64)) -> u64 {
    let all = map.until(first, window.1).take(MOST_EXTENTS);
    let unbacked = all.filter(|id| !map.is(*id, ExtentState::Free));
    let missing = unbacked.map(|id| {
        let (first, end) = map.base_pages_in(id, window);
        end.saturating_sub(first)
    });
    missing.sum::<u64>().max(1)
}
