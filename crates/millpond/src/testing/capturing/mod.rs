//! Stream capture over a device that has none, with the driver's rules.
//!
//! It wraps another device, `host` or `sim`, and passes every call on. Between [`CapturingDevice::begin_capture`] and
//! [`end_capture`](CapturingDevice::end_capture), fills and copies on a stream become nodes of a [`Graph`]. So do those on
//! streams that wait for an event of the capture. [`CapturingDevice::launch`] gives the nodes to a stream in the order in
//! which they were captured.
//!
//! ```
//! use millpond::device::host::HostDevice;
//! use millpond::testing::capturing::CapturingDevice;
//! use millpond::{Buffer, Context, Pool};
//!
//! let device = CapturingDevice::new(HostDevice::new()?);
//! let context = Context::new(device.clone());
//! let pool = Pool::builder(&context).build()?;
//! let stream = context.create_stream()?;
//! let memory = pool.capture_pool();
//! let mut buffer = Buffer::<u8>::from_slice(&pool, &[1; 4], &stream)?;
//!
//! let capturing = memory.begin(&stream)?;
//! device.begin_capture(stream.handle())?;
//! buffer.set_zero()?; // captured, and not run
//! let graph = device.end_capture(stream.handle())?;
//! drop(capturing);
//! assert_eq!(buffer.to_vec()?, [1; 4]);
//!
//! // SAFETY: the buffer is live.
//! unsafe { device.launch(&graph, stream.handle()) }?;
//! assert_eq!(buffer.to_vec()?, [0; 4]);
//! # Ok::<(), millpond::Error>(())
//! ```
//!
//! # Rules
//! Calls that CUDA refuses are refused, and end the capture. It may not query or wait for a stream under capture, for an
//! event of a capture, or for the whole device. It may not make a capture wait for work outside. `end_capture` tells the
//! mistake again. So an allocator whose captures end well has kept the rules. One rule is not the driver's: memory of a
//! graph must stay mapped as long as the graph lives ([`CapturingDevice::taken_from_graphs`]).

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::device::{
    AsyncUsage, CaptureId, Device, DeviceError, DevicePtr, DeviceResult, DriverPool, EventHandle, Forward,
    Place, StreamHandle, StreamId, calling_thread, invalid,
};
use crate::system::lock::Mutex;

/// A [`Device`] with stream capture. The [module](self) has an example.
pub struct CapturingDevice {
    inner: Arc<dyn Device>,
    /// Shared with the devices of its other memory.
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for CapturingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CapturingDevice").field(&self.inner).finish()
    }
}

/// Work that was captured. The memory that it uses must stay as long as this lives.
#[derive(Clone)]
pub struct Graph {
    nodes: Arc<Vec<Node>>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("nodes", &self.nodes.len()).finish()
    }
}

#[derive(Debug, Default)]
struct State {
    captures: Vec<Capture>,
    /// Events that were last recorded in a capture.
    events: HashMap<EventHandle, CaptureId>,
    graphs: Vec<Weak<Vec<Node>>>,
    /// Streams whose capture begins once it was asked of them whether there is one.
    unseen: Vec<Named>,
    /// Memory that was to be taken from a graph.
    taken: Vec<DeviceError>,
}

/// A stream's handle, with the thread that it means a stream of.
type Named = (StreamHandle, Option<u64>);

fn named(stream: StreamHandle) -> Named {
    (stream, (stream == StreamHandle::PER_THREAD).then(calling_thread))
}

#[derive(Debug)]
struct Capture {
    id: CaptureId,
    /// The first is the one that the capture began with.
    streams: Vec<Named>,
    nodes: Vec<Node>,
    broken: Option<DeviceError>,
}

#[derive(Debug)]
enum Node {
    Memset { at: DevicePtr, value: u8, bytes: u64 },
    CopyFromHost { to: DevicePtr, from: Box<[u8]> },
    Copy { to: DevicePtr, from: DevicePtr, bytes: u64 },
}

