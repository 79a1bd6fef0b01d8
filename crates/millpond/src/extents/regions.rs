//! Regions: ranges of address space, with the tables that lead from an address to its block and its page.

use std::sync::Arc;

use super::bin::MOST_REGIONS;
use super::extent::{ExtentId, Whole};
use super::layout::{Layout, Zone};
use super::page_map::{BlockDescriptor, RegionMap};
use super::ranges::{Owner, Published, Ranges};
use crate::device::DevicePtr;
use crate::physical::PageId;
use crate::policy::shortening::SHORT_PAGE;

/// Where a region's address space came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RegionOrigin {
    /// Reserved, with pages mapped into it.
    Reserved,
    /// A segment that the driver allocated, backed for ever.
    Segment,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Region {
    pub(super) base: DevicePtr,
    pub(super) bytes: u64,
    pub(super) zone: Zone,
    pub(super) origin: RegionOrigin,
    pub(super) head: ExtentId,
    /// Per base page: the id + 1 of the page that backs it, 0 for none. As long as the highest base page ever backed.
    pages: Vec<u32>,
    /// Per base page a bit: whether a page begins there that is longer than a [short](SHORT_PAGE) one. So long pages are
    /// found without a walk over all others.
    long: Vec<u64>,
    /// Where allocated blocks start.
    pub(super) map: Arc<RegionMap>,
}

/// A page's first unit, and the first behind it.
pub(super) type Span = (u64, u64);

/// What backs the base pages of a region. Every search asks for it.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Backing<'a> {
    /// See [`Region`].
    pages: &'a [u32],
    /// See [`Regions`].
    spans: &'a [Span],
}

impl Backing<'_> {
    /// The page that backs a base page.
    #[inline]
    fn page(self, base_page: u64) -> Option<PageId> {
        self.pages.get(base_page as usize)?.checked_sub(1).map(PageId)
    }

    /// Where the page lies that backs a base page.
    #[inline]
    pub(super) fn span(self, base_page: u64) -> Option<Span> {
        Some(self.spans[self.page(base_page)?.0 as usize])
    }
}

/// A region to be entered.
#[derive(Debug)]
pub(super) struct NewRegion {
    pub(super) base: DevicePtr,
    pub(super) bytes: u64,
    pub(super) zone: Zone,
    pub(super) origin: RegionOrigin,
    pub(super) map: Arc<RegionMap>,
}

/// All regions of one arena.
#[derive(Debug)]
pub(super) struct Regions {
    list: Vec<Option<Region>>,
    /// By page id: where each page that backs base pages lies. Apart from the lists per base page, which are touched
    /// all over and so should be short.
    spans: Vec<Span>,
    /// The binary logarithm of a base page's units.
    base_page_shift: u32,
    /// First address and id of each, in the order of the addresses.
    by_base: Vec<(u64, u32)>,
    published: Option<Published>,
}

impl Regions {
    pub(super) fn new(layout: &Layout) -> Self {
        let base_page_shift = layout.base_page_shift();
        Self { list: Vec::new(), spans: Vec::new(), base_page_shift, by_base: Vec::new(), published: None }
    }

    /// Publishes the ranges of all regions to come.
    pub(super) fn publish(&mut self, ranges: &Arc<Ranges>, owner: Owner) {
        debug_assert!(self.by_base.is_empty(), "there are regions already");
        self.published = Some(Published::new(ranges.clone(), owner));
    }

    /// Whose the address is, of all that are published where these regions are.
    pub(super) fn owner_of(&self, ptr: DevicePtr) -> Option<Owner> {
        self.published.as_ref()?.owner_of(ptr)
    }

    /// Publishes a region.
    pub(super) fn show(&mut self, id: u32) {
        let Region { base, bytes, .. } = *self.get(id);
        if let Some(published) = &mut self.published {
            published.enter(base, bytes);
        }
    }

    /// Takes back what [`show`](Self::show) published: before the device gets the addresses.
    pub(super) fn hide(&mut self, id: u32) {
        let base = self.get(id).base;
        if let Some(published) = &mut self.published {
            published.leave(base);
        }
    }

    /// The host's memory for the list of them.
    pub(super) fn host_bytes(&self) -> u64 {
        (self.list.len().max(1) * size_of::<Region>()) as u64
    }

    /// Reserves the host's memory for one more region; `false` where it is refused.
    pub(super) fn make_room_for_one(&mut self) -> bool {
        self.list.try_reserve(1).is_ok()
            && self.by_base.try_reserve(1).is_ok()
            && self.published.as_mut().is_none_or(Published::make_room)
    }

