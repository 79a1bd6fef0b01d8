//! The arena's invariants as a recount. Property tests call it after every step.

use super::arena::Arena;
use super::map::extent::{Extent, ExtentId, ExtentState};
use super::map::extent_map::ExtentMap;
use crate::physical::ParkedCursor;

/// Fails with a sentence unless `holds`.
macro_rules! ensure {
    ($holds:expr, $($sentence:tt)+) => {
        if !$holds {
            return Err(format!($($sentence)+));
        }
    };
}

/// Recounts everything; says what is wrong, if anything is.
pub(crate) fn check(arena: &Arena) -> Result<(), String> {
    let map = &arena.map;
    check_links(map)?;
    for (id, extent) in map.extents.iter() {
        check_extent(arena, id, extent)?;
    }
    let count = |is: fn(&Extent) -> bool| map.extents.iter().filter(|(_, extent)| is(extent)).count();
    let free = count(|extent| extent.state == ExtentState::Free);
    ensure!(map.free().count() == free, "a free extent is listed twice, or not there");
    let listed = map.free().find(|id| map[*id].state != ExtentState::Free);
    ensure!(listed.is_none(), "{listed:?} is listed as free");
    let has_page = |id: &ExtentId| map.base_pages_within(*id).0 < map.base_pages_within(*id).1;
    let with_page = map.free().filter(has_page).count();
    ensure!(
        map.free_with_page().filter(has_page).count() == with_page
            && map.free_with_page().count() == with_page,
        "a free extent is on the wrong list"
    );
    check_holes(map)?;
    let old = count(|extent| page_of(extent.state).is_some());
    ensure!(arena.old_mappings.ids(map).count() == old, "an old mapping is listed twice, or not there");
    let misplaced = arena.old_mappings.misplaced(map);
    ensure!(misplaced.is_none(), "{misplaced:?} is on the wrong list, or not as idle as it says");
    let blocks = count(|extent| extent.state == ExtentState::Allocated);
    ensure!(map.blocks == blocks as u64, "{} blocks, recount {blocks}", map.blocks);
    check_pages(arena)
}

/// The blocks of a region are linked in the order of their addresses, and the holes between them are indexed.
fn check_holes(map: &ExtentMap) -> Result<(), String> {
    for (id, region) in map.regions.iter() {
        let blocks = map.until(region.head, u64::MAX).filter(|id| map.is(*id, ExtentState::Allocated));
        let linked = std::iter::successors(region.first_block, |id| map[*id].link.next);
        ensure!(blocks.eq(linked), "the blocks of region {id} are linked otherwise");
    }
    let wrong = map.holes().find(|(zone, hole)| !map.index.contains(*zone, *hole));
    ensure!(map.index.lacks() || wrong.is_none(), "{wrong:?} is not indexed");
    ensure!(map.index.lacks() || map.index.len() == map.holes().count(), "the index has other holes");
    Ok(())
}

/// The page that an old mapping is of.
fn page_of(state: ExtentState) -> Option<crate::physical::PageId> {
    match state {
        ExtentState::PendingUnmap(page) | ExtentState::Dormant(page) => Some(page),
        ExtentState::Idle(mapping) => Some(mapping.page()),
        _ => None,
    }
}

/// The extents fill the regions, each once.
fn check_links(map: &ExtentMap) -> Result<(), String> {
    let mut linked = 0;
    for (id, region) in map.regions.iter() {
        let (mut unit, mut before, zone) = (0, None, map[region.head].zone);
        for extent_id in map.until(region.head, u64::MAX) {
            let extent = &map[extent_id];
            ensure!(extent.region == id && extent.zone == zone, "extent {extent_id:?} is elsewhere");
            ensure!(extent.start == unit && extent.units > 0, "{extent_id:?} leaves a gap or overlaps");
            ensure!(extent.prev == before, "extent {extent_id:?} has another extent before it");
            (unit, before) = (extent.end(), Some(extent_id));
            linked += 1;
        }
        ensure!(unit * map.layout.unit_bytes == region.bytes, "the extents of region {id} do not fill it");
    }
    ensure!(linked == map.extents.iter().count(), "an extent is linked in no region");
    Ok(())
}

