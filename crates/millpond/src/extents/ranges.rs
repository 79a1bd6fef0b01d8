//! From an address to its owner: the address ranges of many arenas in one ordered map. So a look-up need not ask each
//! of them.

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

/// See the [module](self). By the first address: that, length in bytes, and owner. A sorted list, since a tree cannot
/// say that the host has no memory for one more. The device calls for a new range cost more than to move others.
#[derive(Debug, Default)]
pub(crate) struct Ranges(RwLock<Vec<(u64, u64, Owner)>>);

impl Ranges {
    /// Whose the address is, if anybody's.
    pub(crate) fn owner_of(&self, ptr: DevicePtr) -> Option<Owner> {
        let ranges = self.0.read();
        let behind = ranges.partition_point(|(base, ..)| *base <= ptr.raw());
        let (base, bytes, owner) = ranges[behind.checked_sub(1)?];
        (ptr.raw() - base < bytes).then_some(owner)
    }
}

/// Where one arena's ranges are published, and as whose.
#[derive(Debug)]
pub(super) struct Published {
    ranges: Arc<Ranges>,
    owner: Owner,
}

impl Published {
    pub(super) fn new(ranges: Arc<Ranges>, owner: Owner) -> Self {
        Self { ranges, owner }
    }

    pub(super) fn owner_of(&self, ptr: DevicePtr) -> Option<Owner> {
        self.ranges.owner_of(ptr)
    }

    /// Sees to it that one more takes no memory of the host's; `false` where it is refused. Other pools may enter theirs
    /// first.
    pub(super) fn make_room(&self) -> bool {
        self.ranges.0.write().try_reserve(1).is_ok()
    }

    pub(super) fn enter(&self, base: DevicePtr, bytes: u64) {
        let mut ranges = self.ranges.0.write();
        let at = ranges.partition_point(|(other, ..)| *other < base.raw());
        ranges.insert(at, (base.raw(), bytes, self.owner));
    }

    pub(super) fn leave(&self, base: DevicePtr) {
        self.ranges.0.write().retain(|(other, ..)| *other != base.raw());
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // What could not be given back is nobody's from here on.
        self.ranges.0.write().retain(|(.., owner)| *owner != self.owner);
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
        published.enter(DevicePtr::new(4096), 4096);
        let other = Published::new(ranges.clone(), owner(2));
        other.enter(DevicePtr::new(16384), 4096);
        let found = [4095, 4096, 8191, 8192, 16384].map(|at| ranges.owner_of(DevicePtr::new(at)));
        assert_eq!(found, [None, Some(owner(1)), Some(owner(1)), None, Some(owner(2))]);
        other.leave(DevicePtr::new(16384));
        assert_eq!(ranges.owner_of(DevicePtr::new(16384)), None);
        drop(published);
        assert_eq!(ranges.owner_of(DevicePtr::new(4096)), None);
    }
}
