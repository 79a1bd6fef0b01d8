//! The pages that a block lies on.

use super::extent::ExtentId;
use super::extent_map::ExtentMap;
use super::mapper::Mapper;
use super::page_table::Home;
use crate::device::PageHandle;
use crate::physical::PageId;

/// What a block lies on.
#[derive(Debug)]
pub(crate) struct PagesUnder {
    /// Each page, and its bytes.
    pub(crate) pages: Vec<(PageHandle, u64)>,
    /// Where on the first of them the block begins.
    pub(crate) offset: u64,
}

/// The pages that the block's units from `from` on lie on.
pub(super) fn pages_of(
    map: &ExtentMap,
    mapper: &Mapper,
    id: ExtentId,
    from: u64,
) -> impl Iterator<Item = (PageId, Home)> {
    let (region, layout, mut unit, end) = (map[id].region, &map.layout, from, map[id].end());
    std::iter::from_fn(move || {
        let found = (unit < end).then(|| mapper.table().page_at(region, layout.base_page_of(unit)))??;
        unit = layout.units_of(found.1.span()).1;
        Some(found)
    })
}

/// The pages that the first `bytes` of an allocated block lie on; `None` in a segment. They stay the same as long as the block
/// is allocated.
pub(super) fn pages_under(map: &ExtentMap, mapper: &Mapper, id: ExtentId, bytes: u64) -> Option<PagesUnder> {
    let start = map[id].start;
    let end = start + bytes.div_ceil(map.layout.unit_bytes);
    let first_unit = |home: Home| map.layout.units_of(home.span()).0;
    let mut under =
        pages_of(map, mapper, id, start).take_while(|(_, home)| first_unit(*home) < end).peekable();
    let (first, home) = *under.peek()?;
    if mapper.pages().is_segment(first) {
        return None;
    }
    let offset = (start - first_unit(home)) * map.layout.unit_bytes;
    Some(PagesUnder { pages: under.map(|(page, _)| mapper.pages().handle(page)).collect(), offset })
}
