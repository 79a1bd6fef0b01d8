//! Address space for regions, each with the map from its addresses to its blocks.

use std::ops::Range;
use std::sync::Arc;

use super::layout::{Layout, Zone};
use super::page_map::{Descriptors, PageMap, RegionMap};
use super::refusal::Refusal;
use super::regions::NewRegion;
use super::sparse::Sparse;
use crate::counters::Counters;
use crate::device::{Device, DeviceError, DevicePtr};

/// Bytes of the longest region, unless a block is longer. Also of the addresses around the first segment, in which frees find
/// the blocks of all segments without the lock. Drivers place them near each other. The table of it takes the host's memory
/// only where there are blocks.
const LONGEST: u64 = if cfg!(miri) { 1 << 26 } else { 1 << 40 };

/// See the [module](self).
#[derive(Debug)]
pub(super) struct AddressSpace {
    device: Arc<dyn Device>,
    counters: Arc<Counters>,
    layout: Layout,
    page_map: Arc<PageMap>,
    /// Of all blocks, once there is a region.
    descriptors: Option<Arc<Descriptors>>,
    /// The map of the addresses of segments, once there is one.
    window: Option<Arc<RegionMap>>,
}

/// The map of a region whose addresses are not known yet.
#[derive(Debug)]
pub(super) struct BlankMap {
    granule: u64,
    numbers: Sparse<std::sync::atomic::AtomicU32>,
    descriptors: Arc<Descriptors>,
}

impl BlankMap {
    /// Lets blocks start in the first bytes; `false` where the host has no memory for that.
    pub(super) fn back(&self, bytes: u64) -> bool {
        self.numbers.back(0..bytes.div_ceil(self.granule) as usize)
    }

    /// The host's memory that it may take for a region of so many bytes.
    pub(super) fn host_bytes(&self, bytes: u64) -> u64 {
        RegionMap::bytes_of_numbers(bytes, self.granule)
    }

    pub(super) fn of_region_at(self, base: DevicePtr) -> Arc<RegionMap> {
        Arc::new(RegionMap::new(base, self.granule, self.numbers, self.descriptors))
    }
}

impl AddressSpace {
    pub(super) fn new(device: Arc<dyn Device>, counters: Arc<Counters>, layout: Layout) -> Self {
        Self { device, counters, layout, page_map: Arc::default(), descriptors: None, window: None }
    }

    /// Leads from an address to its block without the lock.
    pub(super) fn page_map(&self) -> &Arc<PageMap> {
        &self.page_map
    }

    /// Lets the descriptors of blocks with ids below `end` be written; `false` where the host has no memory for them.
    pub(super) fn back_descriptors(&self, end: usize) -> bool {
        self.descriptors.as_ref().is_none_or(|descriptors| descriptors.back(end))
    }

    /// Gives back the host's memory for the descriptors of blocks with these ids, none of which is allocated.
    pub(super) fn let_go_of_descriptors(&self, ids: Range<usize>) {
        if let Some(descriptors) = &self.descriptors {
            descriptors.let_go(ids);
        }
    }

    /// The descriptors, made with the first region. `records` ids may be blocks already.
    fn descriptors(&mut self, records: usize) -> Result<Arc<Descriptors>, Refusal> {
        if let Some(descriptors) = &self.descriptors {
            return Ok(descriptors.clone());
        }
        let backed = Descriptors::new().filter(|descriptors| descriptors.back(records));
        let descriptors = backed.map(Arc::new).ok_or(Refusal::of_host("memory for blocks", 0))?;
        self.descriptors = Some(descriptors.clone());
        Ok(descriptors)
    }

    /// A map for a region of so many bytes.
    pub(super) fn blank_map(&mut self, zone: Zone, bytes: u64, records: usize) -> Result<BlankMap, Refusal> {
        let granule = self.layout.granule(zone);
        let descriptors = self.descriptors(records)?;
        let no_map = || {
            Refusal::of_host("addresses for where blocks lie", RegionMap::bytes_of_numbers(bytes, granule))
        };
        let numbers = RegionMap::numbers(bytes, granule).ok_or_else(no_map)?;
        Ok(BlankMap { granule, numbers, descriptors })
    }