impl Node {
    fn ranges(&self) -> [(DevicePtr, u64); 2] {
        match self {
            Self::Memset { at, bytes, .. } => [(*at, *bytes), (*at, 0)],
            Self::CopyFromHost { to, from } => [(*to, from.len() as u64), (*to, 0)],
            Self::Copy { to, from, bytes } => [(*to, *bytes), (*from, *bytes)],
        }
    }
}

impl State {
    fn capture_of(&mut self, stream: StreamHandle) -> Option<&mut Capture> {
        self.captures.iter_mut().find(|capture| capture.streams.contains(&named(stream)))
    }

    fn begin_capture(&mut self, stream: StreamHandle) -> CaptureId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        let id = CaptureId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.captures.push(Capture { id, streams: vec![named(stream)], nodes: Vec::new(), broken: None });
        id
    }

    /// Refuses a call on a stream that is being captured; that ends the capture.
    fn refuse_if_captured(&mut self, call: &'static str, stream: StreamHandle) -> DeviceResult<()> {
        self.capture_of(stream).map_or(Ok(()), |capture| capture.end_by(call, "the stream is being captured"))
    }

    /// As [`refuse_if_captured`](Self::refuse_if_captured), for an event of a capture.
    fn refuse_if_event_captured(&mut self, call: &'static str, event: EventHandle) -> DeviceResult<()> {
        let Some(id) = self.events.get(&event).copied() else { return Ok(()) };
        match self.captures.iter_mut().find(|capture| capture.id == id) {
            Some(capture) => capture.end_by(call, "the event is of a capture"),
            None => invalid(call, "the event is of a capture that has ended"),
        }
    }

    /// Refuses to take memory away that a graph uses.
    fn refuse_if_in_graph(&mut self, call: &'static str, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.graphs.retain(|graph| graph.strong_count() > 0);
        let meets = |(start, length): (DevicePtr, u64)| {
            length > 0 && start.raw() < at.raw() + bytes && at.raw() < start.raw() + length
        };
        let captured = self.captures.iter().flat_map(|capture| &capture.nodes);
        let graphs: Vec<_> = self.graphs.iter().filter_map(Weak::upgrade).collect();
        let mut nodes = graphs.iter().flat_map(|graph| graph.iter()).chain(captured);
        match nodes.find(|node| node.ranges().into_iter().any(meets)) {
            Some(node) => {
                let what = format!("{bytes} bytes at {at} are used by a graph: {node:?}");
                let error = DeviceError::Invalid { call, what };
                self.taken.push(error.clone());
                Err(error)
            }
            None => Ok(()),
        }
    }
}

impl Capture {
    fn end_by(&mut self, call: &'static str, what: &str) -> DeviceResult<()> {
        let what = format!("{what}, so that this call is not allowed; it ended the capture");
        let error = DeviceError::Invalid { call, what };
        self.broken.get_or_insert(error.clone());
        Err(error)
    }
}

