//! Finding a free extent that the stream may use: the hit path of an allocation, in three steps of rising cost.
//!
//! It is the best fit if that leaves next to nothing over. Otherwise best fit splits an arbitrary hole, and the
//! lowest address keeps free space contiguous. On recorded jobs pages then seldom have to move: docs/lab/pages.md.

use super::bin::IndexEntry;
use super::index::Rising;
use super::{Arena, ExtentId, Refusal, Zone};
use crate::order::{Fence, ReadinessQuery, Stream};
use crate::policy::ledger::Balance;
use crate::policy::{Mechanism, without};

/// What an allocation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) zone: Zone,
    pub(super) units: u64,
    /// In bytes, at least a unit.
    pub(super) align: u64,
    /// Decides how long new pages are.
    pub(super) balance: Balance,
}

/// Free extents looked at before a search gives up. Enough to find a best fit where streams share a pool evenly. A
/// search over another stream's extents then costs about as much as the event query that follows.
const CANDIDATES: usize = 16;

/// At most so many best fits are searched for the lowest. No recorded job holds more or less for this bound.
const LOWEST_OF: usize = 1024;

/// A close fit leaves over at most this part of the request, or of a base page.
const CLOSE_PART: u64 = 8;

/// What a search of the free extents found.
#[derive(Debug)]
struct SearchResult<'a> {
    /// The best fit of those that are ready, and the unit in it to start at.
    found: Option<(ExtentId, u64)>,
    /// Whether one that fits as well or better is not ready.
    passed_over: bool,
    /// Those that come after it.
    longer: Rising<'a>,
}

impl Arena {
    /// A free extent for `request` that later work on `stream` may use, and the unit in it to start at.
    pub(super) fn find(
        &mut self,
        request: &Request,
        stream: &Stream,
    ) -> Result<Option<(ExtentId, u64)>, Refusal> {
        if let found @ Some(_) = self.find_ready(request, stream)? {
            return Ok(found);
        }
        if let found @ Some(_) = self.find_by_waiting_slow(request, stream)? {
            return Ok(found);
        }
        if self.unmerged.is_empty() || !self.join_what_is_complete() {
            return Ok(None);
        }
        if let found @ Some(_) = self.find_ready(request, stream)? {
            return Ok(found);
        }
        self.find_by_waiting_slow(request, stream)
    }

    /// Whether the extent is not much longer than what is wanted. Of small ones that does not matter.
    pub(super) fn is_close(&self, request: &Request, id: ExtentId) -> bool {
        let rest = self.extents[id].units - request.units;
        if without(Mechanism::LowestAlways) {
            return false;
        }
        request.zone == Zone::Small
            || without(Mechanism::Lowest)
            || rest <= request.units.max(self.layout.units_per_base_page()) / CLOSE_PART
    }

    /// An extent that is ready: the [best fit](Self::find_best_ready) if that is snug, else the lowest.
    pub(super) fn find_ready(
        &self,
        request: &Request,
        stream: &Stream,
    ) -> Result<Option<(ExtentId, u64)>, Refusal> {
        let mut reach = self.reach(stream);
        let SearchResult { found, passed_over, mut longer } = self.look(request, &mut reach);
        let is_asked = self.is_worth_asking(request, found, passed_over);
        let found = if is_asked {
            // The old one must be gone before the device is asked, and is out of date after it.
            reach = self.reach(stream);
            self.find_by_asking_slow(request, stream, found)?
        } else {
            found
        };
        let Some(found) = found else { return Ok(None) };
        if self.is_snug(request, found) {
            return Ok(Some(found));
        }
        if is_asked || request.align > self.layout.unit_bytes {
            // Shorter ones may be ready now, or fit where they lie.
            longer = self.free[request.zone as usize].rising(request.units);
        }
        Ok(Some(self.lowest_ready(request, found, longer, &mut reach)))
    }

    /// The best fit that is ready, by what is known or by what the device says. It is asked where a better fit for a
    /// large block might be complete by now: else the next best is cut up for nothing.
    pub(super) fn find_best_ready(
        &self,
        request: &Request,
        stream: &Stream,
    ) -> Result<Option<(ExtentId, u64)>, Refusal> {
        let SearchResult { found, passed_over, .. } = self.look(request, &mut self.reach(stream));
        if self.is_worth_asking(request, found, passed_over) {
            return self.find_by_asking_slow(request, stream, found);
        }
        Ok(found)
    }

    fn is_worth_asking(&self, request: &Request, found: Option<(ExtentId, u64)>, passed_over: bool) -> bool {
        passed_over && (found.is_none() || request.zone == Zone::Large) && self.policies.opportunistic
    }

