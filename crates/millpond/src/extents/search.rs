//! Finding a free extent that the stream may use: the hit path of an allocation, in three steps of rising cost.
//!
//! It is the best fit if that leaves next to nothing over. Otherwise best fit splits an arbitrary hole, and the
//! lowest address keeps free space contiguous. On recorded jobs pages then seldom have to move: docs/lab/pages.md.

use super::arena::Arena;
use super::coalescing;
use super::extent::ExtentId;
use super::index::{IndexEntry, Kind};
use super::layout::Zone;
use crate::order::{Fence, Stream};
use crate::physical::Refusal;
use crate::policy::fit::{CANDIDATES, is_snug};
use crate::policy::ledger::Balance;

/// How far the arena goes to allocate a block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Effort {
    /// It takes what is ready.
    Ready,
    /// The same, wherever that lies; else new pages. Nothing is taken from anybody.
    Grow,
    /// All steps: those that map nothing come first. The balance decides how long new pages are.
    Map(Balance),
    /// The same, but where no free range is long enough, the block gets a segment of its own.
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
    /// An extent that is ready: the best fit if that is snug, else the lowest.
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
        // Of small blocks all are snug.
        let takes_lowest = request.zone == Zone::Large && map.layout.policy.lowest;
        let mut query = rules.query(request.stream);
        let (mut found, mut lowest, mut passed_over) = (None, u64::MAX, false);
        self.search(|entry, at| {
            if entry.place_bits() >= lowest {
                return false;
            }
            if !query.covers(&map[entry.id].fence) {
                passed_over |= found.is_none();
                return false;
            }
            let is_best = found.is_none()
                && (!takes_lowest
                    || is_snug(entry.units() - request.units, map.layout.units_per_base_page()));
            (found, lowest) = (Some((entry.id, at)), entry.place_bits());
            is_best
        });
        (found, passed_over)
    }

    /// Shows the extents that the request fits into, and the unit to start at, until one `is_enough`. The best fit comes first. For
    /// large alignments all are looked at: many may lie badly.
    #[inline(always)]
    fn search(&self, mut is_enough: impl FnMut(&IndexEntry, u64) -> bool) {
        let Self { arena: Arena { map, .. }, request } = *self;
        let most = if request.align > map.layout.unit_bytes { usize::MAX } else { CANDIDATES };
        for entry in map.index.at_least(Kind::free(request.zone), request.units).take(most) {
            let (region, start) = entry.place();
            let at = map.align_up(region, start, request.align);
            if at + request.units <= start + entry.units() && is_enough(entry, at) {
                return;
            }
        }
    }

    /// Asks the device about the extents that fit better than the best that is ready. Returns whether more is complete.
    #[cold]
    fn ask_slow(&self) -> bool {
        let stream = self.request.stream;
        let (mut all, mut query) = (Fence::empty(), self.arena.rules.query(stream));
        self.search(|entry, _| {
            let fence = &self.arena.map[entry.id].fence;
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
        self.search(|entry, at| {
            found = Some((entry.id, at));
            true
        });
        let Some(best) = found else { return Ok(None) };
        let may = self.arena.rules.wait_for(&self.arena.map[best.0].fence, self.request.stream)?;
        Ok(may.then_some(best))
    }
}
