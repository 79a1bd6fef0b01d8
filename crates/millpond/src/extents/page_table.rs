//! The page table: where each page lies, and which page backs each base page.

use crate::physical::PageId;

/// Where a page lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) region: u32,
    /// The first base page that it backs.
    pub(super) first: u32,
    pub(super) base_pages: u32,
}

impl Home {
    /// The first base page, and the first behind it.
    pub(super) fn span(self) -> (u64, u64) {
        (u64::from(self.first), u64::from(self.first) + u64::from(self.base_pages))
    }
}

/// See the [module](self). Only pages in use are in it, not old mappings.
#[derive(Debug, Default)]
pub(super) struct PageTable {
    /// By page id.
    homes: Vec<Option<Home>>,
    /// By region, and base page: the id + 1 of the page that backs it, 0 for none. As long as the highest base page ever
    /// backed. Apart from the homes, since they are touched all over and so should be short.
    backing: Vec<Vec<u32>>,
}

impl PageTable {
    /// Reserves the host's memory to note pages behind base pages of a region. There are `pages` in all, and at most one more
    /// for each of these. `false` where the host refuses it.
    pub(super) fn make_room(&mut self, region: u32, (first, end): (u64, u64), pages: usize) -> bool {
        let (region, base_pages) = (region as usize, (end - first) as usize);
        lengthen(&mut self.homes, pages + base_pages, None)
            && lengthen(&mut self.backing, region + 1, Vec::new())
            && lengthen(&mut self.backing[region], end as usize, 0)
    }

    /// Notes where a page lies. There is [room](Self::make_room) for it.
    pub(super) fn enter(&mut self, page: PageId, home: Home) {
        debug_assert_eq!(self.home(page), None, "a page lies in one place");
        self.homes[page.0 as usize] = Some(home);
        self.write(home, page.0 + 1);
    }

    /// Notes that a page lies nowhere from now on; returns where it was.
    pub(super) fn leave(&mut self, page: PageId) -> Option<Home> {
        let home = self.homes.get_mut(page.0 as usize)?.take()?;
        self.write(home, 0);
        Some(home)
    }

    fn write(&mut self, home: Home, number: u32) {
        let (first, end) = home.span();
        self.backing[home.region as usize][first as usize..end as usize].fill(number);
    }

    pub(super) fn home(&self, page: PageId) -> Option<Home> {
        *self.homes.get(page.0 as usize)?
    }

    /// The page that backs a base page, and where it lies.
    #[inline]
    pub(super) fn page_at(&self, region: u32, base_page: u64) -> Option<(PageId, Home)> {
        let number = self.backing.get(region as usize)?.get(base_page as usize)?;
        let page = number.checked_sub(1)?;
        Some((PageId(page), self.homes[page as usize]?))
    }

    /// The last page that lies wholly in a range, which is backed wholly or not at all.
    pub(super) fn last_whole(&self, region: u32, (start, mut end): (u64, u64)) -> Option<(PageId, Home)> {
        while start < end
            && let Some((page, home)) = self.page_at(region, end - 1)
        {
            let (first, behind) = home.span();
            if start <= first && behind <= end {
                return Some((page, home));
            }
            end = first;
        }
        None
    }

    /// Base pages of a region that it covers; none beyond them was ever backed.
    pub(super) fn covered(&self, region: u32) -> u64 {
        self.backing.get(region as usize).map_or(0, |backing| backing.len() as u64)
    }
}

/// Sees to it that a list has so many entries; `false` where the host has no memory for them.
fn lengthen<T: Clone>(list: &mut Vec<T>, entries: usize, new: T) -> bool {
    let has_room = list.try_reserve(entries.saturating_sub(list.len())).is_ok();
    if has_room {
        list.resize(entries.max(list.len()), new);
    }
    has_room
}
