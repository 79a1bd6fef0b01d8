//! From an address to its owner: the regions of all arenas of a context in one ordered map, the only one. So a look-up need not
//! ask each of them.

use crate::device::DevicePtr;
use crate::system::lock::RwLock;

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
pub(in crate::extents) struct Range {
    pub(in crate::extents) base: DevicePtr,
    pub(in crate::extents) bytes: u64,
    pub(in crate::extents) owner: Owner,
    /// Its owner's name of it.
    pub(in crate::extents) region: u32,
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

    pub(in crate::extents) fn find(&self, ptr: DevicePtr) -> Option<Range> {
        let ranges = self.0.read();
        let behind = ranges.partition_point(|range| range.base <= ptr);
        let range = ranges[behind.checked_sub(1)?];
        (ptr.raw() - range.base.raw() < range.bytes).then_some(range)
    }

    /// Sees to it that one more takes no memory of the host's; `false` where it is refused. Other pools may enter theirs
    /// first.
    pub(in crate::extents) fn make_room(&self) -> bool {
        self.0.write().try_reserve(1).is_ok()
    }

    pub(in crate::extents) fn enter(&self, range: Range) {
        let mut ranges = self.0.write();
        let at = ranges.partition_point(|other| other.base < range.base);
        ranges.insert(at, range);
    }

    /// Takes those out of which `goes` says so.
    pub(in crate::extents) fn leave(&self, goes: impl Fn(&Range) -> bool) {
        self.0.write().retain(|range| !goes(range));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_every_byte_of_its_range() {
        let ranges = Ranges::default();
        let owner = |pool| Owner { pool, memory: None };
        let range = |pool, base, region| Range {
            base: DevicePtr::new(base),
            bytes: 4096,
            owner: owner(pool),
            region,
        };
        ranges.enter(range(2, 16384, 0));
        ranges.enter(range(1, 4096, 7));
        let found = [4095, 4096, 8191, 8192, 16384].map(|at| ranges.owner_of(DevicePtr::new(at)));
        assert_eq!(found, [None, Some(owner(1)), Some(owner(1)), None, Some(owner(2))]);
        assert_eq!(ranges.find(DevicePtr::new(8191)).map(|range| range.region), Some(7));
        ranges.leave(|range| range.owner == owner(2));
        assert_eq!(ranges.owner_of(DevicePtr::new(16384)), None);
    }
}
