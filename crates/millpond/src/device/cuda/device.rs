//! [`CudaDevice`]: opening a GPU, its properties and facts.

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUmemAllocationGranularity_flags, CUstream,
};

use super::api::{Api, Failure};
use super::async_pool::AsyncPool;
use super::capture_mode::Relaxed;
use super::checked;
use super::compare::Comparing;
use super::context::{Context, Entered};
use super::driver;
use super::page_extras::PageExtrasInUse;
use super::peers::{self, Peers};
use super::structures::{PageExtras, page_props};
use super::taken::Taken;
use crate::device::{DeviceError, DevicePtr, DeviceResult, Kind, MemoryKind, Properties, StreamHandle};
use crate::system::lock::Mutex;

/// What `granularity` says where the driver has no virtual memory management: the size that its own
/// allocators grow by.
const GRANULARITY_WITHOUT_PAGES: u64 = 2 << 20;

/// How to open a GPU. The [module](super) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[must_use = "options do nothing until a GPU is opened with them"]
pub struct CudaOptions {
    /// Whether to use virtual memory management. `None` uses it where the GPU has it, but not under compute-sanitizer, which
    /// checks blocks of segments only. With `Some(false)`, a pool uses segments. `Some(true)` refuses to open a GPU without
    /// it.
    pub virtual_memory: Option<bool>,
}

impl CudaOptions {
    /// As [`virtual_memory`](field@Self::virtual_memory).
    pub fn virtual_memory(mut self, virtual_memory: impl Into<Option<bool>>) -> Self {
        self.virtual_memory = virtual_memory.into();
        self
    }
}

/// What is worth knowing of a GPU beside its [`Properties`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaFacts {
    /// The compute capability, major and minor, as (9, 0).
    pub compute_capability: (u32, u32),
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// Its address on the bus, as "0000:1b:00.0".
    pub pci_bus_id: String,
    /// The ordinals of the GPUs whose memory it can reach directly.
    pub peers: Vec<usize>,
}

/// One NVIDIA GPU. The [module](super) has an example, and says how it treats contexts.
///
/// It keeps the primary context alive. Give back its streams, events and memory before you drop it. The last user of a
/// primary context destroys it with all its contents.
pub struct CudaDevice {
    properties: Properties,
    api: &'static Api,
    raw: CUdevice,
    // Before `context`: fields are dropped in order, and the pool needs the context.
    async_pool: OnceLock<AsyncPool>,
    comparing: OnceLock<Comparing>,
    context: Arc<Context>,
    pub(super) peers: Arc<Peers>,
    pub(super) copies_read_host_pages: bool,
    pub(super) page_extras: Arc<PageExtrasInUse>,
    /// Held while a page is made, mapped, unmapped, released, or given to devices. Two pools may have mappings of one page. Where
    /// both changed theirs at once, on two threads, `cuMemMap` failed now and then (driver 580, docs/lab/sleep.md).
    pub(super) mappings: Arc<Mutex<()>>,
    /// The segments that were taken. A peer reaches them in another way than pages.
    pub(super) segments: Arc<Mutex<HashSet<DevicePtr>>>,
    /// The managed memory that was taken.
    pub(super) managed: Arc<Taken>,
    /// Whether the GPU may have pages; else it is opened as one without.
    options: CudaOptions,
}

impl CudaDevice {
    /// How many GPUs the driver shows to this process. Starts the driver if need be.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where there is no driver, an old one or no GPU, with what to do about it.
    pub fn count() -> DeviceResult<usize> {
        driver::device_count(driver::started()?)
    }

    /// Opens the GPU with this number.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] as for [`count`](Self::count), and where there is no such GPU.
    pub fn new(ordinal: usize) -> DeviceResult<Arc<Self>> {
        Self::with_options(ordinal, CudaOptions::default())
    }

    /// Opens the GPU with this number in a chosen way.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and [`DeviceError::Unsupported`] where an option asks for what the GPU or its
    /// driver does not have.
    pub fn with_options(ordinal: usize, options: CudaOptions) -> DeviceResult<Arc<Self>> {
        let api = driver::started()?;
        let raw = find(api, ordinal)?;
        let context = Arc::new(Context::retain(api, raw)?);
        let properties = properties(api, raw, ordinal, options)?;
        let host_tables =
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
        let copies_read_host_pages = attribute(api, raw, host_tables)? != 0;
        let peers = Peers::new(api, &context);
        Ok(Arc::new(Self {
            properties,
            api,
            raw,
            async_pool: OnceLock::new(),
            comparing: OnceLock::new(),
            context,
            peers,
            copies_read_host_pages,
            page_extras: Arc::new(PageExtrasInUse::new(page_extras(api, raw))),
            mappings: Arc::default(),
            segments: Arc::default(),
            managed: Arc::default(),
            options,
        }))
    }

