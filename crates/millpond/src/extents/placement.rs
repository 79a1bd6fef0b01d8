//! Where an allocation goes that no free extent fits: the place in address space that lacks the fewest pages.

use super::extent::{Extent, ExtentState};
use super::search::Request;
use super::{Arena, ExtentId, Refusal};
use crate::order::{ReadinessQuery, Stream};

/// A place for an allocation that is not wholly backed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement {
    pub(super) region: u32,
    /// The unit that the allocation will start at.
    pub(super) start: u64,
    pub(super) end: u64,
    /// The extent that holds `start`.
    pub(super) first: ExtentId,
    /// Base pages in `start..end` with no page.
    pub(super) missing: u64,
}

impl Placement {
    /// The first units of an unmapped extent, none of whose base pages are backed.
    pub(super) fn fresh(unmapped: &Extent, first: ExtentId, units: u64, base_pages: u64) -> Self {
        let Extent { region, start, .. } = *unmapped;
        Self { region, start, end: start + units, first, missing: base_pages }
    }
}

/// Free extents tried as one end of a place. The longest ones save the most pages.
const GROWTH_CANDIDATES: usize = 64;

/// Free extents looked at for those: most holes just shorter than what is asked for lie between two allocated
/// blocks.
const GROWTH_LOOKS: usize = 256;

impl Arena {
    /// The place for `request` that lacks the fewest pages, ready for `stream` but for those. At a tie it grows what
    /// is free already, unless the stream would have to wait for that. So free space stays contiguous.
    pub(super) fn choose_place(&mut self, request: &Request, stream: &Stream) -> Result<Placement, Refusal> {
        let base_pages = self.layout.base_pages_for(request.units);
        if let Some(grown) = self.best_growth(request, stream)
            && (grown.missing < base_pages
                || (grown.missing == base_pages && self.is_place_ready(&grown, stream)))
            && self.make_ready(&grown, stream)?
        {
            return Ok(grown);
        }
        self.fresh_place(request, base_pages)
    }

    /// A place in the unmapped extent that fits best, of which all base pages are missing.
    fn fresh_place(&mut self, request: &Request, base_pages: u64) -> Result<Placement, Refusal> {
        let unmapped =
            self.unmapped[request.zone as usize].at_least(base_pages << self.layout.base_page_shift()).next();
        let first = unmapped.map_or_else(|| self.add_region(request.zone, base_pages), Ok)?;
        Ok(Placement::fresh(&self.extents[first], first, request.units, base_pages))
    }

    /// The place with the fewest missing base pages that begins or ends with one of the longest free extents.
    fn best_growth(&self, request: &Request, stream: &Stream) -> Option<Placement> {
        let mut best: Option<Placement> = None;
        let looked_at = self.free[request.zone as usize].below(request.units).take(GROWTH_LOOKS);
        for id in looked_at.filter(|id| self.may_grow(*id)).take(GROWTH_CANDIDATES) {
            if !self.could_be_ready(id, stream) {
                continue;
            }
            for grow in [Self::grow_up, Self::grow_down] {
                let better_than = best.map_or(u64::MAX, |best| best.missing);
                best = grow(self, id, request, stream, better_than).or(best);
            }
        }
        best
    }

    /// Whether there is room for pages beside a free extent.
    fn may_grow(&self, id: ExtentId) -> bool {
        let is_open = |id| matches!(self.extents[id].state, ExtentState::Unmapped | ExtentState::Free);
        let extent = &self.extents[id];
        extent.next.is_some_and(is_open) || extent.prev.is_some_and(is_open)
    }

    /// The place that starts with a free extent, if it lacks fewer base pages than `better_than`.
    fn grow_up(
        &self,
        id: ExtentId,
        request: &Request,
        stream: &Stream,
        better_than: u64,
    ) -> Option<Placement> {
        let Extent { region, start, .. } = self.extents[id];
        let start = self.align_up(region, start, request.align);
        let end = start + request.units;
        let mut missing = 0;
        let mut at = id;
        while self.extents[at].end() < end {
            at = self.extents[at].next?;
            missing += self.missing_in(at, (start, end), stream)?;
            if missing >= better_than {
                return None;
            }
        }
        (start < self.extents[id].end()).then_some(Placement { region, start, end, first: id, missing })
    }

