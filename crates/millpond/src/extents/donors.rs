//! Where pages come from that lie in free extents: remapped to another address, or exchanged for shorter ones.

use super::extent::ExtentState;
use super::mapping::MapCursor;
use super::placement::Placement;
use super::regions::Regions;
use super::{Arena, ExtentId, Refusal, Zone};
use crate::device::DeviceError;
use crate::order::Stream;
use crate::physical::PageId;
use crate::policy::{Mechanism, without};

/// A page to be taken from a free extent.
#[derive(Debug, Clone, Copy)]
struct DonorPage {
    page: PageId,
    /// The free extent that the page lies in, or the first of the pieces it was cut into.
    extent: ExtentId,
    /// Whether the stream may use it without waiting.
    is_ready: bool,
}

/// A free extent that has pages to give. The last one of the length wanted is taken first.
#[derive(Debug)]
struct Donor {
    /// How soon its pages are taken, the greatest first: whether the stream may use it without waiting, then the order in
    /// which donors were found, the last first.
    rank: (bool, u32),
    extent: ExtentId,
    region: u32,
    /// The base pages that lie wholly in the extent: the first, and the first behind them.
    base_pages: (u64, u64),
    /// For each length that a page in it may have, the bit of its binary logarithm.
    classes: u32,
    /// The class that was asked for last, and the base page below which its next page is looked for.
    next: (u32, u64),
}

/// The pages that free extents could give to one miss. Most misses take few of them, so extents are listed, and a
/// page is looked for when it is taken.
#[derive(Debug, Default)]
pub(super) struct Donors {
    list: Vec<Donor>,
    /// All their classes.
    classes: u32,
    /// The class that was asked for last, and the best donor that has it.
    best: Option<(u32, usize)>,
    /// Region and base pages of the place that is backed, which gives none.
    place: (u32, (u64, u64)),
    /// Extents whose pages went back to the device. They become unmapped after the miss: that joins extents which the
    /// miss names.
    pub(super) emptied: Vec<ExtentId>,
    /// The free extent that pages were cut out of last. It is on no index.
    open_donor: Option<ExtentId>,
}

/// Pages considered in one miss, unless it lacks more. Bounds a miss where very much is free in pieces.
const MOST_DONOR_PAGES: u64 = 4096;

/// Pages with incomplete work after which an exchange gives up. Where the device is behind, others are rarely
/// complete.
const REFUSALS: usize = 8;

impl Donors {
    /// Empties it, but keeps its memory for the next miss.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.emptied.clear();
        (self.classes, self.best) = (0, None);
    }

    /// The longest page of at most `base_pages`.
    fn take_at_most(&mut self, base_pages: u32, regions: &Regions) -> Option<DonorPage> {
        let short = u32::MAX >> base_pages.leading_zeros();
        while let Some(class) = (self.classes & short).checked_ilog2() {
            if let taken @ Some(_) = self.take(class, regions) {
                return taken;
            }
        }
        None
    }

    /// The shortest page.
    fn take_shortest(&mut self, regions: &Regions) -> Option<DonorPage> {
        while self.classes != 0 {
            if let taken @ Some(_) = self.take(self.classes.trailing_zeros(), regions) {
                return taken;
            }
        }
        None
    }

    /// The next page of a class.
    fn take(&mut self, class: u32, regions: &Regions) -> Option<DonorPage> {
        while let Some(at) = self.best_donor(class) {
            let donor = &mut self.list[at];
            if let Some(page) = donor.next_page(class, regions, self.place) {
                let is_ready = donor.rank.0;
                return Some(DonorPage { page, extent: donor.extent, is_ready });
            }
            donor.classes &= !(1 << class);
            self.best = None;
        }
        self.classes &= !(1 << class);
        None
    }

    /// The best donor that may have pages of the class.
    fn best_donor(&mut self, class: u32) -> Option<usize> {
        if let Some((_, at)) = self.best.filter(|(of, _)| *of == class) {
            return Some(at);
        }
        let having = self.list.iter().enumerate().filter(|(_, donor)| donor.classes >> class & 1 != 0);
        let at = having.max_by_key(|(_, donor)| donor.rank)?.0;
        self.best = Some((class, at));
        Some(at)
    }
}

