//! The base pages of an unmapped extent while they are backed, one page after the other.
//!
//! They are on no index meanwhile: each page would enter it only to leave it for the next.

use super::extent::ExtentId;
use super::extent_map::ExtentMap;
use crate::order::Fence;

/// See the [module](self). Always [close](Self::close) it.
#[derive(Debug)]
pub(super) struct MapCursor {
    region: u32,
    /// The next base page to be backed.
    base_page: u64,
    end: u64,
    /// What is backed already.
    backed: Option<ExtentId>,
    /// What is unmapped from `base_page` on, if anything is.
    unmapped: Option<ExtentId>,
}

impl MapCursor {
    /// Takes base pages of an unmapped extent off the index, to be backed in turn.
    pub(super) fn open(map: &mut ExtentMap, unmapped: ExtentId, (base_page, end): (u64, u64)) -> Self {
        map.remove_unmapped(unmapped);
        let start = base_page * map.layout.units_per_base_page();
        if map[unmapped].start >= start {
            return Self::over(map, (base_page, end), unmapped);
        }
        let rest = map.split(unmapped, start);
        map.index_unmapped(unmapped);
        Self::over(map, (base_page, end), rest)
    }

    /// All base pages of an unmapped extent, which is on no index.
    pub(super) fn over(map: &ExtentMap, (base_page, end): (u64, u64), unmapped: ExtentId) -> Self {
        Self { region: map[unmapped].region, base_page, end, backed: None, unmapped: Some(unmapped) }
    }

    /// Base pages that are still to be backed.
    pub(super) fn room(&self) -> u32 {
        u32::try_from(self.end - self.base_page).unwrap_or(u32::MAX)
    }

    /// Region and number of the next base page.
    pub(super) fn next_base_page(&self) -> (u32, u64) {
        (self.region, self.base_page)
    }

    /// Reserves the host's memory so that what is backed next can have a fence of so many streams; `false` where it is
    /// refused.
    pub(super) fn make_room_for_fence(&self, map: &mut ExtentMap, streams: usize) -> bool {
        [self.backed, self.unmapped].into_iter().flatten().all(|id| {
            let fence = map.fence_mut(id);
            // Nearly always both are of the same stream.
            streams <= 1 && fence.len() <= 1 || fence.make_room(streams)
        })
    }

    /// Notes that the next base pages are backed: they are free, behind the fence.
    pub(super) fn advance(&mut self, map: &mut ExtentMap, base_pages: u32, fence: &Fence, freed: u64) {
        if let Some((backed, unmapped)) = self.backed.zip(self.unmapped) {
            let units = u64::from(base_pages) << map.layout.base_page_shift();
            if units < map[unmapped].units {
                self.base_page += u64::from(base_pages);
                map.back_first((backed, unmapped), units, fence, freed);
                return;
            }
        }
        let new = self.cut(map, base_pages);
        map.make_backed(new, fence, freed);
        self.backed = Some(match self.backed {
            Some(backed) => map.join(backed, new),
            None => new,
        });
    }

    /// Cuts the next base pages off, as an unmapped extent on no index.
    pub(super) fn cut(&mut self, map: &mut ExtentMap, base_pages: u32) -> ExtentId {
        let cut = self.unmapped.expect("a cursor that is not at its end has an unmapped extent");
        self.base_page += u64::from(base_pages);
        let end = self.base_page * map.layout.units_per_base_page();
        self.unmapped = (end < map[cut].end()).then(|| map.split(cut, end));
        cut
    }

    /// Puts what was backed on the index, as one free extent, and the rest as an unmapped one.
    pub(super) fn close(self, map: &mut ExtentMap) {
        if let Some(unmapped) = self.unmapped {
            // Where nothing could be backed, what lies before it is unmapped too.
            map.make_unmapped(unmapped);
        }
        if let Some(backed) = self.backed {
            map.index_free(backed);
            // Its neighbours may be free too; whoever needs a longer extent joins them.
            map.list_if_unmerged(backed);
        }
    }
}