impl CapturingDevice {
    /// Adds captures to a device.
    pub fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, state: Arc::default() })
    }

    /// From now on work given to the stream is captured.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] where it is being captured.
    pub fn begin_capture(&self, stream: StreamHandle) -> DeviceResult<CaptureId> {
        let mut state = self.state.lock();
        state.refuse_if_captured("begin_capture", stream)?;
        Ok(state.begin_capture(stream))
    }

    /// The next question whether the stream is being captured is answered with no, and a capture begins right after it.
    /// So it is where another thread begins a capture between the question and the call that follows.
    pub fn begin_capture_unseen(&self, stream: StreamHandle) {
        self.state.lock().unseen.push(named(stream));
    }

    /// Ends the capture that began on the stream. Streams that joined it are free again.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] where no capture began there; else what ended the capture before.
    pub fn end_capture(&self, stream: StreamHandle) -> DeviceResult<Graph> {
        let mut state = self.state.lock();
        let Some(at) = state.captures.iter().position(|capture| capture.streams[0] == named(stream)) else {
            return invalid("end_capture", "no capture began on this stream");
        };
        let capture = state.captures.remove(at);
        if let Some(error) = capture.broken {
            return Err(error);
        }
        let nodes = Arc::new(capture.nodes);
        state.graphs.push(Arc::downgrade(&nodes));
        Ok(Graph { nodes })
    }

    /// Gives the graph's work to a stream.
    ///
    /// # Errors
    /// The device's own.
    ///
    /// # Safety
    /// Each node's ranges as for [`Device::memset`] and its like.
    pub unsafe fn launch(&self, graph: &Graph, stream: StreamHandle) -> DeviceResult<()> {
        self.state.lock().refuse_if_captured("launch", stream)?;
        for node in graph.nodes.iter() {
            // SAFETY: the caller's promise; what is copied from the host belongs to the node.
            unsafe {
                match node {
                    Node::Memset { at, value, bytes } => self.inner.memset(*at, *value, *bytes, stream),
                    Node::CopyFromHost { to, from } => {
                        self.inner.copy_from_host(*to, from.as_ptr(), from.len() as u64, stream)
                    }
                    Node::Copy { to, from, bytes } => self.inner.copy(*to, *from, *bytes, stream),
                }
            }?;
        }
        Ok(())
    }

    /// The calls that would have taken memory from a graph. Each was refused.
    #[must_use]
    pub fn taken_from_graphs(&self) -> Vec<DeviceError> {
        self.state.lock().taken.clone()
    }

    /// Takes work on a stream that is being captured; `false`, and nothing done, on any other.
    fn capture(&self, stream: StreamHandle, node: impl FnOnce() -> Node) -> bool {
        let mut state = self.state.lock();
        let Some(capture) = state.capture_of(stream) else { return false };
        capture.nodes.push(node());
        true
    }
}