impl Donor {
    /// The last page of the class that it still has and that was not looked at.
    fn next_page(&mut self, class: u32, regions: &Regions, place: (u32, (u64, u64))) -> Option<PageId> {
        if self.next.0 != class {
            self.next = (class, self.base_pages.1);
        }
        while self.next.1 > self.base_pages.0 {
            let base_page = self.next.1 - 1;
            // A page that was taken leaves as many base pages with none.
            let Some((first, end)) = regions.page_span(self.region, base_page) else {
                self.next.1 = base_page;
                continue;
            };
            self.next.1 = first;
            if end - first == 1 << class
                && first >= self.base_pages.0
                && end <= self.base_pages.1
                && is_beside((self.region, (first, end)), place)
            {
                return regions.page_at(self.region, first);
            }
        }
        None
    }
}

/// Whether base pages of a region lie outside a place.
fn is_beside((region, base_pages): (u32, (u64, u64)), place: (u32, (u64, u64))) -> bool {
    region != place.0 || base_pages.1 <= place.1.0 || place.1.1 <= base_pages.0
}

impl Arena {
    /// The pages outside the place that free extents could give to `stream`.
    pub(super) fn donors(&mut self, place: &Placement, stream: &Stream) -> Donors {
        let mut donors = std::mem::take(&mut self.spare_donors);
        if self.keeps {
            return donors;
        }
        donors.place =
            (place.region, (self.layout.base_page_of(place.start), self.layout.base_pages_for(place.end)));
        // There must be enough of the shortest pages too, or the pool would grow with free pages left.
        let enough = MOST_DONOR_PAGES.max(place.missing);
        let mut count = 0;
        let mut reach = self.timelines.readiness(stream.timeline(), self.policies);
        for zone in Zone::BOTH {
            for id in self.free[zone as usize].at_least(self.layout.units_per_base_page()) {
                let extent = &mut self.extents[id];
                let ready = reach.covers(&extent.fence);
                if !ready && !self.policies.internal_dependencies {
                    continue;
                }
                let region = extent.region;
                let base_pages =
                    (self.layout.base_pages_for(extent.start), self.layout.base_page_of(extent.end()));
                let whole = if is_beside((region, base_pages), donors.place) {
                    *extent
                        .whole
                        .get_or_insert_with(|| self.regions.whole_within(region, base_pages, |_| true))
                } else {
                    let place = donors.place;
                    self.regions.whole_within(region, base_pages, |page| is_beside((region, page), place))
                };
                count += whole.count;
                if whole.classes != 0 {
                    if donors.list.try_reserve(1).is_err() {
                        // What was found so far has to do.
                        return donors;
                    }
                    let rank = (ready, count);
                    donors.classes |= whole.classes;
                    let (classes, next) = (whole.classes, (u32::MAX, 0));
                    donors.list.push(Donor { rank, extent: id, region, base_pages, classes, next });
                }
                if u64::from(count) >= enough {
                    return donors;
                }
            }
        }
        donors
    }

    /// The base pages that lie wholly in an extent: the first, and the first behind them.
    pub(super) fn base_pages_within(&self, id: ExtentId) -> (u64, u64) {
        let extent = &self.extents[id];
        (self.layout.base_pages_for(extent.start), self.layout.base_page_of(extent.end()))
    }

    /// Maps the largest page that fits from a donor at the cursor; its old mapping is then pending unmap. Returns
    /// whether there was one.
    pub(super) fn remap_from_donor(
        &mut self,
        cursor: &mut MapCursor,
        donors: &mut Donors,
        stream: &Stream,
    ) -> Result<bool, Refusal> {
        if !self.make_room_for_page() {
            return Err(Refusal::of_host("a list of blocks", self.host_bytes()));
        }
        while let Some(donated) = donors.take_at_most(cursor.room(), &self.regions) {
            let Some((from, home)) = self.locate(&donated) else { continue };
            if !donated.is_ready && !self.make_extent_ready(from, stream)? {
                continue;
            }
            if !self.make_room_for_fence(from, cursor) {
                return Err(Refusal::of_host("a list of streams", self.host_bytes()));
            }
            let freed = self.extents[from].freed;
            let at = self.next_address(cursor);
            // SAFETY: the arena reserved the range, and the extent there says that nothing is mapped.
            unsafe { self.pages.map(donated.page, at) }
                .map_err(|failure| self.note_map_failure(donated.page, cursor, failure))?;
            let pending_unmap = self.cut_page(from, home, donated.page, donors);
            self.pending_unmap.push(pending_unmap);
            // Out of the extent for as long as it is read.
            let fence = std::mem::take(&mut self.extents[pending_unmap].fence);
            self.attach(donated.page, cursor, &fence, freed);
            self.extents[pending_unmap].fence = fence;
            self.counters.pages_stolen.add(1);
            return Ok(true);
        }
        Ok(false)
    }

