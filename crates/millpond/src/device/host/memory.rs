//! Memory: one sparse memfd whose ranges are the pages, mapped into reserved ranges; and anonymous segments.
//!
//! A page is a new range of the file, so creating one only grows the file. When it is released, a hole is punched, and
//! its memory is the system's again.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::OwnedFd;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::exports;
use super::stream::{Moment, Stream};
use crate::device::driver_pool::{CHUNK, DriverPoolModel};
use crate::device::error::system;
use crate::device::hints::Hints;
use crate::device::inventory::{Extent, Inventory, Owner};
use crate::device::{
    Advice, AsyncUsage, DeviceError, DevicePtr, DeviceResult, MemoryInfo, PageExport, PageHandle, PeerId,
    PeerSet, Residency, sealed,
};
use crate::system::lock::Mutex;
use crate::system::process::{OfProcess, Process};
use std::sync::Arc;

/// The memory of one device. Unmaps all that is left when dropped.
#[derive(Debug)]
pub(super) struct Memory {
    file: OwnedFd,
    granularity: u64,
    process: Process,
    state: OfProcess<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    inventory: Inventory,
    /// Bytes of the file.
    length: u64,
    driver_pool: DriverPoolModel<Moment>,
    hints: Hints,
    /// By page: where a page of another process lies.
    imported: HashMap<PageHandle, PageExport>,
}

impl Memory {
    pub(super) fn new(granularity: u64, capacity: u64) -> DeviceResult<Self> {
        Ok(Self {
            file: sealed::create("millpond", 0)?,
            granularity,
            process: Process::here(),
            state: OfProcess::new(Mutex::new(State {
                inventory: Inventory::new(granularity, capacity),
                length: 0,
                driver_pool: DriverPoolModel::new(),
                hints: Hints::default(),
                imported: HashMap::new(),
            })),
        })
    }

    pub(super) fn info(&self) -> MemoryInfo {
        self.state.lock().inventory.memory_info()
    }

    /// Whether the device may use the range, or another one.
    pub(super) fn check_access(
        &self,
        call: &'static str,
        at: DevicePtr,
        bytes: u64,
        peer: Option<PeerId>,
    ) -> DeviceResult<()> {
        self.state.lock().inventory.check_access_by(call, at, bytes, peer)
    }

    /// Lets other devices use a mapping or the segments, or no longer.
    pub(super) fn set_peer_access(
        &self,
        at: DevicePtr,
        bytes: u64,
        peers: PeerSet,
        allowed: bool,
    ) -> DeviceResult<()> {
        self.state.lock().inventory.set_peer_access(at, bytes, peers, allowed)
    }

    /// Lets every device use the segments.
    pub(super) fn share_segments(&self) {
        self.state.lock().inventory.share_segments(PeerSet::ALL);
    }

    // ---- addresses and pages ---------------------------------------------------------------------