    /// Enters a region. `head` makes its first extent, given the region's id.
    pub(super) fn add(&mut self, new: NewRegion, head: impl FnOnce(u32) -> ExtentId) -> u32 {
        let vacant = self.list.iter().position(Option::is_none);
        let at = vacant.unwrap_or(self.list.len());
        let id = u32::try_from(at).ok().filter(|id| *id < MOST_REGIONS).expect("fewer than 2^24 regions");
        let head = head(id);
        let NewRegion { base, bytes, zone, origin, map } = new;
        let region = Region { base, bytes, zone, origin, head, pages: Vec::new(), long: Vec::new(), map };
        if vacant.is_some() {
            self.list[at] = Some(region);
        } else {
            self.list.push(Some(region));
        }
        let place = self.by_base.partition_point(|(other, _)| *other < base.raw());
        self.by_base.insert(place, (base.raw(), id));
        self.show(id);
        id
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Region> {
        let region = self.list[id as usize].take()?;
        if let Ok(at) = self.by_base.binary_search_by_key(&region.base.raw(), |(base, _)| *base) {
            self.by_base.remove(at);
        }
        Some(region)
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> &Region {
        self.list[id as usize].as_ref().expect("a region id in use names a region")
    }

    /// The region with this id, if there is one.
    pub(super) fn at(&self, id: u32) -> Option<&Region> {
        self.list.get(id as usize)?.as_ref()
    }

    /// All ids are below this.
    pub(super) fn ids(&self) -> u32 {
        self.list.len() as u32
    }

    fn get_mut(&mut self, id: u32) -> &mut Region {
        self.list[id as usize].as_mut().expect("a region id in use names a region")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.list.iter().zip(0..).filter_map(|(region, id)| Some((id, region.as_ref()?)))
    }

    /// Notes that another extent is the region's first.
    pub(super) fn set_head(&mut self, id: u32, head: ExtentId) {
        self.get_mut(id).head = head;
    }

    pub(super) fn head(&self, id: u32) -> Option<ExtentId> {
        Some(self.get(id).head)
    }

    /// The region that holds the address, and how far in it lies, in bytes.
    pub(super) fn find(&self, ptr: DevicePtr) -> Option<(u32, u64)> {
        let behind = self.by_base.partition_point(|(base, _)| *base <= ptr.raw());
        let (base, id) = self.by_base[behind.checked_sub(1)?];
        let offset = ptr.raw() - base;
        (offset < self.get(id).bytes).then_some((id, offset))
    }

    pub(super) fn address(&self, region: u32, unit: u64, layout: &Layout) -> DevicePtr {
        self.get(region).base.offset(unit * layout.unit_bytes)
    }

    // ---- extents ----------------------------------------------------------------------------------

    /// What is known of the allocated block that starts `bytes` into the region.
    pub(super) fn allocated_at(&self, region: u32, bytes: u64) -> Option<&BlockDescriptor> {
        self.get(region).map.allocated_at(bytes)
    }

    // ---- pages -----------------------------------------------------------------------------------

    /// The page that backs a base page.
    pub(super) fn page_at(&self, region: u32, base_page: u64) -> Option<PageId> {
        self.backing(region).page(base_page)
    }

    /// The first base page of the page that backs this one, and the first behind it.
    #[inline]
    pub(super) fn page_span(&self, region: u32, base_page: u64) -> Option<(u64, u64)> {
        self.backing(region).span(base_page).map(|span| self.in_base_pages(span))
    }

    /// The page that backs a base page, its first base page, and the first behind it.
    pub(super) fn page_over(&self, region: u32, base_page: u64) -> Option<(PageId, (u64, u64))> {
        Some((self.page_at(region, base_page)?, self.page_span(region, base_page)?))
    }

    /// Where a page lies that backs base pages of a region: its first base page, and the first behind it.
    pub(super) fn span_of(&self, page: PageId) -> (u64, u64) {
        self.in_base_pages(self.spans[page.0 as usize])
    }

    fn in_base_pages(&self, (first, end): Span) -> (u64, u64) {
        (first >> self.base_page_shift, end >> self.base_page_shift)
    }

    /// What backs each base page of a region.
    #[inline]
    pub(super) fn backing(&self, region: u32) -> Backing<'_> {
        Backing { pages: &self.get(region).pages, spans: &self.spans }
    }

    /// Counts the pages that lie wholly in `base_pages` and are `wanted`. The range is backed wholly or not at all.
    pub(super) fn whole_within(
        &self,
        region: u32,
        base_pages: (u64, u64),
        wanted: impl Fn((u64, u64)) -> bool,
    ) -> Whole {
        let mut whole = Whole::default();
        self.for_each_whole(region, base_pages, |_, first, length| {
            if wanted((first, first + u64::from(length))) {
                whole.count += 1;
                whole.classes |= 1 << length.ilog2();
            }
        });
        whole
    }

    /// Shows `each` page that lies wholly in a range, which is backed wholly or not at all: page, first base page,
    /// length. A loop, not an iterator, since callers walk all free memory.
    #[inline]
    pub(super) fn for_each_whole(
        &self,
        region: u32,
        (mut base_page, end): (u64, u64),
        mut each: impl FnMut(PageId, u64, u32),
    ) {
        let backing = self.backing(region);
        while base_page < end
            && let Some(page) = backing.page(base_page)
        {
            let (first, page_end) = self.in_base_pages(backing.spans[page.0 as usize]);
            if first == base_page && page_end <= end {
                each(page, first, (page_end - first) as u32);
            }
            base_page = page_end;
        }
    }

    /// Shows `each` page that lies wholly in a range and is longer than a short one: page, first base page, length.
    pub(super) fn for_each_long(
        &self,
        region: u32,
        (start, end): (u64, u64),
        mut each: impl FnMut(PageId, u64, u32),
    ) {
        let (backing, long) = (self.backing(region), &self.get(region).long);
        for word in start / 64..end.div_ceil(64).min(long.len() as u64) {
            let mut bits = long[word as usize] & (u64::MAX << start.saturating_sub(word * 64));
            while bits != 0 {
                let base_page = word * 64 + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                if let Some((page, (first, page_end))) =
                    backing.page(base_page).zip(self.page_span(region, base_page))
                    && page_end <= end
                {
                    each(page, first, (page_end - first) as u32);
                }
            }
        }
    }

    /// The last page that lies wholly in a range, which is backed wholly or not at all: page, first base page,
    /// length.
    pub(super) fn last_whole(&self, region: u32, (start, mut end): (u64, u64)) -> Option<(PageId, u64, u32)> {
        let backing = self.backing(region);
        while start < end
            && let Some(page) = backing.page(end - 1)
        {
            let (first, page_end) = self.in_base_pages(backing.spans[page.0 as usize]);
            if start <= first && page_end <= end {
                return Some((page, first, (page_end - first) as u32));
            }
            end = first;
        }
        None
    }

    /// Whether a page begins at a base page that is longer than a short one, as
    /// [`for_each_long`](Self::for_each_long) has it.
    pub(super) fn is_long_from(&self, region: u32, base_page: u64) -> bool {
        let word = self.get(region).long.get((base_page / 64) as usize);
        word.is_some_and(|word| word >> (base_page % 64) & 1 != 0)
    }

    /// Base pages that the page table covers; none beyond them was ever backed.
    pub(super) fn page_table_len(&self, region: u32) -> u64 {
        self.get(region).pages.len() as u64
    }

    /// Notes that `page` backs so many base pages from `first` on. `None` clears a whole page, or its end.
    pub(super) fn set_page(&mut self, region: u32, first: u64, base_pages: u32, page: Option<PageId>) {
        let (start, end) = (first as usize, first as usize + base_pages as usize);
        if self.get(region).pages.len() < end {
            self.lengthen_slow(region, end);
        }
        let Region { pages, long, .. } = self.get_mut(region);
        let number = page.map_or(0, |page| page.0 + 1);
        pages[start..end].iter_mut().for_each(|base_page| *base_page = number);
        let (word, bit) = (&mut long[start / 64], 1 << (start % 64));
        *word = if page.is_some() && base_pages > SHORT_PAGE { *word | bit } else { *word & !bit };
        if let Some(PageId(page)) = page {
            let page = page as usize;
            if self.spans.len() <= page {
                self.spans.resize(page + 1, (0, 0));
            }
            let shift = self.base_page_shift;
            self.spans[page] = (first << shift, (first + u64::from(base_pages)) << shift);
        }
    }

    /// Reserves the host's memory to note pages behind base pages below `end`. There are `pages` in all, and at most
    /// one more for each base page from `first` on. `false` where the host refuses it.
    pub(super) fn make_room(&mut self, region: u32, (first, end): (u64, u64), pages: usize) -> bool {
        let more = (pages + (end - first) as usize).saturating_sub(self.spans.len());
        let Region { pages, long, .. } = self.get_mut(region);
        let end = end as usize;
        pages.try_reserve(end.saturating_sub(pages.len())).is_ok()
            && long.try_reserve(end.div_ceil(64).saturating_sub(long.len())).is_ok()
            && self.spans.try_reserve(more).is_ok()
    }

    #[cold]
    fn lengthen_slow(&mut self, region: u32, base_pages: usize) {
        let Region { pages, long, .. } = self.get_mut(region);
        pages.resize(base_pages, 0);
        long.resize(base_pages.div_ceil(64), 0);
    }
}
