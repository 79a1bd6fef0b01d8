//! The CPU as a real device: its memory has bytes, its pages are remapped, its streams are threads.
//!
//! Programs run on it without a GPU. A mistake in stream order shows as wrong bytes, as on a GPU. Kernels are closures that
//! [`HostDevice::launch`] runs in stream order.
//!
//! ```
//! use millpond::device::host::{HostDevice, HostOptions};
//! use millpond::{Buffer, Context, Pool};
//!
//! let device = HostDevice::with_options(HostOptions::default().capacity(1 << 30))?;
//! let context = Context::new(device.clone());
//! let pool = Pool::builder(&context).build()?;
//! let stream = context.create_stream()?;
//! let buffer = Buffer::<u32>::zeroed(&pool, 4, &stream)?;
//! let at = buffer.ptr().raw() as usize;
//! // SAFETY: the buffer has four elements, lives until the stream is done, and is used on this stream only.
//! device.launch(stream.handle_here()?, move || unsafe { (at as *mut u32).write(7) })?;
//! assert_eq!(buffer.to_vec()?, [7, 0, 0, 0]); // waits for the stream
//! # Ok::<(), millpond::Error>(())
//! ```

// It uses the system (through rustix) and the records in `inventory.rs`, which check every call.
//
// **One request.** `create_page` takes a range of the device's one memfd (`memory.rs`); `map` is an `mmap` of that
// range over reserved addresses. `set_access` is an `mprotect`, and `unmap` an anonymous `mmap` back over it. `memset`
// looks up the stream (`streams.rs`), puts a closure on its queue and returns; the stream's thread runs it
// (`stream.rs`). An event remembers how much its stream had been given. All devices of a process have their events in one
// table, and may use each other's memory (`group.rs`).

mod exports;
mod group;
mod memory;
mod shared_event;
mod stream;
mod streams;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::system::lock::Mutex;
use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use self::group::{Event, Group, Memories};
use self::memory::Memory;
use self::shared_event::SharedEvent;
use self::stream::Stream;
use self::streams::Streams;
use super::inventory::invalid;
use super::{
    Advice, AsyncUsage, Device, DeviceError, DeviceIdentity, DevicePtr, DeviceResult, DriverPool,
    EventExport, EventHandle, HostWork, Kind, MemoryInfo, MemoryKind, PageExport, PageHandle, PeerId,
    PeerSet, Place, Properties, Residency, StreamHandle, StreamId, machine,
};
use crate::system::process::Process;

/// How a [`HostDevice`] is made.
///
/// ```
/// use millpond::device::Device;
/// use millpond::device::host::{HostDevice, HostOptions};
///
/// // A small device without virtual memory, as some virtual GPUs are.
/// let options = HostOptions::default().capacity(64 << 20).virtual_memory(false);
/// let device = HostDevice::with_options(options)?;
/// assert_eq!(device.properties().total_memory, 64 << 20);
/// # Ok::<(), millpond::device::DeviceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "options do nothing until a device is made with them"]
pub struct HostOptions {
    /// Bytes of memory that the device has. `None` is half of what the machine and the control group allow the
    /// process. A capacity beyond the machine's memory is not noticed until it is used.
    pub capacity: Option<u64>,
    /// The smallest page in bytes, a power of two and a multiple of the system's page size. 2 MiB, as a GPU.
    pub granularity: u64,
    /// Whether pages can be mapped. Without, there are only segments, as on older or virtual GPUs. Yes by default.
    pub virtual_memory: bool,
    /// Bytes of [pinned memory](Device::pinned) that the device can reach. `None` is as many as the device has.
    pub pinned_capacity: Option<u64>,
    /// Bytes of [managed memory](Device::managed). `None` is as many as the device has.
    pub managed_capacity: Option<u64>,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            capacity: None,
            granularity: 2 << 20,
            virtual_memory: true,
            pinned_capacity: None,
            managed_capacity: None,
        }
    }
}

impl HostOptions {
    /// As [`capacity`](field@Self::capacity).
    pub fn capacity(mut self, capacity: impl Into<Option<u64>>) -> Self {
        self.capacity = capacity.into();
        self
    }