    pub(super) fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut state = self.state.lock();
        state.inventory.check_size("reserve", bytes)?;
        let at = reserve_aligned(bytes, self.granularity)?;
        state.inventory.reserve(at, bytes);
        Ok(at)
    }

    /// # Safety
    /// As [`Device::unreserve`](crate::device::Device::unreserve).
    pub(super) unsafe fn unreserve(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.state.lock();
        state.inventory.check_unreserve(at, bytes)?;
        // SAFETY: the inventory knows the range as reserved by us with nothing mapped in it.
        unsafe { unmap(at, bytes) }?;
        state.inventory.unreserve(at, bytes)
    }

    pub(super) fn create_page(&self, bytes: u64) -> DeviceResult<PageHandle> {
        let mut state = self.state.lock();
        let (page, extent) = state.inventory.create_page(bytes)?;
        let end = extent.offset + extent.bytes;
        if end > state.length {
            if let Err(error) = sealed::lengthen(&self.file, end)
                // Others who have the file may have made it longer, and nobody can shorten it.
                && !sealed::length(&self.file).is_ok_and(|length| length >= end)
            {
                state.inventory.release_page(page)?;
                return Err(error);
            }
            state.length = end;
        }
        Ok(page)
    }

    pub(super) fn map(&self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<()> {
        let mut state = self.state.lock();
        let extent = state.inventory.map(at, bytes, page)?;
        let (file, offset) = match state.imported.get(&page) {
            Some(imported) => (&imported.descriptor, imported.position),
            None => (&self.file, extent.offset),
        };
        // SAFETY: the inventory knows the range as reserved by us with nothing mapped in it.
        let mapped = unsafe {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            rustix::mm::mmap(pointer(at), size(bytes), ProtFlags::empty(), flags, file, offset)
        };
        if let Err(error) = mapped {
            state.inventory.unmap(at, bytes)?;
            return Err(mapping_failed(error));
        }
        Ok(())
    }

    pub(super) fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.state.lock();
        state.inventory.check_set_access(at, bytes)?;
        // SAFETY: the inventory knows the range as pages mapped by us.
        unsafe { rustix::mm::mprotect(pointer(at), size(bytes), MprotectFlags::READ | MprotectFlags::WRITE) }
            .map_err(system("mprotect"))?;
        state.inventory.set_access(at, bytes, |_| {})
    }

    /// # Safety
    /// As [`Device::unmap`](crate::device::Device::unmap).
    pub(super) unsafe fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.state.lock();
        state.inventory.check_unmap(at, bytes)?;
        // SAFETY: the inventory knows the range as a page mapped by us, which the caller says is out of use.
        // The range stays reserved: no other mmap of the process can get into it.
        unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(pointer(at), size(bytes), ProtFlags::empty(), flags)
        }
        .map_err(mapping_failed)?;
        match state.inventory.unmap(at, bytes)? {
            Some(extent) => self.punch_hole(extent),
            None => Ok(()),
        }
    }

    pub(super) fn release_page(&self, page: PageHandle) -> DeviceResult<()> {
        let mut state = self.state.lock();
        let released = state.inventory.release_page(page)?;
        // What is mapped of it stays.
        state.imported.remove(&page);
        match released {
            Some(extent) => self.punch_hole(extent),
            None => Ok(()),
        }
    }

    // ---- other processes -------------------------------------------------------------------------

    pub(super) fn export_page(&self, page: PageHandle) -> DeviceResult<PageExport> {
        let state = self.state.lock();
        let (file, position) = match state.inventory.page_extent("export_page", page)? {
            Some(extent) => (&self.file, extent.offset),
            None => {
                let imported = &state.imported[&page];
                (&imported.descriptor, imported.position)
            }
        };
        Ok(PageExport { descriptor: exports::reopen(file)?, position })
    }

    pub(super) fn import_page(&self, from: PageExport, bytes: u64) -> DeviceResult<PageHandle> {
        let mut state = self.state.lock();
        state.inventory.check_size("import_page", bytes)?;
        exports::check_page(&from, bytes)?;
        let page = state.inventory.import_page(bytes)?;
        state.imported.insert(page, from);
        Ok(page)
    }

    fn punch_hole(&self, extent: Extent) -> DeviceResult<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, extent.offset, extent.bytes).map_err(system("fallocate"))
    }

    /// Bytes of the file that the system keeps memory for.
    #[cfg(test)]
    pub(super) fn resident(&self) -> u64 {
        let blocks = rustix::fs::fstat(&self.file).expect("a memfd can be asked").st_blocks;
        blocks as u64 * 512
    }

    // ---- segments --------------------------------------------------------------------------------

    pub(super) fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let (at, _) = self.state.lock().alloc_segment("alloc_segment", bytes, Owner::Program)?;
        Ok(at)
    }

    pub(super) fn check_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        self.state.lock().inventory.check_segment("free_segment", at).map(drop)
    }

    /// # Safety
    /// As [`Device::free_segment`](crate::device::Device::free_segment), and no pending work uses it.
    pub(super) unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        let bytes = {
            let mut state = self.state.lock();
            let bytes = state.inventory.remove_segment("free_segment", at)?;
            state.hints.forget(at, bytes);
            bytes
        };
        // SAFETY: the inventory knew the segment as ours, and knows it no more.
        unsafe { unmap(at, bytes) }
    }

    // ---- where managed memory lies ---------------------------------------------------------------

    pub(super) fn set_hints(&self, at: DevicePtr, bytes: u64, change: impl Fn(&mut Residency)) {
        let mut state = self.state.lock();
        // A prefetch may come late, when the memory is gone.
        if state.inventory.check_access("prefetch", at, bytes).is_ok() {
            state.hints.set(at, bytes, change);
        }
    }

    pub(super) fn advise(&self, at: DevicePtr, bytes: u64, advice: Advice) {
        self.state.lock().hints.advise(at, bytes, advice);
    }

    pub(super) fn residency(&self, at: DevicePtr, bytes: u64) -> Residency {
        self.state.lock().hints.of(at, bytes)
    }

    /// A block of the driver's pool for `stream`.
    pub(super) fn alloc_async(&self, bytes: u64, stream: &Arc<Stream>) -> DeviceResult<DevicePtr> {
        const CALL: &str = "alloc_async";
        let mut state = self.state.lock();
        let Some(block) = DriverPoolModel::<Moment>::block_size(bytes) else {
            return Err(DeviceError::OutOfMemory { call: CALL, requested: bytes });
        };
        let now = stream.now();
        let passed = |fence: &Moment| fence.stream_id() == stream.id() || fence.is_reached();
        if let Some(at) = state.driver_pool.alloc(block, passed) {
            return Ok(at);
        }
        let (at, length) = match state.alloc_segment(CALL, block.next_multiple_of(CHUNK), Owner::DriverPool) {
            Err(DeviceError::OutOfMemory { .. }) => state.alloc_segment(CALL, block, Owner::DriverPool)?,
            other => other?,
        };
        state.driver_pool.grow(at, length, now);
        let block = state.driver_pool.alloc(block, passed);
        Ok(block.expect("the chunk just added is large enough, and its fence names this stream"))
    }

    pub(super) fn free_async(&self, at: DevicePtr, stream: &Arc<Stream>) -> DeviceResult<()> {
        let covered = |fence: &Moment| fence.stream_id() == stream.id() || fence.is_reached();
        self.state.lock().driver_pool.free(at, stream.now(), covered)
    }

    pub(super) fn async_usage(&self) -> AsyncUsage {
        self.state.lock().driver_pool.usage()
    }
}

