//! The [`Device`] trait, call by call.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUpointer_attribute, CUstream_flags};

use super::api::{CaptureStatus, Code, is_ready};
use super::checked;
use super::device::{CudaDevice, stream_of};
use super::exports;
use super::host_ranges;
use super::managed::{self, CudaManaged};
use super::peers::{self, access_of};
use super::pinned::CudaPinned;
use crate::device::{
    Advice, AsyncUsage, CaptureId, Device, DeviceError, DeviceIdentity, DevicePtr, DeviceResult, DriverPool,
    EventExport, EventHandle, HostWork, MemoryInfo, PageExport, PageHandle, PeerId, PeerSet, Place,
    Properties, Residency, StreamHandle, StreamId,
};

/// What is staged of a copy to pinned memory; for more, the caller waits. The driver stages as much for a GPU's memory
/// ("API synchronization behavior" in its reference).
const MOST_STAGED: u64 = 64 << 10;

// SAFETY: each call is one of the driver's, which keeps what the trait asks for.
unsafe impl Device for CudaDevice {
    fn properties(&self) -> &Properties {
        self.device_properties()
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        let _relaxed = self.relax()?;
        let _entered = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both are writable.
        unsafe { self.api().cuMemGetInfo_v2(&mut free, &mut total) }?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    // ---- addresses -------------------------------------------------------------------------------

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let _relaxed = self.relax()?;
        self.needs_virtual_memory()?;
        self.peers.join()?;
        let mut at = 0;
        // SAFETY: `at` is writable. An alignment of 0 is the granularity.
        unsafe { self.api().cuMemAddressReserve(&mut at, bytes as usize, 0, 0, 0) }
            // "Out of memory" here means addresses, which no freeing of device memory brings back.
            .map_err(|failure| failure.described())?;
        Ok(DevicePtr::new(at))
    }

    unsafe fn unreserve(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let _relaxed = self.relax()?;
        // SAFETY: the caller's promise: a whole reserved range with nothing mapped.
        Ok(unsafe { self.api().cuMemAddressFree(at.raw(), bytes as usize) }?)
    }

    // ---- pages -----------------------------------------------------------------------------------

    fn create_page(&self, bytes: u64) -> DeviceResult<PageHandle> {
        let _relaxed = self.relax()?;
        self.needs_virtual_memory()?;
        let _alone = self.mappings.lock();
        let page = self
            .page_extras
            .create(self.api(), self.raw_device(), bytes)
            .map_err(|failure| failure.asking(bytes))?;
        // SAFETY: a handle of this device, fresh.
        Ok(unsafe { PageHandle::from_raw(page) })
    }

    unsafe fn map(&self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<()> {
        let _relaxed = self.relax()?;
        let _alone = self.mappings.lock();
        // SAFETY: the caller's promise: a page and a range of its own.
        unsafe { self.api().cuMemMap(at.raw(), bytes as usize, 0, page.raw(), 0) }
            .map_err(|failure| failure.mapping(bytes))
    }

    unsafe fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let _relaxed = self.relax()?;
        let access = access_of(self.raw_device(), true);
        let _alone = self.mappings.lock();
        // SAFETY: one readable description, and the caller's promise: a mapping of its own.
        unsafe { self.api().cuMemSetAccess(at.raw(), bytes as usize, &access, 1) }
            .map_err(|failure| failure.asking(bytes))
    }

