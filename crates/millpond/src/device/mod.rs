//! Devices: what a pool needs of hardware, as one trait, and three implementations.
//!
//! [`Device`] has address ranges, physical pages, mappings, streams, events and copies. The module `cuda` is for NVIDIA
//! GPUs. [`host`] makes a real device of the CPU. [`sim`] keeps no bytes, and counts costs in virtual time.
//! Programs open one with a [`Context`](crate::Context), or by name with a [`DeviceName`].
//!
//! A device does what it is told. It has no policy, caches nothing, and waits only in calls whose documentation says so
//! (`synchronize_…`, [`Device::free_segment`]).
//!
//! # Captures
//! Work that is given to a stream under capture ([`Device::capture_of`]) becomes nodes of a graph. It does not run, and
//! can be neither queried nor waited for. Calls that concern memory, other streams, or events from outside stay legal on
//! every thread: the device sees to that.
//!
//! # Handles
//! Streams, events and pages are named by small handles that can be copied. A handle is *valid* on the device that
//! returned it, until the call that destroys it. [`StreamHandle::LEGACY`] and [`PER_THREAD`](StreamHandle::PER_THREAD) are
//! valid on each device. A driver does not check handles, and one that is not valid may name anything. So each call that
//! takes a handle is `unsafe`: its caller promises that the handle is valid.
//!
//! ```
//! use millpond::device::Device;
//! use millpond::device::sim::{SimDevice, SimOptions};
//!
//! let device = SimDevice::new(SimOptions::default())?;
//! let (stream, event) = (device.create_stream()?, device.create_event()?);
//! // SAFETY: both are this device's, and are destroyed below.
//! unsafe { device.record_event(event, stream) }?;
//! # unsafe { device.destroy_event(event) }?;
//! # unsafe { device.destroy_stream(stream) }?;
//! # Ok::<(), millpond::device::DeviceError>(())
//! ```

// The lowest floor: it uses nothing of ours. All three devices pass `tests/integration/conformance`. What a driver does for `cuda`,
// `inventory` (records, checks) and `driver_pool` (its own pool) do for the other two. A device over another one says only what
// it does otherwise (`forward`).

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(feature = "cuda")]
pub mod cuda;
mod driver_pool;
mod error;
mod exports;
mod forward;
mod hints;
pub mod host;
mod inventory;
mod machine;
mod name;
mod peers;
#[cfg(any(feature = "cuda", test))]
mod populated;
mod sealed;
pub mod sim;
mod types;

pub use driver_pool::DriverPool;
pub(crate) use error::system;
pub use error::{DeviceError, DeviceResult};
pub use exports::{DeviceIdentity, EventExport, PageExport};
pub use forward::Forward;
#[cfg(any(test, feature = "testing"))]
pub(crate) use inventory::invalid;
pub use name::{DeviceChoice, DeviceName, UnknownDevice};
pub use peers::{PeerId, PeerSet};
pub(crate) use sealed::SharedNumber;
pub(crate) use types::{ADDRESSES_END, calling_thread};
pub use types::{
    Advice, AsyncUsage, CaptureId, DevicePtr, EventHandle, Kind, MemoryInfo, MemoryKind, PageHandle, Place,
    Properties, Residency, StreamHandle, StreamId,
};

