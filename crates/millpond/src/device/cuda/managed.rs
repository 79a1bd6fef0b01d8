//! Managed memory, as a device over the GPU; and where such memory lies.
//!
//! Memory comes in segments of `cuMemAllocManaged`, for every stream of the process. Streams, events and copies are the GPU's.
//! Newer drivers take a place as `CUmemLocation`; older ones take a device's number, or one for the host.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute};

use super::api::Failure;
use super::device::{CudaDevice, attribute, stream_of};
use super::structures::Location;
use crate::device::{
    Advice, Device, DevicePtr, DeviceResult, DriverPool, Forward, MemoryInfo, MemoryKind, PageHandle, PeerId,
    PeerSet, Place, Properties, Residency, StreamHandle,
};

/// `CU_MEM_ATTACH_GLOBAL`: every stream may use the memory.
const GLOBAL: c_uint = 1;

/// What `granularity` says: a driver moves that much at once, at most.
const GRANULARITY: u64 = 2 << 20;

/// `CU_DEVICE_CPU`: the host, where a device's number is asked for.
const HOST: c_int = -1;

/// Of `CUmem_range_attribute`. The second and the third are a device's number, or [`HOST`], or another for none.
const READ_MOSTLY: c_int = 1;
const PREFERRED_LOCATION: c_int = 2;
const LAST_PREFETCH_LOCATION: c_int = 4;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct CudaManaged {
    gpu: CudaDevice,
    properties: Properties,
}

impl CudaManaged {
    /// The managed memory of a GPU.
    ///
    /// # Errors
    /// Unsupported where the CPU may not use it while the GPU works.
    pub(super) fn new(gpu: &CudaDevice) -> DeviceResult<Self> {
        let concurrent = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        if attribute(gpu.api(), gpu.raw_device(), concurrent)? == 0 {
            let what = "managed memory that the CPU may use while the GPU works (concurrentManagedAccess): use pinned memory";
            return Err(gpu.unsupported(what));
        }
        let properties = Properties {
            granularity: GRANULARITY,
            virtual_memory: false,
            memory_pools: false,
            memory: MemoryKind::Managed,
            host_access: true,
            ..gpu.properties().clone()
        };
        Ok(Self { gpu: gpu.share(), properties })
    }
}

// SAFETY: memory is the driver's, as for `CudaDevice`. All else is the GPU's.
unsafe impl Forward for CudaManaged {
    fn below(&self) -> &dyn Device {
        &self.gpu
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        Ok(self.gpu.managed.left(self.gpu.memory_info()?))
    }

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let free = self.gpu.memory_info()?.free;
        let _relaxed = self.gpu.relax()?;
        let _entered = self.gpu.enter()?;
        self.gpu.managed.take(bytes, free, || {
            let mut at = 0;
            // SAFETY: `at` is writable.
            unsafe { self.gpu.api().cuMemAllocManaged(&mut at, bytes as usize, GLOBAL) }
                .map_err(|failure| failure.asking(bytes))?;
            Ok(DevicePtr::new(at))
        })
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        // The driver is not documented to wait for all work.
        self.gpu.synchronize()?;
        // SAFETY: the caller's promise: a segment that is not used again. `cuMemFree` is for managed memory, too.
        self.gpu.managed.give_back(at, || unsafe { self.gpu.free_segment(at) })
    }

    /// The pages of managed memory are the driver's.
    fn reserve(&self, _bytes: u64) -> DeviceResult<DevicePtr> {
        Err(self.gpu.unsupported("pages of managed memory"))
    }

    fn create_page(&self, _bytes: u64) -> DeviceResult<PageHandle> {
        Err(self.gpu.unsupported("pages of managed memory"))
    }

    fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
        Err(self.gpu.unsupported("stream-ordered pools of managed memory"))
    }

    /// Such memory moves to whichever GPU uses it.
    fn can_be_reached_from(&self, _peer: PeerId) -> DeviceResult<bool> {
        Ok(true)
    }

    unsafe fn set_peer_access(
        &self,
        _at: DevicePtr,
        _bytes: u64,
        _peers: PeerSet,
        _allowed: bool,
    ) -> DeviceResult<()> {
        Ok(())
    }
}

