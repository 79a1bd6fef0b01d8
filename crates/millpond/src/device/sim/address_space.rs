//! Addresses for ranges that have no memory: rising, the same in every run, given again when they come back.

use std::collections::HashMap;

use crate::device::DevicePtr;

/// Where the first range starts: far from 0, as a GPU's.
const FIRST: u64 = 0x10_0000_0000;

/// Which addresses are taken.
#[derive(Debug)]
pub(super) struct AddressSpace {
    granularity: u64,
    next: u64,
    /// Ranges that came back, by size, the last one first. Their addresses are soon reused, as a driver does it, so a
    /// stale pointer can meet a new allocation.
    returned: HashMap<u64, Vec<u64>>,
}

impl AddressSpace {
    pub(super) fn new(granularity: u64) -> Self {
        Self { granularity, next: FIRST.next_multiple_of(granularity), returned: HashMap::new() }
    }

    /// A range of `bytes`, aligned to the granularity; nothing when all addresses are taken.
    pub(super) fn take(&mut self, bytes: u64) -> Option<DevicePtr> {
        let bytes = bytes.checked_next_multiple_of(self.granularity)?;
        if let Some(at) = self.returned.get_mut(&bytes).and_then(Vec::pop) {
            return Some(DevicePtr::new(at));
        }
        let at = self.next;
        self.next = at.checked_add(bytes)?;
        Some(DevicePtr::new(at))
    }

    pub(super) fn give_back(&mut self, at: DevicePtr, bytes: u64) {
        let bytes = bytes.next_multiple_of(self.granularity);
        self.returned.entry(bytes).or_default().push(at.raw());
    }
}
