//! Memory that no arena manages: reserved addresses, and pages that are mapped there one behind the other.

use std::collections::HashMap;
use std::sync::Arc;

use crate::device::{Device, DeviceError, DevicePtr, DeviceResult, PageHandle};
use crate::log::log;
use crate::system::lock::Mutex;
use crate::system::process::OfProcess;

/// See the [module](self). Dropped, it is closed; nobody may use it any more.
#[derive(Debug)]
pub(crate) struct Mapped {
    device: Arc<dyn Device>,
    /// Reserved addresses; of no bytes once they are given back.
    base: DevicePtr,
    reserved: u64,
    /// Address and length of each page that is mapped.
    pages: Vec<(DevicePtr, u64)>,
}

impl Mapped {
    /// Reserves addresses, whole granules.
    pub(crate) fn reserve(device: &Arc<dyn Device>, bytes: u64) -> DeviceResult<Self> {
        Ok(Self { base: device.reserve(bytes)?, reserved: bytes, device: device.clone(), pages: Vec::new() })
    }

    pub(crate) fn base(&self) -> DevicePtr {
        self.base
    }

    /// Maps a page behind the others, and gives its handle up: the mapping keeps the memory.
    ///
    /// # Safety
    /// The handle is the caller's alone. The page is so long, and there are as many addresses left.
    pub(crate) unsafe fn push(&mut self, page: PageHandle, bytes: u64) -> DeviceResult<()> {
        let at = self.pages.last().map_or(self.base, |(at, bytes)| at.offset(*bytes));
        // SAFETY: the range is reserved, with nothing mapped there. The rest is the caller's promise.
        let mapped = unsafe { self.device.map(at, bytes, page) };
        if mapped.is_ok() {
            self.pages.push((at, bytes));
        }
        // SAFETY: nobody else has the handle.
        let released = unsafe { self.device.release_page(page) };
        mapped.and(released)?;
        // SAFETY: it was mapped above.
        unsafe { self.device.set_access(at, bytes) }
    }

    /// Unmaps all pages, and gives the addresses back. After an error it can be called again.
    ///
    /// # Safety
    /// No pending or later work uses the memory.
    pub(crate) unsafe fn close(&mut self) -> DeviceResult<()> {
        while let Some((at, bytes)) = self.pages.last().copied() {
            // SAFETY: it was mapped by `push`, and nobody uses it.
            unsafe { self.device.unmap(at, bytes) }?;
            self.pages.pop();
        }
        if self.reserved > 0 {
            // SAFETY: it was reserved for this, and nothing is mapped there.
            unsafe { self.device.unreserve(self.base, self.reserved) }?;
            self.reserved = 0;
        }
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody has the addresses: they were never given out, or it was closed before.
        if let Err(error) = unsafe { self.close() } {
            log!(ERROR, "memory could not be unmapped: it stays until this process ends", error);
        }
    }
}

/// Such memory as the segments of a device that lies over another one, by address. Each has something that is let go of after it.
#[derive(Debug)]
pub(crate) struct MappedSegments<T>(OfProcess<Mutex<HashMap<DevicePtr, (Mapped, T)>>>);

impl<T> MappedSegments<T> {
    pub(crate) fn new() -> Self {
        Self(OfProcess::default())
    }

    pub(crate) fn add(&self, at: DevicePtr, segment: (Mapped, T)) {
        self.0.lock().insert(at, segment);
    }

    /// Closes the one that begins here. After an error it can be called again.
    ///
    /// # Safety
    /// No pending or later work uses the memory.
    pub(crate) unsafe fn close(&self, at: DevicePtr) -> DeviceResult<()> {
        let taken = self.0.lock().remove(&at);
        let Some(mut segment) = taken else {
            let what = format!("no segment begins at {at}");
            return Err(DeviceError::Invalid { call: "free_segment", what });
        };
        // SAFETY: the caller's promise.
        let closed = unsafe { segment.0.close() };
        if closed.is_err() {
            self.add(at, segment);
        }
        closed
    }
}