    /// Whether an extent leaves so little over that no page of it could serve elsewhere. Of small blocks all are snug.
    fn is_snug(&self, request: &Request, (id, _): (ExtentId, u64)) -> bool {
        request.zone == Zone::Small
            || self.extents[id].units - request.units <= self.layout.units_per_base_page()
    }

    /// The extent with the lowest address of those that are ready, by what is known, and that `request` fits into:
    /// `found`, or one of the `others`. So blocks come to lie together, and free space too.
    fn lowest_ready(
        &self,
        request: &Request,
        found: (ExtentId, u64),
        others: Rising<'_>,
        reach: &mut ReadinessQuery<'_>,
    ) -> (ExtentId, u64) {
        let (mut lowest, mut place) = (found, IndexEntry::new(&self.extents[found.0], found.0).place_bits());
        for entry in others.take(LOWEST_OF) {
            if entry.place_bits() < place
                && let Some(at) = self.fitting(entry, request)
                && reach.covers(&self.extents[entry.id].fence)
            {
                (lowest, place) = ((entry.id, at), entry.place_bits());
            }
        }
        lowest
    }

    /// The best fit of the extents that are ready by what is known already. No device call.
    #[inline(always)]
    fn look<'a>(&'a self, request: &Request, reach: &mut ReadinessQuery<'_>) -> SearchResult<'a> {
        let mut passed_over = false;
        let (found, longer) = self.search(request, |id, at| {
            let is_ready = reach.covers(&self.extents[id].fence);
            passed_over |= !is_ready;
            is_ready.then_some((id, at))
        });
        SearchResult { found, passed_over, longer }
    }

    /// Shows `each` the extents that `request` fits into, and the unit to start at, until it finds something. The
    /// best fit comes first. For large alignments, a second pass tries extents that fit at any address: those before
    /// may all be too short. Returns also the extents that were not looked at.
    #[inline(always)]
    fn search<R>(
        &self,
        request: &Request,
        mut each: impl FnMut(ExtentId, u64) -> Option<R>,
    ) -> (Option<R>, Rising<'_>) {
        let mut units = request.units;
        loop {
            let mut rising = self.free[request.zone as usize].rising(units);
            for entry in rising.by_ref().take(CANDIDATES) {
                if let Some(at) = self.fitting(entry, request)
                    && let found @ Some(_) = each(entry.id, at)
                {
                    return (found, rising);
                }
            }
            let wherever = request.units + (request.align >> self.layout.unit_shift()) - 1;
            if units == wherever {
                return (None, rising);
            }
            units = wherever;
        }
    }

    /// The unit of a free extent of at least the length wanted at which `request` can start, if it fits there.
    #[inline]
    fn fitting(&self, entry: &IndexEntry, request: &Request) -> Option<u64> {
        let (region, start) = entry.place();
        let at = self.align_up(region, start, request.align);
        (at + request.units <= start + entry.units()).then_some(at)
    }

    /// What [`find_ready`](Self::find_ready) finds once the device was asked about the extents that fit better than
    /// `found`.
    #[cold]
    fn find_by_asking_slow(
        &self,
        request: &Request,
        stream: &Stream,
        found: Option<(ExtentId, u64)>,
    ) -> Result<Option<(ExtentId, u64)>, Refusal> {
        let mut all = Fence::empty();
        self.search(request, |id, at| {
            if Some((id, at)) == found {
                return Some(());
            }
            all.join(&self.extents[id].fence);
            None
        });
        // Each stream is asked once, however many extents it freed. This stream comes after its own work anyway.
        all.retain(|id, _| id != stream.timeline().id);
        match self.timelines.poll(&all) {
            Ok(true) => Ok(self.look(request, &mut self.reach(stream)).found),
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
    fn find_by_waiting_slow(
        &mut self,
        request: &Request,
        stream: &Stream,
    ) -> Result<Option<(ExtentId, u64)>, Refusal> {
        if !self.policies.internal_dependencies {
            return Ok(None);
        }
        let Some((id, at)) = self.search(request, |id, at| Some((id, at))).0 else { return Ok(None) };
        if !self.timelines.make_wait(&self.extents[id].fence, stream.timeline())? {
            return Ok(None);
        }
        self.counters.stream_waits.add(1);
        Ok(Some((id, at)))
    }

    /// The first unit of the region from `unit` on whose address is a multiple of `align` bytes.
    #[inline]
    pub(super) fn align_up(&self, region: u32, unit: u64, align: u64) -> u64 {
        if align <= self.layout.unit_bytes {
            return unit;
        }
        let base = self.regions.get(region).base.raw();
        let address = (base + unit * self.layout.unit_bytes).next_multiple_of(align);
        (address - base) >> self.layout.unit_shift()
    }
}