    /// The same GPU as another object, for a device over it: the context and the peers are shared.
    pub(super) fn share(&self) -> Self {
        Self {
            properties: self.properties.clone(),
            api: self.api,
            raw: self.raw,
            async_pool: OnceLock::new(),
            comparing: OnceLock::new(),
            context: Arc::clone(&self.context),
            peers: Arc::clone(&self.peers),
            copies_read_host_pages: self.copies_read_host_pages,
            page_extras: Arc::clone(&self.page_extras),
            mappings: Arc::clone(&self.mappings),
            segments: Arc::clone(&self.segments),
            managed: Arc::clone(&self.managed),
            options: self.options,
        }
    }

    /// Whether the options allow pages.
    pub(super) fn may_have_pages(&self) -> bool {
        self.options.virtual_memory != Some(false)
    }

    /// The GPU's number.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.properties.ordinal
    }

    /// The primary context (`CUcontext`), for those who call the driver themselves. Valid as long as the
    /// device.
    #[must_use]
    pub fn raw_context(&self) -> CUcontext {
        self.context.raw()
    }

    /// The driver's handle of the GPU (`CUdevice`).
    #[must_use]
    pub fn raw_device(&self) -> CUdevice {
        self.raw
    }

    /// Makes the primary context current on the calling thread, for good: libraries such as cuBLAS want it, and
    /// our own calls then find it there.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn make_current(&self) -> DeviceResult<()> {
        self.context.make_current()
    }

    /// Says that the program ends the primary context next, as `cudaDeviceReset` does, whoever uses it. All streams, events and
    /// segments of this device end with it.
    ///
    /// From now on, none of them reaches the driver: their work counts as complete, and what would give them work is an error. Pages
    /// go back as before. This device keeps the context no longer: to go on, open the GPU anew.
    ///
    /// # Safety
    /// Nobody uses the memory of this device until the context has ended, nor its events for another device's streams any more.
    pub unsafe fn end_context(&self) {
        self.context.end();
    }

    /// What is worth knowing beside the properties.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn facts(&self) -> DeviceResult<CudaFacts> {
        use CUdevice_attribute as A;
        self.context.check_process()?;
        let number = |what| Ok::<_, DeviceError>(attribute(self.api, self.raw, what)?.unsigned_abs());
        Ok(CudaFacts {
            compute_capability: (
                number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            pci_bus_id: text(|to, len| {
                // SAFETY: `to` is writable for `len` bytes.
                unsafe { self.api.cuDeviceGetPCIBusId(to, len, self.raw) }
            })?,
            peers: self.peers_within_reach()?,
        })
    }

    fn peers_within_reach(&self) -> DeviceResult<Vec<usize>> {
        let mut peers = Vec::new();
        for ordinal in (0..driver::device_count(self.api)?).filter(|other| *other != self.ordinal()) {
            if peers::can_reach(self.api, self.raw, find(self.api, ordinal)?)? {
                peers.push(ordinal);
            }
        }
        Ok(peers)
    }

    pub(super) fn api(&self) -> &'static Api {
        self.api
    }

    /// Makes the context current for a call that needs it.
    pub(super) fn enter(&self) -> DeviceResult<Entered> {
        self.context.enter()
    }

    /// Makes the context current for a call on `stream`, if the stream does not name its context itself. The two
    /// default streams are those of the current one, and so is the null handle.
    pub(super) fn enter_for(&self, stream: StreamHandle) -> DeviceResult<Option<Entered>> {
        self.context.check_alive()?;
        if stream.raw() <= StreamHandle::PER_THREAD.raw() { self.enter().map(Some) } else { Ok(None) }
    }

    /// Whether streams, events and segments ended with the context.
    pub(super) fn has_ended(&self) -> bool {
        self.context.has_ended()
    }

    /// Lets the calling thread make calls that a capture, its own or one of another thread, would forbid it, until the
    /// guard goes.
    pub(super) fn relax(&self) -> DeviceResult<Relaxed> {
        self.context.check_process()?;
        Ok(Relaxed::enter(self.api))
    }

    /// The driver's own pool, made at its first use.
    pub(super) fn async_pool(&self) -> DeviceResult<&AsyncPool> {
        self.context.check_process()?;
        if let Some(pool) = self.async_pool.get() {
            return Ok(pool);
        }
        if !self.properties.memory_pools {
            return Err(self.unsupported("stream-ordered memory pools (cuMemAllocAsync)"));
        }
        let made = AsyncPool::create(self.api, self.raw)?;
        // Of two threads that come here at once, the second one's pool is dropped, empty.
        Ok(self.async_pool.get_or_init(|| made))
    }

    /// The kernel that compares bytes, loaded at its first use; `None` where the driver does not take it. Our context is current.
    pub(super) fn comparing(&self) -> Option<&Comparing> {
        if self.comparing.get().is_none() {
            // Of two threads that come here at once, the second one's is dropped.
            let _ = self.comparing.set(Comparing::load(self.api, &self.context)?);
        }
        self.comparing.get()
    }

    pub(super) fn device_properties(&self) -> &Properties {
        &self.properties
    }

    pub(super) fn unsupported(&self, what: &'static str) -> DeviceError {
        DeviceError::Unsupported { device: self.properties.name.clone(), what }
    }

    /// Refuses the calls on pages where the device has none.
    pub(super) fn needs_virtual_memory(&self) -> DeviceResult<()> {
        if self.properties.virtual_memory {
            Ok(())
        } else {
            Err(self.unsupported("virtual memory management (cuMemCreate, cuMemMap)"))
        }
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Properties { ordinal, name, .. } = &self.properties;
        f.debug_struct("CudaDevice").field("ordinal", ordinal).field("name", name).finish_non_exhaustive()
    }
}

