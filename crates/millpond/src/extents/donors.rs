//! Where pages come from that lie in free extents: remapped to another address, or back to one that they had.

use std::cmp::Reverse;

use super::cursor::MapCursor;
use super::extent::ExtentId;
use super::extent_map::ExtentMap;
use super::layout::Zone;
use super::mapper::Mapper;
use super::refusal::Refusal;
use super::regions::Regions;
use super::reuse_rules::ReuseRules;
use crate::order::{Fence, Stream};
use crate::physical::PageId;
use crate::policy::donating::enough_pages;

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
    /// How soon its pages are taken, the greatest first. A donor that the stream may use without waiting comes first,
    /// then the one that has been free for longest, by the count of frees. In a program that repeats its steps, its pages
    /// are likely to be free here each time.
    rank: (bool, Reverse<u64>),
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
    /// By page id: the place in the list of the donor that has the page, and 1; 0 for none. Empty where no page may come
    /// back to an old mapping of it.
    donor_of: Vec<u32>,
    /// All their classes.
    classes: u32,
    /// The class that was asked for last, and the best donor that has it.
    best: Option<(u32, usize)>,
    /// Region and base pages of the place that is backed, which gives none.
    place: (u32, (u64, u64)),
    /// The free extent that pages were cut out of last. It is on no index.
    open_donor: Option<ExtentId>,
}

impl Donors {
    /// Lists the pages that free extents could give to the stream, for at most so many base pages. Of those whose `ids` are
    /// below a bound it notes which extent has them.
    pub(super) fn gather(
        &mut self,
        map: &ExtentMap,
        rules: &ReuseRules,
        (base_pages, stream): (u64, &Stream),
        ids: usize,
    ) {
        let layout = &map.layout;
        let enough = enough_pages(base_pages);
        if self.donor_of.try_reserve(ids).is_ok() {
            self.donor_of.resize(ids, 0);
        }
        let mut count = 0;
        let mut query = rules.query(stream);
        let free = Zone::BOTH.iter().flat_map(|zone| map.free(*zone).at_least(layout.units_per_base_page()));
        for id in free {
            let is_ready = query.covers(&map[id].fence);
            if !is_ready && !rules.policies.internal_dependencies {
                continue;
            }
            let (region, base_pages, whole) = (map[id].region, map.base_pages_within(id), map.whole(id));
            count += whole.count;
            if whole.classes != 0 {
                if self.list.try_reserve(1).is_err() {
                    // What was found so far has to do.
                    return;
                }
                let rank = (is_ready, Reverse(map[id].freed));
                self.classes |= whole.classes;
                let (classes, next) = (whole.classes, (u32::MAX, 0));
                self.list.push(Donor { rank, extent: id, region, base_pages, classes, next });
                if !self.donor_of.is_empty() {
                    let number = self.list.len() as u32;
                    map.regions.for_each_whole(region, base_pages, |PageId(page), _, _| {
                        self.donor_of[page as usize] = number;
                    });
                }
            }
            if u64::from(count) >= enough {
                return;
            }
        }
    }

    /// The place that is backed: its region and base pages. From now on it gives no page.
    pub(super) fn set_place(&mut self, place: (u32, (u64, u64))) {
        self.place = place;
    }

    /// Whether a donor has the page, outside the place: region and base pages.
    pub(super) fn can_give(&self, regions: &Regions, page: PageId, place: (u32, (u64, u64))) -> bool {
        self.donor_of(regions, page, place).is_some()
    }

    /// The donor that has the page, outside the place.
    fn donor_of(&self, regions: &Regions, page: PageId, place: (u32, (u64, u64))) -> Option<&Donor> {
        let number = self.donor_of.get(page.0 as usize)?.checked_sub(1)?;
        Some(&self.list[number as usize])
            .filter(|donor| is_beside((donor.region, regions.span_of(page)), place))
    }

    /// Moves a page back to a dormant mapping of it, if a donor has it. Needs no device call. Returns whether it was moved.
    pub(super) fn bring_back(
        &mut self,
        map: &mut ExtentMap,
        rules: &ReuseRules,
        mapper: &mut Mapper,
        (dormant, page): (ExtentId, PageId),
        stream: &Stream,
    ) -> Result<bool, Refusal> {
        let donor = self.donor_of(&map.regions, page, self.place);
        let donated = donor.map(|donor| DonorPage { page, extent: donor.extent, is_ready: donor.rank.0 });
        let Some(donated) = donated else { return Ok(false) };
        let Some((from, home)) = locate(map, mapper, &donated) else { return Ok(false) };
        if !donated.is_ready && !rules.make_ready(&map[from].fence, stream)? {
            return Ok(false);
        }
        let streams = map[from].fence.len();
        if !mapper.make_room_for_page(map)
            || !map.make_room_to_split(from)
            || !map.fence_mut(dormant).make_room(streams)
        {
            return Err(map.no_room());
        }
        self.donor_of[page.0 as usize] = 0;
        let had_usual_peers = mapper.pages().has_usual_peers(page);
        self.move_page(map, mapper, (from, home), (page, had_usual_peers), |map, mapper, fence, freed| {
            mapper.come_back(map, (dormant, page), fence, freed);
        });
        Ok(true)
    }

