//! The device calls: each is checked, passed on, and remembered if it succeeded.
//!
//! Calls that do not wait are passed on under the lock. So the clocks see calls in the same order as the device. Calls
//! that wait take what they will teach before, and note it after.

use std::sync::Arc;

use super::clock::{Clock, DeviceNumber, StreamKey};
use super::memory::{FileKey, Origin, PageKey};
use super::{CheckerDevice, State};
use crate::device::{
    Advice, AsyncUsage, Device, DevicePtr, DeviceResult, DriverPool, EventExport, EventHandle, Forward,
    MemoryKind, PageExport, PageHandle, PeerId, PeerSet, Place, Residency, StreamHandle, StreamId,
};

impl CheckerDevice {
    /// Passes on a call that waits, outside the lock; `teaches` is complete if it succeeds. A refusal is not
    /// judged: the handle was checked, and a simulated device refuses to wait for a stream that a test holds.
    fn wait(&self, teaches: Clock, call: impl FnOnce() -> DeviceResult<()>) -> DeviceResult<()> {
        call()?;
        self.state.lock().order.complete(&teaches);
        Ok(())
    }

    /// Checks a prefetch or advice. The device may take plain memory of the host for it, too, which nobody watches.
    fn place(
        &self,
        state: &mut State,
        call: &'static str,
        (at, bytes): (DevicePtr, u64),
        stream: Option<StreamKey>,
    ) {
        if !self.inner.properties().pageable_access || state.memory.resolve(at, bytes).is_ok() {
            state.place(call, at, bytes, stream);
        }
    }

    /// The device's other memory, watched with it.
    fn watch(&self, inner: Arc<dyn Device>) -> Arc<dyn Device> {
        let (state, calls_elsewhere) = (self.state.clone(), self.calls_elsewhere.clone());
        Arc::new(Self { inner, number: self.number, state, process: self.process, calls_elsewhere })
    }

    /// Whose memory it is, and of which kind.
    fn memory(&self) -> (DeviceNumber, MemoryKind) {
        (self.number, self.inner.properties().memory)
    }

    fn page(&self, handle: PageHandle) -> PageKey {
        let (device, kind) = self.memory();
        (device, kind, handle)
    }
}

/// What the descriptors of one exported page have in common.
fn file_key(export: &PageExport) -> Option<FileKey> {
    Some((rustix::fs::fstat(&export.descriptor).ok()?.st_ino, export.position))
}

