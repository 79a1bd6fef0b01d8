//! Graphs captured on a GPU over a pool's memory. `captures.rs` has more of the same, without a GPU.
//!
//! `cargo test -p millpond --test integration cuda_graphs:: -- --ignored --test-threads=1`, or `scripts/gpu-test graphs`.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{self, CUresult, CUstream, CUstreamCaptureMode};
use millpond::device::cuda::{CudaDevice, CudaOptions};
use millpond::device::{Device, DeviceError, DevicePtr};
use millpond::{Buffer, CapturePool, Context, Error, Keep, Pool, Stream};

use crate::shared::{Freeing, MIB};

/// The mode that forbids the most, to all threads.
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

struct Rig {
    device: Arc<CudaDevice>,
    context: Context,
    pool: Pool,
    stream: Stream,
    other: Stream,
}

/// An instantiated graph.
struct Graph(sys::CUgraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is not used again.
        ok(unsafe { sys::cuGraphExecDestroy(self.0) });
    }
}

#[track_caller]
fn ok(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

fn raw(stream: &Stream) -> CUstream {
    stream.handle().raw() as CUstream
}

impl Rig {
    fn new() -> Self {
        Self::with(CudaOptions::default())
    }

    fn with(options: CudaOptions) -> Self {
        let device = CudaDevice::with_options(0, options).expect("a GPU");
        device.make_current().unwrap();
        let context = Context::new(device.clone());
        let pool = Pool::builder(&context).build().unwrap();
        let (stream, other) = (context.create_stream().unwrap(), context.create_stream().unwrap());
        Self { device, context, pool, stream, other }
    }

    /// Captures what `work` gives to the stream, with memory from `memory`.
    fn capture(&self, memory: &CapturePool, work: impl FnOnce()) -> Graph {
        let capturing = memory.begin(&self.stream).unwrap();
        // SAFETY: the stream is alive.
        ok(unsafe { sys::cuStreamBeginCapture_v2(raw(&self.stream), GLOBAL) });
        work();
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: both are writable, and the capture began on this stream. The graph is not used again.
        unsafe {
            ok(sys::cuStreamEndCapture(raw(&self.stream), &mut graph));
            ok(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            ok(sys::cuGraphDestroy(graph));
        }
        drop(capturing);
        Graph(exec)
    }

    fn replay(&self, graph: &Graph, stream: &Stream) {
        // SAFETY: both live, and so does the memory that the graph uses.
        ok(unsafe { sys::cuGraphLaunch(graph.0, raw(stream)) });
    }

    fn fill(&self, at: DevicePtr, value: u8, bytes: u64, stream: &Stream) {
        // SAFETY: the block is live, and work on it is ordered by the tests.
        unsafe { self.device.memset(at, value, bytes, stream.handle()) }.unwrap();
    }

    fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64, stream: &Stream) {
        // SAFETY: as in `fill`.
        unsafe { self.device.copy(to, from, bytes, stream.handle()) }.unwrap();
    }

    fn assert_filled(&self, at: DevicePtr, value: u8, bytes: u64, stream: &Stream) {
        let mut found = vec![!value; bytes as usize];
        // SAFETY: `found` is neither touched nor freed before the synchronise.
        unsafe { self.device.copy_to_host(found.as_mut_ptr(), at, bytes, stream.handle()) }.unwrap();
        // SAFETY: the stream lives.
        unsafe { self.device.synchronize_stream(stream.handle()) }.unwrap();
        assert!(found.iter().all(|byte| *byte == value), "{at} does not hold {value}");
    }

    /// Uses and frees much memory of the pool on both streams, grows, and trims.
    fn other_traffic(&self) {
        for (round, stream) in [&self.stream, &self.other, &self.stream].into_iter().enumerate() {
            let sizes = (1..8).map(|i| i * (3_700_000 + 900_000 * round as u64));
            let blocks: Vec<_> =
                sizes.map(|bytes| (bytes, self.pool.alloc(bytes, stream).unwrap())).collect();
            blocks.iter().for_each(|(bytes, at)| self.fill(*at, 0xE0 + round as u8, *bytes, stream));
            blocks.iter().for_each(|(_, at)| self.pool.free_block(*at, stream).unwrap());
        }
        self.pool.trim_to(0).unwrap();
    }
}

/// The pages of what a capture freed lie in two places, of which each replay uses both.
#[test]
#[ignore = "needs a CUDA GPU"]
fn a_graph_whose_pages_moved_replays_also_after_sleeps() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let bytes = 24 * MIB;
    let input = rig.pool.alloc(bytes, &rig.stream).unwrap();
    let output = rig.pool.alloc(2 * bytes, &rig.stream).unwrap();
    let graph = rig.capture(&memory, || {
        let free = |block| rig.pool.free_block(block, &rig.stream).unwrap();
        let blocks = [(); 4].map(|()| {
            let block = rig.pool.alloc(bytes, &rig.stream).unwrap();
            rig.copy(block, input, bytes, &rig.stream);
            block
        });
        [blocks[0], blocks[2]].into_iter().for_each(free);
        let long = rig.pool.alloc(2 * bytes, &rig.stream).unwrap();
        rig.copy(long, blocks[1], bytes, &rig.stream);
        rig.copy(long.offset(bytes), blocks[3], bytes, &rig.stream);
        [blocks[1], blocks[3]].into_iter().for_each(free);
        let again = rig.pool.alloc(2 * bytes - MIB, &rig.stream).unwrap();
        rig.fill(again, 0xAA, 2 * bytes - MIB, &rig.stream);
        rig.copy(output, long, 2 * bytes, &rig.stream);
        free(again);
        free(long);
    });
    assert_eq!(memory.reserved(), 4 * bytes);
    assert!(rig.pool.stats().pages_remapped > 0);
    for round in 0..100 {
        rig.fill(input, round, bytes, &rig.stream);
        rig.fill(output, 0xFF, 2 * bytes, &rig.stream);
        rig.replay(&graph, &rig.stream);
        rig.assert_filled(output, round, 2 * bytes, &rig.stream);
        match round % 10 {
            3 => rig.other_traffic(),
            7 => {
                rig.context.synchronize().unwrap();
                rig.pool.sleep(if round < 50 { Keep::InPinnedMemory } else { Keep::Nothing }).unwrap();
                assert_eq!(memory.reserved(), 0);
                rig.pool.wake().unwrap();
            }
            _ => {}
        }
        rig.pool.check().unwrap();
    }
    drop((graph, memory));
    [input, output].into_iter().for_each(|block| rig.pool.free_block(block, &rig.stream).unwrap());
    rig.context.synchronize().unwrap();
    rig.pool.trim_to(0).unwrap();
    assert_eq!(rig.pool.reserved().current, 0);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_graph_replays_a_hundred_times_while_the_pool_works() {
    for virtual_memory in [true, false] {
        let rig = Rig::with(CudaOptions::default().virtual_memory(virtual_memory));
        let bytes = 24 * MIB;
        let memory = rig.pool.capture_pool();
        let input = rig.pool.alloc(bytes, &rig.stream).unwrap();
        let output = rig.pool.alloc(bytes, &rig.stream).unwrap();
        // The capture's memory is created within the capture.
        let graph = rig.capture(&memory, || {
            let first = rig.pool.alloc(bytes, &rig.stream).unwrap();
            rig.copy(first, input, bytes, &rig.stream);
            let second = rig.pool.alloc(bytes, &rig.stream).unwrap();
            rig.copy(second, first, bytes, &rig.stream);
            rig.pool.free_block(first, &rig.stream).unwrap();
            let third = rig.pool.alloc(bytes, &rig.stream).unwrap();
            assert_eq!(third, first);
            rig.fill(third, 0xAA, bytes, &rig.stream);
            rig.copy(output, second, bytes, &rig.stream);
            rig.pool.free_block(second, &rig.stream).unwrap();
            rig.pool.free_block(third, &rig.stream).unwrap();
        });
        let held = memory.reserved();
        assert!(held >= 2 * bytes && memory.allocated() == 0, "{held}");
        for round in 0..100 {
            rig.fill(input, round, bytes, &rig.stream);
            rig.replay(&graph, &rig.stream);
            rig.other_traffic();
            rig.assert_filled(output, round, bytes, &rig.stream);
        }
        rig.pool.check().unwrap();
        assert_eq!(memory.reserved(), held);
        rig.replay(&graph, &rig.other);
        drop(graph);
        drop(memory);
        rig.pool.free_block(input, &rig.stream).unwrap();
        rig.pool.free_block(output, &rig.stream).unwrap();
        rig.context.synchronize().unwrap();
        rig.pool.trim_to(0).unwrap();
        assert_eq!(rig.pool.reserved().current, 0);
        rig.pool.check().unwrap();
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn streams_that_join_a_capture_allocate_from_its_memory() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let bytes = 8 * MIB;
    let (left, right) =
        (rig.pool.alloc(bytes, &rig.stream).unwrap(), rig.pool.alloc(bytes, &rig.stream).unwrap());
    let graph = rig.capture(&memory, || {
        let mine = Buffer::<u8>::zeroed(&rig.pool, bytes as usize, &rig.stream).unwrap();
        rig.fill(mine.ptr(), 1, bytes, &rig.stream);
        rig.other.wait_for(&rig.stream).unwrap();
        let beside = rig.pool.alloc(bytes, &rig.other).unwrap();
        assert!(memory.allocated() >= 2 * bytes);
        rig.copy(beside, mine.ptr(), bytes, &rig.other);
        mine.record_use(&rig.other).unwrap();
        rig.copy(right, beside, bytes, &rig.other);
        rig.pool.free_block(beside, &rig.other).unwrap();
        rig.copy(left, mine.ptr(), bytes, &rig.stream);
        drop(mine);
        rig.stream.wait_for(&rig.other).unwrap();
    });
    for _ in 0..20 {
        rig.fill(left, 0, bytes, &rig.stream);
        rig.fill(right, 0, bytes, &rig.stream);
        rig.replay(&graph, &rig.stream);
        rig.assert_filled(left, 1, bytes, &rig.stream);
        rig.assert_filled(right, 1, bytes, &rig.stream);
        rig.other_traffic();
    }
    rig.pool.free_block(left, &rig.stream).unwrap();
    rig.pool.free_block(right, &rig.stream).unwrap();
    rig.pool.check().unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_graph_reads_no_slice_that_is_gone() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let mut buffer = Buffer::from_slice(&rig.pool, &[1_u8; 4096], &rig.stream).unwrap();
    rig.context.synchronize().unwrap();
    let graph = rig.capture(&memory, || {
        let refused = buffer.copy_from_slice(&[2; 4096]).unwrap_err();
        assert!(matches!(refused, Error::Device(DeviceError::Invalid { .. })), "{refused}");
        // The capture goes on.
        buffer.set_zero().unwrap();
    });
    assert_eq!(buffer.to_vec().unwrap(), [1; 4096]);
    rig.replay(&graph, &rig.stream);
    assert_eq!(buffer.to_vec().unwrap(), [0; 4096]);
}

/// A capture in global mode forbids all threads what might wait for it: the pool's own calls must not be refused, nor
/// end the capture.
#[test]
#[ignore = "needs a CUDA GPU"]
fn threads_grow_trim_and_hand_over_during_a_capture() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    // Freed by the stream before its capture: others may ask for it, and must not ask the stream.
    let before = rig.pool.alloc(64 * MIB, &rig.stream).unwrap();
    rig.fill(before, 1, 64 * MIB, &rig.stream);
    rig.pool.free_block(before, &rig.stream).unwrap();
    let graph = rig.capture(&memory, || {
        let block = rig.pool.alloc(32 * MIB, &rig.stream).unwrap();
        rig.fill(block, 2, 32 * MIB, &rig.stream);
        // One thread with a current context, and one without.
        for current in [true, false] {
            let (device, pool, context) = (rig.device.clone(), rig.pool.clone(), rig.context.clone());
            std::thread::spawn(move || {
                if current {
                    device.make_current().unwrap();
                }
                let (a, b) = (context.create_stream().unwrap(), context.create_stream().unwrap());
                for round in 1..6 {
                    let bytes = round * 24 * MIB;
                    let first = pool.alloc(bytes, &a).unwrap();
                    // SAFETY: the block is live, and the stream is ordered after the allocation.
                    unsafe { device.memset(first, 3, bytes, a.handle()) }.unwrap();
                    pool.free_block(first, &a).unwrap();
                    let second = pool.alloc(bytes, &b).unwrap();
                    // SAFETY: as above.
                    unsafe { device.memset(second, 4, bytes, b.handle()) }.unwrap();
                    pool.free_block(second, &b).unwrap();
                    pool.trim_to(0).unwrap();
                }
                pool.check().unwrap();
            })
            .join()
            .unwrap();
        }
        rig.pool.free_block(block, &rig.stream).unwrap();
    });
    rig.replay(&graph, &rig.stream);
    rig.context.synchronize().unwrap();
    rig.pool.check().unwrap();
}

/// What the pool does where a capture begins between its question and its event (docs/graphs.md, "Threads").
#[test]
#[ignore = "needs a CUDA GPU"]
fn an_event_destroyed_by_another_thread_leaves_the_capture_whole() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let block = rig.pool.alloc(MIB, &rig.stream).unwrap();
    let graph = rig.capture(&memory, || {
        rig.fill(block, 5, MIB, &rig.stream);
        let (device, stream) = (rig.device.clone(), rig.stream.handle());
        let other = std::thread::spawn(move || {
            let event = device.create_event().unwrap();
            // SAFETY: both live.
            unsafe { device.record_event(event, stream) }.unwrap();
            // SAFETY: the event is not used again.
            unsafe { device.destroy_event(event) }.unwrap();
        });
        other.join().unwrap();
    });
    rig.replay(&graph, &rig.stream);
    rig.assert_filled(block, 5, MIB, &rig.stream);
    rig.pool.free_block(block, &rig.stream).unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_driver_says_which_capture_a_stream_is_part_of() {
    let rig = Rig::new();
    // SAFETY: the stream lives, here and below.
    let capture_of = |stream: &Stream| unsafe { rig.device.capture_of(stream.handle()) }.unwrap();
    let legacy = rig.context.default_stream().unwrap();
    assert_eq!([&rig.stream, &rig.other, &legacy].map(capture_of), [None; 3]);
    let memory = rig.pool.capture_pool();
    let _graph = rig.capture(&memory, || {
        assert!(capture_of(&rig.stream).is_some());
        // SAFETY: as above.
        let id = unsafe { rig.device.stream_id(rig.stream.handle()) }.unwrap();
        assert!(id.is_in_capture() && id != rig.stream.id());
        assert_eq!(capture_of(&rig.other), None);
        rig.other.wait_for(&rig.stream).unwrap();
        assert_eq!(capture_of(&rig.other), capture_of(&rig.stream));
        rig.stream.wait_for(&rig.other).unwrap();
    });
    assert_eq!([&rig.stream, &rig.other, &legacy].map(capture_of), [None; 3]);
}

/// Prints what is asked for the sake of captures, in nanoseconds: for docs/graphs.md.
#[test]
#[ignore = "needs a CUDA GPU"]
fn questions_about_captures_are_timed_and_cheap() {
    let rig = Rig::new();
    let event = rig.device.create_event().unwrap();
    // SAFETY: both live, here and below.
    unsafe { rig.device.record_event(event, rig.stream.handle()) }.unwrap();
    rig.context.synchronize().unwrap();
    let nanoseconds = |call: &dyn Fn()| {
        let start = Instant::now();
        (0..10_000).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / 10_000.0
    };
    // SAFETY: as above.
    let asked = nanoseconds(&|| _ = unsafe { rig.device.capture_of(rig.stream.handle()) }.unwrap());
    // SAFETY: as above.
    let queried = nanoseconds(&|| _ = unsafe { rig.device.query_event(event) }.unwrap());
    let plain = nanoseconds(&|| {
        // SAFETY: the event is alive.
        ok(unsafe { sys::cuEventQuery(event.raw() as sys::CUevent) });
    });
    println!("capture_of {asked:.0} ns; query_event {queried:.0} ns, of which cuEventQuery {plain:.0} ns");
    // SAFETY: the event is not used again.
    unsafe { rig.device.destroy_event(event) }.unwrap();
    assert!(asked < 2_000.0 && queried < 5_000.0);
}