    /// As [`granularity`](field@Self::granularity).
    pub fn granularity(mut self, granularity: u64) -> Self {
        self.granularity = granularity;
        self
    }

    /// As [`virtual_memory`](field@Self::virtual_memory).
    pub fn virtual_memory(mut self, virtual_memory: bool) -> Self {
        self.virtual_memory = virtual_memory;
        self
    }

    /// As [`pinned_capacity`](field@Self::pinned_capacity).
    pub fn pinned_capacity(mut self, capacity: impl Into<Option<u64>>) -> Self {
        self.pinned_capacity = capacity.into();
        self
    }

    /// As [`managed_capacity`](field@Self::managed_capacity).
    pub fn managed_capacity(mut self, capacity: impl Into<Option<u64>>) -> Self {
        self.managed_capacity = capacity.into();
        self
    }
}

/// A [`Device`] made of the CPU and its memory. The [module](self) has an example.
///
/// Its own memory stands for that of a GPU: only its [pinned](Device::pinned) and its [managed](Device::managed) memory are
/// for the CPU's eyes. Each is a device of this type, too. Managed memory stays where it is: prefetches and advice are
/// remembered, and no more.
///
/// Dropping it waits for all work of its streams, and then gives its memory back. Dropping only some of a device, its
/// pinned and its managed memory does neither.
pub struct HostDevice {
    properties: Properties,
    work: Arc<Work>,
    /// Where pages and segments come from.
    memory: Arc<Memory>,
}

/// What a device and its other memory share: streams, events, and the memory that they work on.
struct Work {
    id: PeerId,
    group: &'static Group,
    process: Process,
    streams: Streams,
    memories: Arc<Memories>,
    /// Of all but managed memory.
    virtual_memory: bool,
    pinned_capacity: u64,
    managed_capacity: u64,
}

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDevice").field("memory", &self.memory.info()).finish_non_exhaustive()
    }
}

impl HostDevice {
    /// A device with half of the memory that there is and everything that a device can do.
    ///
    /// # Errors
    /// [`DeviceError::Driver`] where the system has no memfd.
    pub fn new() -> DeviceResult<Arc<Self>> {
        Self::with_options(HostOptions::default())
    }

    /// A device as the options say. The host devices of a process work together, as GPUs do, up to [`PeerId::MOST`] of them.
    ///
    /// ```
    /// use millpond::device::host::{HostDevice, HostOptions};
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let small = HostOptions::default().capacity(64 << 20);
    /// let (first, second) = (Context::host()?, Context::new(HostDevice::with_options(small)?));
    /// let (source, target) = (Pool::builder(&first).build()?, Pool::builder(&second).build()?);
    /// let from = Buffer::from_slice(&source, &[1.0_f32, 2.0], &first.create_stream()?)?;
    /// let mut to = Buffer::<f32>::new(&target, 2, &second.create_stream()?)?;
    /// to.copy_from(&from)?;
    /// assert_eq!(to.to_vec()?, [1.0, 2.0]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] where the granularity cannot be; [`DeviceError::Driver`] where the system has
    /// no memfd.
    pub fn with_options(options: HostOptions) -> DeviceResult<Arc<Self>> {
        let HostOptions { capacity, granularity, virtual_memory, pinned_capacity, managed_capacity } =
            options;
        let system_page = rustix::param::page_size() as u64;
        if !granularity.is_power_of_two() || granularity < system_page {
            let what =
                format!("the granularity is {granularity} bytes: use a power of two, at least {system_page}");
            return invalid("HostDevice::with_options", what);
        }
        let total_memory =
            capacity.unwrap_or_else(|| (machine::memory().total / 2).next_multiple_of(2 << 20));
        let memory = Arc::new(Memory::new(granularity, total_memory)?);
        let properties = Properties {
            kind: Kind::Host,
            ordinal: 0,
            name: "CPU".to_owned(),
            total_memory,
            granularity,
            virtual_memory,
            memory_pools: true,
            memory: MemoryKind::Device,
            host_access: false,
            pageable_access: false,
        };
        let (pinned, managed) = Default::default();
        let memories = Arc::new(Memories { device: Arc::clone(&memory), pinned, managed });
        let group = Group::here();
        let work = Arc::new(Work {
            id: group.enter(&memories),
            group,
            process: Process::here(),
            streams: Streams::new(memories.clone()),
            memories,
            virtual_memory,
            pinned_capacity: pinned_capacity.unwrap_or(total_memory),
            managed_capacity: managed_capacity.unwrap_or(total_memory),
        });
        Ok(Arc::new(Self { properties, work, memory }))
    }

