//! How much managed memory the process has taken of a GPU, and how much it still may.
//!
//! A driver gives out more managed memory than a GPU has, and takes it from the host when it is touched. Pools do not ask for
//! that: all of it together is at most what the GPU had free before the first of it. A driver's figure cannot tell, since it
//! counts what was touched only.

use std::collections::HashMap;

use crate::device::{DeviceError, DevicePtr, DeviceResult, MemoryInfo};
use crate::system::lock::Mutex;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Taken(Mutex<Segments>);

#[derive(Debug, Default)]
struct Segments {
    /// Bytes by address.
    bytes: HashMap<u64, u64>,
    /// Bytes that the GPU had free before the first of them.
    free_before: u64,
}

impl Taken {
    /// What may still be taken, where the driver says `info` now.
    pub(super) fn left(&self, info: MemoryInfo) -> MemoryInfo {
        MemoryInfo { free: self.0.lock().left(info.free), ..info }
    }

    /// Takes a segment, unless it is more than what is left. `free` is what the driver says now.
    pub(super) fn take(
        &self,
        bytes: u64,
        free: u64,
        alloc: impl FnOnce() -> DeviceResult<DevicePtr>,
    ) -> DeviceResult<DevicePtr> {
        let mut segments = self.0.lock();
        if bytes > segments.left(free) {
            return Err(DeviceError::OutOfMemory { call: "cuMemAllocManaged", requested: bytes });
        }
        let at = alloc()?;
        if segments.bytes.is_empty() {
            segments.free_before = free;
        }
        segments.bytes.insert(at.raw(), bytes);
        Ok(at)
    }

    /// Gives a segment back. It is out of the list before it is `free`: then another thread may get the address.
    pub(super) fn give_back(
        &self,
        at: DevicePtr,
        free: impl FnOnce() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let bytes = self.0.lock().bytes.remove(&at.raw());
        free().inspect_err(|_| self.0.lock().bytes.extend(bytes.map(|bytes| (at.raw(), bytes))))
    }
}

impl Segments {
    fn left(&self, free: u64) -> u64 {
        let taken: u64 = self.bytes.values().sum();
        if taken == 0 { free } else { free.min(self.free_before.saturating_sub(taken)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_is_at_most_what_was_free_before_the_first() {
        let taken = Taken::default();
        let left = |free| taken.left(MemoryInfo { free, total: 100 }).free;
        assert_eq!(left(80), 80);
        let take = |at, bytes| taken.take(bytes, 80, || Ok(DevicePtr::new(at)));
        _ = take(1, 50).unwrap();
        _ = take(2, 20).unwrap();
        assert!(matches!(take(3, 11), Err(DeviceError::OutOfMemory { .. })));
        assert_eq!(left(80), 10, "nothing of it was touched");
        assert_eq!(left(10), 10, "all of it was touched");
        assert_eq!(left(5), 5, "others took memory");
        let refused = || Err(DeviceError::Unavailable("asked for".to_owned()));
        assert!(taken.give_back(DevicePtr::new(1), refused).is_err());
        assert_eq!(left(80), 10, "it was not freed");
        taken.give_back(DevicePtr::new(1), || Ok(())).unwrap();
        assert_eq!(left(80), 60);
        taken.give_back(DevicePtr::new(2), || Ok(())).unwrap();
        assert_eq!(left(90), 90);
    }
}
