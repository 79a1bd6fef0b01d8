//! Pages of free memory that another pool gets, while work may still use them here.

use super::arena::Arena;
use super::map::extent::{ExtentId, ExtentState};
use crate::device::DeviceResult;
use crate::order::Fence;
use crate::physical::{PageId, Passing, passing};

/// Who gets pages.
pub(crate) trait Receiver {
    /// Whether it needs one of so many base pages.
    fn needs(&self, base_pages: u32) -> bool;

    /// Makes sure that it uses pages only behind this work. `false` where that cannot be had.
    fn come_behind(&mut self, work: &Fence) -> DeviceResult<bool>;

    /// Receives a page that it needs.
    fn receive(&mut self, page: Passing);
}

/// Gives pages of free extents to another pool, as far as it needs them. What is complete gives first, then what was freed first.
/// The addresses stay mapped, and are removed as old mappings are.
pub(crate) fn give_free(arena: &mut Arena, receiver: &mut impl Receiver) -> DeviceResult<()> {
    let Arena { map, rules, .. } = &*arena;
    let mut free = map.list_of_free(map.free_with_page())?;
    free.sort_unstable_by_key(|id| (!rules.timelines.is_complete(&map[*id].fence), map[*id].freed, *id));
    let done = free.into_iter().try_for_each(|extent| give_from(arena, extent, receiver));
    arena.old_mappings.let_none_of_given_come_back(&mut arena.map, &arena.pages);
    done
}

/// Gives pages of one free extent.
fn give_from(arena: &mut Arena, extent: ExtentId, receiver: &mut impl Receiver) -> DeviceResult<()> {
    let region = arena.map[extent].region;
    let (start, mut end) = arena.map.base_pages_within(extent);
    let mut is_behind = false;
    // From the end, so that `extent` keeps naming the part that is left.
    while let Some((page, home)) = arena.last_whole((region, (start, end))) {
        end = home.1.0;
        let record = arena.pages.get(page);
        if !record.may_be_given() || !receiver.needs(record.base_pages) {
            continue;
        }
        is_behind = is_behind || receiver.come_behind(&arena.map[extent].fence)?;
        if !is_behind {
            return Ok(());
        }
        receiver.receive(leave(arena, extent, page)?);
    }
    Ok(())
}

/// Takes a page out of the free extent that it lies in.
fn leave(arena: &mut Arena, from: ExtentId, page: PageId) -> DeviceResult<Passing> {
    // As when a page moves: its extent is cut in three.
    let fence = arena.map[from].fence.len();
    arena.map.make_room(2, fence)?;
    let units = arena.leave(page);
    let old = arena.map.cut(from, units);
    arena.old_mappings.push(&mut arena.map, &arena.pages, old, ExtentState::PendingUnmap(page));
    Ok(passing::give(&mut arena.pages, page))
}
