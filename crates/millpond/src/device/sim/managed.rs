//! Managed memory: which of its pages are on the device, and what it takes to get them there.
//!
//! A page is 2 MiB, since a driver moves about as much at a fault. A page that nobody touched yet is nowhere, and takes no
//! move. Where the device is full, the page that work met longest ago goes to the host. What work is given first meets
//! pages first, whenever it runs. Advice changes no cost.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::costs::{CostTable, transfer};
use crate::device::hints::Hints;
use crate::device::{DevicePtr, Place};

/// What moves at once, in bytes.
const PAGE: u64 = 2 << 20;

/// What managed memory cost so far: [`SimDevice::managed_stats`](super::SimDevice::managed_stats) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ManagedStats {
    /// Pages of 2 MiB that work met where they were not on the device.
    pub faults: u64,
    /// Bytes that moved from the host to the device, after faults and by prefetches.
    pub bytes_to_device: u64,
    /// Bytes that moved from the device to the host, to make room and by prefetches.
    pub bytes_to_host: u64,
    /// Of both, those that moved by prefetches.
    pub bytes_prefetched: u64,
    /// Bytes on the device now.
    pub resident: u64,
    /// Bytes on the device at most so far.
    pub resident_high: u64,
    /// The streams' time for all of it.
    pub time: Duration,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Managed {
    pub(super) hints: Hints,
    stats: ManagedStats,
    /// Where each page is, by its number; those that nobody touched are not there. On the device: when it was met last.
    pages: HashMap<u64, Option<u64>>,
    /// The pages on the device, by when they were met last.
    by_age: BTreeMap<u64, u64>,
    met: u64,
}

impl Managed {
    pub(super) fn stats(&self) -> ManagedStats {
        self.stats
    }

    /// Work meets a range, on a device with room for so many bytes. The stream's time for it, in nanoseconds.
    pub(super) fn touch(&mut self, at: DevicePtr, bytes: u64, room: u64, costs: &CostTable) -> u64 {
        let mut time = 0;
        for page in pages(at, bytes) {
            if !self.is_on_device(page) {
                let moved = self.bring(page, room);
                self.stats.faults += 1;
                time += costs.managed_fault + transfer(moved, costs.managed_fault_bytes_per_us);
            }
        }
        self.spend(time)
    }

    /// Moves a range, likewise.
    pub(super) fn prefetch(
        &mut self,
        at: DevicePtr,
        bytes: u64,
        to: Place,
        room: u64,
        costs: &CostTable,
    ) -> u64 {
        let mut moved = 0;
        for page in pages(at, bytes) {
            moved += match to {
                Place::Device if self.is_on_device(page) => 0,
                Place::Device => self.bring(page, room),
                Place::Host => self.evict(page),
            };
        }
        self.stats.bytes_prefetched += moved;
        self.spend(transfer(moved, costs.managed_prefetch_bytes_per_us))
    }

    /// The memory is gone, and its pages with it.
    pub(super) fn forget(&mut self, at: DevicePtr, bytes: u64) {
        self.hints.forget(at, bytes);
        for page in pages(at, bytes) {
            if let Some(met) = self.pages.remove(&page).flatten() {
                self.leave(met);
            }
        }
    }

    fn spend(&mut self, nanoseconds: u64) -> u64 {
        self.stats.time += Duration::from_nanos(nanoseconds);
        nanoseconds
    }

    /// Whether a page is on the device. If so, it was met now.
    fn is_on_device(&mut self, page: u64) -> bool {
        self.met += 1;
        let Some(Some(met)) = self.pages.get_mut(&page) else { return false };
        self.by_age.remove(met);
        self.by_age.insert(self.met, page);
        *met = self.met;
        true
    }

    /// Brings a page to the device, and takes others off for it. The bytes moved.
    fn bring(&mut self, page: u64, room: u64) -> u64 {
        let mut moved = 0;
        while self.stats.resident + PAGE > room
            && let Some((_, oldest)) = self.by_age.first_key_value().map(|(met, page)| (*met, *page))
        {
            moved += self.evict(oldest);
        }
        let was_on_host = self.pages.insert(page, Some(self.met)).is_some();
        self.by_age.insert(self.met, page);
        self.stats.resident += PAGE;
        self.stats.resident_high = self.stats.resident_high.max(self.stats.resident);
        if was_on_host {
            self.stats.bytes_to_device += PAGE;
            moved += PAGE;
        }
        moved
    }

    /// Takes a page off the device. The bytes moved.
    fn evict(&mut self, page: u64) -> u64 {
        let Some(met) = self.pages.insert(page, None).flatten() else { return 0 };
        self.leave(met);
        self.stats.bytes_to_host += PAGE;
        PAGE
    }

    fn leave(&mut self, met: u64) {
        self.by_age.remove(&met);
        self.stats.resident -= PAGE;
    }
}

/// The numbers of the pages that have a byte of the range.
fn pages(at: DevicePtr, bytes: u64) -> std::ops::Range<u64> {
    at.raw() / PAGE..(at.raw() + bytes).div_ceil(PAGE)
}
