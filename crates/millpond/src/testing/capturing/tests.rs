//! The driver's rules of captures, one by one.

use std::sync::Arc;

use super::CapturingDevice;
use crate::device::sim::{Call, SimDevice, SimOptions};
use crate::device::{Device, DevicePtr, DeviceResult, EventHandle, PageHandle, Place, StreamHandle};
use crate::testing::trusted::Trusted;

const PAGE: u64 = 2 << 20;

struct Rig {
    sim: Arc<SimDevice>,
    device: Trusted<Arc<CapturingDevice>>,
    a: StreamHandle,
    b: StreamHandle,
    at: DevicePtr,
    page: PageHandle,
}

impl Rig {
    fn new() -> Self {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        // SAFETY: the simulated device checks handles and ranges, and has no bytes.
        let device = unsafe { Trusted::new(CapturingDevice::new(sim.clone())) };
        let (a, b) = (device.create_stream().unwrap(), device.create_stream().unwrap());
        let at = device.reserve(PAGE).unwrap();
        let page = device.create_page(PAGE).unwrap();
        device.map(at, PAGE, page).unwrap();
        device.set_access(at, PAGE).unwrap();
        Self { sim, device, a, b, at, page }
    }

    fn event_on(&self, stream: StreamHandle) -> EventHandle {
        let event = self.device.create_event().unwrap();
        self.device.record_event(event, stream).unwrap();
        event
    }

    fn fill(&self, stream: StreamHandle) {
        // SAFETY: the page is mapped as long as the tests fill it.
        unsafe { self.device.memset(self.at, 1, PAGE, stream) }.unwrap();
    }

    /// The call is refused within a capture on the first stream, and ends it.
    fn ends_the_capture(&self, name: &str, call: impl FnOnce() -> DeviceResult<()>) {
        self.device.begin_capture(self.a).unwrap();
        let error = call().unwrap_err();
        assert!(error.to_string().contains("ended the capture"), "{name}: {error}");
        assert_eq!(self.device.end_capture(self.a).unwrap_err(), error, "{name}");
        assert_eq!(self.device.capture_of(self.a), Ok(None));
    }
}

#[test]
fn captured_work_runs_only_when_the_graph_is_launched() {
    let rig = Rig::new();
    rig.device.begin_capture(rig.a).unwrap();
    rig.fill(rig.a);
    // SAFETY: one byte is readable; the page as above.
    unsafe { rig.device.copy_from_host(rig.at, [7_u8].as_ptr(), 1, rig.a) }.unwrap();
    // SAFETY: as above.
    unsafe { rig.device.copy(rig.at.offset(512), rig.at, 512, rig.a) }.unwrap();
    let graph = rig.device.end_capture(rig.a).unwrap();
    assert_eq!(graph.nodes.len(), 3);
    let runs = || [Call::Memset, Call::CopyFromHost, Call::Copy].map(|call| rig.sim.calls()[call]);
    assert_eq!(runs(), [0; 3]);
    // SAFETY: the page is mapped, and used on this stream alone.
    unsafe { rig.device.launch(&graph, rig.b) }.unwrap();
    assert_eq!(runs(), [1; 3]);
}

#[test]
fn whatever_would_wait_for_a_captured_stream_ends_the_capture() {
    let rig = Rig::new();
    let outside = rig.event_on(rig.b);
    rig.ends_the_capture("idle", || rig.device.stream_is_idle(rig.a).map(drop));
    rig.ends_the_capture("synchronize_stream", || rig.device.synchronize_stream(rig.a));
    rig.ends_the_capture("synchronize", || rig.device.synchronize());
    rig.ends_the_capture("query", || rig.device.query_event(rig.event_on(rig.a)).map(drop));
    rig.ends_the_capture("synchronize_event", || rig.device.synchronize_event(rig.event_on(rig.a)));
    rig.ends_the_capture("an event from outside", || rig.device.wait_event(rig.a, outside));
    rig.ends_the_capture("alloc_async", || rig.device.alloc_async(512, rig.a).map(drop));
    // SAFETY: refused, so the stream is there as before.
    rig.ends_the_capture("destroy_stream", || unsafe { rig.device.destroy_stream(rig.a) });
    let managed = rig.device.managed().unwrap();
    let segment = managed.alloc_segment(PAGE).unwrap();
    // SAFETY: refused, so nothing moves.
    rig.ends_the_capture("prefetch", || unsafe { managed.prefetch(segment, PAGE, Place::Host, rig.a) });
    let mut byte = 0;
    // SAFETY: refused, so nothing is written.
    rig.ends_the_capture("to host", || unsafe { rig.device.copy_to_host(&mut byte, rig.at, 1, rig.a) });
    rig.ends_the_capture("a second capture", || rig.device.begin_capture(rig.a).map(drop));
}

#[test]
fn other_streams_and_memory_calls_work_during_a_capture() {
    let rig = Rig::new();
    rig.device.begin_capture(rig.a).unwrap();
    let event = rig.event_on(rig.b);
    rig.fill(rig.b);
    rig.device.synchronize_stream(rig.b).unwrap();
    assert_eq!(rig.device.query_event(event), Ok(true));
    let page = rig.device.create_page(PAGE).unwrap();
    // SAFETY: the handle is not used again.
    unsafe { rig.device.release_page(page) }.unwrap();
    rig.device.end_capture(rig.a).unwrap();
}

#[test]
fn waiting_for_an_event_of_a_capture_joins_it() {
    let rig = Rig::new();
    let id = rig.device.begin_capture(rig.a).unwrap();
    let fork = rig.event_on(rig.a);
    rig.device.wait_event(rig.b, fork).unwrap();
    assert_eq!(rig.device.capture_of(rig.b), Ok(Some(id)));
    rig.fill(rig.b);
    rig.device.wait_event(rig.a, rig.event_on(rig.b)).unwrap();
    assert_eq!(rig.device.end_capture(rig.a).unwrap().nodes.len(), 1);
    assert_eq!(rig.device.capture_of(rig.b), Ok(None));
    // The event was of the capture, and is of nothing now.
    assert!(rig.device.query_event(fork).is_err() && rig.device.wait_event(rig.b, fork).is_err());
    rig.device.record_event(fork, rig.b).unwrap();
    assert_eq!(rig.device.query_event(fork), Ok(true));
    assert!(rig.device.end_capture(rig.b).is_err());
}

#[test]
fn memory_of_a_graph_stays_mapped_while_it_lives() {
    let rig = Rig::new();
    rig.device.begin_capture(rig.a).unwrap();
    rig.fill(rig.a);
    // SAFETY: refused, so the page is mapped as before.
    assert!(unsafe { rig.device.unmap(rig.at, PAGE) }.is_err());
    let graph = rig.device.end_capture(rig.a).unwrap();
    // SAFETY: as above.
    assert!(unsafe { rig.device.unmap(rig.at, PAGE) }.is_err());
    drop(graph);
    assert_eq!(rig.device.taken_from_graphs().len(), 2);
    // SAFETY: nothing uses the mapping and the page any more.
    unsafe {
        rig.device.unmap(rig.at, PAGE).unwrap();
        rig.device.release_page(rig.page).unwrap();
    }
}