// SAFETY: memory and order are those of the device below, and no call that it would refuse is passed on.
unsafe impl Forward for CapturingDevice {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    unsafe fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.state.lock().refuse_if_in_graph("unmap", at, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.unmap(at, bytes) }
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        self.state.lock().refuse_if_in_graph("free_segment", at, 1)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.free_segment(at) }
    }

    fn driver_pool(&self) -> DeviceResult<&dyn DriverPool> {
        self.inner.driver_pool()?;
        Ok(self)
    }

    fn pinned(&self, node: Option<u32>) -> DeviceResult<Arc<dyn Device>> {
        Ok(Arc::new(Self { inner: self.inner.pinned(node)?, state: self.state.clone() }))
    }

    fn managed(&self) -> DeviceResult<Arc<dyn Device>> {
        Ok(Arc::new(Self { inner: self.inner.managed()?, state: self.state.clone() }))
    }

    /// Not in a capture: graphs have no such nodes.
    unsafe fn prefetch(
        &self,
        at: DevicePtr,
        bytes: u64,
        to: Place,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        self.state.lock().refuse_if_captured("prefetch", stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.prefetch(at, bytes, to, stream) }
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        self.state.lock().refuse_if_captured("destroy_stream", stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.destroy_stream(stream) }
    }

    unsafe fn stream_id(&self, stream: StreamHandle) -> DeviceResult<StreamId> {
        match self.state.lock().capture_of(stream) {
            Some(_) => Ok(StreamId::in_capture(stream)),
            // SAFETY: the caller's promise.
            None => unsafe { self.inner.stream_id(stream) },
        }
    }

    unsafe fn stream_is_idle(&self, stream: StreamHandle) -> DeviceResult<bool> {
        self.state.lock().refuse_if_captured("stream_is_idle", stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.stream_is_idle(stream) }
    }

    unsafe fn capture_of(&self, stream: StreamHandle) -> DeviceResult<Option<CaptureId>> {
        let mut state = self.state.lock();
        if let Some(at) = state.unseen.iter().position(|unseen| *unseen == named(stream)) {
            state.unseen.swap_remove(at);
            state.begin_capture(stream);
            return Ok(None);
        }
        Ok(state.capture_of(stream).map(|capture| capture.id))
    }

    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        self.state.lock().refuse_if_captured("synchronize_stream", stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.synchronize_stream(stream) }
    }

    fn synchronize(&self) -> DeviceResult<()> {
        let ended = |capture: &mut Capture| capture.end_by("synchronize", "a stream is being captured");
        let all: Vec<_> = self.state.lock().captures.iter_mut().map(ended).collect();
        all.into_iter().collect::<DeviceResult<()>>()?;
        self.inner.synchronize()
    }

    unsafe fn destroy_event(&self, event: EventHandle) -> DeviceResult<()> {
        self.state.lock().events.remove(&event);
        // SAFETY: the caller's promise.
        unsafe { self.inner.destroy_event(event) }
    }

    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> DeviceResult<()> {
        let mut state = self.state.lock();
        if let Some(id) = state.capture_of(stream).map(|capture| capture.id) {
            state.events.insert(event, id);
            return Ok(());
        }
        state.events.remove(&event);
        // SAFETY: the caller's promise.
        unsafe { self.inner.record_event(event, stream) }
    }

    unsafe fn query_event(&self, event: EventHandle) -> DeviceResult<bool> {
        self.state.lock().refuse_if_event_captured("query_event", event)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.query_event(event) }
    }

    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> DeviceResult<()> {
        const CALL: &str = "wait_event";
        let mut state = self.state.lock();
        let of = state.events.get(&event).copied();
        if let Some(capture) = state.capture_of(stream) {
            let inside = of == Some(capture.id);
            return if inside { Ok(()) } else { capture.end_by(CALL, "the event is not of this capture") };
        }
        // SAFETY: the caller's promise.
        let Some(id) = of else { return unsafe { self.inner.wait_event(stream, event) } };
        let Some(capture) = state.captures.iter_mut().find(|capture| capture.id == id) else {
            return invalid(CALL, "the event is of a capture that has ended");
        };
        capture.streams.push(named(stream));
        Ok(())
    }

    unsafe fn synchronize_event(&self, event: EventHandle) -> DeviceResult<()> {
        self.state.lock().refuse_if_event_captured("synchronize_event", event)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.synchronize_event(event) }
    }

    unsafe fn memset(&self, at: DevicePtr, value: u8, bytes: u64, stream: StreamHandle) -> DeviceResult<()> {
        if self.capture(stream, || Node::Memset { at, value, bytes }) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.memset(at, value, bytes, stream) }
    }

    unsafe fn copy_from_host(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        // SAFETY: the caller says that `from` is readable for `bytes`.
        let staged = || unsafe { std::slice::from_raw_parts(from, bytes as usize) }.into();
        if self.capture(stream, || Node::CopyFromHost { to, from: staged() }) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_from_host(to, from, bytes, stream) }
    }

    /// Not in a capture: nobody could say when `to` may be freed.
    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        self.state.lock().refuse_if_captured("copy_to_host", stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_to_host(to, from, bytes, stream) }
    }

    unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        if self.capture(stream, || Node::Copy { to, from, bytes }) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy(to, from, bytes, stream) }
    }
}

// SAFETY: the blocks are those of the device below.
unsafe impl DriverPool for CapturingDevice {
    unsafe fn alloc_async(&self, bytes: u64, stream: StreamHandle) -> DeviceResult<DevicePtr> {
        self.state.lock().refuse_if_captured("alloc_async", stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.driver_pool()?.alloc_async(bytes, stream) }
    }

    unsafe fn free_async(&self, at: DevicePtr, stream: StreamHandle) -> DeviceResult<()> {
        self.state.lock().refuse_if_captured("free_async", stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.driver_pool()?.free_async(at, stream) }
    }

    fn async_usage(&self) -> DeviceResult<AsyncUsage> {
        self.inner.driver_pool()?.async_usage()
    }
}
