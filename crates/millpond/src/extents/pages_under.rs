//! The pages that a block lies on.

use super::extent::ExtentId;
use super::extent_map::ExtentMap;
use super::regions::RegionOrigin;
use crate::device::PageHandle;
use crate::physical::Pages;

/// What a block lies on.
#[derive(Debug)]
pub(crate) struct PagesUnder {
    /// Each page, and its bytes.
    pub(crate) pages: Vec<(PageHandle, u64)>,
    /// Where on the first of them the block begins.
    pub(crate) offset: u64,
}

/// The pages that the first `bytes` of an allocated block lie on; `None` in a segment. They stay the same as long as the block
/// is allocated.
pub(super) fn pages_under(map: &ExtentMap, pages: &Pages, id: ExtentId, bytes: u64) -> Option<PagesUnder> {
    let (region, start) = (map[id].region, map[id].start);
    if map.regions.get(region).origin == RegionOrigin::Segment {
        return None;
    }
    let unit_bytes = map.layout.unit_bytes;
    let backing = map.regions.backing(region);
    let end = start + bytes.div_ceil(unit_bytes);
    let (mut unit, mut offset, mut under) = (start, None, Vec::new());
    while unit < end {
        let base_page = map.layout.base_page_of(unit);
        let (page, (first, page_end)) =
            map.regions.page_at(region, base_page).zip(backing.span(base_page))?;
        offset.get_or_insert((unit - first) * unit_bytes);
        under.push(pages.handle(page));
        unit = page_end;
    }
    Some(PagesUnder { pages: under, offset: offset? })
}