// ---- where it lies -----------------------------------------------------------------------------------

/// See [`Device::prefetch`].
///
/// # Safety
/// As there.
pub(super) unsafe fn prefetch(
    gpu: &CudaDevice,
    at: DevicePtr,
    bytes: u64,
    to: Place,
    stream: StreamHandle,
) -> DeviceResult<()> {
    if bytes == 0 {
        return Ok(());
    }
    let _relaxed = gpu.relax()?;
    let _entered = gpu.enter()?;
    let (api, at, bytes, stream) = (gpu.api(), at.raw(), bytes as usize, stream_of(stream));
    // SAFETY: the caller's promise: the stream lives. Ranges of other memory are refused.
    let newer = unsafe { api.cuMemPrefetchAsync_v2(at, bytes, location(gpu, to), 0, stream) };
    // SAFETY: as above.
    let done = newer.or_else(|| unsafe { api.cuMemPrefetchAsync(at, bytes, number(gpu, to), stream) });
    known(gpu, done)
}

/// See [`Device::advise`].
pub(super) fn advise(gpu: &CudaDevice, at: DevicePtr, bytes: u64, advice: Advice) -> DeviceResult<()> {
    if bytes == 0 {
        return Ok(());
    }
    // Of `CUmem_advise`. Some need no place, and any will do.
    let (code, place) = match advice {
        Advice::ReadMostly(true) => (1, Place::Device),
        Advice::ReadMostly(false) => (2, Place::Device),
        Advice::PreferredLocation(Some(place)) => (3, place),
        Advice::PreferredLocation(None) => (4, Place::Device),
        Advice::AccessedBy(place, true) => (5, place),
        Advice::AccessedBy(place, false) => (6, place),
    };
    let _relaxed = gpu.relax()?;
    let _entered = gpu.enter()?;
    let (api, at, bytes) = (gpu.api(), at.raw(), bytes as usize);
    // SAFETY: ranges of other memory are refused, and no byte changes.
    let newer = unsafe { api.cuMemAdvise_v2(at, bytes, code, location(gpu, place)) };
    // SAFETY: as above.
    let done = newer.or_else(|| unsafe { api.cuMemAdvise(at, bytes, code, number(gpu, place)) });
    known(gpu, done)
}

/// See [`Device::residency`].
pub(super) fn residency(gpu: &CudaDevice, at: DevicePtr, bytes: u64) -> DeviceResult<Residency> {
    let _relaxed = gpu.relax()?;
    let _entered = gpu.enter()?;
    let ask = |attribute| {
        let mut value: c_int = 0;
        let to = (&raw mut value).cast();
        // SAFETY: the value of each attribute asked for is a number of this size. The range is only looked up.
        unsafe {
            gpu.api().cuMemRangeGetAttribute(to, size_of::<c_int>(), attribute, at.raw(), bytes as usize)
        }?;
        Ok::<_, Failure>(value)
    };
    let place = |value| match value {
        HOST => Some(Place::Host),
        value if value == gpu.raw_device() => Some(Place::Device),
        _ => None,
    };
    Ok(Residency {
        last_prefetch: place(ask(LAST_PREFETCH_LOCATION)?),
        read_mostly: ask(READ_MOSTLY)? != 0,
        preferred: place(ask(PREFERRED_LOCATION)?),
    })
}

fn location(gpu: &CudaDevice, place: Place) -> Location {
    match place {
        Place::Device => Location::of(gpu.raw_device()),
        Place::Host => Location::of_host(),
    }
}

fn number(gpu: &CudaDevice, place: Place) -> CUdevice {
    match place {
        Place::Device => gpu.raw_device(),
        Place::Host => HOST,
    }
}

/// What a driver said, if it has the function in either form.
fn known(gpu: &CudaDevice, done: Option<Result<(), Failure>>) -> DeviceResult<()> {
    match done {
        Some(done) => Ok(done?),
        None => Err(gpu.unsupported("prefetches of managed memory, and advice on it")),
    }
}
