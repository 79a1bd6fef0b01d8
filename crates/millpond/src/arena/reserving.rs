//! Address space: a region is reserved, with the tables that lead from its addresses to its blocks.

use std::sync::Arc;

use super::blocks::{Block, State};
use super::entries::Entries;
use super::regions::{NewRegion, Source};
use super::table::Table;
use super::{Arena, BlockId, Refusal, Zone};
use crate::device::DeviceError;

/// Bytes of the first region of small blocks.
const FIRST_SMALL: u64 = if cfg!(miri) { 1 << 26 } else { 1 << 33 };

impl Arena {
    /// How many bytes a new region should have that has at least as many slots.
    fn region_bytes(&self, zone: Zone, slots: u64) -> u64 {
        // Far more than the device has: address space is free, and voids should not be scarce. Arenas that keep
        // their pages may be hundreds, and grow little.
        let total = if self.keeps { 0 } else { self.device.properties().total_memory };
        let is_first = self.regions.iter().all(|(_, region)| region.zone != zone);
        let (least_wanted, most) = match zone {
            // Tables of the small zone are long, and most programs have little there.
            Zone::Small if is_first => (FIRST_SMALL, FIRST_SMALL),
            Zone::Small => (1 << 36, 1 << 36),
            Zone::Large => (1 << 36, 1 << 40),
        };
        let least = slots * self.layout.slot_bytes;
        let bytes = total.saturating_mul(8).clamp(least_wanted, most).max(least);
        bytes.checked_next_multiple_of(self.layout.slot_bytes).unwrap_or(least)
    }

    /// Makes the tables of the first regions, which nothing is reserved for yet, and has the system give memory for where
    /// blocks will start: it is zeroed for that, which takes as long as hundreds of allocations, so that the first ones
    /// would wait for it.
    pub(crate) fn prepare_tables(&mut self) {
        if cfg!(miri) || !self.device.properties().virtual_memory {
            return;
        }
        for zone in Zone::BOTH {
            let bytes = self.region_bytes(zone, 0);
            let entries = Table::touched_entries(bytes, self.layout.granule(zone));
            self.prepared[zone as usize] = entries.map(|entries| (bytes, entries));
        }
    }

    /// Entries for a region of so many bytes.
    fn entries(&mut self, zone: Zone, bytes: u64) -> Result<Entries, DeviceError> {
        let prepared = self.prepared[zone as usize].take();
        if let Some((_, entries)) = prepared.filter(|(room, _)| *room >= bytes) {
            return Ok(entries);
        }
        // Arenas that keep their pages may be hundreds, and have little each.
        let on_huge_pages = !self.keeps;
        let entries = Table::entries(bytes, self.layout.granule(zone), on_huge_pages);
        entries.ok_or(DeviceError::OutOfMemory { call: "mmap of the blocks' table", requested: bytes })
    }

    /// Reserves a region of at least `slots`; returns the void that fills it.
    pub(super) fn add_region(&mut self, zone: Zone, slots: u64) -> Result<BlockId, Refusal> {
        let least = slots * self.layout.slot_bytes;
        let mut bytes = self.region_bytes(zone, slots);
        let granule = self.layout.granule(zone);
        let (base, entries) = loop {
            let both =
                self.entries(zone, bytes).and_then(|entries| Ok((self.device.reserve(bytes)?, entries)));
            match both {
                Ok(both) => break both,
                Err(_) if bytes / 2 >= least => {
                    bytes = (bytes / 2).next_multiple_of(self.layout.slot_bytes);
                }
                Err(error) => return Err(error.into()),
            }
        };
        self.counters.calls.reserve.add(1);
        let units = bytes / self.layout.unit_bytes;
        let table = Arc::new(Table::new(base, bytes, granule, entries));
        self.views.publish(base, bytes, &table);
        let blocks = &mut self.blocks;
        let new = NewRegion { base, bytes, zone, source: Source::Reserved, table };
        let region =
            self.regions.add(new, |region| blocks.add(Block::whole(region, zone, units, State::Void)));
        let void = self.regions.get(region).head;
        self.void[zone as usize].insert(&self.blocks[void], void);
        Ok(void)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::arena::{EntryRef, Layout};
    use crate::counters::Counters;
    use crate::device::sim::{SimDevice, SimOptions};
    use crate::order::{ReusePolicies, Timelines};
    use crate::pages::{Limits, Pages};

    #[test]
    #[cfg_attr(miri, ignore = "prepares nothing")]
    fn the_first_blocks_of_both_zones_have_their_entries_in_the_tables_that_were_prepared() {
        let timelines = Timelines::new(SimDevice::new(SimOptions::default()).unwrap());
        let (stream, counters) = (timelines.create_stream().unwrap(), Arc::new(Counters::default()));
        let limits = Limits { hard_limit: u64::MAX, headroom: 0, budget: None, together: Arc::default() };
        let pages = Pages::new(timelines.device().clone(), counters.clone(), limits, 2 << 20);
        let layout = Layout::new(512, 2 << 20, 32 << 20, 1 << 20);
        let mut arena = Arena::new(timelines, counters, layout, ReusePolicies::default(), pages);
        arena.prepare_tables();
        let prepared = |arena: &Arena, zone: Zone| {
            arena.prepared[zone as usize].as_ref().map(|(_, entries)| EntryRef::first_of(entries))
        };
        let firsts = Zone::BOTH.map(|zone| prepared(&arena, zone).expect("there are addresses"));
        for (first, units) in firsts.into_iter().zip([1, 4096]) {
            let out = arena.alloc(units, 512, &stream).unwrap();
            assert_eq!(out.entry, first);
        }
        assert!(Zone::BOTH.iter().all(|zone| prepared(&arena, *zone).is_none()), "used once");
    }
}