    unsafe fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let _relaxed = self.relax()?;
        self.peers.forget(at);
        let _alone = self.mappings.lock();
        // SAFETY: the caller's promise: one whole mapping that no work uses.
        Ok(unsafe { self.api().cuMemUnmap(at.raw(), bytes as usize) }?)
    }

    unsafe fn release_page(&self, page: PageHandle) -> DeviceResult<()> {
        let _relaxed = self.relax()?;
        let _alone = self.mappings.lock();
        // SAFETY: the caller's promise: the handle is not used again.
        Ok(unsafe { self.api().cuMemRelease(page.raw()) }?)
    }

    // ---- whole segments --------------------------------------------------------------------------

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let _relaxed = self.relax()?;
        self.peers.join()?;
        let _entered = self.enter()?;
        let mut at = 0;
        // SAFETY: `at` is writable.
        unsafe { self.api().cuMemAlloc_v2(&mut at, bytes as usize) }
            .map_err(|failure| failure.asking(bytes))?;
        let at = DevicePtr::new(at);
        self.segments.lock().insert(at);
        checked::begin(at, bytes);
        Ok(at)
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        let _relaxed = self.relax()?;
        // The address may be another's by now.
        let entered = if self.has_ended() { None } else { Some(self.enter()?) };
        // Before: another thread may get the address next.
        let was_listed = self.segments.lock().remove(&at);
        checked::end(at);
        if entered.is_none() {
            return Ok(());
        }
        // SAFETY: the caller's promise: a segment that is not used again.
        unsafe { self.api().cuMemFree_v2(at.raw()) }.inspect_err(|_| {
            if was_listed {
                self.segments.lock().insert(at);
            }
        })?;
        Ok(())
    }

    fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
        self.async_pool()?;
        Ok(self)
    }

    fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
        let _relaxed = self.relax()?;
        Ok(Arc::new(CudaPinned::new(self, node)?))
    }

    fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
        let _relaxed = self.relax()?;
        Ok(Arc::new(CudaManaged::new(self)?))
    }

    unsafe fn prefetch(
        &self,
        at: DevicePtr,
        bytes: u64,
        to: Place,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { managed::prefetch(self, at, bytes, to, stream) }
    }

    fn advise(&self, at: DevicePtr, bytes: u64, advice: Advice) -> DeviceResult<()> {
        managed::advise(self, at, bytes, advice)
    }

    fn residency(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Residency> {
        managed::residency(self, at, bytes)
    }

    // ---- streams ---------------------------------------------------------------------------------

    fn create_stream(&self) -> DeviceResult<StreamHandle> {
        let _relaxed = self.relax()?;
        let _entered = self.enter()?;
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: `raw` is writable.
        unsafe { self.api().cuStreamCreate(&mut raw, flags) }?;
        // SAFETY: a handle of this device, fresh.
        Ok(unsafe { StreamHandle::from_raw(raw as u64) })
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        if self.has_ended() {
            return Ok(());
        }
        let _relaxed = self.relax()?;
        let _entered = self.enter()?;
        // SAFETY: the caller's promise: a stream of ours that is not used again.
        Ok(unsafe { self.api().cuStreamDestroy_v2(stream_of(stream)) }?)
    }

    unsafe fn stream_id(&self, stream: StreamHandle) -> DeviceResult<StreamId> {
        // `cuStreamGetId` fails for a stream that is being captured, in every capture mode, and ends the capture (seen
        // with driver 580).
        // SAFETY: the caller's promise.
        if unsafe { self.capture_of(stream) }?.is_some() {
            return Ok(StreamId::in_capture(stream));
        }
        let _entered = self.enter_for(stream)?;
        let mut id = 0;
        // SAFETY: `id` is writable, the stream lives by the caller's promise.
        unsafe { self.api().cuStreamGetId(stream_of(stream), &mut id) }?;
        Ok(StreamId(id))
    }

    unsafe fn stream_is_idle(&self, stream: StreamHandle) -> DeviceResult<bool> {
        if self.has_ended() {
            return Ok(true);
        }
        let _relaxed = self.relax()?;
        let _entered = self.enter_for(stream)?;
        // SAFETY: the stream lives by the caller's promise.
        is_ready(unsafe { self.api().cuStreamQuery(stream_of(stream)) })
    }

    unsafe fn capture_of(&self, stream: StreamHandle) -> DeviceResult<Option<CaptureId>> {
        let _entered = self.enter_for(stream)?;
        let (mut status, mut id) = (CaptureStatus::NONE, 0);
        // SAFETY: both are writable, null asks for nothing more, and the stream lives by the caller's promise.
        let asked = unsafe {
            let none = ptr::null_mut();
            self.api().cuStreamGetCaptureInfo_v2(
                stream_of(stream),
                &mut status,
                &mut id,
                none,
                none,
                none.cast(),
            )
        };
        match asked {
            Ok(()) => Ok((status != CaptureStatus::NONE).then_some(CaptureId(id))),
            // It is no part of the capture, but to use it would end that.
            Err(failure) if failure.code == Code::CAPTURE_IMPLICIT => Ok(Some(CaptureId(0))),
            Err(failure) if Code::OF_AN_ENDED_STREAM.contains(&failure.code) => {
                let what = "the stream ended, or its context did: use another one".to_owned();
                Err(DeviceError::Invalid { call: "cuStreamGetCaptureInfo", what })
            }
            Err(failure) => Err(failure.into()),
        }
    }

    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        if self.has_ended() {
            return Ok(());
        }
        let _entered = self.enter_for(stream)?;
        // SAFETY: the stream lives by the caller's promise.
        Ok(unsafe { self.api().cuStreamSynchronize(stream_of(stream)) }?)
    }

    fn synchronize(&self) -> DeviceResult<()> {
        if self.has_ended() {
            return Ok(());
        }
        let _relaxed = self.relax()?;
        let _entered = self.enter()?;
        // SAFETY: our context is current.
        Ok(unsafe { self.api().cuCtxSynchronize() }?)
    }

    // ---- events ----------------------------------------------------------------------------------

    fn create_event(&self) -> DeviceResult<EventHandle> {
        let _relaxed = self.relax()?;
        let _entered = self.enter()?;
        let mut raw = ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: `raw` is writable.
        unsafe { self.api().cuEventCreate(&mut raw, flags) }?;
        // SAFETY: a handle of this device, fresh.
        Ok(unsafe { EventHandle::from_raw(raw as u64) })
    }

    unsafe fn destroy_event(&self, event: EventHandle) -> DeviceResult<()> {
        if self.has_ended() {
            return Ok(());
        }
        let _relaxed = self.relax()?;
        let _entered = self.enter()?;
        // SAFETY: the caller's promise: an event of ours that is not used again.
        Ok(unsafe { self.api().cuEventDestroy_v2(event_of(event)) }?)
    }

    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> DeviceResult<()> {
        let _entered = self.enter_for(stream)?;
        // SAFETY: both live by the caller's promise.
        Ok(unsafe { self.api().cuEventRecord(event_of(event), stream_of(stream)) }?)
    }

    unsafe fn query_event(&self, event: EventHandle) -> DeviceResult<bool> {
        if self.has_ended() {
            return Ok(true);
        }
        let _relaxed = self.relax()?;
        // SAFETY: the event lives by the caller's promise.
        is_ready(unsafe { self.api().cuEventQuery(event_of(event)) })
    }

    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> DeviceResult<()> {
        let _entered = self.enter_for(stream)?;
        // SAFETY: both live by the caller's promise.
        Ok(unsafe { self.api().cuStreamWaitEvent(stream_of(stream), event_of(event), 0) }?)
    }

    unsafe fn synchronize_event(&self, event: EventHandle) -> DeviceResult<()> {
        if self.has_ended() {
            return Ok(());
        }
        let _relaxed = self.relax()?;
        // SAFETY: the event lives by the caller's promise.
        Ok(unsafe { self.api().cuEventSynchronize(event_of(event)) }?)
    }

    // ---- bytes -----------------------------------------------------------------------------------
    // No bytes are no work, whatever the addresses; the driver refuses some such calls.

    unsafe fn launch_host(&self, stream: StreamHandle, work: HostWork) -> DeviceResult<()> {
        // SAFETY: the caller's promise. This is the function of the type, which takes any closure.
        unsafe { Self::launch_host(self, stream, work) }
    }

    unsafe fn memset(&self, at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) -> DeviceResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _entered = self.enter()?;
        // SAFETY: the caller's promise: the range is ours to write, in stream order.
        let memset =
            |(at, bytes)| unsafe { self.api().cuMemsetD8Async(at, value, bytes as usize, stream_of(stream)) };
        let set = if host_ranges::contains(at) {
            host_ranges::by_page(at, bytes).try_for_each(memset)
        } else {
            memset((at.raw(), bytes))
        };
        Ok(set?)
    }

    unsafe fn may_differ(
        &self,
        at: DevicePtr,
        value: u8,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<bool> {
        let _relaxed = self.relax()?;
        let _entered = self.enter()?;
        let Some(comparing) = self.comparing() else { return Ok(true) };
        // SAFETY: the caller's promise.
        unsafe { comparing.differs(at, value, bytes, stream_of(stream)) }
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
        // First: no lock is waited for in a forked child, here and below.
        let _entered = self.enter()?;
        // SAFETY: the caller's promise of the stream.
        if unsafe { self.capture_of(stream) }?.is_some() {
            let what = "the stream is being captured, and a graph would read the host's memory again at each replay: copy \
                        before the capture, or from pinned memory that stays";
            return Err(DeviceError::Invalid { call: "copy_from_host", what: what.to_owned() });
        }
        // The driver's own copy from host to host memory makes the caller wait.
        if bytes <= MOST_STAGED && host_ranges::contains(to) {
            // SAFETY: the caller's promise: `from` is readable now.
            let staged = unsafe { std::slice::from_raw_parts(from, bytes as usize) }.to_vec();
            let copy = move || {
                let to = ptr::with_exposed_provenance_mut::<u8>(to.raw() as usize);
                // SAFETY: the caller's promise: `to` is ours to write in stream order, and the copy is our own.
                unsafe { ptr::copy_nonoverlapping(staged.as_ptr(), to, staged.len()) };
            };
            // SAFETY: the caller's promise of the stream, which is not captured.
            return unsafe { self.launch_host(stream, copy) };
        }
        // SAFETY: the caller's promise: `from` is readable now, `to` is ours to write in stream order.
        unsafe {
            self.api().cuMemcpyHtoDAsync_v2(
                to.raw(),
                from.cast::<c_void>(),
                bytes as usize,
                stream_of(stream),
            )
        }?;
        // SAFETY: the caller's promise: the stream is valid.
        if self.is_read_later(from) { unsafe { self.synchronize_stream(stream) } } else { Ok(()) }
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
        let _entered = self.enter()?;
        // SAFETY: the caller's promise: `to` stays writable until the stream is synchronised.
        Ok(unsafe {
            self.api().cuMemcpyDtoHAsync_v2(
                to.cast::<c_void>(),
                from.raw(),
                bytes as usize,
                stream_of(stream),
            )
        }?)
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
        let _entered = self.enter()?;
        // In a capture the driver's copy is a node like others.
        if host_ranges::contains(to)
            && host_ranges::contains(from)
            // SAFETY: the caller's promise of the stream.
            && unsafe { self.capture_of(stream) }?.is_none()
        {
            // SAFETY: the caller's promise of both ranges and of the stream, which is not captured.
            return unsafe { self.copy_on_host(to, from, bytes, stream) };
        }
        // SAFETY: the caller's promise: both ranges are ours to use, in stream order.
        Ok(unsafe {
            self.api().cuMemcpyDtoDAsync_v2(to.raw(), from.raw(), bytes as usize, stream_of(stream))
        }?)
    }

    // ---- other processes -------------------------------------------------------------------------

    fn identity(&self) -> DeviceResult<DeviceIdentity> {
        let _relaxed = self.relax()?;
        exports::identity(self)
    }

    fn reaches(&self, other: DeviceIdentity) -> DeviceResult<bool> {
        let _relaxed = self.relax()?;
        exports::reaches(self, other)
    }

    unsafe fn export_page(&self, page: PageHandle) -> DeviceResult<PageExport> {
        let _relaxed = self.relax()?;
        // SAFETY: the caller's promise.
        unsafe { exports::export_page(self, page) }
    }

    fn import_page(&self, from: PageExport, _bytes: u64) -> DeviceResult<PageHandle> {
        let _relaxed = self.relax()?;
        self.needs_virtual_memory()?;
        // The driver knows how long it is, and maps no more.
        exports::import_page(self, &from.descriptor)
    }

    fn create_shared_event(&self) -> DeviceResult<(EventHandle, EventExport)> {
        let _relaxed = self.relax()?;
        let _entered = self.enter()?;
        let (event, export) = exports::create_event(self.api())?;
        // SAFETY: a handle of this device, fresh.
        Ok((unsafe { EventHandle::from_raw(event as u64) }, export))
    }

    fn open_event(&self, from: EventExport) -> DeviceResult<EventHandle> {
        let _relaxed = self.relax()?;
        let _entered = self.enter()?;
        let event = exports::open_event(self, &from)?;
        // SAFETY: a handle of this device, fresh.
        Ok(unsafe { EventHandle::from_raw(event as u64) })
    }

    // ---- several devices -------------------------------------------------------------------------

    fn peer_id(&self) -> Option<PeerId> {
        PeerId::gpu(self.ordinal())
    }

    fn can_be_reached_from(&self, peer: PeerId) -> DeviceResult<bool> {
        let _relaxed = self.relax()?;
        self.peers.can_be_reached_from(peer)
    }

    unsafe fn set_peer_access(
        &self,
        at: DevicePtr,
        bytes: u64,
        peers: PeerSet,
        allowed: bool,
    ) -> DeviceResult<()> {
        let _relaxed = self.relax()?;
        if !self.segments.lock().contains(&at) {
            let _alone = self.mappings.lock();
            // SAFETY: the caller's promise: a mapping of its own, or of pinned memory.
            return unsafe { self.peers.set_access(at, bytes, peers, allowed) };
        }
        if allowed { self.peers.share_segments(peers) } else { Ok(()) }
    }

    unsafe fn copy_from_peer(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        peer: PeerId,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _entered = self.enter()?;
        // Pinned and managed memory is of no GPU.
        if [to, from].into_iter().any(|at| host_ranges::contains(at) || self.is_managed(at)) {
            // SAFETY: the caller's promise, and access to the source.
            return unsafe { self.copy(to, from, bytes, stream) };
        }
        let source = peers::context_of(self.api(), peer)?;
        // The call that names both GPUs copies mapped memory without access, too, by way of the host; a plain copy does not.
        // SAFETY: the caller's promise: both ranges are ours to use, in stream order. The contexts are retained.
        Ok(unsafe {
            self.api().cuMemcpyPeerAsync(
                to.raw(),
                self.raw_context(),
                from.raw(),
                source.raw(),
                bytes as usize,
                stream_of(stream),
            )
        }?)
    }
}