    /// The map of a segment, for which the blank one was made. Frees find its blocks without the lock where it lies in the
    /// window.
    pub(super) fn map_of_segment(&mut self, base: DevicePtr, bytes: u64, blank: BlankMap) -> Arc<RegionMap> {
        if self.window.is_none() {
            self.window = self.open_window(base, bytes, &blank);
        }
        let part = self.window.as_ref().and_then(|window| window.part(base, bytes));
        match part.filter(|part| part.back(0..bytes)) {
            Some(part) => Arc::new(part),
            None => blank.of_region_at(base),
        }
    }

    /// Publishes the addresses around the first segment; only its own where the device has pages, since regions of those
    /// may lie around it. `None` where the process has too few addresses for that table.
    fn open_window(&self, first: DevicePtr, bytes: u64, blank: &BlankMap) -> Option<Arc<RegionMap>> {
        // Of either zone.
        let granule = self.layout.granule(Zone::Small);
        let (start, bytes) = if self.device.properties().virtual_memory {
            (first.raw(), bytes)
        } else {
            // Not the null address, which is freed, too.
            (first.raw().saturating_sub(LONGEST / 2).next_multiple_of(granule).max(granule), LONGEST)
        };
        let numbers = RegionMap::numbers(bytes, granule)?;
        let window = RegionMap::new(DevicePtr::new(start), granule, numbers, blank.descriptors.clone());
        let window = Arc::new(window);
        self.page_map.publish(DevicePtr::new(start), bytes, &window);
        Some(window)
    }

    /// How many bytes a new region should have. As much as the device has, and far more for large blocks, which lie far apart:
    /// address space is free.
    fn region_bytes(&self, zone: Zone, is_short: bool) -> u64 {
        let total = self.device.properties().total_memory;
        let wanted = match zone {
            _ if is_short => 0,
            Zone::Small => total,
            Zone::Large => total.saturating_mul(8),
        };
        wanted.clamp(LONGEST / 128, LONGEST)
    }

    /// Reserves a region of at least `least` bytes, whole base pages. `is_short` says whether it should be as short as a region
    /// is. `records` as for the [descriptors](Self::blank_map).
    pub(super) fn reserve(
        &mut self,
        zone: Zone,
        least: u64,
        is_short: bool,
        records: usize,
    ) -> Result<NewRegion, Refusal> {
        let base_page = self.layout.base_page_bytes;
        let wanted = self.region_bytes(zone, is_short).max(least);
        let mut bytes = wanted.checked_next_multiple_of(base_page).unwrap_or(least);
        // A shorter region needs as many.
        self.descriptors(records)?;
        let (base, map) = loop {
            let map = self.blank_map(zone, bytes, records);
            match map.and_then(|map| Ok((self.reserve_addresses(bytes)?, map))) {
                Ok(both) => break both,
                Err(_) if bytes / 2 >= least => bytes = (bytes / 2).next_multiple_of(base_page),
                Err(refusal) => return Err(refusal),
            }
        };
        self.counters.calls.reserve.add(1);
        let map = map.of_region_at(base);
        self.page_map.publish(base, bytes, &map);
        Ok(NewRegion { base, bytes, zone, map })
    }

    /// The process runs out of addresses, not the device.
    fn reserve_addresses(&self, bytes: u64) -> Result<DevicePtr, Refusal> {
        self.device.reserve(bytes).map_err(|error| match error {
            DeviceError::OutOfMemory { call, requested } => Refusal::of_host(call, requested),
            other => other.into(),
        })
    }

    /// Gives the addresses of a region back.
    ///
    /// # Safety
    /// They were [reserved](Self::reserve), nothing is mapped there, and the caller forgets them.
    pub(super) unsafe fn unreserve(&self, base: DevicePtr, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: as the caller promises.
        unsafe { self.device.unreserve(base, bytes) }?;
        self.counters.calls.unreserve.add(1);
        Ok(())
    }
}
