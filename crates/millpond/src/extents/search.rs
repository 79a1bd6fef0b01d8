//! Finding a free extent that the stream may use: the hit path of an allocation, in three steps of rising cost.
//!
//! It is the best fit if that leaves next to nothing over. Otherwise best fit splits an arbitrary hole, and the
//! lowest address keeps free space contiguous. On recorded jobs pages then seldom have to move: docs/lab/pages.md.

use super::bin::IndexEntry;
use super::coalescing;
use super::extent::ExtentId;
use super::extent_map::ExtentMap;
use super::index::Rising;
use super::layout::Zone;
use super::refusal::Refusal;
use super::reuse_rules::ReuseRules;
use crate::order::{Fence, ReadinessQuery, Stream};
use crate::policy::fit::{CANDIDATES, is_snug};
use crate::policy::ledger::Balance;

/// What an allocation needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) zone: Zone,
    pub(super) units: u64,
    /// In bytes, at least a unit.
    pub(super) align: u64,
    /// The stream that will use it first.
    pub(super) stream: &'a Stream,
    /// Decides how long new pages are.
    pub(super) balance: Balance,
}

/// A free extent, and the unit in it to start at.
pub(super) type Found = (ExtentId, u64);

/// Finds a free extent for the request, and makes the stream wait for it if need be.
pub(super) fn find(
    map: &mut ExtentMap,
    rules: &ReuseRules,
    request: Request<'_>,
) -> Result<Option<Found>, Refusal> {
    let now = Search { map, rules, request };
    if let found @ Some(_) = now.ready()? {
        return Ok(found);
    }
    if let found @ Some(_) = now.by_waiting_slow()? {
        return Ok(found);
    }
    if map.unmerged().is_empty() || !coalescing::join_what_is_complete(map, rules) {
        return Ok(None);
    }
    let joined = Search { map, rules, request };
    if let found @ Some(_) = joined.ready()? {
        return Ok(found);
    }
    joined.by_waiting_slow()
}

/// One look through the free extents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) map: &'a ExtentMap,
    pub(super) rules: &'a ReuseRules,
    pub(super) request: Request<'a>,
}

/// What a search of the free extents found.
#[derive(Debug)]
struct SearchResult<'a> {
    /// The best fit of those that are ready, and the unit in it to start at.
    found: Option<Found>,
    /// Whether one that fits as well or better is not ready.
    passed_over: bool,
    /// Those that come after it.
    longer: Rising<'a>,
}

impl<'a> Search<'a> {
    /// An extent that is ready: the best fit if that is snug, else the lowest.
    pub(super) fn ready(&self) -> Result<Option<Found>, Refusal> {
        let Self { map, rules, request } = *self;
        let mut query = rules.query(request.stream);
        let SearchResult { found, passed_over, mut longer } = self.look(&mut query);
        let is_asked = self.is_worth_asking(passed_over);
        let found = if is_asked {
            // The old one must be gone before the device is asked, and is out of date after it.
            query = rules.query(request.stream);
            self.by_asking_slow(found)?
        } else {
            found
        };
        let Some(found) = found else { return Ok(None) };
        // Of small blocks all are snug.
        if request.zone == Zone::Small
            || !map.layout.policy.lowest
            || is_snug(map[found.0].units - request.units, map.layout.units_per_base_page())
        {
            return Ok(Some(found));
        }
        if is_asked || request.align > map.layout.unit_bytes {
            // Shorter ones may be ready now, or fit where they lie.
            longer = map.indexes.free(request.zone).rising(request.units);
        }
        Ok(Some(self.lowest_ready(found, longer, &mut query)))
    }

    /// Whether to ask the device: a better fit might be complete by now. Else the next best is cut up for nothing.
    fn is_worth_asking(&self, passed_over: bool) -> bool {
        passed_over && self.rules.policies.opportunistic
    }

    /// The ready extent with the lowest address that the request fits into, by what is known: `found`, or one of the
    /// `others`. So blocks come to lie together, and free space too.
    fn lowest_ready(&self, found: Found, others: Rising<'_>, query: &mut ReadinessQuery<'_>) -> Found {
        let (mut lowest, mut place) = (found, IndexEntry::new(&self.map[found.0], found.0).place_bits());
        for entry in others.take(CANDIDATES) {
            if entry.place_bits() < place
                && let Some(at) = self.fitting(entry)
                && query.covers(&self.map[entry.id].fence)
            {
                (lowest, place) = ((entry.id, at), entry.place_bits());
            }
        }
        lowest
    }

    /// The best fit of the extents that are ready by what is known already. No device call.
    #[inline(always)]
    fn look(&self, query: &mut ReadinessQuery<'_>) -> SearchResult<'a> {
        let mut passed_over = false;
        let (found, longer) = self.search(|id, at| {
            let is_ready = query.covers(&self.map[id].fence);
            passed_over |= !is_ready;
            is_ready.then_some((id, at))
        });
        SearchResult { found, passed_over, longer }
    }

    /// Shows `each` the extents that the request fits into, and the unit to start at, until it finds something. The
    /// best fit comes first. For large alignments, a second pass tries extents that fit at any address: those before
    /// may all be too short. Returns also the extents that were not looked at.
    #[inline(always)]
    fn search<R>(&self, mut each: impl FnMut(ExtentId, u64) -> Option<R>) -> (Option<R>, Rising<'a>) {
        let Self { map, request, .. } = *self;
        let mut units = request.units;
        loop {
            let mut rising = map.indexes.free(request.zone).rising(units);
            for entry in rising.by_ref().take(CANDIDATES) {
                if let Some(at) = self.fitting(entry)
                    && let found @ Some(_) = each(entry.id, at)
                {
                    return (found, rising);
                }
            }
            let wherever = request.units + (request.align >> map.layout.unit_shift()) - 1;
            if units == wherever {
                return (None, rising);
            }
            units = wherever;
        }
    }

    /// The unit of a free extent of at least the length wanted at which the request can start, if it fits there.
    #[inline]
    fn fitting(&self, entry: &IndexEntry) -> Option<u64> {
        let (region, start) = entry.place();
        let at = self.map.align_up(region, start, self.request.align);
        (at + self.request.units <= start + entry.units()).then_some(at)
    }

    /// What [`ready`](Self::ready) finds once the device was asked about the extents that fit better than `found`.
    #[cold]
    fn by_asking_slow(&self, found: Option<Found>) -> Result<Option<Found>, Refusal> {
        let stream = self.request.stream;
        let mut all = Fence::empty();
        self.search(|id, at| {
            // Without memory of the host's, the first few are asked about.
            (Some((id, at)) == found || !all.try_join(&self.map[id].fence)).then_some(())
        });
        // Each stream is asked once, however many extents it freed. This stream comes after its own work anyway.
        all.retain(|id, _| id != stream.timeline().id);
        match self.rules.timelines.poll(&all) {
            Ok(true) => Ok(self.look(&mut self.rules.query(stream)).found),
            Ok(false) => Ok(found),
            Err(error) if found.is_some() => {
                tracing::warn!(%error, "the device could not be asked what is complete; the next best will do");
                Ok(found)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The best fit, for whose fence the stream is made to wait.
    #[cold]
    fn by_waiting_slow(&self) -> Result<Option<Found>, Refusal> {
        let Some(found) = self.search(|id, at| Some((id, at))).0 else { return Ok(None) };
        let may = self.rules.wait_for(&self.map[found.0].fence, self.request.stream)?;
        Ok(may.then_some(found))
    }
}
