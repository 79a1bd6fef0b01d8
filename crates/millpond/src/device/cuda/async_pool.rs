//! The driver's own stream-ordered pool, behind `alloc_async`.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::abi::{PoolProps, RawDevice, RawPool, pool_attribute};
use super::api::Api;
use crate::device::{AsyncUsage, DeviceResult};

/// A pool of our own rather than the device's default one: its threshold and its counters are ours alone.
#[derive(Debug)]
pub(super) struct AsyncPool {
    api: &'static Api,
    raw: RawPool,
}

// SAFETY: a RawPool is a handle that any thread may use; the driver locks what needs it.
unsafe impl Send for AsyncPool {}
// SAFETY: as above.
unsafe impl Sync for AsyncPool {}

impl AsyncPool {
    /// Creates a pool that keeps what it has: the release threshold is at its maximum.
    pub(super) fn create(api: &'static Api, device: RawDevice) -> DeviceResult<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable and the properties are readable.
        unsafe { api.cuMemPoolCreate(&mut raw, &PoolProps::of(device)) }?;
        let pool = Self { api, raw };
        let mut threshold = u64::MAX;
        let attribute = pool_attribute::RELEASE_THRESHOLD;
        // SAFETY: this attribute is read as a 64-bit number.
        unsafe { api.cuMemPoolSetAttribute(raw, attribute, (&raw mut threshold).cast::<c_void>()) }?;
        Ok(pool)
    }

    pub(super) fn raw(&self) -> RawPool {
        self.raw
    }

    pub(super) fn usage(&self) -> DeviceResult<AsyncUsage> {
        use pool_attribute as is;
        Ok(AsyncUsage {
            reserved: self.bytes(is::RESERVED_MEM_CURRENT)?,
            reserved_high: self.bytes(is::RESERVED_MEM_HIGH)?,
            used: self.bytes(is::USED_MEM_CURRENT)?,
            used_high: self.bytes(is::USED_MEM_HIGH)?,
        })
    }

    fn bytes(&self, attribute: c_int) -> DeviceResult<u64> {
        let mut value = 0_u64;
        // SAFETY: the attributes asked for above are written as 64-bit numbers.
        unsafe { self.api.cuMemPoolGetAttribute(self.raw, attribute, (&raw mut value).cast::<c_void>()) }?;
        Ok(value)
    }
}

impl Drop for AsyncPool {
    fn drop(&mut self) {
        // SAFETY: the handle is not used again. The driver keeps the memory of blocks that are still live.
        if let Err(failure) = unsafe { self.api.cuMemPoolDestroy(self.raw) } {
            tracing::debug!(?failure, "the driver's pool was not destroyed");
        }
    }
}
