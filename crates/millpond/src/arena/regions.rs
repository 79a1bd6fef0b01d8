//! Regions: ranges of address space, with the tables that lead from an address to its block and its page.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::Layout;
use super::blocks::{BlockId, Zone};
use crate::device::DevicePtr;
use crate::pages::PageId;

/// Where a region's address space came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
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
    pub(super) source: Source,
    pub(super) head: BlockId,
    /// Per slot: the page that backs it. As long as the highest slot ever backed.
    pages: Vec<Backing>,
    /// Per slot: where live blocks start in it. As long as the highest slot that ever held one.
    starts: Vec<Starts>,
}

/// The page behind a slot. The page's place is kept here too, since every search asks for it.
#[derive(Debug, Default, Clone, Copy)]
struct Backing {
    /// The page's id + 1; 0 for none.
    page: u32,
    /// The page's first slot.
    first: u32,
    /// The page's slots.
    slots: u32,
}

/// Where live blocks start in one slot, as (unit within the slot, block): a short list, or a table once
/// there are many. Slots of large blocks have at most a few starts, and there are very many such slots.
#[derive(Debug, Default, Clone)]
struct Starts {
    few: SmallVec<[(u32, BlockId); 2]>,
    /// Per unit, block id + 1; 0 for none. Used instead of `few` once it is there.
    table: Option<Box<[u32]>>,
}

/// Starts in one slot from which on a table is faster than a list.
const MANY_STARTS: usize = 8;

impl Starts {
    fn get(&self, unit: u32) -> Option<BlockId> {
        match &self.table {
            Some(table) => table[unit as usize].checked_sub(1).map(BlockId),
            None => self.few.iter().find(|(at, _)| *at == unit).map(|(_, id)| *id),
        }
    }

    fn set(&mut self, unit: u32, id: BlockId, units: usize) {
        if self.table.is_none() && self.few.len() == MANY_STARTS {
            let mut table = vec![0; units].into_boxed_slice();
            for (at, id) in self.few.drain(..) {
                table[at as usize] = id.0 + 1;
            }
            self.table = Some(table);
        }
        match &mut self.table {
            Some(table) => table[unit as usize] = id.0 + 1,
            None => self.few.push((unit, id)),
        }
    }

    fn clear(&mut self, unit: u32) {
        match &mut self.table {
            Some(table) => table[unit as usize] = 0,
            None => self.few.retain(|(at, _)| *at != unit),
        }
    }
}

/// All regions of one arena.
#[derive(Debug, Default)]
pub(super) struct Regions {
    table: Vec<Option<Region>>,
    by_base: BTreeMap<u64, u32>,
}

impl Regions {
    /// Enters a region; its head block must be set at once.
    pub(super) fn add(
        &mut self,
        base: DevicePtr,
        bytes: u64,
        zone: Zone,
        source: Source,
        head: impl FnOnce(u32) -> BlockId,
    ) -> u32 {
        let vacant = self.table.iter().position(Option::is_none);
        let at = vacant.unwrap_or(self.table.len());
        let id = u32::try_from(at).expect("fewer than 2^32 regions");
        let head = head(id);
        let region = Region { base, bytes, zone, source, head, pages: Vec::new(), starts: Vec::new() };
        if vacant.is_some() {
            self.table[at] = Some(region);
        } else {
            self.table.push(Some(region));
        }
        self.by_base.insert(base.raw(), id);
        id
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Region> {
        let region = self.table[id as usize].take()?;
        self.by_base.remove(&region.base.raw());
        Some(region)
    }

    pub(super) fn get(&self, id: u32) -> &Region {
        self.table[id as usize].as_ref().expect("a region id in use names a region")
    }

    fn get_mut(&mut self, id: u32) -> &mut Region {
        self.table[id as usize].as_mut().expect("a region id in use names a region")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.table.iter().zip(0..).filter_map(|(region, id)| Some((id, region.as_ref()?)))
    }

    pub(super) fn head(&self, id: u32) -> Option<BlockId> {
        Some(self.get(id).head)
    }

    /// The region that holds the address, and how far in it lies, in bytes.
    pub(super) fn find(&self, ptr: DevicePtr) -> Option<(u32, u64)> {
        let (base, id) = self.by_base.range(..=ptr.raw()).next_back()?;
        let offset = ptr.raw() - base;
        (offset < self.get(*id).bytes).then_some((*id, offset))
    }

    pub(super) fn address(&self, region: u32, unit: u64, layout: &Layout) -> DevicePtr {
        self.get(region).base.offset(unit * layout.unit_bytes)
    }

    // ---- blocks ----------------------------------------------------------------------------------

    pub(super) fn block_at(&self, region: u32, unit: u64, layout: &Layout) -> Option<BlockId> {
        let (slot, within) = slot_of(unit, layout);
        self.get(region).starts.get(slot)?.get(within)
    }

    /// Notes that a live block starts at the unit.
    pub(super) fn set_start(&mut self, region: u32, unit: u64, id: BlockId, layout: &Layout) {
        let (slot, within) = slot_of(unit, layout);
        let starts = &mut self.get_mut(region).starts;
        if starts.len() <= slot {
            starts.resize(slot + 1, Starts::default());
        }
        starts[slot].set(within, id, layout.units_per_slot() as usize);
    }

    /// Notes that the block that started at the unit is live no more.
    pub(super) fn clear_start(&mut self, region: u32, unit: u64, layout: &Layout) {
        let (slot, within) = slot_of(unit, layout);
        self.get_mut(region).starts[slot].clear(within);
    }

    // ---- pages -----------------------------------------------------------------------------------

    pub(super) fn page_at(&self, region: u32, slot: u64) -> Option<PageId> {
        let backing = self.get(region).pages.get(slot as usize)?;
        backing.page.checked_sub(1).map(PageId)
    }

    /// The first slot of the page that backs a slot, and the first behind the page.
    pub(super) fn page_span(&self, region: u32, slot: u64) -> Option<(u64, u64)> {
        let Backing { page, first, slots } = *self.get(region).pages.get(slot as usize)?;
        (page != 0).then(|| (u64::from(first), u64::from(first) + u64::from(slots)))
    }

    /// Slots that the page table covers; none beyond them was ever backed.
    pub(super) fn table_len(&self, region: u32) -> u64 {
        self.get(region).pages.len() as u64
    }

    /// Notes that `page` backs `slots` slots from `first` on, or that nothing does.
    pub(super) fn set_page(&mut self, region: u32, first: u64, slots: u32, page: Option<PageId>) {
        let pages = &mut self.get_mut(region).pages;
        let (start, end) = (first as usize, first as usize + slots as usize);
        if pages.len() < end {
            pages.resize(end, Backing::default());
        }
        let first = u32::try_from(first).expect("a region has fewer than 2^32 slots");
        let backing = page.map(|page| Backing { page: page.0 + 1, first, slots });
        pages[start..end].fill(backing.unwrap_or_default());
    }
}

/// The slot that a unit lies in, and the unit's place in it.
fn slot_of(unit: u64, layout: &Layout) -> (usize, u32) {
    let per_slot = layout.units_per_slot();
    ((unit / per_slot) as usize, (unit % per_slot) as u32)
}