    /// The place that ends with a free extent, if it lacks fewer base pages than `better_than`.
    fn grow_down(
        &self,
        id: ExtentId,
        request: &Request,
        stream: &Stream,
        better_than: u64,
    ) -> Option<Placement> {
        let region = self.extents[id].region;
        let lowest = self.extents[id].end().checked_sub(request.units)?;
        let start = self.align_down(region, lowest, request.align)?;
        let end = start + request.units;
        let mut missing = 0;
        let mut at = id;
        while self.extents[at].start > start {
            at = self.extents[at].prev?;
            missing += self.missing_in(at, (start, end), stream)?;
            if missing >= better_than {
                return None;
            }
        }
        Some(Placement { region, start, end, first: at, missing })
    }

    #[inline]
    pub(super) fn align_down(&self, region: u32, unit: u64, align: u64) -> Option<u64> {
        let up = self.align_up(region, unit, align);
        if up == unit { Some(unit) } else { up.checked_sub(align >> self.layout.unit_shift()) }
    }

    /// Base pages to be backed in the part of an extent that lies in `window`, or `None` where the extent cannot be
    /// part of a place.
    fn missing_in(&self, id: ExtentId, window: (u64, u64), stream: &Stream) -> Option<u64> {
        match self.extents[id].state {
            ExtentState::Free => self.could_be_ready(id, stream).then_some(0),
            ExtentState::Unmapped => {
                let (first, end) = self.unmapped_base_pages(id, window);
                Some(end - first)
            }
            _ => None,
        }
    }

    /// The base pages of an unmapped extent that a window covers, also in part.
    pub(super) fn unmapped_base_pages(&self, id: ExtentId, window: (u64, u64)) -> (u64, u64) {
        let extent = &self.extents[id];
        (
            self.layout.base_page_of(extent.start.max(window.0)),
            self.layout.base_pages_for(extent.end().min(window.1)),
        )
    }

    /// Whether the stream may use the free extent now, or could be made to wait for it.
    pub(super) fn could_be_ready(&self, id: ExtentId, stream: &Stream) -> bool {
        self.policies.internal_dependencies || self.is_ready(id, stream)
    }

    /// What [`is_ready`](Self::is_ready) says, for many extents.
    pub(super) fn reach<'a>(&'a self, stream: &'a Stream) -> ReadinessQuery<'a> {
        self.timelines.readiness(stream.timeline(), self.policies)
    }

    /// Whether the stream may use the free extent, by what is known already.
    pub(super) fn is_ready(&self, id: ExtentId, stream: &Stream) -> bool {
        self.timelines.is_ready(&self.extents[id].fence, stream.timeline(), self.policies)
    }

    /// Whether the stream may use what is free in a place, by what is known already.
    fn is_place_ready(&self, place: &Placement, stream: &Stream) -> bool {
        let mut extents = std::iter::successors(Some(place.first), |id| self.extents[*id].next)
            .take_while(|id| self.extents[*id].start < place.end);
        extents.all(|id| self.extents[id].state != ExtentState::Free || self.is_ready(id, stream))
    }

    /// Makes the stream wait for the free extents in a place, where it must.
    fn make_ready(&mut self, place: &Placement, stream: &Stream) -> Result<bool, Refusal> {
        let mut at = Some(place.first);
        while let Some(id) = at.filter(|id| self.extents[*id].start < place.end) {
            if !self.make_extent_ready(id, stream)? {
                return Ok(false);
            }
            at = self.extents[id].next;
        }
        Ok(true)
    }

    pub(super) fn make_extent_ready(&mut self, id: ExtentId, stream: &Stream) -> Result<bool, Refusal> {
        let extent = &self.extents[id];
        if extent.state != ExtentState::Free || self.is_ready(id, stream) {
            return Ok(true);
        }
        if !self.policies.internal_dependencies
            || !self.timelines.make_wait(&extent.fence, stream.timeline())?
        {
            return Ok(false);
        }
        self.counters.stream_waits.add(1);
        Ok(true)
    }
}
