//! Page-locked memory of the host, as a device over the GPU that reaches it.
//!
//! Pages are `cuMemCreate`'s with the location of a NUMA node, mapped with access for the GPU and for the host. Drivers
//! before CUDA 12.9 have none. Segments are memory of the process that is registered with the driver (`cuMemHostRegister`):
//! ready five times as fast as what `cuMemHostAlloc` returns, since several threads touch it. Streams, events and copies are
//! the GPU's: with unified addressing, it uses the host's addresses as its own.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::CUmemAllocationGranularity_flags;
use rustix::io::Errno;

use super::device::{CudaDevice, attribute_if_known};
use super::host_ranges;
use super::structures::{Access, HostPageProps, Location};
use crate::device::error::system;
use crate::device::populated::Populated;
use crate::device::{
    Device, DeviceError, DevicePtr, DeviceResult, DriverPool, Forward, MemoryInfo, MemoryKind, PageHandle,
    PeerId, PeerSet, Properties, machine,
};
use crate::system::lock::Mutex;

/// `CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID`: the NUMA node near the GPU, or -1 where the system has none.
const HOST_NUMA_ID: c_int = 134;
/// `CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`, since CUDA 12.9.
const HOST_NUMA_PAGES: c_int = 141;

/// `CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`: the GPU uses the host's addresses.
const USES_HOST_ADDRESSES: c_int = 91;

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for every context of the process.
const PORTABLE: c_uint = 1;

/// What `granularity` says where there are only segments.
const GRANULARITY_WITHOUT_PAGES: u64 = 2 << 20;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct CudaPinned {
    gpu: CudaDevice,
    properties: Properties,
    /// Where pages lie; `None` where there are only segments.
    pages: Option<Location>,
    /// The node that was asked for. Segments lie there.
    node: Option<u32>,
    segments: Mutex<HashMap<DevicePtr, Populated>>,
}

impl CudaPinned {
    /// The memory of a node, or of the one near the GPU.
    pub(super) fn new(gpu: &CudaDevice, node: Option<u32>) -> DeviceResult<Self> {
        if node.is_some_and(|node| !machine::has_node(node)) {
            return Err(
                gpu.unsupported("a NUMA node of this number: /sys/devices/system/node lists the machine's")
            );
        }
        let known = |what| attribute_if_known(gpu.api(), gpu.raw_device(), what);
        if known(USES_HOST_ADDRESSES) != Some(1) {
            return Err(gpu.unsupported("pinned memory at the host's own addresses"));
        }
        let near = match node {
            Some(node) => c_int::try_from(node).ok(),
            None => known(HOST_NUMA_ID).filter(|node| *node >= 0),
        };
        let has_pages =
            gpu.may_have_pages() && known(HOST_NUMA_PAGES).is_some_and(|supported| supported != 0);
        let pages = near.filter(|_| has_pages).map(Location::of_node);
        let granularity = match pages {
            Some(location) => granularity(gpu, location)?,
            None => GRANULARITY_WITHOUT_PAGES,
        };
        let properties = Properties {
            total_memory: machine::memory().total,
            granularity,
            virtual_memory: pages.is_some(),
            memory_pools: false,
            memory: MemoryKind::Pinned,
            host_access: true,
            ..gpu.properties().clone()
        };
        Ok(Self { gpu: gpu.share(), properties, pages, node, segments: Mutex::default() })
    }

    fn location(&self) -> DeviceResult<Location> {
        self.pages.ok_or_else(|| self.gpu.unsupported("pages of pinned host memory (cuMemCreate)"))
    }

    /// Refuses more than the machine has free: the system would end processes to make room, and not refuse.
    fn check_free(&self, call: &'static str, bytes: u64) -> DeviceResult<()> {
        if bytes <= machine::memory().free {
            return Ok(());
        }
        Err(DeviceError::OutOfMemory { call, requested: bytes })
    }
}

/// The smallest page of such memory.
fn granularity(gpu: &CudaDevice, location: Location) -> DeviceResult<u64> {
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let props = HostPageProps::of(location);
    let mut bytes = 0_usize;
    // SAFETY: `bytes` is writable and the properties are readable.
    unsafe { gpu.api().cuMemGetAllocationGranularity(&mut bytes, props.as_raw(), minimum) }?;
    Ok(bytes as u64)
}

