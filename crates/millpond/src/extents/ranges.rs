//! From an address to its owner: the regions of all arenas of a context in one ordered map, the only one. So a look-up need not
//! ask each of them.

use std::sync::Arc;

use crate::lock::RwLock;

use crate::device::DevicePtr;

/// Whose an address range is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The pool's number.
    pub(crate) pool: u64,
    /// The number of the captures' memory, where it is not the pool's own.
    pub(crate) memory: Option<u64>,
}

/// The addresses of one region.
#[derive(Debug, Clone, Copy)]
struct Range {
    base: u64,
    bytes: u64,
    owner: Owner,
    /// Its owner's name of it.
    region: u32,
}

/// See the [module](self). A list in the order of the addresses, since a tree cannot say that the host has no memory for one
/// more. The device calls for a new range cost more than to move others.
#[derive(Debug, Default)]
pub(crate) struct Ranges(RwLock<Vec<Range>>);

impl Ranges {
    /// Whose the address is, if anybody's.
    pub(crate) fn owner_of(&self, ptr: DevicePtr) -> Option<Owner> {
        self.find(ptr).map(|range| range.owner)
    }

    fn find(&self, ptr: DevicePtr) -> Option<Range> {
        let ranges = self.0.read();
        let behind = ranges.partition_point(|range| range.base <= ptr.raw());
        let range = ranges[behind.checked_sub(1)?];
        (ptr.raw() - range.base < range.bytes).then_some(range)
    }
}

/// Where one arena's regions are published, and as whose.
#[derive(Debug)]
pub(crate) struct Published {
    ranges: Arc<Ranges>,
    owner: Owner,
}

impl Published {
    pub(crate) fn new(ranges: Arc<Ranges>, owner: Owner) -> Self {
        Self { ranges, owner }
    }

    /// The same, for memory of captures of the same pool.
    pub(super) fn for_memory(&self, memory: u64) -> Self {
        Self::new(self.ranges.clone(), Owner { memory: Some(memory), ..self.owner })
    }

    pub(super) fn owner_of(&self, ptr: DevicePtr) -> Option<Owner> {
        self.ranges.owner_of(ptr)
    }

    /// The region of this owner that holds the address, and how far in it lies, in bytes.
    pub(super) fn find(&self, ptr: DevicePtr) -> Option<(u32, u64)> {
        let range = self.ranges.find(ptr).filter(|range| range.owner == self.owner)?;
        Some((range.region, ptr.raw() - range.base))
    }

    /// Sees to it that one more takes no memory of the host's; `false` where it is refused. Other pools may enter theirs
    /// first.
    pub(super) fn make_room(&self) -> bool {
        self.ranges.0.write().try_reserve(1).is_ok()
    }

    pub(super) fn enter(&self, base: DevicePtr, bytes: u64, region: u32) {
        let mut ranges = self.ranges.0.write();
        let at = ranges.partition_point(|other| other.base < base.raw());
        ranges.insert(at, Range { base: base.raw(), bytes, owner: self.owner, region });
    }

    pub(super) fn leave(&self, base: DevicePtr) {
        self.ranges.0.write().retain(|other| other.base != base.raw());
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // What could not be given back is nobody's from here on.
        self.ranges.0.write().retain(|range| range.owner != self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_every_byte_of_its_range() {
        let ranges = Arc::new(Ranges::default());
        let owner = |pool| Owner { pool, memory: None };
        let published = Published::new(ranges.clone(), owner(1));
        published.enter(DevicePtr::new(4096), 4096, 7);
        let other = Published::new(ranges.clone(), owner(2));
        other.enter(DevicePtr::new(16384), 4096, 0);
        let found = [4095, 4096, 8191, 8192, 16384].map(|at| ranges.owner_of(DevicePtr::new(at)));
        assert_eq!(found, [None, Some(owner(1)), Some(owner(1)), None, Some(owner(2))]);
        let found = [4096, 8191, 8192, 16384].map(|at| published.find(DevicePtr::new(at)));
        assert_eq!(found, [Some((7, 0)), Some((7, 4095)), None, None], "of this owner only");
        other.leave(DevicePtr::new(16384));
        assert_eq!(ranges.owner_of(DevicePtr::new(16384)), None);
        drop(published);
        assert_eq!(ranges.owner_of(DevicePtr::new(4096)), None);
    }
}
