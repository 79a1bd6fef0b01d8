//! cudarc's record of who reads and writes a block: a slice that owns nothing, for the events in it.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use rustc_hash::FxHashMap;

use super::refused;
use crate::device::{DevicePtr, DeviceResult};
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// Uses kept per stream; those of further addresses are dropped.
const MOST_KEPT: usize = 4096;

/// A slice over a block that belongs to the pool, never to the slice.
#[derive(Debug)]
pub(super) struct Uses {
    slice: ManuallyDrop<CudaSlice<u8>>,
    /// Whether the slice has events.
    tracked: bool,
}

impl Uses {
    /// For a block of `bytes` at `ptr`; creates two events where cudarc's context tracks uses.
    ///
    /// # Safety
    /// The block is live for work on `stream`, and holds `bytes`, as long as the slice is used.
    unsafe fn new(ptr: DevicePtr, bytes: usize, stream: &Arc<CudaStream>) -> DeviceResult<Self> {
        // An error that cudarc noted earlier comes out here, instead of as a panic below.
        stream.context().bind_to_thread().map_err(refused("CudaContext::bind_to_thread"))?;
        let tracked = stream.context().is_event_tracking();
        // SAFETY: the caller's promise; any byte is a `u8`.
        let slice = unsafe { stream.upgrade_device_ptr(ptr.raw(), bytes) };
        Ok(Self { slice: ManuallyDrop::new(slice), tracked })
    }
}

impl Deref for Uses {
    type Target = CudaSlice<u8>;

    #[inline(always)]
    fn deref(&self) -> &CudaSlice<u8> {
        &self.slice
    }
}

impl DerefMut for Uses {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut CudaSlice<u8> {
        &mut self.slice
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        // SAFETY: nobody has the slice after this.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // Destroys the events and leaves the memory, which dropping the slice would free.
        slice.leak();
    }
}

/// The uses of blocks that were freed, by address. A pool hands out the same addresses again and again. To create and
/// destroy two events costs many times what a pair of the pool's costs.
#[derive(Debug, Default)]
pub(super) struct KeptUses {
    by_address: OfProcess<Mutex<FxHashMap<DevicePtr, Uses>>>,
}

impl KeptUses {
    /// Those that were kept for the block, or new ones.
    ///
    /// # Safety
    /// As for [`Uses::new`], and these are the uses kept for this stream.
    pub(super) unsafe fn take(
        &self,
        ptr: DevicePtr,
        bytes: usize,
        stream: &Arc<CudaStream>,
    ) -> DeviceResult<Uses> {
        if stream.context().is_event_tracking() {
            // A statement: those of a shorter block go without the lock.
            let kept = self.by_address.lock().remove(&ptr);
            if let Some(kept) = kept.filter(|kept| kept.len() >= bytes) {
                return Ok(kept);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { Uses::new(ptr, bytes, stream) }
    }

    /// Keeps the uses of a block that is about to be freed and whose stream has waited for them.
    pub(super) fn keep(&self, ptr: DevicePtr, uses: Uses) {
        if !uses.tracked || ptr.is_null() {
            return;
        }
        let mut by_address = self.by_address.lock();
        let replaced = if by_address.len() < MOST_KEPT { by_address.insert(ptr, uses) } else { Some(uses) };
        drop(by_address);
        // Here, not under the lock: it makes device calls.
        drop(replaced);
    }
}