    /// Runs `work` in stream order, on the stream's thread: a kernel of this device.
    ///
    /// Work must not wait for the device (`synchronize_…`, `free_segment`): such a call is refused there. A
    /// panic of it is reported as [`DeviceError::Driver`] by the next call that waits for the stream.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for an unknown stream.
    pub fn launch(&self, stream: StreamHandle, work: impl FnOnce() + Send + 'static) -> DeviceResult<()> {
        self.submit("launch", stream, work)
    }

    fn submit(
        &self,
        call: &'static str,
        stream: StreamHandle,
        work: impl FnOnce() + Send + 'static,
    ) -> DeviceResult<()> {
        self.stream(call, stream)?.submit(call, Box::new(work))
    }

    fn stream(&self, call: &'static str, stream: StreamHandle) -> DeviceResult<Arc<Stream>> {
        self.streams()?.get(call, stream)
    }

    /// The streams, in the process that has their threads.
    fn streams(&self) -> DeviceResult<&Streams> {
        self.work.process.check()?;
        Ok(&self.work.streams)
    }

    /// The memory, in the process that made it: in a forked child the file is still shared.
    fn memory(&self) -> DeviceResult<&Memory> {
        self.work.process.check()?;
        Ok(&self.memory)
    }

    /// Whether work may use the range, be it of the device's memory, of the host's, or of another device's.
    fn check_access(&self, call: &'static str, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.work.process.check()?;
        let Work { id, group, memories, .. } = &*self.work;
        let own = memories.check_access(call, at, bytes, None);
        own.or_else(|error| group.check_access_by(call, at, bytes, *id).map_err(|_| error))
    }

    fn events(&self) -> DeviceResult<&Mutex<SlotMap<DefaultKey, Event>>> {
        self.work.process.check()?;
        Ok(&self.work.group.events)
    }

    fn event(&self, call: &'static str, event: EventHandle) -> DeviceResult<Event> {
        match self.events()?.lock().get(event_key(event)) {
            Some(known) => Ok(known.clone()),
            None => unknown_event(call, event),
        }
    }

    fn add_event(&self, event: Event) -> DeviceResult<EventHandle> {
        let key = self.events()?.lock().insert(event);
        // SAFETY: the number stands for the event just made, until `destroy_event`.
        Ok(unsafe { EventHandle::from_raw(key.data().as_ffi()) })
    }

    /// Another memory of the device's, as a device that the CPU reads.
    fn other(
        &self,
        memory: &OnceLock<Arc<Memory>>,
        total_memory: u64,
        kind: MemoryKind,
    ) -> DeviceResult<Arc<dyn Device>> {
        let memory = match memory.get() {
            Some(memory) => memory,
            None => {
                let new = Arc::new(Memory::new(self.properties.granularity, total_memory)?);
                new.share_segments();
                // Of two threads that come here at once, the second one's goes, empty.
                memory.get_or_init(|| new)
            }
        };
        let properties = Properties {
            total_memory,
            virtual_memory: self.work.virtual_memory && kind != MemoryKind::Managed,
            memory_pools: false,
            memory: kind,
            host_access: true,
            ..self.properties.clone()
        };
        Ok(Arc::new(Self { properties, work: Arc::clone(&self.work), memory: Arc::clone(memory) }))
    }

    fn needs_virtual_memory(&self) -> DeviceResult<()> {
        if self.properties.virtual_memory { Ok(()) } else { self.unsupported("virtual memory") }
    }

