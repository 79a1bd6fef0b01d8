//! The calls of [`Device`], one by one.

use std::sync::Arc;
use std::time::Duration;

use slotmap::Key;

use super::SimDevice;
use super::call::Call;
use super::costs::{CostTable, transfer};
use super::exports;
use super::state::{State, event_key};
use super::when::When;
use crate::device::inventory::{Owner, invalid};
use crate::device::{
    Advice, AsyncUsage, Device, DeviceError, DeviceIdentity, DevicePtr, DeviceResult, DriverPool,
    EventExport, EventHandle, HostWork, MemoryInfo, MemoryKind, PageExport, PageHandle, PeerId, PeerSet,
    Place, Properties, Residency, StreamHandle, StreamId,
};
use crate::system::lock::MutexGuard;

impl SimDevice {
    /// Counts the call, and fails it if a test asked for that.
    // Inlined, since it is half of most calls.
    #[inline(always)]
    fn enter(&self, call: Call) -> DeviceResult<MutexGuard<'_, State>> {
        self.shared.process.check()?;
        let mut state = self.state();
        state.calls[call] += 1;
        state.faults.check(call)?;
        Ok(state)
    }

    /// What its memory is.
    fn kind(&self) -> MemoryKind {
        self.properties.memory
    }

    /// Whether the other device reaches its memory directly.
    fn reaches(&self, peer: PeerId) -> bool {
        peer == self.id || peer.is_beside(self.id) && self.shared.peer_access
    }

    fn unsupported<T>(&self, what: &'static str) -> DeviceResult<T> {
        Err(DeviceError::Unsupported { device: self.properties.name.clone(), what })
    }

    /// Another memory of the device's, as a device.
    fn other(&self, total_memory: u64, memory: MemoryKind) -> Arc<dyn Device> {
        let properties = Properties {
            total_memory,
            virtual_memory: self.shared.virtual_memory && memory != MemoryKind::Managed,
            memory_pools: false,
            memory,
            ..self.properties.clone()
        };
        Arc::new(Self { properties, id: self.id, shared: Arc::clone(&self.shared) })
    }

    /// Whether a range is of managed memory, which moves. Plain memory of the host may move, too; other memory is refused.
    fn check_movable(
        &self,
        state: &State,
        call: &'static str,
        at: DevicePtr,
        bytes: u64,
    ) -> DeviceResult<bool> {
        match state.check_access(call, at, bytes) {
            Ok(MemoryKind::Managed) => Ok(true),
            Ok(other) => invalid(call, format!("{bytes} bytes at {at} are {other}, which does not move")),
            Err(_) if self.properties.pageable_access => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A copy or memset: the host puts it on the stream, and the stream takes its time.
    fn submit(
        &self,
        call: Call,
        ranges: &[(DevicePtr, u64)],
        speed: impl FnOnce(&CostTable) -> u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        let mut state = self.enter(call)?;
        let (mut is_pinned, mut is_managed) = (false, false);
        for &(at, bytes) in ranges.iter().filter(|(_, bytes)| *bytes > 0) {
            let kind = state.check_access(call.name(), at, bytes)?;
            is_pinned |= kind == MemoryKind::Pinned;
            is_managed |= kind == MemoryKind::Managed;
        }
        if is_managed {
            for &(at, bytes) in ranges {
                state.touch(call.name(), at, bytes, stream)?;
            }
        }
        let cost = state.costs.submit;
        let bytes = ranges.first().map_or(0, |&(_, bytes)| bytes);
        // The link between the device and the host is the narrowest part of the way.
        let link = if is_pinned { state.costs.pinned_bytes_per_us } else { u64::MAX };
        let duration = transfer(bytes, speed(&state.costs).min(link));
        state.launch(call.name(), stream, duration)?;
        state.spend(call, cost);
        Ok(())
    }
}

// SAFETY: its inventory lets nothing that is out overlap, and its clock completes work in order. There are no bytes.
unsafe impl Device for SimDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn now(&self) -> Duration {
        self.now()
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        let mut state = self.enter(Call::MemoryInfo)?;
        let cost = state.costs.memory_info;
        state.spend(Call::MemoryInfo, cost);
        Ok(state.inventory(self.kind()).memory_info())
    }

    // ---- addresses -------------------------------------------------------------------------------

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut state = self.enter(Call::Reserve)?;
        if !self.properties.virtual_memory {
            return self.unsupported("virtual memory");
        }
        state.inventory(self.kind()).check_size("reserve", bytes)?;
        let Some(at) = state.addresses.take(bytes) else {
            return Err(DeviceError::OutOfMemory { call: "reserve", requested: bytes });
        };
        state.inventory(self.kind()).reserve(at, bytes);
        let cost = state.costs.reserve;
        state.spend(Call::Reserve, cost);
        Ok(at)
    }

    unsafe fn unreserve(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.enter(Call::Unreserve)?;
        state.inventory(self.kind()).unreserve(at, bytes)?;
        state.addresses.give_back(at, bytes);
        let cost = state.costs.reserve;
        state.spend(Call::Unreserve, cost);
        Ok(())
    }

    // ---- pages -----------------------------------------------------------------------------------

    fn create_page(&self, bytes: u64) -> DeviceResult<PageHandle> {
        let mut state = self.enter(Call::CreatePage)?;
        if !self.properties.virtual_memory {
            return self.unsupported("virtual memory");
        }
        let (page, _) = state.inventory(self.kind()).create_page(bytes)?;
        let cost = state.costs.create_page_of(self.kind()).at(bytes);
        state.spend(Call::CreatePage, cost);
        Ok(page)
    }

    unsafe fn map(&self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<()> {
        let mut state = self.enter(Call::Map)?;
        state.inventory(self.kind()).map(at, bytes, page)?;
        let cost = state.costs.map;
        state.spend(Call::Map, cost);
        Ok(())
    }

    unsafe fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.enter(Call::SetAccess)?;
        let per_page = state.costs.set_access_of(self.kind()).clone();
        let mut cost = 0;
        state.inventory(self.kind()).set_access(at, bytes, |page| cost += per_page.at(page))?;
        state.spend(Call::SetAccess, cost);
        Ok(())
    }

    unsafe fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.enter(Call::Unmap)?;
        let peers = state.inventory(self.kind()).peers_at(at);
        state.inventory(self.kind()).unmap(at, bytes)?;
        let cost = state.costs.unmap_of(state.others_in(peers) > 0).at(bytes);
        state.spend(Call::Unmap, cost);
        Ok(())
    }

    unsafe fn release_page(&self, page: PageHandle) -> DeviceResult<()> {
        let mut state = self.enter(Call::ReleasePage)?;
        let bytes = state.inventory(self.kind()).page_bytes(page)?;
        state.inventory(self.kind()).release_page(page)?;
        let cost = state.costs.release_page.at(bytes);
        state.spend(Call::ReleasePage, cost);
        Ok(())
    }

    // ---- segments --------------------------------------------------------------------------------

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut state = self.enter(Call::AllocSegment)?;
        let (at, _) = state.alloc_segment(self.kind(), "alloc_segment", bytes, Owner::Program)?;
        let cost = match self.kind() {
            MemoryKind::Pinned => state.costs.pinned_alloc_segment.at(bytes),
            MemoryKind::Managed => state.costs.managed_alloc_segment,
            MemoryKind::Device => state.costs.alloc_segment,
        };
        state.spend(Call::AllocSegment, cost);
        Ok(at)
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        const CALL: &str = "free_segment";
        let mut state = self.enter(Call::FreeSegment)?;
        state.inventory(self.kind()).check_segment(CALL, at)?;
        state.host_waits_for_all(CALL)?;
        let bytes = state.inventory(self.kind()).remove_segment(CALL, at)?;
        state.addresses.give_back(at, bytes);
        if self.kind() == MemoryKind::Managed {
            state.managed.forget(at, bytes);
        }
        let cost = state.costs.free_segment;
        state.spend(Call::FreeSegment, cost);
        Ok(())
    }

    fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
        if self.properties.memory_pools { Ok(self) } else { self.unsupported("stream-ordered memory pools") }
    }

    fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
        drop(self.enter(Call::Pinned)?);
        if node.is_some() {
            return self.unsupported("a choice of the NUMA node");
        }
        Ok(self.other(self.shared.pinned_capacity, MemoryKind::Pinned))
    }

    fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
        drop(self.enter(Call::Managed)?);
        Ok(self.other(self.shared.managed_capacity, MemoryKind::Managed))
    }

    // ---- where managed memory lies -----------------------------------------------------------------

    unsafe fn prefetch(
        &self,
        at: DevicePtr,
        bytes: u64,
        to: Place,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        const CALL: &str = "prefetch";
        let mut state = self.enter(Call::Prefetch)?;
        if bytes > 0 {
            let is_managed = self.check_movable(&state, CALL, at, bytes)?;
            // Refused first, so that nothing has moved then.
            state.busy_until(CALL, stream)?;
            let time = match is_managed {
                true => state.move_to(at, bytes, to),
                false => transfer(bytes, state.costs.managed_prefetch_bytes_per_us),
            };
            state.launch(CALL, stream, time)?;
        }
        let cost = state.costs.managed_prefetch;
        state.spend(Call::Prefetch, cost);
        Ok(())
    }

    fn advise(&self, at: DevicePtr, bytes: u64, advice: Advice) -> DeviceResult<()> {
        let mut state = self.enter(Call::Advise)?;
        if bytes > 0 && self.check_movable(&state, "advise", at, bytes)? {
            state.managed.hints.advise(at, bytes, advice);
        }
        let cost = state.costs.managed_advise;
        state.spend(Call::Advise, cost);
        Ok(())
    }

    fn residency(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Residency> {
        let mut state = self.enter(Call::Residency)?;
        let is_managed = self.check_movable(&state, "residency", at, bytes)?;
        let cost = state.costs.managed_advise;
        state.spend(Call::Residency, cost);
        Ok(if is_managed { state.managed.hints.of(at, bytes) } else { Residency::default() })
    }

    // ---- streams ---------------------------------------------------------------------------------

    fn create_stream(&self) -> DeviceResult<StreamHandle> {
        let mut state = self.enter(Call::CreateStream)?;
        let cost = state.costs.stream_life;
        state.spend(Call::CreateStream, cost);
        Ok(state.create_stream())
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        let mut state = self.enter(Call::DestroyStream)?;
        state.destroy_stream(stream)?;
        let cost = state.costs.stream_life;
        state.spend(Call::DestroyStream, cost);
        Ok(())
    }

    unsafe fn stream_id(&self, stream: StreamHandle) -> DeviceResult<StreamId> {
        let mut state = self.enter(Call::StreamId)?;
        let cost = state.costs.stream_id;
        state.spend(Call::StreamId, cost);
        state.stream_id("stream_id", stream)
    }

    unsafe fn stream_is_idle(&self, stream: StreamHandle) -> DeviceResult<bool> {
        let mut state = self.enter(Call::StreamIsIdle)?;
        let until = state.busy_until("stream_is_idle", stream)?;
        let idle = until.is_past(state.now);
        let cost = state.costs.query;
        state.spend(Call::StreamIsIdle, cost);
        Ok(idle)
    }

    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        const CALL: &str = "synchronize_stream";
        let mut state = self.enter(Call::SynchronizeStream)?;
        let until = state.busy_until(CALL, stream)?;
        state.host_waits(CALL, until)?;
        let cost = state.costs.query;
        state.spend(Call::SynchronizeStream, cost);
        Ok(())
    }

    fn synchronize(&self) -> DeviceResult<()> {
        let mut state = self.enter(Call::Synchronize)?;
        state.host_waits_for_all("synchronize")?;
        let cost = state.costs.query;
        state.spend(Call::Synchronize, cost);
        Ok(())
    }

    // ---- events ----------------------------------------------------------------------------------

    fn create_event(&self) -> DeviceResult<EventHandle> {
        let mut state = self.enter(Call::CreateEvent)?;
        let cost = state.costs.event_life;
        state.spend(Call::CreateEvent, cost);
        let key = state.events.insert(When::default());
        // SAFETY: the number stands for the event just made, until `destroy_event`.
        Ok(unsafe { EventHandle::from_raw(key.data().as_ffi()) })
    }

    unsafe fn destroy_event(&self, event: EventHandle) -> DeviceResult<()> {
        let mut state = self.enter(Call::DestroyEvent)?;
        // An event of another name may be gone under it.
        if state.other_names.remove(&event_key(event)).is_none() {
            state.event("destroy_event", event)?;
        }
        state.events.remove(event_key(event));
        let cost = state.costs.event_life;
        state.spend(Call::DestroyEvent, cost);
        Ok(())
    }

    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> DeviceResult<()> {
        const CALL: &str = "record_event";
        let mut state = self.enter(Call::RecordEvent)?;
        let until = state.busy_until(CALL, stream)?;
        *state.event(CALL, event)? = until;
        let cost = state.costs.record_event;
        state.spend(Call::RecordEvent, cost);
        Ok(())
    }

    unsafe fn query_event(&self, event: EventHandle) -> DeviceResult<bool> {
        let mut state = self.enter(Call::QueryEvent)?;
        let when = *state.event("query_event", event)?;
        let complete = when.is_past(state.now);
        let cost = state.costs.query;
        state.spend(Call::QueryEvent, cost);
        Ok(complete)
    }

    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> DeviceResult<()> {
        const CALL: &str = "wait_event";
        let mut state = self.enter(Call::WaitEvent)?;
        let when = *state.event(CALL, event)?;
        state.wait_for(CALL, stream, when)?;
        let cost = state.costs.wait_event;
        state.spend(Call::WaitEvent, cost);
        Ok(())
    }

    unsafe fn synchronize_event(&self, event: EventHandle) -> DeviceResult<()> {
        const CALL: &str = "synchronize_event";
        let mut state = self.enter(Call::SynchronizeEvent)?;
        let when = *state.event(CALL, event)?;
        state.host_waits(CALL, when)?;
        let cost = state.costs.query;
        state.spend(Call::SynchronizeEvent, cost);
        Ok(())
    }

    // ---- bytes -----------------------------------------------------------------------------------

    /// At once: the virtual time goes on until the stream's earlier work is complete, as in a wait for it.
    unsafe fn launch_host(&self, stream: StreamHandle, work: HostWork) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.synchronize_stream(stream) }?;
        work();
        Ok(())
    }

    unsafe fn memset(&self, at: DevicePtr, _value: u8, bytes: u64, stream: StreamHandle) -> DeviceResult<()> {
        self.submit(Call::Memset, &[(at, bytes)], |costs| costs.device_bytes_per_us, stream)
    }

    unsafe fn copy_from_host(
        &self,
        to: DevicePtr,
        _from: *const u8,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        self.submit(Call::CopyFromHost, &[(to, bytes)], |costs| costs.host_bytes_per_us, stream)
    }

    /// Leaves the host's memory as it is: there are no bytes to copy.
    unsafe fn copy_to_host(
        &self,
        _to: *mut u8,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        self.submit(Call::CopyToHost, &[(from, bytes)], |costs| costs.host_bytes_per_us, stream)
    }

    unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        if to.raw().abs_diff(from.raw()) < bytes {
            return invalid("copy", format!("{bytes} bytes at {from} and at {to} overlap"));
        }
        self.submit(Call::Copy, &[(from, bytes), (to, bytes)], |costs| costs.device_bytes_per_us, stream)
    }

    // ---- other processes -------------------------------------------------------------------------

    fn identity(&self) -> DeviceResult<DeviceIdentity> {
        drop(self.enter(Call::Identity)?);
        Ok(self.shared.identity)
    }

    unsafe fn export_page(&self, page: PageHandle) -> DeviceResult<PageExport> {
        let mut state = self.enter(Call::ExportPage)?;
        state.inventory(self.kind()).page_extent("export_page", page)?;
        let descriptor = exports::export_page(self.shared.identity, page)?;
        let cost = state.costs.share_page;
        state.spend(Call::ExportPage, cost);
        Ok(PageExport { descriptor, position: 0 })
    }

    fn import_page(&self, from: PageExport, bytes: u64) -> DeviceResult<PageHandle> {
        const CALL: &str = "import_page";
        let mut state = self.enter(Call::ImportPage)?;
        let exported = exports::page_of(self.shared.identity, &from.descriptor)?;
        let inventory = state.inventory(self.kind());
        if inventory.page_bytes(exported)? != bytes {
            return invalid(CALL, format!("the page does not have {bytes} bytes"));
        }
        let page = inventory.import_page(bytes)?;
        let cost = state.costs.share_page;
        state.spend(Call::ImportPage, cost);
        Ok(page)
    }

    fn create_shared_event(&self) -> DeviceResult<(EventHandle, EventExport)> {
        let mut state = self.enter(Call::CreateSharedEvent)?;
        let cost = state.costs.event_life;
        state.spend(Call::CreateSharedEvent, cost);
        let event = state.events.insert(When::default()).data().as_ffi();
        let data = exports::export_event(self.shared.identity, event);
        // SAFETY: the number stands for the event just made, until `destroy_event`.
        Ok((unsafe { EventHandle::from_raw(event) }, EventExport { data, descriptor: None }))
    }

    fn open_event(&self, from: EventExport) -> DeviceResult<EventHandle> {
        let mut state = self.enter(Call::OpenEvent)?;
        let number = exports::event_of(self.shared.identity, &from.data)?;
        // SAFETY: the next call says whether it is an event's number.
        let exported = unsafe { EventHandle::from_raw(number) };
        state.event("open_event", exported)?;
        let cost = state.costs.event_life;
        state.spend(Call::OpenEvent, cost);
        let key = state.events.insert(When::default());
        state.other_names.insert(key, event_key(exported));
        // SAFETY: the number stands for the event just made, until `destroy_event`.
        Ok(unsafe { EventHandle::from_raw(key.data().as_ffi()) })
    }

    // ---- several devices -------------------------------------------------------------------------

    fn peer_id(&self) -> Option<PeerId> {
        Some(self.id)
    }

    fn can_be_reached_from(&self, peer: PeerId) -> DeviceResult<bool> {
        drop(self.enter(Call::CanBeReachedFrom)?);
        Ok(self.reaches(peer))
    }

    unsafe fn set_peer_access(
        &self,
        at: DevicePtr,
        bytes: u64,
        peers: PeerSet,
        allowed: bool,
    ) -> DeviceResult<()> {
        let mut state = self.enter(Call::SetPeerAccess)?;
        let others = state.others_in(peers);
        if others > 0 && !self.shared.peer_access {
            return if peers == PeerSet::ALL { Ok(()) } else { self.unsupported(DIRECT_ACCESS) };
        }
        state.inventory(self.kind()).set_peer_access(at, bytes, peers, allowed)?;
        let cost = state.costs.set_peer_access.at(bytes) * others;
        state.spend(Call::SetPeerAccess, cost);
        Ok(())
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
        let mut state = self.enter(Call::CopyFromPeer)?;
        if bytes == 0 {
            return Ok(());
        }
        if to.raw().abs_diff(from.raw()) < bytes {
            return invalid(CALL, format!("{bytes} bytes at {from} and at {to} overlap"));
        }
        state.check_access_of(peer, CALL, from, bytes)?;
        state.check_access_of(self.id, CALL, to, bytes)?;
        let has_access = state.check_access(CALL, from, bytes).is_ok();
        let CostTable { peer_bytes_per_us, staged_bytes_per_us, submit, .. } = state.costs;
        let speed = if has_access { peer_bytes_per_us } else { staged_bytes_per_us };
        state.launch(CALL, stream, transfer(bytes, speed))?;
        state.spend(Call::CopyFromPeer, submit);
        Ok(())
    }
}

/// What devices of a group may lack.
const DIRECT_ACCESS: &str = "direct access of other devices to its memory";

// SAFETY: the model's blocks do not overlap.
unsafe impl DriverPool for SimDevice {
    unsafe fn alloc_async(&self, bytes: u64, stream: StreamHandle) -> DeviceResult<DevicePtr> {
        let mut state = self.enter(Call::AllocAsync)?;
        let (at, grown) = state.alloc_async(bytes, stream)?;
        let growth = if grown { state.costs.alloc_segment } else { 0 };
        let cost = state.costs.alloc_async + growth;
        state.spend(Call::AllocAsync, cost);
        Ok(at)
    }

    unsafe fn free_async(&self, at: DevicePtr, stream: StreamHandle) -> DeviceResult<()> {
        let mut state = self.enter(Call::FreeAsync)?;
        state.free_async(at, stream)?;
        let cost = state.costs.free_async;
        state.spend(Call::FreeAsync, cost);
        Ok(())
    }

    fn async_usage(&self) -> DeviceResult<AsyncUsage> {
        let mut state = self.enter(Call::AsyncUsage)?;
        Ok(state.async_usage())
    }
}