impl State {
    fn alloc_segment(
        &mut self,
        call: &'static str,
        bytes: u64,
        owner: Owner,
    ) -> DeviceResult<(DevicePtr, u64)> {
        let bytes = self.inventory.take_segment(call, bytes)?;
        // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
        let mapped = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size(bytes), access, flags)
        };
        match mapped {
            Ok(pointer) => {
                let at = DevicePtr::new(pointer.expose_provenance() as u64);
                self.inventory.add_segment(at, bytes, owner);
                Ok((at, bytes))
            }
            Err(error) => {
                self.inventory.give_back(bytes);
                Err(match error {
                    Errno::NOMEM => DeviceError::OutOfMemory { call, requested: bytes },
                    _ => system("mmap")(error),
                })
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // Other objects of the parent may still name the addresses. The system takes them with the process.
            return;
        }
        let inventory = &self.state.get_mut().inventory;
        for (at, bytes) in inventory.reservations().chain(inventory.segments()) {
            // SAFETY: the inventory knows the range as ours. The device and its streams' threads are gone, so
            // nobody uses it.
            let unmapped = unsafe { unmap(at, bytes) };
            debug_assert_eq!(unmapped, Ok(()), "{at} and {bytes} bytes on");
        }
    }
}

/// Reserves address space aligned to `alignment`, a power of two no smaller than a page of the system.
fn reserve_aligned(bytes: u64, alignment: u64) -> DeviceResult<DevicePtr> {
    let Some(padded) = bytes.checked_add(alignment).filter(|&padded| usize::try_from(padded).is_ok()) else {
        return Err(DeviceError::OutOfMemory { call: "reserve", requested: bytes });
    };
    // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
    let start = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), size(padded), ProtFlags::empty(), flags)
    };
    let start = match start {
        Ok(pointer) => pointer.expose_provenance() as u64,
        Err(Errno::NOMEM) => return Err(DeviceError::OutOfMemory { call: "reserve", requested: bytes }),
        Err(error) => return Err(system("mmap")(error)),
    };
    let at = start.next_multiple_of(alignment);
    let (before, after) = (at - start, start + padded - (at + bytes));
    // SAFETY: both ranges are parts of the mapping just made that are not handed out.
    unsafe {
        if before > 0 {
            unmap(DevicePtr::new(start), before)?;
        }
        if after > 0 {
            unmap(DevicePtr::new(at + bytes), after)?;
        }
    }
    Ok(DevicePtr::new(at))
}

/// # Safety
/// The range was mapped by us and is not used again.
unsafe fn unmap(at: DevicePtr, bytes: u64) -> DeviceResult<()> {
    // SAFETY: as this function's.
    unsafe { rustix::mm::munmap(pointer(at), size(bytes)) }.map_err(system("munmap"))
}

fn pointer(at: DevicePtr) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(size(at.raw()))
}

/// The device's sizes and addresses are the host's: they fit.
fn size(bytes: u64) -> usize {
    bytes as usize
}

/// Each page mapped is a mapping of the process, of which there are 65,530 by default.
fn mapping_failed(error: Errno) -> DeviceError {
    let mut failed = system("mmap")(error);
    if let (Errno::NOMEM, DeviceError::Driver { text, .. }) = (error, &mut failed) {
        text.push_str(
            "; the process may have too many mappings: use larger pages, or raise vm.max_map_count",
        );
    }
    failed
}