// SAFETY: it passes every call on or refuses it, and changes no answer.
unsafe impl Forward for CheckerDevice {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut state = self.note_call("reserve", [bytes, 0, 0])?;
        let at = self.inner.reserve(bytes);
        let at = state.judge(at)?;
        state.memory.reserve(at, bytes);
        Ok(at)
    }

    unsafe fn unreserve(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.note_call("unreserve", [at.raw(), bytes, 0])?;
        let checked = state.memory.check_unreserve(at, bytes);
        state.require("unreserve", checked)?;
        // SAFETY: the caller's promise, and checked above.
        let done = unsafe { self.inner.unreserve(at, bytes) };
        state.memory.unreserve(at, done.is_ok());
        state.judge(done)
    }

    fn create_page(&self, bytes: u64) -> DeviceResult<PageHandle> {
        let mut state = self.note_call("create_page", [bytes, 0, 0])?;
        let page = self.inner.create_page(bytes);
        let page = state.judge(page)?;
        state.memory.create_page(self.page(page), bytes);
        Ok(page)
    }

    unsafe fn map(&self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<()> {
        let mut state = self.note_call("map", [at.raw(), bytes, page.raw()])?;
        let checked = state.memory.check_map(at, bytes, self.page(page));
        state.require("map", checked)?;
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.map(at, bytes, page) };
        state.judge(done)?;
        state.memory.map(at, bytes, self.page(page));
        Ok(())
    }

    unsafe fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.note_call("set_access", [at.raw(), bytes, 0])?;
        let checked = state.memory.check_set_access(at, bytes);
        state.require("set_access", checked)?;
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.set_access(at, bytes) };
        state.judge(done)?;
        state.memory.set_access(at, bytes);
        Ok(())
    }

    unsafe fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.note_call("unmap", [at.raw(), bytes, 0])?;
        state.check_unmap(at, bytes)?;
        // SAFETY: the caller's promise, and checked above.
        let done = unsafe { self.inner.unmap(at, bytes) };
        state.memory.unmap(at, done.is_ok());
        state.judge(done)
    }

    unsafe fn release_page(&self, page: PageHandle) -> DeviceResult<()> {
        let mut state = self.note_call("release_page", [page.raw(), 0, 0])?;
        let checked = state.memory.check_page(self.page(page));
        state.require("release_page", checked)?;
        // SAFETY: the caller's promise, and checked above.
        let done = unsafe { self.inner.release_page(page) };
        state.memory.release_page(self.page(page), done.is_ok());
        state.judge(done)
    }

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut state = self.note_call("alloc_segment", [bytes, 0, 0])?;
        let at = self.inner.alloc_segment(bytes);
        let at = state.judge(at)?;
        state.memory.add_segment(at, bytes, Origin::Segment, self.memory());
        Ok(at)
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        // Taken out before the call: the address may be another thread's segment by the time it returns.
        let (segment, all_work) = {
            let mut state = self.note_call("free_segment", [at.raw(), 0, 0])?;
            let taken = state.memory.take_segment(at, Origin::Segment);
            let segment = state.require("free_segment", taken)?;
            state.report_live_in("free_segment", at, segment.bytes);
            state.advised.forget(at, segment.bytes);
            (segment, state.order.all_work(self.number))
        };
        // SAFETY: the caller's promise, and checked above.
        let done = self.wait(all_work, || unsafe { self.inner.free_segment(at) });
        let mut state = self.state.lock();
        match done {
            Ok(()) => state.memory.forget(&segment),
            Err(_) => state.memory.put_back(at, segment),
        }
        done
    }

    fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
        self.inner.driver_pool()?;
        Ok(self)
    }

    fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
        self.check_process("pinned")?;
        Ok(self.watch(self.inner.pinned(node)?))
    }

    fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
        self.check_process("managed")?;
        Ok(self.watch(self.inner.managed()?))
    }

    unsafe fn prefetch(
        &self,
        at: DevicePtr,
        bytes: u64,
        to: Place,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        let mut state = self.note_call("prefetch", [at.raw(), bytes, stream.raw()])?;
        let key = state.stream("prefetch", (self.number, stream))?;
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.prefetch(at, bytes, to, stream) };
        state.judge(done)?;
        self.place(&mut state, "prefetch", (at, bytes), Some(key));
        Ok(())
    }

    fn advise(&self, at: DevicePtr, bytes: u64, advice: Advice) -> DeviceResult<()> {
        let mut state = self.note_call("advise", [at.raw(), bytes, 0])?;
        let done = self.inner.advise(at, bytes, advice);
        let takes_back = Advice::TAKEN_BACK.contains(&advice);
        // What the device refused to take back is nobody's fault.
        if bytes > 0 && (done.is_ok() || takes_back) {
            state.advised.note(at, bytes, advice);
        }
        state.judge(done)?;
        // A test says that a block is freed before the allocator is called, which takes advice back.
        if !takes_back {
            self.place(&mut state, "advise", (at, bytes), None);
        }
        Ok(())
    }

    fn residency(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Residency> {
        let mut state = self.note_call("residency", [at.raw(), bytes, 0])?;
        let residency = self.inner.residency(at, bytes);
        let residency = state.judge(residency)?;
        self.place(&mut state, "residency", (at, bytes), None);
        Ok(residency)
    }

    fn create_stream(&self) -> DeviceResult<StreamHandle> {
        let mut state = self.note_call("create_stream", [0; 3])?;
        let stream = self.inner.create_stream();
        let stream = state.judge(stream)?;
        state.order.add_stream((self.number, stream));
        Ok(stream)
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        let mut state = self.note_call("destroy_stream", [stream.raw(), 0, 0])?;
        state.stream("destroy_stream", (self.number, stream))?;
        // SAFETY: the caller's promise, and checked above.
        let done = unsafe { self.inner.destroy_stream(stream) };
        match done {
            Ok(()) => state.order.remove_stream((self.number, stream)),
            Err(_) => state.order.stream_is_stuck((self.number, stream)),
        }
        state.judge(done)
    }

    unsafe fn stream_id(&self, stream: StreamHandle) -> DeviceResult<StreamId> {
        let mut state = self.note_call("stream_id", [stream.raw(), 0, 0])?;
        state.stream("stream_id", (self.number, stream))?;
        // SAFETY: the caller's promise.
        let id = unsafe { self.inner.stream_id(stream) };
        state.judge(id)
    }

    unsafe fn stream_is_idle(&self, stream: StreamHandle) -> DeviceResult<bool> {
        let mut state = self.note_call("stream_is_idle", [stream.raw(), 0, 0])?;
        let key = state.stream("stream_is_idle", (self.number, stream))?;
        // SAFETY: the caller's promise.
        let idle = unsafe { self.inner.stream_is_idle(stream) };
        let idle = state.judge(idle)?;
        if idle {
            let clock = state.order.stream_clock(key);
            state.order.complete(&clock);
        }
        Ok(idle)
    }

    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        let teaches = {
            let mut state = self.note_call("synchronize_stream", [stream.raw(), 0, 0])?;
            let key = state.stream("synchronize_stream", (self.number, stream))?;
            state.order.stream_clock(key)
        };
        // SAFETY: the caller's promise.
        self.wait(teaches, || unsafe { self.inner.synchronize_stream(stream) })
    }

    fn synchronize(&self) -> DeviceResult<()> {
        let teaches = self.note_call("synchronize", [0; 3])?.order.all_work(self.number);
        self.wait(teaches, || self.inner.synchronize())
    }

    fn create_event(&self) -> DeviceResult<EventHandle> {
        let mut state = self.note_call("create_event", [0; 3])?;
        let event = self.inner.create_event();
        let event = state.judge(event)?;
        state.order.add_event(event);
        Ok(event)
    }

    unsafe fn destroy_event(&self, event: EventHandle) -> DeviceResult<()> {
        let mut state = self.note_call("destroy_event", [event.raw(), 0, 0])?;
        state.event("destroy_event", event)?;
        // SAFETY: the caller's promise, and checked above.
        let done = unsafe { self.inner.destroy_event(event) };
        match done {
            Ok(()) => state.order.remove_event(event),
            Err(_) => state.order.event_is_stuck(event),
        }
        state.judge(done)
    }

    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> DeviceResult<()> {
        let mut state = self.note_call("record_event", [event.raw(), stream.raw(), 0])?;
        state.event("record_event", event)?;
        let key = state.stream("record_event", (self.number, stream))?;
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.record_event(event, stream) };
        state.judge(done)?;
        state.order.record(event, key);
        Ok(())
    }

    unsafe fn export_page(&self, page: PageHandle) -> DeviceResult<PageExport> {
        let mut state = self.note_call("export_page", [page.raw(), 0, 0])?;
        let checked = state.memory.check_page(self.page(page));
        state.require("export_page", checked)?;
        // SAFETY: the caller's promise, and checked above.
        let file = unsafe { self.inner.export_page(page) };
        let file = state.judge(file)?;
        if let Some(key) = file_key(&file) {
            state.memory.export_page(self.page(page), key);
        }
        Ok(file)
    }

    fn import_page(&self, from: PageExport, bytes: u64) -> DeviceResult<PageHandle> {
        let mut state = self.note_call("import_page", [bytes, 0, 0])?;
        let key = file_key(&from);
        let page = self.inner.import_page(from, bytes);
        // What came from another process may be anything.
        let page = page?;
        match key {
            Some(key) => state.memory.import_page(self.page(page), bytes, key),
            None => state.memory.create_page(self.page(page), bytes),
        }
        Ok(page)
    }

    fn create_shared_event(&self) -> DeviceResult<(EventHandle, EventExport)> {
        let mut state = self.note_call("create_shared_event", [0; 3])?;
        let made = self.inner.create_shared_event();
        let (event, export) = state.judge(made)?;
        state.order.export_event(event, export.data);
        Ok((event, export))
    }

    fn open_event(&self, from: EventExport) -> DeviceResult<EventHandle> {
        let mut state = self.note_call("open_event", [0; 3])?;
        let data = from.data;
        // What came from another process may be anything.
        let event = self.inner.open_event(from)?;
        state.order.open_event(event, &data);
        Ok(event)
    }

    unsafe fn query_event(&self, event: EventHandle) -> DeviceResult<bool> {
        let mut state = self.note_call("query_event", [event.raw(), 0, 0])?;
        state.event("query_event", event)?;
        // SAFETY: the caller's promise.
        let complete = unsafe { self.inner.query_event(event) };
        let complete = state.judge(complete)?;
        if complete {
            let clock = state.order.event_clock(event);
            state.order.complete(&clock);
        }
        Ok(complete)
    }

    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> DeviceResult<()> {
        let mut state = self.note_call("wait_event", [stream.raw(), event.raw(), 0])?;
        let key = state.stream("wait_event", (self.number, stream))?;
        state.event("wait_event", event)?;
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.wait_event(stream, event) };
        state.judge(done)?;
        state.order.wait(key, event);
        Ok(())
    }

    unsafe fn synchronize_event(&self, event: EventHandle) -> DeviceResult<()> {
        let teaches = {
            let mut state = self.note_call("synchronize_event", [event.raw(), 0, 0])?;
            state.event("synchronize_event", event)?;
            state.order.event_clock(event)
        };
        // SAFETY: the caller's promise.
        self.wait(teaches, || unsafe { self.inner.synchronize_event(event) })
    }

    unsafe fn memset(&self, at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) -> DeviceResult<()> {
        let mut state = self.note_call("memset", [at.raw(), bytes, stream.raw()])?;
        let key = state.stream("memset", (self.number, stream))?;
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.memset(at, value, bytes, stream) };
        state.judge(done)?;
        state.work_at("memset", at, bytes, key);
        Ok(())
    }

    unsafe fn copy_from_host(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        let key = self
            .note_call("copy_from_host", [to.raw(), bytes, stream.raw()])?
            .stream("copy_from_host", (self.number, stream))?;
        // Not under the lock: it may wait for the stream.
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.copy_from_host(to, from, bytes, stream) };
        let mut state = self.state.lock();
        state.judge(done)?;
        state.work_at("copy_from_host", to, bytes, key);
        Ok(())
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        let key = self
            .note_call("copy_to_host", [from.raw(), bytes, stream.raw()])?
            .stream("copy_to_host", (self.number, stream))?;
        // Not under the lock: it may wait for the stream.
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.copy_to_host(to, from, bytes, stream) };
        let mut state = self.state.lock();
        state.judge(done)?;
        state.work_at("copy_to_host", from, bytes, key);
        Ok(())
    }

    unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        let mut state = self.note_call("copy", [to.raw(), from.raw(), bytes])?;
        let key = state.stream("copy", (self.number, stream))?;
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.copy(to, from, bytes, stream) };
        state.judge(done)?;
        state.work_at("copy", from, bytes, key);
        state.work_at("copy", to, bytes, key);
        Ok(())
    }

    unsafe fn set_peer_access(
        &self,
        at: DevicePtr,
        bytes: u64,
        peers: PeerSet,
        allowed: bool,
    ) -> DeviceResult<()> {
        let mut state = self.note_call("set_peer_access", [at.raw(), bytes, u64::from(allowed)])?;
        if !allowed {
            state.check_take_back(at, peers);
        }
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.set_peer_access(at, bytes, peers, allowed) };
        state.judge(done)?;
        state.memory.set_peer_access(at, peers, allowed);
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
        let mut state = self.note_call(CALL, [to.raw(), from.raw(), bytes])?;
        let key = state.stream(CALL, (self.number, stream))?;
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.copy_from_peer(to, from, bytes, peer, stream) };
        state.judge(done)?;
        // The device needs no access to the source.
        state.copy_at(CALL, from, bytes, key);
        state.work_at(CALL, to, bytes, key);
        Ok(())
    }
}