// SAFETY: memory is the driver's, as for `CudaDevice`. All else is the GPU's.
unsafe impl Forward for CudaPinned {
    fn below(&self) -> &dyn Device {
        &self.gpu
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        Ok(machine::memory())
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let _relaxed = self.gpu.relax()?;
        self.location()?;
        let mut at = 0;
        // SAFETY: `at` is writable. An alignment of 0 is the granularity.
        unsafe { self.gpu.api().cuMemAddressReserve(&mut at, bytes as usize, 0, 0, 0) }
            .map_err(|failure| failure.described())?;
        host_ranges::add(DevicePtr::new(at), bytes);
        Ok(DevicePtr::new(at))
    }

    unsafe fn unreserve(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        // Before: another thread may get the same addresses next.
        host_ranges::remove(at);
        // SAFETY: the caller's promise.
        unsafe { self.gpu.unreserve(at, bytes) }.inspect_err(|_| host_ranges::add(at, bytes))
    }

    fn create_page(&self, bytes: u64) -> DeviceResult<PageHandle> {
        let _relaxed = self.gpu.relax()?;
        let props = HostPageProps::of(self.location()?);
        self.check_free("cuMemCreate", bytes)?;
        let mut page = 0;
        // SAFETY: `page` is writable and the properties are readable.
        unsafe { self.gpu.api().cuMemCreate(&mut page, bytes as usize, props.as_raw(), 0) }
            .map_err(|failure| failure.asking(bytes))?;
        // SAFETY: a handle of this device, fresh.
        Ok(unsafe { PageHandle::from_raw(page) })
    }

    unsafe fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let _relaxed = self.gpu.relax()?;
        let access = [Location::of(self.gpu.raw_device()), self.location()?].map(Access::from);
        let (list, count) = Access::list(&access);
        // SAFETY: the caller's promise: a mapping of its own. The list is readable.
        unsafe { self.gpu.api().cuMemSetAccess(at.raw(), bytes as usize, list, count) }
            .map_err(|failure| failure.asking(bytes))
    }

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        const CALL: &str = "cuMemHostRegister";
        let _relaxed = self.gpu.relax()?;
        self.check_free(CALL, bytes)?;
        let memory = Populated::map(bytes as usize, self.node).map_err(|error| match error {
            Errno::NOMEM => DeviceError::OutOfMemory { call: "mmap", requested: bytes },
            error => system("mmap")(error),
        })?;
        let registered = self.gpu.enter().and_then(|_entered| {
            // SAFETY: the mapping is ours, and stays until `free_segment`.
            unsafe { self.gpu.api().cuMemHostRegister_v2(memory.start(), memory.bytes(), PORTABLE) }
                .map_err(|failure| failure.asking(bytes))
        });
        if let Err(error) = registered {
            // SAFETY: nobody knows it.
            unsafe { memory.unmap() }.map_err(system("munmap"))?;
            return Err(error);
        }
        let at = DevicePtr::new(memory.start().expose_provenance() as u64);
        self.segments.lock().insert(at, memory);
        host_ranges::add(at, bytes);
        Ok(at)
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        let _relaxed = self.gpu.relax()?;
        // The driver waits for running work, but is not documented to wait for all.
        self.gpu.synchronize()?;
        // The registration ended with the context.
        let entered = if self.gpu.has_ended() { None } else { Some(self.gpu.enter()?) };
        let mut segments = self.segments.lock();
        let Some(memory) = segments.get(&at).copied() else {
            return Err(self.gpu.unsupported("freeing a segment that is not the device's"));
        };
        if entered.is_some() {
            // SAFETY: the caller's promise: a segment that is not used again.
            unsafe { self.gpu.api().cuMemHostUnregister(memory.start()) }?;
        }
        segments.remove(&at);
        host_ranges::remove(at);
        drop(entered);
        // SAFETY: likewise, and the driver has let go of it.
        unsafe { memory.unmap() }.map_err(system("munmap"))
    }

    fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
        Err(self.gpu.unsupported("stream-ordered pools of pinned memory"))
    }

    /// Every GPU reaches the host's memory.
    fn can_be_reached_from(&self, _peer: PeerId) -> DeviceResult<bool> {
        Ok(true)
    }

    unsafe fn set_peer_access(
        &self,
        at: DevicePtr,
        bytes: u64,
        peers: PeerSet,
        allowed: bool,
    ) -> DeviceResult<()> {
        if self.segments.lock().contains_key(&at) {
            // Registered for every GPU.
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.gpu.set_peer_access(at, bytes, peers, allowed) }
    }
}
