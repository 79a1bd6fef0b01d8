//! The driver's own stream-ordered pool, behind `alloc_async`.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys::{CUdevice, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool};

use super::api::Api;
use super::structures::{NO_SHARING, PINNED, location};
use crate::device::{AsyncUsage, DeviceResult};
use crate::log::log;
use crate::system::process::Process;

/// A pool of our own rather than the device's default one: its threshold and its counters are ours alone.
#[derive(Debug)]
pub(super) struct AsyncPool {
    api: &'static Api,
    raw: CUmemoryPool,
    process: Process,
}

// SAFETY: a CUmemoryPool is a handle that any thread may use; the driver locks what needs it.
unsafe impl Send for AsyncPool {}
// SAFETY: as above.
unsafe impl Sync for AsyncPool {}

impl AsyncPool {
    /// Creates a pool that keeps what it has: the release threshold is at its maximum.
    pub(super) fn create(api: &'static Api, device: CUdevice) -> DeviceResult<Self> {
        // SAFETY: all zeros is a valid value of this C structure, and what the driver wants in its reserved
        // part.
        let mut props: CUmemPoolProps = unsafe { std::mem::zeroed() };
        props.allocType = PINNED;
        props.handleTypes = NO_SHARING;
        props.location = location(device);
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable and `props` is readable.
        unsafe { api.cuMemPoolCreate(&mut raw, &props) }?;
        let pool = Self { api, raw, process: Process::here() };
        let mut threshold = u64::MAX;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: this attribute is read as a 64-bit number.
        unsafe { api.cuMemPoolSetAttribute(raw, attribute, (&raw mut threshold).cast::<c_void>()) }?;
        Ok(pool)
    }

    pub(super) fn raw(&self) -> CUmemoryPool {
        self.raw
    }

    /// Gives back everything that no block holds. After a refused allocation: the driver first takes all memory there
    /// is, finds that it is too little, and keeps it (seen with driver 580).
    pub(super) fn trim(&self) {
        // SAFETY: the pool lives.
        if let Err(failure) = unsafe { self.api.cuMemPoolTrimTo(self.raw, 0) } {
            log!(DEBUG, "the driver's pool was not trimmed", failure = format_args!("{failure:?}"));
        }
    }

    pub(super) fn usage(&self) -> DeviceResult<AsyncUsage> {
        use CUmemPool_attribute as A;
        Ok(AsyncUsage {
            reserved: self.bytes(A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            reserved_high: self.bytes(A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            used: self.bytes(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            used_high: self.bytes(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        })
    }

    fn bytes(&self, attribute: CUmemPool_attribute) -> DeviceResult<u64> {
        let mut value = 0_u64;
        // SAFETY: the attributes asked for above are written as 64-bit numbers.
        unsafe { self.api.cuMemPoolGetAttribute(self.raw, attribute, (&raw mut value).cast::<c_void>()) }?;
        Ok(value)
    }
}

impl Drop for AsyncPool {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // The pool is the parent's.
            return;
        }
        // SAFETY: the handle is not used again. The driver keeps the memory of blocks that are still live.
        if let Err(failure) = unsafe { self.api.cuMemPoolDestroy(self.raw) } {
            log!(DEBUG, "the driver's pool was not destroyed", failure = format_args!("{failure:?}"));
        }
    }
}