    /// Reserves the host's memory for fences, so that a page can be cut out of `from` and mapped at the cursor.
    /// `false` where the host refuses it.
    fn make_room_for_fence(&mut self, from: ExtentId, cursor: &MapCursor) -> bool {
        let streams = self.extents[from].fence.len();
        self.extents.make_room_to_split(from)
            && [cursor.backed, cursor.unmapped].into_iter().flatten().all(|id| {
                let fence = &mut self.extents[id].fence;
                // Nearly always both are of the same stream.
                streams <= 1 && fence.len() <= 1 || fence.make_room(streams)
            })
    }

    /// The piece of an extent that holds the page now, and where the page is.
    fn locate(&self, donated: &DonorPage) -> Option<(ExtentId, (u32, u64))> {
        let (region, base_page) = self.pages.get(donated.page).home?;
        let base_page = u64::from(base_page);
        Some((
            self.piece_at(donated.extent, base_page * self.layout.units_per_base_page()),
            (region, base_page),
        ))
    }

    /// Gives free pages whose work is complete back to the device, until there is room for `bytes`. Called where
    /// every free page is too long: shorter ones are created instead. Returns whether any was given back.
    pub(super) fn exchange(&mut self, bytes: u64, donors: &mut Donors) -> bool {
        if without(Mechanism::Exchange) {
            return false;
        }
        let before = self.counters.reserved.current();
        let mut refused = 0;
        while before - self.counters.reserved.current() < bytes
            && refused < REFUSALS
            && let Some(donated) = donors.take_shortest(&self.regions)
        {
            match self.give_back(&donated, donors) {
                Ok(true) => {}
                Ok(false) => refused += 1,
                Err(error) => {
                    refused += 1;
                    tracing::warn!(%error, "a free page could not be given back");
                }
            }
        }
        before > self.counters.reserved.current()
    }

    /// Gives one page back, if the work on it is complete; its place stays in `donors.emptied`. Returns
    /// whether it was.
    fn give_back(&mut self, donated: &DonorPage, donors: &mut Donors) -> Result<bool, DeviceError> {
        let Some((from, (region, base_page))) = self.locate(donated) else { return Ok(false) };
        if !self.make_room_for_page()
            || !self.extents.make_room_to_split(from)
            || donors.emptied.try_reserve(1).is_err()
        {
            return Ok(false);
        }
        self.poll_quietly(&self.extents[from].fence);
        let old_mappings = self.pages.mappings(donated.page) > 1;
        if old_mappings || !self.timelines.is_complete(&self.extents[from].fence) {
            return Ok(false);
        }
        let at = self.regions.address(region, base_page * self.layout.units_per_base_page(), &self.layout);
        // SAFETY: the page is mapped here and lies wholly in a free extent whose fence is complete; the
        // program holds no pointer into it.
        unsafe { self.pages.unmap(donated.page, at) }?;
        let emptied = self.cut_page(from, (region, base_page), donated.page, donors);
        donors.emptied.push(emptied);
        self.pages.release(donated.page).map(|_| true)
    }

    /// Cuts the page's range out of the free extent `from`, as an extent pending unmap that the caller lists. What is
    /// left of the extent before it is on no index until the [end](Self::close_donor): the next page is likely to be
    /// the one before.
    fn cut_page(
        &mut self,
        from: ExtentId,
        (region, base_page): (u32, u64),
        page: PageId,
        donors: &mut Donors,
    ) -> ExtentId {
        let per_base_page = self.layout.units_per_base_page();
        let base_pages = self.pages.get(page).base_pages;
        let (start, end) = (base_page * per_base_page, (base_page + u64::from(base_pages)) * per_base_page);
        if donors.open_donor != Some(from) {
            self.close_donor(donors);
            self.remove_free(from);
        }
        let mut cut = from;
        donors.open_donor = None;
        if self.extents[from].start < start {
            cut = self.extents.split(from, start);
            donors.open_donor = Some(from);
        }
        if end < self.extents[cut].end() {
            self.index_rest(cut, end);
        }
        self.regions.set_page(region, base_page, base_pages, None);
        self.extents[cut].state = ExtentState::PendingUnmap(page);
        cut
    }

    /// Puts what is left of the extent that pages were cut out of last on the index.
    pub(super) fn close_donor(&mut self, donors: &mut Donors) {
        if let Some(open_donor) = donors.open_donor.take() {
            self.index_free(open_donor);
        }
    }
}