/// It is where its state says, could not be one with the next, and is backed as its state says.
fn check_extent(arena: &Arena, id: ExtentId, extent: &Extent) -> Result<(), String> {
    let map = &arena.map;
    let descriptor = map.page_map.of_block(id).map(|descriptor| (descriptor.id(), descriptor.bytes()));
    let expected = (extent.state == ExtentState::Allocated).then_some((id, map.bytes(id)));
    ensure!(descriptor == expected, "the descriptor of {id:?} is {descriptor:?}");
    let next = extent.next.filter(|next| map[*next].state == extent.state);
    match extent.state {
        ExtentState::Free | ExtentState::Unmapped => {
            let is_known = extent.state == ExtentState::Free && map.has_unmerged;
            let is_apart = next.is_none_or(|next| !map[next].fence.same_streams(&extent.fence));
            ensure!(is_apart || is_known, "{id:?} ({:?}) and the next could be one", extent.state);
        }
        ExtentState::PendingUnmap(_) | ExtentState::Dormant(_) | ExtentState::Idle(_) => {
            let bytes = page_of(extent.state).map(|page| arena.pages.bytes_of(page));
            ensure!(Some(map.bytes(id)) == bytes, "old mapping {id:?} is not as long as its page");
        }
        ExtentState::Leaving(page) => {
            let is_away = arena.pages.segment_at(page).is_some() && arena.pages.home(page).is_none();
            ensure!(is_away, "{id:?} leaves, and {page:?} is no segment that lies nowhere");
        }
        ExtentState::Entered => return Err(format!("{id:?} was entered, and not joined")),
        ExtentState::Allocated | ExtentState::Unused => {}
    }
    // Allocated and free extents are backed in every base page that they touch; others in none.
    let covered = map.regions.get(extent.region).backing.len() as u64;
    let backed = matches!(extent.state, ExtentState::Allocated | ExtentState::Free);
    let (start, end) = (map.layout.base_page_of(extent.start), map.layout.base_pages_for(extent.end()));
    let is_whole = map.layout.units_of((start, end)) == (extent.start, extent.end());
    ensure!(backed || is_whole, "{id:?} is not whole base pages");
    ensure!(!backed || end <= covered, "{id:?} lies beyond the page table");
    // An unmapped extent may be a terabyte long; nothing beyond what was ever backed can be in the table.
    for base_page in start..end.min(covered) {
        let page = map.regions.page_at(extent.region, base_page);
        ensure!(page.is_some() == backed, "base page {base_page} of {id:?} has {page:?}: {:?}", extent.state);
        if let Some(page) = page {
            let home = arena.pages.home(page);
            let is_there =
                |(region, (first, end))| region == extent.region && (first..end).contains(&base_page);
            ensure!(home.is_some_and(is_there), "base page {base_page} of {id:?} names {page:?} at {home:?}");
        }
    }
    Ok(())
}

/// Every page is either at home or parked, and is mapped as often as extents say.
fn check_pages(arena: &Arena) -> Result<(), String> {
    let pages = &arena.pages;
    let base_pages = pages.iter().map(|(_, page)| u64::from(page.base_pages)).sum::<u64>();
    ensure!(base_pages == pages.base_pages, "base pages: recount {base_pages}");
    pages.iter().for_each(|(_, page)| page.mark.set(0));
    for page in arena.old_mappings.ids(&arena.map).filter_map(|id| page_of(arena.map[id].state)) {
        let mark = &pages.get(page).mark;
        mark.set(mark.get() + 1);
    }
    let leaves =
        |page| arena.map.extents.iter().any(|(_, extent)| extent.state == ExtentState::Leaving(page));
    let (mut parked, mut arriving) = (ParkedCursor::of(pages), ParkedCursor::of_arriving(pages));
    let linked = std::iter::from_fn(|| parked.take(u64::MAX).or_else(|| arriving.take(u64::MAX)));
    let linked = linked.take(pages.records()).filter(|page| pages.is_parked(*page)).count();
    let parked = pages.iter().filter(|(id, _)| pages.is_parked(*id)).count();
    ensure!(parked == linked, "{parked} parked pages, of which {linked} are linked");
    for (id, page) in pages.iter() {
        let home = pages.home(id);
        let leaves = home.is_none() && pages.is_segment(id) && leaves(id);
        let places = [pages.is_parked(id), home.is_some(), page.is_given(), leaves];
        let places = places.into_iter().filter(|is_there| *is_there).count();
        ensure!(places == 1, "{id:?} is parked, at home, given away and leaves, or nothing of that");
        let is_elsewhere = page.arrives_behind().is_some() || leaves;
        let mappings = page.mark.take() + u32::from(home.is_some()) + u32::from(is_elsewhere);
        ensure!(page.mappings == mappings, "{id:?}: {mappings} mappings were counted");
        if let Some((region, (first, _))) = home {
            let there = arena.map.regions.page_at(region, first);
            ensure!(there == Some(id), "where {id:?} lies there is {there:?}");
        }
    }
    Ok(())
}