/// Hardware, as a pool sees it. See the [module](self) for the rules that hold for all of it.
///
/// All sizes and addresses are in bytes. Calls may come from any thread at any time.
///
/// # Devices of other crates
/// The trait is open: a pool takes any device (`Context::new`). A device over another one implements [`Forward`] instead,
/// and writes down only the calls that it changes.
///
/// Versions of this crate that are compatible by their number keep such a device working:
/// - A new call has a default for devices that do not have it. The default refuses with [`DeviceError::Unsupported`],
///   or gives the answer that was right before. So a device that does not know the call need not be changed.
/// - A pool makes a new call only where [`Properties`] or the default's answer says that the device has it.
/// - [`Forward`] passes new calls on.
/// - The rules of a call become stricter for its caller only, never for the device.
///
/// A call without a default, or one that is taken away, needs a version that is incompatible by its number.
///
/// # Safety
/// A pool relies on what its device says. As long as callers keep their promises, a device guarantees four things. Live
/// address ranges, pages and segments do not overlap. Mapped memory is there until it is unmapped. Work is called
/// complete only when it and all that it was ordered after are. Once a wait for a stream has returned, even with an
/// error, no earlier work on it copies to the host.
///
/// Where it says [`Properties::host_access`], the CPU can read and write mapped memory and segments at their addresses,
/// and finds there what complete work wrote.
pub unsafe trait Device: Send + Sync + std::fmt::Debug + 'static {
    /// What the device is and can do. Constant for the life of the device.
    fn properties(&self) -> &Properties;

    /// Free and total device memory now, as the driver counts it (all processes together).
    fn memory_info(&self) -> DeviceResult<MemoryInfo>;

    /// The time on a clock that only goes forward. A pool measures its slow paths by it. It is the host's clock, unless
    /// the device has a time of its own.
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
    }

    // ---- addresses -------------------------------------------------------------------------------

    /// Reserves `bytes` of address space with nothing behind it. `bytes` is a multiple of
    /// [`Properties::granularity`], and the address returned is aligned to it, and below 2^62.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where [`Properties::virtual_memory`] is false.
    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr>;

    /// Gives a reserved range back.
    ///
    /// # Safety
    /// The range came from [`reserve`](Self::reserve) with the same size, nothing is mapped in it, and it
    /// is not used again.
    unsafe fn unreserve(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()>;

    // ---- pages -----------------------------------------------------------------------------------

    /// Creates one physical page (an allocation handle) of `bytes`, a multiple of the granularity. It can be
    /// mapped at several addresses at once, always whole.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where the device has too little free memory; nothing changed then.
    fn create_page(&self, bytes: u64) -> DeviceResult<PageHandle>;

    /// Maps the whole of `page` at `at`, which lies in a reserved range with nothing mapped there. The
    /// memory cannot be used before [`set_access`](Self::set_access).
    ///
    /// # Safety
    /// The range and the page are this device's and in use by nobody else, and `bytes` is the page's length.
    unsafe fn map(&self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<()>;

    /// Lets this device read and write the mapped range.
    ///
    /// # Safety
    /// The range is that of one or more mappings.
    unsafe fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()>;

    /// Removes one mapping, whole. Does not wait for work that uses it.
    ///
    /// # Safety
    /// `at` and `bytes` are those of one [`map`](Self::map), and no pending or later work uses the range.
    unsafe fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()>;

    /// Destroys a page. Its memory goes back to the driver once no mapping of it is left.
    ///
    /// # Safety
    /// The handle is not used again.
    unsafe fn release_page(&self, page: PageHandle) -> DeviceResult<()>;

    // ---- whole segments: the driver's own allocators -----------------------------------------------

    /// A plain allocation (`cuMemAlloc`), aligned to 512 bytes at least.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] as for [`create_page`](Self::create_page).
    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr>;

    /// Frees a plain allocation (`cuMemFree`). **Waits** for all work on the device.
    ///
    /// # Safety
    /// `at` came from [`alloc_segment`](Self::alloc_segment) and is not used again.
    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()>;

    /// The driver's own stream-ordered pool.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where [`Properties::memory_pools`] is false.
    fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
        Err(unsupported(self.properties(), "stream-ordered memory pools"))
    }

    /// The page-locked memory of the host that this device can reach, as a device. Its addresses, pages, segments and
    /// figures are those of that memory ([`MemoryKind::Pinned`]). Its streams and events are this device's own. Both
    /// devices copy and fill memory of either. `node` chooses a NUMA node; `None` is one near the device.
    ///
    /// ```
    /// use millpond::device::host::HostDevice;
    /// use millpond::device::{Device, MemoryKind};
    ///
    /// let device = HostDevice::new()?;
    /// let pinned = device.pinned(None)?;
    /// assert_eq!(pinned.properties().memory, MemoryKind::Pinned);
    /// # Ok::<(), millpond::device::DeviceError>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device has none, or cannot choose the node.
    fn pinned(&self, _node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
        Err(unsupported(self.properties(), "pinned host memory"))
    }

    /// The managed memory of this device and the host, as a device. It moves to where it is used, a page at a time. Its
    /// segments and figures are those of that memory ([`MemoryKind::Managed`]). It has no pages that can be mapped. Its
    /// streams and events are this device's own. Both devices copy and fill memory of either.
    ///
    /// ```
    /// use millpond::device::host::HostDevice;
    /// use millpond::device::{Device, MemoryKind};
    ///
    /// let managed = HostDevice::new()?.managed()?;
    /// assert_eq!(managed.properties().memory, MemoryKind::Managed);
    /// # Ok::<(), millpond::device::DeviceError>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device has none, or none that the CPU may use at the same time.
    fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
        Err(unsupported(self.properties(), "managed memory"))
    }

    // ---- where managed memory lies -----------------------------------------------------------------
    // Each acts on whole pages of the system: on all that have a byte of the range. None changes a byte.

    /// Moves a range of managed memory in stream order; of plain host memory, where [`Properties::pageable_access`] says so.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device has no such memory. [`DeviceError::Invalid`] for other memory.
    ///
    /// # Safety
    /// The stream is [valid](self), and no capture has it. The range stays allocated until the stream has done this.
    unsafe fn prefetch(
        &self,
        _at: DevicePtr,
        _bytes: u64,
        _to: Place,
        _stream: StreamHandle,
    ) -> DeviceResult<()> {
        Err(unsupported(self.properties(), "prefetches of managed memory"))
    }

    /// Says how a range of such memory will be used, from now on. Work that runs may be slower or faster, and no more.
    ///
    /// # Errors
    /// As for [`prefetch`](Self::prefetch).
    fn advise(&self, _at: DevicePtr, _bytes: u64, _advice: Advice) -> DeviceResult<()> {
        Err(unsupported(self.properties(), "advice on managed memory"))
    }

    /// What was said of a range of such memory.
    ///
    /// # Errors
    /// As for [`prefetch`](Self::prefetch).
    fn residency(&self, _at: DevicePtr, _bytes: u64) -> DeviceResult<Residency> {
        Err(unsupported(self.properties(), "questions about managed memory"))
    }

    // ---- streams ---------------------------------------------------------------------------------

    /// Creates a stream that does not synchronise with the default stream.
    fn create_stream(&self) -> DeviceResult<StreamHandle>;

    /// Destroys a stream without waiting: work already given to it still runs.
    ///
    /// # Safety
    /// The handle came from [`create_stream`](Self::create_stream) and is not used again.
    unsafe fn destroy_stream(&self, stream: StreamHandle) -> DeviceResult<()>;

    /// The stream's identity, which is never given to another stream (a *handle* is, after a destroy). For
    /// the per-thread default stream: the identity of the calling thread's. While the stream is being captured, a
    /// name of it in that capture ([`StreamId::in_capture`]): a driver that is asked then ends the capture.
    ///
    /// # Safety
    /// The stream is [valid](self).
    unsafe fn stream_id(&self, stream: StreamHandle) -> DeviceResult<StreamId>;

    /// Whether all work given to the stream so far is complete. Does not wait.
    ///
    /// # Safety
    /// The stream is [valid](self).
    unsafe fn stream_is_idle(&self, stream: StreamHandle) -> DeviceResult<bool>;

    /// The capture that the stream is part of; `None` where work given to it runs. Always `None` on devices without
    /// graphs.
    ///
    /// # Safety
    /// The stream is [valid](self).
    unsafe fn capture_of(&self, _stream: StreamHandle) -> DeviceResult<Option<CaptureId>> {
        Ok(None)
    }

    /// **Waits** until all work given to the stream so far is complete.
    ///
    /// # Safety
    /// The stream is [valid](self).
    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> DeviceResult<()>;

    /// **Waits** until all work given to the device so far is complete.
    fn synchronize(&self) -> DeviceResult<()>;

    // ---- events ----------------------------------------------------------------------------------

    /// Creates an event, without timing. An event that was never recorded counts as complete.
    fn create_event(&self) -> DeviceResult<EventHandle>;

    /// Destroys an event, also while it is pending.
    ///
    /// # Safety
    /// The handle is not used again.
    unsafe fn destroy_event(&self, event: EventHandle) -> DeviceResult<()>;

    /// Lets `event` stand for all work given to `stream` so far. Recording again replaces that.
    ///
    /// # Safety
    /// The event and the stream are [valid](self).
    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> DeviceResult<()>;

    /// Whether the work that the event stands for is complete. Does not wait.
    ///
    /// # Safety
    /// The event is [valid](self).
    unsafe fn query_event(&self, event: EventHandle) -> DeviceResult<bool>;

    /// Makes later work on `stream` wait for what `event` stands for now. The host does not wait. The event may be of another
    /// device of the [group](PeerId).
    ///
    /// # Safety
    /// The event and the stream are [valid](self).
    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> DeviceResult<()>;

    /// **Waits** until the work that the event stands for is complete.
    ///
    /// # Safety
    /// The event is [valid](self).
    unsafe fn synchronize_event(&self, event: EventHandle) -> DeviceResult<()>;

    // ---- the host ----------------------------------------------------------------------------------

    /// Runs `work` on a thread of the device's or its driver's, once all work given to the stream so far is complete. Later work
    /// on the stream waits for it. It must not call the device, nor wait for anything that does.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device cannot. After an error, `work` is dropped without having run.
    ///
    /// # Safety
    /// The stream is [valid](self), and no capture has it: a graph would run `work` at each replay.
    unsafe fn launch_host(&self, _stream: StreamHandle, _work: HostWork) -> DeviceResult<()> {
        Err(unsupported(self.properties(), "functions of the host on its streams"))
    }

    // ---- bytes -----------------------------------------------------------------------------------

    /// Sets `bytes` bytes at `at` to `value`, in stream order.
    ///
    /// # Safety
    /// The range is mapped, accessible and not used by unordered work, until the stream has done this.
    unsafe fn memset(&self, at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) -> DeviceResult<()>;

    /// Whether any of `bytes` bytes at `at` may be another than `value`. **Waits** until the stream has looked. A device that has
    /// no fast way to look answers `true`.
    ///
    /// # Safety
    /// The range is mapped, accessible and not written by unordered work, until this returns.
    unsafe fn may_differ(
        &self,
        _at: DevicePtr,
        _value: u8,
        _bytes: u64,
        _stream: StreamHandle,
    ) -> DeviceResult<bool> {
        Ok(true)
    }

    /// Copies from host memory to the device in stream order. `from` has been read when this returns (staged,
    /// or the call waited), so the caller may change or free it at once.
    ///
    /// # Safety
    /// `from` is readable for `bytes`; the destination as for [`memset`](Self::memset).
    unsafe fn copy_from_host(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()>;

    /// Copies from the device to host memory in stream order. `to` has been written once the stream is
    /// synchronised, and may be written at any time before. Refused on a thread that may not wait for the stream.
    ///
    /// # Safety
    /// `to` is writable for `bytes`, and neither touched nor freed until then; the source is mapped and
    /// accessible, and not written by unordered work.
    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()>;

    /// Copies within the device in stream order. The ranges do not overlap.
    ///
    /// # Safety
    /// Both ranges as for [`memset`](Self::memset).
    unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()>;

    // ---- other processes -------------------------------------------------------------------------

    /// Which device of the machine this is, the same in every process.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where no memory can be shared with other processes.
    fn identity(&self) -> DeviceResult<DeviceIdentity> {
        Err(unsupported(self.properties(), SHARING))
    }

    /// Whether memory of that device can be mapped for this one.
    ///
    /// # Errors
    /// The device's own.
    fn reaches(&self, other: DeviceIdentity) -> DeviceResult<bool> {
        Ok(self.identity()? == other)
    }

    /// What another process needs to [import](Self::import_page) a page. The page's memory stays as long as the descriptor,
    /// or a page that was imported from it.
    ///
    /// # Safety
    /// The page is [valid](self).
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where pages cannot be shared.
    unsafe fn export_page(&self, _page: PageHandle) -> DeviceResult<PageExport> {
        Err(unsupported(self.properties(), SHARING))
    }

    /// The page of so many bytes that [`export_page`](Self::export_page) exported. It takes no memory of this device's. It is
    /// mapped and released as other pages are. The descriptor is closed.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`], or the driver's own, for what is no such page.
    fn import_page(&self, _from: PageExport, _bytes: u64) -> DeviceResult<PageHandle> {
        Err(unsupported(self.properties(), SHARING))
    }

    /// Creates an event that other processes can [open](Self::open_event), and what they need for that. Each process may
    /// record it, wait for it and query it. It is to be destroyed after those that others opened.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where events cannot be shared.
    fn create_shared_event(&self) -> DeviceResult<(EventHandle, EventExport)> {
        Err(unsupported(self.properties(), SHARING))
    }

    /// Opens an event of another process. It is destroyed as other events are.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`], or the driver's own, for what is no such event.
    fn open_event(&self, _from: EventExport) -> DeviceResult<EventHandle> {
        Err(unsupported(self.properties(), SHARING))
    }

    // ---- several devices -------------------------------------------------------------------------
    /// The device's name among those that work together; `None` where it works alone.
    fn peer_id(&self) -> Option<PeerId> {
        None
    }

    /// Whether `peer` can use memory of this device at its address, once it [has access](Self::set_peer_access).
    fn can_be_reached_from(&self, _peer: PeerId) -> DeviceResult<bool> {
        Ok(false)
    }

    /// Lets peers use memory of this device at its address, beside the device itself, or no longer. A new mapping has no
    /// peers. Segments are within reach of a peer all or none: once one is, the others are as well, and stay so.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where a peer [cannot reach](Self::can_be_reached_from) it. The peers that cannot are
    /// left out of [`PeerSet::ALL`]. After an error, each peer may have access or not.
    ///
    /// # Safety
    /// The range is that of one mapping with access, or a segment. Where access is taken away, no pending or later work of
    /// the peers uses the range.
    unsafe fn set_peer_access(
        &self,
        _at: DevicePtr,
        _bytes: u64,
        _peers: PeerSet,
        _allowed: bool,
    ) -> DeviceResult<()> {
        Err(unsupported(self.properties(), "access of other devices to its memory"))
    }

    /// Copies from memory of the device `peer` to this one's in stream order. Where this device has access to the source,
    /// it reads it. Else the bytes go by way of the host, more slowly; the caller does not wait.
    ///
    /// # Safety
    /// Both ranges as for [`memset`](Self::memset), each on its own device. Access to the source is not taken away before the
    /// stream has done this.
    unsafe fn copy_from_peer(
        &self,
        _to: DevicePtr,
        _from: DevicePtr,
        _bytes: u64,
        _peer: PeerId,
        _stream: StreamHandle,
    ) -> DeviceResult<()> {
        Err(unsupported(self.properties(), "copies from other devices"))
    }
}

/// A device, or what has one: for functions that ask for its figures only, such as [`Budget::fraction`](crate::Budget::fraction).
///
/// ```
/// use millpond::{Budget, Context};
///
/// let context = Context::host()?;
/// let half = Budget::fraction(&context, 0.5)?;
/// assert_eq!(Budget::fraction(context.device(), 0.5)?.limit(), half.limit());
/// # Ok::<(), millpond::Error>(())
/// ```
pub trait HasDevice {
    /// The device.
    fn as_device(&self) -> &dyn Device;
}

impl<D: Device> HasDevice for D {
    fn as_device(&self) -> &dyn Device {
        self
    }
}

impl HasDevice for dyn Device {
    fn as_device(&self) -> &dyn Device {
        self
    }
}

impl HasDevice for Arc<dyn Device> {
    fn as_device(&self) -> &dyn Device {
        &**self
    }
}

/// A function of the host that a device runs in stream order ([`Device::launch_host`]).
pub type HostWork = Box<dyn FnOnce() + Send>;

const SHARING: &str = "memory that is shared with other processes";

/// What a device does not have.
fn unsupported(of: &Properties, what: &'static str) -> DeviceError {
    DeviceError::Unsupported { device: of.name.clone(), what }
}