/// The driver's type of a stream handle.
pub(super) fn stream_of(stream: StreamHandle) -> CUstream {
    stream.raw() as CUstream
}

pub(super) fn find(api: &Api, ordinal: usize) -> DeviceResult<CUdevice> {
    let count = driver::device_count(api)?;
    let number = match c_int::try_from(ordinal) {
        Ok(number) if ordinal < count => number,
        _ => return Err(driver::no_such_device(ordinal, count)),
    };
    let mut raw = 0;
    // SAFETY: `raw` is writable.
    unsafe { api.cuDeviceGet(&mut raw, number) }?;
    Ok(raw)
}

pub(super) fn attribute(api: &Api, device: CUdevice, what: CUdevice_attribute) -> DeviceResult<c_int> {
    let mut value = 0;
    // SAFETY: `value` is writable, and the device came from cuDeviceGet.
    unsafe { api.cuDeviceGetAttribute(&mut value, what as c_int, device) }?;
    Ok(value)
}

/// An attribute by its number, which the driver may be too old to know.
pub(super) fn attribute_if_known(api: &Api, device: CUdevice, what: c_int) -> Option<c_int> {
    let mut value = 0;
    // SAFETY: as in `attribute`. A number that the driver does not know is an error.
    unsafe { api.cuDeviceGetAttribute(&mut value, what, device) }.ok().map(|()| value)
}

fn text(ask: impl FnOnce(*mut c_char, c_int) -> Result<(), Failure>) -> DeviceResult<String> {
    let mut bytes = [0_u8; 256];
    // One byte less than there is, so that the text ends in a zero whatever the driver does.
    ask(bytes.as_mut_ptr().cast(), bytes.len() as c_int - 1)?;
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

fn properties(api: &Api, raw: CUdevice, ordinal: usize, options: CudaOptions) -> DeviceResult<Properties> {
    use CUdevice_attribute as A;
    // SAFETY: `to` is writable for `len` bytes.
    let name = text(|to, len| unsafe { api.cuDeviceGetName(to, len, raw) })?;
    let mut total = 0_usize;
    // SAFETY: `total` is writable.
    unsafe { api.cuDeviceTotalMem_v2(&mut total, raw) }?;
    let pages = attribute(api, raw, A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? != 0;
    if options.virtual_memory == Some(true) && !pages {
        return Err(DeviceError::Unsupported { device: name, what: "virtual memory management" });
    }
    let virtual_memory = pages && options.virtual_memory.unwrap_or_else(|| !checked::is_on());
    Ok(Properties {
        kind: Kind::Cuda,
        ordinal,
        name,
        total_memory: total as u64,
        granularity: if virtual_memory { granularity(api, raw)? } else { GRANULARITY_WITHOUT_PAGES },
        virtual_memory,
        memory: MemoryKind::Device,
        host_access: false,
        pageable_access: attribute(api, raw, A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)? != 0,
        memory_pools: attribute(api, raw, A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
    })
}

/// What the GPU offers for its pages.
fn page_extras(api: &Api, raw: CUdevice) -> PageExtras {
    use CUdevice_attribute as A;
    let has = |what: A| attribute_if_known(api, raw, what as c_int).is_some_and(|value| value != 0);
    PageExtras {
        exportable: has(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
        rdma: has(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
    }
}

fn granularity(api: &Api, raw: CUdevice) -> DeviceResult<u64> {
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut bytes = 0_usize;
    // SAFETY: `bytes` is writable and the properties are readable.
    unsafe {
        api.cuMemGetAllocationGranularity(&mut bytes, &page_props(raw, PageExtras::default()), minimum)
    }?;
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This holds on a machine without a GPU, and is not asked on one with.
    #[test]
    fn opening_a_gpu_where_none_is_fails_with_a_reason() {
        match CudaDevice::new(usize::MAX) {
            Err(DeviceError::Unavailable(text)) => assert!(text.contains("GPU"), "{text}"),
            other => panic!("expected Unavailable, found {other:?}"),
        }
        if let Err(error) = CudaDevice::count() {
            assert!(matches!(error, DeviceError::Unavailable(_)), "{error}");
            assert_eq!(driver::driver().unwrap_err(), error);
        }
    }
}