// SAFETY: as above.
unsafe impl DriverPool for CheckerDevice {
    unsafe fn alloc_async(&self, bytes: u64, stream: StreamHandle) -> DeviceResult<DevicePtr> {
        let mut state = self.note_call("alloc_async", [bytes, stream.raw(), 0])?;
        state.stream("alloc_async", (self.number, stream))?;
        // SAFETY: the caller's promise.
        let at = unsafe { self.inner.driver_pool()?.alloc_async(bytes, stream) };
        let at = state.judge(at)?;
        state.memory.add_segment(at, bytes, Origin::DriverPool, self.memory());
        Ok(at)
    }

    unsafe fn free_async(&self, at: DevicePtr, stream: StreamHandle) -> DeviceResult<()> {
        let mut state = self.note_call("free_async", [at.raw(), stream.raw(), 0])?;
        state.stream("free_async", (self.number, stream))?;
        let taken = state.memory.take_segment(at, Origin::DriverPool);
        let segment = state.require("free_async", taken)?;
        state.report_live_in("free_async", at, segment.bytes);
        // SAFETY: the caller's promise, and checked above.
        let done = unsafe { self.inner.driver_pool()?.free_async(at, stream) };
        match done {
            Ok(()) => state.memory.forget(&segment),
            Err(_) => state.memory.put_back(at, segment),
        }
        state.judge(done)
    }

    fn async_usage(&self) -> DeviceResult<AsyncUsage> {
        self.inner.driver_pool()?.async_usage()
    }
}