impl CudaDevice {
    /// Copies within the host's memory, in stream order, on a thread of the driver. So the caller does not wait.
    ///
    /// # Safety
    /// As for [`Device::copy`]; both ranges are pinned memory, and the stream is not captured.
    unsafe fn copy_on_host(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        let copy = move || {
            let at = |at: DevicePtr| ptr::with_exposed_provenance_mut::<u8>(at.raw() as usize);
            // SAFETY: the caller's promise: both ranges stay until the stream is past this, and do not overlap.
            unsafe { ptr::copy_nonoverlapping(at(from), at(to), bytes as usize) };
        };
        // SAFETY: the caller's promise of the stream.
        unsafe { self.launch_host(stream, copy) }
    }

    /// Whether an address is of managed memory.
    fn is_managed(&self, at: DevicePtr) -> bool {
        let mut is_managed: c_uint = 0;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED;
        // SAFETY: this attribute is a boolean of an unsigned int's size. The address is only looked up.
        let asked = unsafe {
            self.api().cuPointerGetAttribute((&raw mut is_managed).cast::<c_void>(), attribute, at.raw())
        };
        asked.is_ok() && is_managed != 0
    }

    /// Whether a copy from this host address may read it after the call has returned.
    ///
    /// Pageable memory is staged: the call returns once the driver has copied it ("API synchronization behavior" in the
    /// driver's reference). Memory that the driver knows (pinned, registered, managed) is read in stream order. So is
    /// all memory where the GPU walks the host's page tables (Grace Hopper).
    fn is_read_later(&self, from: *const u8) -> bool {
        let mut kind: c_uint = 0;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        self.copies_read_host_pages
            // SAFETY: this attribute is written as an unsigned int. The address is only looked up; one that
            // the driver does not know is an error.
            || unsafe {
                self.api().cuPointerGetAttribute((&raw mut kind).cast::<c_void>(), attribute, from as u64)
            }
            .is_ok()
    }
}