    /// Maps the largest page that fits from a donor at the cursor; its old mapping is then dormant. Returns whether there
    /// was one.
    pub(super) fn remap(
        &mut self,
        map: &mut ExtentMap,
        rules: &ReuseRules,
        mapper: &mut Mapper,
        cursor: &mut MapCursor,
        stream: &Stream,
    ) -> Result<bool, Refusal> {
        while let Some(donated) = self.take_at_most(cursor.room(), &map.regions) {
            let Some((from, home)) = locate(map, mapper, &donated) else { continue };
            if !donated.is_ready && !rules.make_ready(&map[from].fence, stream)? {
                continue;
            }
            let streams = map[from].fence.len();
            if !map.make_room_to_split(from) || !cursor.make_room_for_fence(map, streams) {
                return Err(Refusal::of_host("a list of streams", map.host_bytes()));
            }
            let page = donated.page;
            let had_usual_peers = mapper.pages().has_usual_peers(page);
            mapper.map_only(map, cursor, page)?;
            self.move_page(
                map,
                mapper,
                (from, home),
                (page, had_usual_peers),
                |map, mapper, fence, freed| {
                    mapper.attach(map, cursor, page, fence, freed);
                },
            );
            mapper.counters().pages_remapped.add(1);
            return Ok(true);
        }
        Ok(false)
    }

    /// Cuts a page out of the free extent `from`, has it `arrive` elsewhere with the fence and the age of that, and notes that
    /// it left. Before, it was for the usual peers or not.
    fn move_page(
        &mut self,
        map: &mut ExtentMap,
        mapper: &mut Mapper,
        (from, home): (ExtentId, (u32, u64)),
        (page, had_usual_peers): (PageId, bool),
        arrive: impl FnOnce(&mut ExtentMap, &mut Mapper, &Fence, u64),
    ) {
        let freed = map[from].freed;
        let old = self.cut_page(map, mapper, from, home, page);
        // Out of the extent for as long as it is read.
        let fence = std::mem::take(map.fence_mut(old));
        arrive(map, mapper, &fence, freed);
        *map.fence_mut(old) = fence;
        mapper.leave(map, (old, page), had_usual_peers);
    }

    /// Cuts the page's range out of the free extent `from`, as an extent on no index and no list. What is
    /// left of the extent before it is on no index until the [end](Self::close_donor): the next page is likely to be the one
    /// before.
    fn cut_page(
        &mut self,
        map: &mut ExtentMap,
        mapper: &Mapper,
        from: ExtentId,
        (region, base_page): (u32, u64),
        page: PageId,
    ) -> ExtentId {
        let per_base_page = map.layout.units_per_base_page();
        let base_pages = mapper.pages().get(page).base_pages;
        let (start, end) = (base_page * per_base_page, (base_page + u64::from(base_pages)) * per_base_page);
        if self.open_donor != Some(from) {
            self.close_donor(map);
            map.remove_free(from);
        }
        let mut cut = from;
        self.open_donor = None;
        if map[from].start < start {
            cut = map.split(from, start);
            self.open_donor = Some(from);
        }
        if end < map[cut].end() {
            map.index_rest(cut, end);
        }
        map.regions.set_page(region, base_page, base_pages, None);
        map.make_pending_unmap(cut, page);
        cut
    }

    /// Puts what is left of the extent that pages were cut out of last on the index.
    fn close_donor(&mut self, map: &mut ExtentMap) {
        if let Some(open_donor) = self.open_donor.take() {
            map.index_free(open_donor);
        }
    }

    /// Ends the miss: forgets all donors. It keeps its memory for the next miss.
    pub(super) fn close(&mut self, map: &mut ExtentMap) {
        self.close_donor(map);
        self.list.clear();
        self.donor_of.clear();
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

/// The piece of a donor that holds the page now, and where the page is.
fn locate(map: &ExtentMap, mapper: &Mapper, donated: &DonorPage) -> Option<(ExtentId, (u32, u64))> {
    let (region, base_page) = mapper.pages().get(donated.page).home?;
    let base_page = u64::from(base_page);
    let unit = base_page * map.layout.units_per_base_page();
    Some((map.piece_at(donated.extent, unit), (region, base_page)))
}
