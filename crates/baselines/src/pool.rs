//! `millpond`: the pool itself, behind the trait of those that it is measured against.

use millpond::device::DevicePtr;
use millpond::{Pool, Result, Stream};

use crate::{Allocator, Usage};

/// The pool's name in [`NAMES`](crate::NAMES).
pub const NAME: &str = "millpond";

impl Allocator for Pool {
    fn name(&self) -> &'static str {
        NAME
    }

    #[inline]
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<DevicePtr> {
        self.alloc(bytes, stream)
    }

    #[inline]
    unsafe fn free(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Pool::free(self, ptr, stream) }
    }

    fn record_use(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        Pool::record_use(self, ptr, stream)
    }

    fn trim(&self) -> Result<()> {
        self.trim_to(0).map(drop)
    }

    fn usage(&self) -> Usage {
        let stats = self.stats();
        Usage { requested: stats.requested, reserved: stats.reserved, calls: stats.calls }
    }
}