    fn unsupported<T>(&self, what: &'static str) -> DeviceResult<T> {
        Err(DeviceError::Unsupported { device: self.properties.name.clone(), what })
    }
}

fn event_key(event: EventHandle) -> DefaultKey {
    DefaultKey::from(KeyData::from_ffi(event.raw()))
}

fn unknown_event<T>(call: &'static str, event: EventHandle) -> DeviceResult<T> {
    invalid(call, format!("{:#x} is no event, or was destroyed", event.raw()))
}

// SAFETY: the operating system maps what the inventory has checked, and each stream is a thread that works in order.
unsafe impl Device for HostDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        Ok(self.memory()?.info())
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.needs_virtual_memory()?;
        self.memory()?.reserve(bytes)
    }

    unsafe fn unreserve(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        // SAFETY: as this function's.
        unsafe { self.memory()?.unreserve(at, bytes) }
    }

    fn create_page(&self, bytes: u64) -> DeviceResult<PageHandle> {
        self.needs_virtual_memory()?;
        self.memory()?.create_page(bytes)
    }

    unsafe fn map(&self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<()> {
        self.memory()?.map(at, bytes, page)
    }

    unsafe fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.memory()?.set_access(at, bytes)
    }

    unsafe fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        // SAFETY: as this function's.
        unsafe { self.memory()?.unmap(at, bytes) }
    }

    unsafe fn release_page(&self, page: PageHandle) -> DeviceResult<()> {
        self.memory()?.release_page(page)
    }

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.memory()?.alloc_segment(bytes)
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        self.memory()?.check_segment(at)?;
        self.synchronize()?;
        // SAFETY: all work is complete; the rest as this function's.
        unsafe { self.memory()?.free_segment(at) }
    }

    fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
        if self.properties.memory_pools { Ok(self) } else { self.unsupported("stream-ordered memory pools") }
    }

    fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
        self.work.process.check()?;
        if node.is_some() {
            return self.unsupported("a choice of the NUMA node");
        }
        self.other(&self.work.memories.pinned, self.work.pinned_capacity, MemoryKind::Pinned)
    }

    fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
        self.work.process.check()?;
        self.other(&self.work.memories.managed, self.work.managed_capacity, MemoryKind::Managed)
    }

    unsafe fn prefetch(
        &self,
        at: DevicePtr,
        bytes: u64,
        to: Place,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        self.work.process.check()?;
        if bytes == 0 {
            return Ok(());
        }
        let managed = Arc::clone(self.work.memories.managed("prefetch", at, bytes)?);
        self.submit("prefetch", stream, move || {
            managed.set_hints(at, bytes, |said| said.last_prefetch = Some(to))
        })
    }

    fn advise(&self, at: DevicePtr, bytes: u64, advice: Advice) -> DeviceResult<()> {
        self.work.process.check()?;
        if bytes > 0 {
            self.work.memories.managed("advise", at, bytes)?.advise(at, bytes, advice);
        }
        Ok(())
    }

    fn residency(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Residency> {
        self.work.process.check()?;
        Ok(self.work.memories.managed("residency", at, bytes)?.residency(at, bytes))
    }

    fn create_stream(&self) -> DeviceResult<StreamHandle> {
        self.streams()?.create()
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        self.streams()?.destroy(stream)
    }

    unsafe fn stream_id(&self, stream: StreamHandle) -> DeviceResult<StreamId> {
        Ok(self.stream("stream_id", stream)?.id())
    }

    unsafe fn stream_is_idle(&self, stream: StreamHandle) -> DeviceResult<bool> {
        Ok(self.stream("stream_is_idle", stream)?.now().is_reached())
    }

    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        const CALL: &str = "synchronize_stream";
        self.stream(CALL, stream)?.now().wait(CALL)
    }

    fn synchronize(&self) -> DeviceResult<()> {
        let waits: Vec<_> = self.streams()?.now().iter().map(|moment| moment.wait("synchronize")).collect();
        waits.into_iter().collect()
    }

    fn create_event(&self) -> DeviceResult<EventHandle> {
        self.add_event(Event::Own(None))
    }

    unsafe fn destroy_event(&self, event: EventHandle) -> DeviceResult<()> {
        match self.events()?.lock().remove(event_key(event)) {
            Some(_) => Ok(()),
            None => unknown_event("destroy_event", event),
        }
    }

    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> DeviceResult<()> {
        const CALL: &str = "record_event";
        let stream = self.stream(CALL, stream)?;
        let moment = stream.now();
        let shared = match self.events()?.lock().get_mut(event_key(event)) {
            Some(Event::Own(stands_for)) => {
                *stands_for = Some(moment);
                return Ok(());
            }
            Some(Event::Shared(event)) => event.clone(),
            None => return unknown_event(CALL, event),
        };
        let pending = shared.record()?;
        stream.submit(CALL, Box::new(move || drop(pending)))
    }

    unsafe fn query_event(&self, event: EventHandle) -> DeviceResult<bool> {
        match self.event("query_event", event)? {
            Event::Own(moment) => Ok(moment.is_none_or(|moment| moment.is_reached())),
            Event::Shared(event) => event.query(),
        }
    }

    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> DeviceResult<()> {
        const CALL: &str = "wait_event";
        let stream = self.stream(CALL, stream)?;
        match self.event(CALL, event)? {
            Event::Own(Some(moment)) => stream.wait_for(CALL, moment),
            Event::Own(None) => Ok(()),
            Event::Shared(event) => {
                let recorded = event.recorded();
                stream.submit(CALL, Box::new(move || event.wait(recorded)))
            }
        }
    }

    unsafe fn synchronize_event(&self, event: EventHandle) -> DeviceResult<()> {
        const CALL: &str = "synchronize_event";
        match self.event(CALL, event)? {
            Event::Own(Some(moment)) => moment.wait(CALL),
            Event::Own(None) => Ok(()),
            Event::Shared(_) if stream::on_stream_thread() => {
                invalid(CALL, "work on a stream must not wait for an event")
            }
            Event::Shared(event) => {
                // What the system refuses for good is told here.
                event.query()?;
                event.wait(event.recorded());
                Ok(())
            }
        }
    }

    unsafe fn launch_host(&self, stream: StreamHandle, work: HostWork) -> DeviceResult<()> {
        self.submit("launch_host", stream, work)
    }

    unsafe fn memset(&self, at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) -> DeviceResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.check_access("memset", at, bytes)?;
        self.submit("memset", stream, move || {
            // SAFETY: the caller of `memset` keeps the range usable and ours until the stream has done this.
            unsafe { bytes_at(at).write_bytes(value, bytes as usize) }
        })
    }

    unsafe fn copy_from_host(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.check_access("copy_from_host", to, bytes)?;
        // SAFETY: the caller says that `from` is readable for `bytes`.
        let staged: Box<[u8]> = unsafe { std::slice::from_raw_parts(from, bytes as usize) }.into();
        self.submit("copy_from_host", stream, move || {
            // SAFETY: the caller of `copy_from_host` keeps the destination usable and ours until the stream
            // has done this.
            unsafe { bytes_at(to).copy_from_nonoverlapping(staged.as_ptr(), staged.len()) }
        })
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        if stream::on_stream_thread() {
            // Whoever has the bytes could not wait until they are written.
            return invalid(
                "copy_to_host",
                "work on a stream must not wait for the device, nor for its bytes",
            );
        }
        self.check_access("copy_to_host", from, bytes)?;
        let to = to.expose_provenance();
        self.submit("copy_to_host", stream, move || {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
            // SAFETY: the caller of `copy_to_host` keeps both ranges usable and ours until the stream is
            // synchronised.
            unsafe { to.copy_from_nonoverlapping(bytes_at(from), bytes as usize) }
        })
    }

    unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.check_access("copy", from, bytes)?;
        self.check_access("copy", to, bytes)?;
        if to.raw().abs_diff(from.raw()) < bytes {
            return invalid("copy", format!("{bytes} bytes at {from} and at {to} overlap"));
        }
        self.submit("copy", stream, move || {
            // SAFETY: the caller of `copy` keeps both ranges usable and ours until the stream has done this.
            unsafe { bytes_at(to).copy_from_nonoverlapping(bytes_at(from), bytes as usize) }
        })
    }

    // ---- other processes -------------------------------------------------------------------------

    fn identity(&self) -> DeviceResult<DeviceIdentity> {
        // The CPU is one for all.
        Ok(DeviceIdentity(*b"millpond's host\0"))
    }

    unsafe fn export_page(&self, page: PageHandle) -> DeviceResult<PageExport> {
        self.memory()?.export_page(page)
    }

    fn import_page(&self, from: PageExport, bytes: u64) -> DeviceResult<PageHandle> {
        self.needs_virtual_memory()?;
        self.memory()?.import_page(from, bytes)
    }

    fn create_shared_event(&self) -> DeviceResult<(EventHandle, EventExport)> {
        self.work.process.check()?;
        let (event, descriptor) = SharedEvent::create()?;
        let handle = self.add_event(Event::Shared(Arc::new(event)))?;
        Ok((handle, EventExport { data: [0; 64], descriptor: Some(descriptor) }))
    }

    fn open_event(&self, from: EventExport) -> DeviceResult<EventHandle> {
        self.work.process.check()?;
        let Some(descriptor) = from.descriptor else {
            return invalid("open_event", "the event of a host device has a descriptor, and none is here");
        };
        self.add_event(Event::Shared(Arc::new(SharedEvent::open(&descriptor)?)))
    }

    fn peer_id(&self) -> Option<PeerId> {
        Some(self.work.id)
    }

    fn can_be_reached_from(&self, peer: PeerId) -> DeviceResult<bool> {
        Ok(peer.is_beside(self.work.id))
    }

    unsafe fn set_peer_access(
        &self,
        at: DevicePtr,
        bytes: u64,
        peers: PeerSet,
        allowed: bool,
    ) -> DeviceResult<()> {
        self.memory()?.set_peer_access(at, bytes, peers, allowed)
    }

    unsafe fn copy_from_peer(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        peer: PeerId,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        const CALL: &str = "copy_from_peer";
        self.work.process.check()?;
        if bytes == 0 {
            return Ok(());
        }
        let Work { id, group, memories, .. } = &*self.work;
        let source = if peer == *id {
            Some(Arc::clone(memories))
        } else {
            group.memory_of(peer).filter(|_| peer.is_beside(*id))
        };
        let Some(source) = source else {
            return invalid(CALL, format!("{peer:?} is not of the group, or gone"));
        };
        source.check_access(CALL, from, bytes, None)?;
        memories.check_access(CALL, to, bytes, None)?;
        if to.raw().abs_diff(from.raw()) < bytes {
            return invalid(CALL, format!("{bytes} bytes at {from} and at {to} overlap"));
        }
        self.submit(CALL, stream, move || {
            // SAFETY: the caller keeps both ranges usable and ours until the stream has done this.
            unsafe { bytes_at(to).copy_from_nonoverlapping(bytes_at(from), bytes as usize) }
            // The memory stays mapped at least as long.
            drop(source);
        })
    }
}

/// Where device memory lies in the process: at its own address.
fn bytes_at(at: DevicePtr) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at.raw() as usize)
}

// SAFETY: the model's blocks do not overlap.
unsafe impl DriverPool for HostDevice {
    unsafe fn alloc_async(&self, bytes: u64, stream: StreamHandle) -> DeviceResult<DevicePtr> {
        self.memory()?.alloc_async(bytes, &self.stream("alloc_async", stream)?)
    }

    unsafe fn free_async(&self, at: DevicePtr, stream: StreamHandle) -> DeviceResult<()> {
        self.memory()?.free_async(at, &self.stream("free_async", stream)?)
    }

    fn async_usage(&self) -> DeviceResult<AsyncUsage> {
        Ok(self.memory()?.async_usage())
    }
}