fn event_of(event: EventHandle) -> CUevent {
    event.raw() as CUevent
}

// SAFETY: the driver's own.
unsafe impl DriverPool for CudaDevice {
    unsafe fn alloc_async(&self, bytes: u64, stream: StreamHandle) -> DeviceResult<DevicePtr> {
        let pool = self.async_pool()?;
        let _entered = self.enter_for(stream)?;
        let mut at = 0;
        // SAFETY: `at` is writable, the pool lives as long as `self`, the stream by the caller's promise.
        unsafe { self.api().cuMemAllocFromPoolAsync(&mut at, bytes as usize, pool.raw(), stream_of(stream)) }
            .map_err(|failure| failure.asking(bytes))
            .inspect_err(|_| pool.trim())?;
        Ok(DevicePtr::new(at))
    }

    unsafe fn free_async(&self, at: DevicePtr, stream: StreamHandle) -> DeviceResult<()> {
        let _entered = self.enter_for(stream)?;
        // SAFETY: the caller's promise: a block of `alloc_async`, its uses ordered before this.
        Ok(unsafe { self.api().cuMemFreeAsync(at.raw(), stream_of(stream)) }?)
    }

    fn async_usage(&self) -> DeviceResult<AsyncUsage> {
        self.async_pool()?.usage()
    }
}
