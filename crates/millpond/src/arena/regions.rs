//! Regions: ranges of address space, with the tables that lead from an address to its block and its page.

use std::collections::BTreeMap;

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
    /// Per slot: the page that backs it, as id + 1; 0 for none. As long as the highest slot ever backed.
    pages: Vec<u32>,
    /// Per slot: where live blocks start in it.
    starts: Vec<Starts>,
}

/// Where live blocks start in one slot, as block id + 1; 0 for none.
#[derive(Debug, Default, Clone)]
struct Starts {
    /// At the slot's own start, where most large blocks begin.
    first: u32,
    /// At each unit, once any block starts elsewhere.
    rest: Option<Box<[u32]>>,
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
        let (slot, within) = (unit / layout.units_per_slot(), unit % layout.units_per_slot());
        let starts = self.get(region).starts.get(slot as usize)?;
        let entry = if within == 0 { starts.first } else { starts.rest.as_ref()?[within as usize] };
        entry.checked_sub(1).map(BlockId)
    }

    pub(super) fn set_start(&mut self, region: u32, unit: u64, id: BlockId, layout: &Layout) {
        self.write_start(region, unit, id.0 + 1, layout);
    }

    pub(super) fn clear_start(&mut self, region: u32, unit: u64, layout: &Layout) {
        self.write_start(region, unit, 0, layout);
    }

    fn write_start(&mut self, region: u32, unit: u64, entry: u32, layout: &Layout) {
        let per_slot = layout.units_per_slot();
        let (slot, within) = ((unit / per_slot) as usize, (unit % per_slot) as usize);
        let starts = &mut self.get_mut(region).starts;
        if starts.len() <= slot {
            starts.resize(slot + 1, Starts::default());
        }
        let starts = &mut starts[slot];
        if within == 0 {
            starts.first = entry;
        } else {
            starts.rest.get_or_insert_with(|| vec![0; per_slot as usize].into_boxed_slice())[within] = entry;
        }
    }

    // ---- pages -----------------------------------------------------------------------------------

    pub(super) fn page_at(&self, region: u32, slot: u64) -> Option<PageId> {
        let entry = *self.get(region).pages.get(slot as usize)?;
        entry.checked_sub(1).map(PageId)
    }

    /// Slots that the page table covers; none beyond them was ever backed.
    pub(super) fn table_len(&self, region: u32) -> u64 {
        self.get(region).pages.len() as u64
    }

    /// Notes that `page` backs `slots` slots from `first` on, or that nothing does.
    pub(super) fn set_page(&mut self, region: u32, first: u64, slots: u32, page: Option<PageId>) {
        let pages = &mut self.get_mut(region).pages;
        let (first, end) = (first as usize, first as usize + slots as usize);
        if pages.len() < end {
            pages.resize(end, 0);
        }
        pages[first..end].fill(page.map_or(0, |page| page.0 + 1));
    }
}
