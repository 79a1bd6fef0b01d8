//! Captures into graphs: where their memory comes from, that it stays, and that no rule of a capture is broken. Over
//! devices without a GPU; `cuda_graphs.rs` has the same on one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{Device, DeviceError, DevicePtr, StreamHandle};
use millpond::testing::capturing::{CapturingDevice, Graph};
use millpond::{Budget, Buffer, CapturePool, Context, Error, Pool, PoolBuilder, Stream};

use crate::shared::{Freeing, MIB};

const CAPACITY: u64 = 256 * MIB;

#[test]
fn work_cannot_read_bytes_that_it_could_not_wait_for() {
    let Rig { host, pool, stream, other, .. } = Rig::new();
    let sevens = Buffer::from_slice(&pool, &[7_u8; 512], &other).unwrap();
    let (release, released) = mpsc::channel::<()>();
    host.launch(other.handle(), move || _ = released.recv()).unwrap();
    let (give, given) = mpsc::channel();
    let read = move || {
        let mut bytes = vec![0; 512];
        let refused = sevens.copy_to_slice(&mut bytes).is_err();
        give.send((bytes, refused)).unwrap();
    };
    host.launch(stream.handle(), read).unwrap();
    let (bytes, refused) = given.recv().unwrap();
    drop(release);
    other.synchronize().unwrap();
    assert_eq!((bytes, refused), (vec![0; 512], true), "written after the call had returned");
}

/// A pool over the host device, with captures, and two streams.
struct Rig {
    host: Arc<HostDevice>,
    device: Arc<CapturingDevice>,
    context: Context,
    pool: Pool,
    stream: Stream,
    other: Stream,
}

impl Rig {
    fn new() -> Self {
        Self::with(true)
    }

    fn with(virtual_memory: bool) -> Self {
        let options = HostOptions::default().capacity(CAPACITY).virtual_memory(virtual_memory);
        let host = HostDevice::with_options(options).unwrap();
        let device = CapturingDevice::new(host.clone());
        let context = Context::new(device.clone());
        let pool = Pool::builder(&context).build().unwrap();
        let (stream, other) = (context.create_stream().unwrap(), context.create_stream().unwrap());
        Self { host, device, context, pool, stream, other }
    }

    /// Captures what `work` gives to the stream, with memory from `memory`.
    fn capture(&self, memory: &CapturePool, work: impl FnOnce()) -> Graph {
        let capturing = memory.begin(&self.stream).unwrap();
        self.device.begin_capture(self.stream.handle()).unwrap();
        work();
        let graph = self.device.end_capture(self.stream.handle()).expect("no rule was broken");
        drop(capturing);
        graph
    }

    fn replay(&self, graph: &Graph, stream: &Stream) {
        // SAFETY: the tests keep the graph's memory as long as the graph, and replay on one stream at a time.
        unsafe { self.device.launch(graph, stream.handle()) }.unwrap();
    }

    fn fill(&self, at: DevicePtr, value: u8, bytes: u64, stream: &Stream) {
        // SAFETY: the block is live, and work on it is given to one stream at a time.
        unsafe { self.device.memset(at, value, bytes, stream.handle()) }.unwrap();
    }

    fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64, stream: &Stream) {
        // SAFETY: as in `fill`.
        unsafe { self.device.copy(to, from, bytes, stream.handle()) }.unwrap();
    }

    fn read(&self, at: DevicePtr, bytes: u64, stream: &Stream) -> Vec<u8> {
        let mut to = vec![0; bytes as usize];
        // SAFETY: `to` is neither touched nor freed before the synchronise.
        unsafe { self.device.copy_to_host(to.as_mut_ptr(), at, bytes, stream.handle()) }.unwrap();
        stream.synchronize().unwrap();
        to
    }

    /// Keeps a stream busy until the sender is dropped.
    fn hold(&self, stream: StreamHandle) -> mpsc::Sender<()> {
        let (release, held) = mpsc::channel::<()>();
        self.host.launch(stream, move || _ = held.recv()).unwrap();
        release
    }

    fn check(&self) {
        self.pool.check().unwrap();
        assert_eq!(self.device.taken_from_graphs(), []);
    }
}

/// Uses and frees much memory of the pool on both streams, and trims.
fn other_traffic(rig: &Rig) {
    for (round, stream) in [&rig.stream, &rig.other, &rig.stream].into_iter().enumerate() {
        let blocks: Vec<_> =
            (1..8).map(|i| (i * 700_000, rig.pool.alloc(i * 700_000, stream).unwrap())).collect();
        blocks.iter().for_each(|(bytes, at)| rig.fill(*at, 0xE0 + round as u8, *bytes, stream));
        blocks.iter().for_each(|(_, at)| rig.pool.free_block(*at, stream).unwrap());
    }
    rig.context.synchronize().unwrap();
    rig.pool.trim_to(0).unwrap();
}

#[test]
fn a_graphs_memory_stays_as_it_was_between_replays() {
    for virtual_memory in [true, false] {
        let rig = Rig::with(virtual_memory);
        let memory = rig.pool.capture_pool();
        let input = rig.pool.alloc(3 * MIB, &rig.stream).unwrap();
        let output = rig.pool.alloc(3 * MIB, &rig.stream).unwrap();
        let graph = rig.capture(&memory, || {
            // A chain over scratch memory that is freed within the capture.
            let first = rig.pool.alloc(3 * MIB, &rig.stream).unwrap();
            rig.copy(first, input, 3 * MIB, &rig.stream);
            let second = rig.pool.alloc(3 * MIB, &rig.stream).unwrap();
            rig.copy(second, first, 3 * MIB, &rig.stream);
            rig.pool.free_block(first, &rig.stream).unwrap();
            rig.copy(output, second, 3 * MIB, &rig.stream);
            rig.pool.free_block(second, &rig.stream).unwrap();
        });
        let held = memory.reserved();
        assert!(held >= 6 * MIB && memory.allocated() == 0, "{held}");
        for round in 0..20 {
            rig.fill(input, round, 3 * MIB, &rig.stream);
            rig.replay(&graph, &rig.stream);
            assert_eq!(rig.read(output, 3 * MIB, &rig.stream), vec![round; 3 << 20]);
            other_traffic(&rig);
            rig.check();
        }
        assert_eq!(memory.reserved(), held, "nothing was taken from it");
        drop(graph);
        drop(memory);
        rig.pool.free_block(input, &rig.stream).unwrap();
        rig.pool.free_block(output, &rig.stream).unwrap();
        rig.context.synchronize().unwrap();
        rig.pool.trim_to(0).unwrap();
        assert_eq!(rig.pool.reserved().current, 0, "the memory went back");
        rig.check();
    }
}

/// Captures work that needs pages in other places than they were: each block is filled, and its first byte goes to the output.
fn capture_moving(rig: &Rig, memory: &CapturePool, output: DevicePtr) -> Graph {
    rig.capture(memory, || {
        let mut next = 0;
        let mut filled = |sizes: &[u64]| -> Vec<DevicePtr> {
            let alloc = |bytes: &u64| {
                let block = rig.pool.alloc(*bytes, &rig.stream).unwrap();
                rig.fill(block, next + 1, *bytes, &rig.stream);
                rig.copy(output.offset(u64::from(next)), block.offset(bytes - 1), 1, &rig.stream);
                next += 1;
                block
            };
            sizes.iter().map(alloc).collect()
        };
        let free = |block| rig.pool.free_block(block, &rig.stream).unwrap();
        let four = filled(&[8 * MIB; 4]);
        // What is free lies apart.
        free(four[0]);
        free(four[2]);
        let long = filled(&[16 * MIB])[0];
        free(four[1]);
        free(four[3]);
        let longer = filled(&[14 * MIB])[0];
        free(long);
        let longest = filled(&[18 * MIB])[0];
        free(longer);
        free(longest);
    })
}

/// What `capture_moving` writes.
const MOVED: [u8; 7] = [1, 2, 3, 4, 5, 6, 7];

#[test]
fn a_capture_takes_pages_from_what_it_freed() {
    let rig = Rig::new();
    let output = rig.pool.alloc(512, &rig.stream).unwrap();
    let memory = rig.pool.capture_pool();
    let graph = capture_moving(&rig, &memory, output);
    assert_eq!(memory.reserved(), 32 * MIB, "no more than was live at once");
    assert!(rig.pool.stats().pages_remapped > 0);
    for _ in 0..3 {
        rig.fill(output, 0, 512, &rig.stream);
        rig.replay(&graph, &rig.stream);
        assert_eq!(rig.read(output, 7, &rig.stream), MOVED);
        other_traffic(&rig);
        rig.check();
    }
    drop(graph);
    drop(memory);
    rig.pool.free_block(output, &rig.stream).unwrap();
    rig.context.synchronize().unwrap();
    rig.pool.trim_to(0).unwrap();
    assert_eq!(rig.pool.reserved().current, 0);
    rig.check();
}

#[test]
fn a_second_capture_leaves_the_first_ones_mappings() {
    let rig = Rig::new();
    let output = rig.pool.alloc(512, &rig.stream).unwrap();
    let memory = rig.pool.capture_pool();
    let graphs: Vec<_> = (0..3).map(|_| capture_moving(&rig, &memory, output)).collect();
    assert_eq!(memory.reserved(), 32 * MIB);
    for graph in graphs.iter().chain(&graphs) {
        rig.fill(output, 0, 512, &rig.stream);
        rig.replay(graph, &rig.stream);
        assert_eq!(rig.read(output, 7, &rig.stream), MOVED);
    }
    rig.check();
}

#[test]
fn within_a_capture_memory_is_reused_in_stream_order() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let _graph = rig.capture(&memory, || {
        let mut seen = Vec::new();
        for _ in 0..10 {
            let block = rig.pool.alloc(5 * MIB, &rig.stream).unwrap();
            seen.push(block);
            rig.pool.free_block(block, &rig.stream).unwrap();
        }
        seen.dedup();
        assert_eq!(seen.len(), 1);
    });
    assert_eq!(memory.reserved(), 6 * MIB);
    rig.check();
}

#[test]
fn other_streams_go_on_while_one_is_captured() {
    let rig = Rig::new();
    // Freed on the stream before its capture, and pending: the other stream cannot have it by asking.
    let held = rig.hold(rig.stream.handle());
    let before = rig.pool.alloc(20 * MIB, &rig.stream).unwrap();
    rig.pool.free_block(before, &rig.stream).unwrap();
    let mine = rig.pool.alloc(2 * MIB, &rig.stream).unwrap();
    let memory = rig.pool.capture_pool();
    let _graph = rig.capture(&memory, || {
        let captured = rig.pool.alloc(20 * MIB, &rig.stream).unwrap();
        let beside = rig.pool.alloc(20 * MIB, &rig.other).unwrap();
        assert!(captured != before && beside != before && captured != beside);
        rig.fill(beside, 7, 20 * MIB, &rig.other);
        // Blocks from outside can be freed in the capture, and on the other stream, too.
        rig.pool.free_block(mine, &rig.stream).unwrap();
        rig.pool.free_block(beside, &rig.other).unwrap();
        // Memory pressure must not wait for the stream that is being captured. With a callback that might help, it is
        // not refused before that.
        let callback = rig.pool.on_reclaim(|_| false);
        let too_much = rig.pool.alloc(CAPACITY, &rig.other).unwrap_err();
        assert!(matches!(too_much, Error::OutOfMemory(_)), "{too_much}");
        assert!(rig.pool.remove_reclaim(callback));
        rig.pool.trim_to(0).unwrap();
        rig.pool.free_block(captured, &rig.stream).unwrap();
        rig.check();
    });
    drop(held);
    let again = rig.pool.alloc(20 * MIB, &rig.other).unwrap();
    rig.pool.free_block(again, &rig.other).unwrap();
    rig.check();
}

#[test]
fn frees_on_a_captured_stream_take_nothing_from_others() {
    let rig = Rig::new();
    // Long since complete, and freed by the other stream, or by the one that is captured then.
    for freed_on in [&rig.other, &rig.stream] {
        let memory = rig.pool.capture_pool();
        let long = rig.pool.alloc(150 * MIB, &rig.stream).unwrap();
        let mine = rig.pool.alloc(20 * MIB, &rig.stream).unwrap();
        assert_eq!(mine, long.offset(150 * MIB));
        rig.pool.free_block(long, freed_on).unwrap();
        rig.context.synchronize().unwrap();
        let _graph = rig.capture(&memory, || {
            rig.pool.free_block(mine, &rig.stream).unwrap();
            let again = rig.pool.alloc(150 * MIB, &rig.other).unwrap();
            assert_eq!(again, long);
            rig.pool.free_block(again, &rig.other).unwrap();
            // Before it is refused, what lies apart is joined as far as it may be.
            let callback = rig.pool.on_reclaim(|_| false);
            assert!(rig.pool.alloc(CAPACITY, &rig.other).is_err());
            assert!(rig.pool.remove_reclaim(callback));
            let again = rig.pool.alloc(150 * MIB, &rig.other).unwrap();
            rig.pool.free_block(again, &rig.other).unwrap();
            rig.check();
        });
        rig.context.synchronize().unwrap();
        let both = rig.pool.alloc(170 * MIB, &rig.other).unwrap();
        rig.pool.free_block(both, &rig.other).unwrap();
        rig.context.synchronize().unwrap();
        rig.pool.trim_to(0).unwrap();
    }
    rig.check();
}

#[test]
fn a_capture_beside_a_search_for_memory_ends_well() {
    for pending in [false, true] {
        let rig = Rig::new();
        let memory = rig.pool.capture_pool();
        let large = rig.pool.alloc(150 * MIB, &rig.stream).unwrap();
        let held = pending.then(|| rig.hold(rig.stream.handle()));
        rig.pool.free_block(large, &rig.stream).unwrap();
        let capturing = memory.begin(&rig.stream).unwrap();
        // There is room only where the other stream's memory lies, which is asked about.
        rig.device.begin_capture_unseen(rig.stream.handle());
        let looked = rig.pool.alloc(150 * MIB, &rig.other);
        assert!(matches!(looked, Err(Error::OutOfMemory(_))), "{looked:?}");
        let ended = rig.device.end_capture(rig.stream.handle());
        assert!(ended.is_ok(), "{ended:?}");
        drop((capturing, held));
        let again = rig.pool.alloc(150 * MIB, &rig.other).unwrap();
        rig.pool.free_block(again, &rig.other).unwrap();
        rig.check();
    }
}

#[test]
fn streams_of_a_capture_share_its_memory_not_their_frees() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let graph = rig.capture(&memory, || {
        let block = rig.pool.alloc(4 * MIB, &rig.stream).unwrap();
        rig.fill(block, 1, 4 * MIB, &rig.stream);
        rig.other.wait_for(&rig.stream).unwrap();
        let beside = rig.pool.alloc(4 * MIB, &rig.other).unwrap();
        assert!(memory.allocated() >= 8 * MIB, "both come from the capture's memory");
        rig.fill(beside, 2, 4 * MIB, &rig.other);
        // Used by both streams: nobody may have it while the capture lasts.
        rig.pool.record_use(block, &rig.other).unwrap();
        rig.pool.free_block(block, &rig.stream).unwrap();
        rig.pool.free_block(beside, &rig.other).unwrap();
        let third = rig.pool.alloc(4 * MIB, &rig.stream).unwrap();
        assert!(third != block && third != beside);
        rig.stream.wait_for(&rig.other).unwrap();
        rig.pool.free_block(third, &rig.stream).unwrap();
        assert_eq!(rig.pool.alloc(4 * MIB, &rig.other).unwrap(), beside, "what a stream freed itself");
        rig.pool.free_block(beside, &rig.other).unwrap();
    });
    rig.replay(&graph, &rig.other);
    rig.context.synchronize().unwrap();
    rig.check();
}

#[test]
fn an_event_of_a_capture_orders_nothing_outside_of_it() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let held = rig.hold(rig.stream.handle());
    let pending = rig.pool.alloc(8 * MIB, &rig.stream).unwrap();
    rig.fill(pending, 1, 8 * MIB, &rig.stream);
    rig.pool.free_block(pending, &rig.stream).unwrap();
    let _graph = rig.capture(&memory, || {
        // The other stream joins the capture; it does not wait for the fill.
        rig.other.wait_for(&rig.stream).unwrap();
    });
    let waits = rig.pool.stats().stream_waits;
    let other = rig.pool.alloc(8 * MIB, &rig.other).unwrap();
    assert!(other != pending || rig.pool.stats().stream_waits > waits, "the fill is still pending");
    rig.fill(other, 2, 8 * MIB, &rig.other);
    drop(held);
    assert_eq!(rig.read(other, 8 * MIB, &rig.other), vec![2; 8 << 20]);
    rig.pool.free_block(other, &rig.other).unwrap();
    rig.check();
}

#[test]
fn captures_that_share_memory_use_it_one_after_the_other() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let outputs: Vec<_> = (0..3).map(|_| rig.pool.alloc(4 * MIB, &rig.stream).unwrap()).collect();
    let mut scratch = Vec::new();
    let graphs: Vec<_> = outputs
        .iter()
        .zip(1..)
        .map(|(output, value)| {
            rig.capture(&memory, || {
                let block = rig.pool.alloc(4 * MIB, &rig.stream).unwrap();
                rig.fill(block, value, 4 * MIB, &rig.stream);
                rig.copy(*output, block, 4 * MIB, &rig.stream);
                rig.pool.free_block(block, &rig.stream).unwrap();
                scratch.push(block);
            })
        })
        .collect();
    assert!(scratch.iter().all(|block| *block == scratch[0]));
    assert_eq!(memory.reserved(), 4 * MIB);
    graphs.iter().for_each(|graph| rig.replay(graph, &rig.other));
    rig.device.synchronize().unwrap();
    for (output, value) in outputs.iter().zip(1..) {
        assert_eq!(rig.read(*output, 4 * MIB, &rig.stream), vec![value; 4 << 20]);
        rig.pool.free_block(*output, &rig.stream).unwrap();
    }
}

#[test]
fn a_block_that_outlives_its_graph_is_valid_until_freed() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let mut output = None;
    let graph = rig.capture(&memory, || {
        let scratch = Buffer::<u8>::zeroed(&rig.pool, 10 << 20, &rig.stream).unwrap();
        let mut buffer = Buffer::<u8>::new(&rig.pool, 4 << 20, &rig.stream).unwrap();
        buffer.copy_from_slice(&vec![9; 4 << 20]).unwrap();
        drop(scratch);
        output = Some(buffer);
    });
    let output = output.unwrap();
    rig.replay(&graph, &rig.stream);
    drop(graph);
    drop(memory);
    assert!(rig.pool.reserved().current < 10 * MIB, "the scratch memory went back");
    other_traffic(&rig);
    assert_eq!(output.to_vec().unwrap(), vec![9; 4 << 20]);
    rig.check();
    drop(output);
    rig.context.synchronize().unwrap();
    assert_eq!(rig.pool.stats().blocks.current, 0);
    rig.pool.trim_to(0).unwrap();
    assert_eq!(rig.pool.reserved().current, 0);
    rig.check();
}

#[test]
fn memory_released_during_another_capture_goes_back_when_that_ends() {
    let rig = Rig::new();
    let (first, second) = (rig.pool.capture_pool(), rig.pool.capture_pool());
    let graph = rig.capture(&first, || {
        let block = rig.pool.alloc(8 * MIB, &rig.stream).unwrap();
        rig.fill(block, 3, 8 * MIB, &rig.stream);
        rig.pool.free_block(block, &rig.stream).unwrap();
    });
    rig.replay(&graph, &rig.other);
    assert_eq!(rig.pool.reserved().current, 8 * MIB);
    let _graph = rig.capture(&second, || {
        drop(graph);
        drop(first);
        assert_eq!(rig.pool.reserved().current, 8 * MIB, "waiting would end the capture");
    });
    assert_eq!(rig.pool.reserved().current, 0);
    rig.check();
}

#[test]
fn a_filter_decides_which_streams_are_routed() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let wanted = rig.other.id();
    let routed = memory.begin_where(move |stream| stream.id() == wanted).unwrap();
    let ordinary = rig.pool.alloc(MIB, &rig.stream).unwrap();
    assert_eq!(memory.allocated(), 0);
    let captured = rig.pool.alloc(MIB, &rig.other).unwrap();
    assert_eq!(memory.allocated(), MIB);
    drop(routed);
    let later = rig.pool.alloc(MIB, &rig.other).unwrap();
    assert_eq!(memory.allocated(), MIB);
    for block in [ordinary, captured, later] {
        rig.pool.free_block(block, &rig.other).unwrap();
    }
    assert_eq!(memory.allocated(), 0);
    rig.check();
}

#[test]
fn of_several_that_take_a_stream_the_last_one_gets_it() {
    let rig = Rig::new();
    let [outer, inner] = [(); 2].map(|()| rig.pool.capture_pool());
    let used = || (outer.allocated(), inner.allocated());
    let mut blocks = Vec::new();
    let mut alloc = || blocks.push(rig.pool.alloc(MIB, &rig.stream).unwrap());
    let _outer = outer.begin_where(|_| true).unwrap();
    alloc();
    let within = inner.begin_where(|_| true).unwrap();
    alloc();
    assert_eq!(used(), (MIB, MIB));
    drop(within);
    alloc();
    assert_eq!(used(), (2 * MIB, MIB));
    let again = inner.begin_where(|_| false).unwrap();
    alloc();
    assert_eq!(used(), (3 * MIB, MIB));
    drop(again);
    blocks.into_iter().for_each(|block| rig.pool.free_block(block, &rig.stream).unwrap());
}

#[test]
fn a_stream_wrapped_anew_reuses_memory_of_its_captures() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let handle = rig.device.create_stream().unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let capturing = memory.begin_where(move |stream| stream.handle() == handle).unwrap();
        rig.device.begin_capture(handle).unwrap();
        for _ in 0..3 {
            // SAFETY: the stream lives until the end of the test.
            let present = || unsafe { rig.context.foreign_stream(handle) }.unwrap();
            let block = rig.pool.alloc(4 * MIB, &present()).unwrap();
            rig.fill(block, 1, 4 * MIB, &present());
            rig.pool.free_block(block, &present()).unwrap();
            seen.push(block);
        }
        rig.device.end_capture(handle).expect("no rule was broken");
        drop(capturing);
    }
    seen.dedup();
    assert_eq!(seen.len(), 1);
    assert_eq!(memory.reserved(), 4 * MIB);
    rig.check();
    drop(memory);
    // SAFETY: not used again.
    unsafe { rig.device.destroy_stream(handle) }.unwrap();
}

#[test]
fn mistakes_with_captures_are_errors() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let capturing = memory.begin(&rig.stream).unwrap();
    let under_way = memory.begin(&rig.other).unwrap_err();
    assert!(matches!(under_way, Error::CaptureUnderWay { .. }));
    let name = std::any::type_name::<CapturePool>().rsplit("::").next().unwrap();
    assert!(under_way.to_string().starts_with(&format!("this {name} of pool ")), "{under_way}");
    let block = rig.pool.alloc(MIB, &rig.stream).unwrap();
    let inside = rig.pool.free_block(block.offset(512), &rig.stream).unwrap_err();
    assert!(matches!(inside, Error::InteriorPointer { .. }), "{inside}");
    let elsewhere = Pool::builder(&rig.context).name("elsewhere").build().unwrap();
    let wrong = elsewhere.free_block(block, &rig.stream).unwrap_err();
    assert!(matches!(wrong, Error::WrongPool { .. }), "{wrong}");
    rig.pool.free_block(block, &rig.stream).unwrap();
    let twice = rig.pool.free_block(block, &rig.stream).unwrap_err();
    assert!(matches!(twice, Error::DoubleFree { .. }), "{twice}");
    drop(capturing);
    rig.pool.destroy().unwrap();
    assert!(matches!(memory.begin(&rig.stream), Err(Error::PoolDestroyed { .. })));
    let foreign = Context::new(HostDevice::new().unwrap()).create_stream().unwrap();
    assert!(matches!(memory.begin(&foreign), Err(Error::WrongDevice { .. })));
}

#[test]
fn a_destroyed_pool_keeps_its_graphs_memory_while_they_live() {
    let rig = Rig::new();
    let memory = rig.pool.capture_pool();
    let mut block = DevicePtr::NULL;
    let graph = rig.capture(&memory, || {
        block = rig.pool.alloc(2 * MIB, &rig.stream).unwrap();
        rig.fill(block, 5, 2 * MIB, &rig.stream);
    });
    assert!(matches!(rig.pool.destroy(), Err(Error::LiveBlocks { .. })));
    rig.replay(&graph, &rig.stream);
    assert_eq!(rig.read(block, 2 * MIB, &rig.stream), vec![5; 2 << 20]);
    rig.context.free_block(block, &rig.stream).unwrap();
    rig.context.synchronize().unwrap();
    assert_eq!(memory.reserved(), 2 * MIB);
    drop(graph);
    drop(memory);
    assert_eq!(rig.pool.reserved().current, 0);
    assert_eq!(rig.device.memory_info().unwrap().free, CAPACITY);
}

#[test]
fn many_threads_allocate_while_captures_come_and_go() {
    let rig = Rig::new();
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2_u64 {
            let (pool, context) = (&rig.pool, &rig.context);
            scope.spawn(move || {
                let stream = context.create_stream().unwrap();
                let mut live = std::collections::VecDeque::new();
                let mut at = seed;
                while !done.load(Ordering::Relaxed) {
                    at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    live.push_back(pool.alloc(1 + (at >> 44), &stream).unwrap());
                    if live.len() > 8 {
                        pool.free_block(live.pop_front().unwrap(), &stream).unwrap();
                    }
                }
                live.into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
            });
        }
        for round in 0..30 {
            let memory = rig.pool.capture_pool();
            let graph = rig.capture(&memory, || {
                let block = rig.pool.alloc(MIB, &rig.stream).unwrap();
                rig.fill(block, round, MIB, &rig.stream);
                rig.pool.free_block(block, &rig.stream).unwrap();
            });
            rig.replay(&graph, &rig.stream);
            drop(graph);
        }
        done.store(true, Ordering::Relaxed);
    });
    rig.context.synchronize().unwrap();
    rig.check();
    assert_eq!(rig.pool.stats().blocks.current, 0);
}

// ---- failures, over a simulated device ---------------------------------------------------------------

/// A pool of a simulated device with captures, which has this much memory.
struct Sim {
    sim: Arc<SimDevice>,
    device: Arc<CapturingDevice>,
    context: Context,
    pool: Pool,
    stream: Stream,
}

impl Sim {
    fn new(capacity: u64, options: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let sim = SimDevice::new(SimOptions::default().capacity(capacity)).unwrap();
        let device = CapturingDevice::new(sim.clone());
        let context = Context::new(device.clone());
        let pool = options(Pool::builder(&context)).build().unwrap();
        let stream = context.create_stream().unwrap();
        Self { sim, device, context, pool, stream }
    }

    fn free(&self) -> u64 {
        self.sim.memory_info().unwrap().free
    }

    fn fail(&self, call: Call, nth: u64) {
        let (name, text) = ("TEST".to_owned(), "a test asked for it".to_owned());
        self.sim.fail_next(call, nth, DeviceError::Driver { call: call.name(), code: 1, name, text });
    }

    /// Memory of a capture that has ended, all of it free.
    fn captured(&self, bytes: u64) -> CapturePool {
        let memory = self.pool.capture_pool();
        let capturing = memory.begin(&self.stream).unwrap();
        let block = self.pool.alloc(bytes, &self.stream).unwrap();
        self.pool.free_block(block, &self.stream).unwrap();
        drop(capturing);
        memory
    }
}

#[test]
fn a_failed_request_leaves_a_captures_memory_as_it_was() {
    let budget = Budget::bytes(130 << 30);
    let rig = Sim::new(140 << 30, |builder| builder.budget(&budget));
    // Another allocator's, of which the pool knows nothing.
    let foreign = rig.sim.create_page(60 << 30).unwrap();
    let memory = rig.pool.capture_pool();
    let capturing = memory.begin(&rig.stream).unwrap();
    let kept = rig.pool.alloc(8 * MIB, &rig.stream).unwrap();
    let scratch = rig.pool.alloc(20 * MIB, &rig.stream).unwrap();
    rig.pool.free_block(scratch, &rig.stream).unwrap();
    let state =
        || (rig.pool.reserved().current, memory.reserved(), memory.allocated(), budget.held(), rig.free());
    let before = state();
    for bytes in [4 << 40, 120 << 30, 81 << 30] {
        let error = rig.pool.alloc(bytes, &rig.stream).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
        assert_eq!(state(), before, "{bytes} bytes");
        rig.pool.check().unwrap();
    }
    for call in [Call::CreatePage, Call::Map, Call::SetAccess] {
        for nth in [1, 2, 5] {
            rig.fail(call, nth);
            let error = rig.pool.alloc(400 * MIB, &rig.stream).unwrap_err();
            assert!(matches!(error, Error::Device(_)), "{error}");
            assert_eq!(state(), before, "{call:?} {nth}");
            rig.pool.check().unwrap();
        }
    }
    // A mapping that could not be undone either is undone later.
    rig.fail(Call::SetAccess, 2);
    rig.sim.fail_randomly(Call::Unmap, 1.0);
    assert!(rig.pool.alloc(400 * MIB, &rig.stream).is_err());
    rig.sim.fail_no_more();
    rig.pool.check().unwrap();
    let largest = rig.pool.alloc(400 * MIB, &rig.stream).unwrap();
    rig.pool.free_block(largest, &rig.stream).unwrap();
    rig.pool.free_block(kept, &rig.stream).unwrap();
    drop((capturing, memory));
    assert_eq!((rig.pool.reserved().current, budget.held(), rig.free()), (0, 0, 80 << 30));
    // SAFETY: mapped nowhere, and not used again.
    unsafe { rig.sim.release_page(foreign) }.unwrap();
}

#[test]
fn a_capture_that_could_not_end_goes_at_a_synchronise() {
    let rig = Sim::new(4 << 30, |builder| builder);
    let memory = rig.captured(1 << 30);
    rig.fail(Call::Synchronize, 1);
    drop(memory);
    assert_eq!(rig.pool.reserved().current, 1 << 30, "a replay may be under way");
    rig.context.synchronize().unwrap();
    rig.pool.trim_to(0).unwrap();
    assert_eq!((rig.pool.reserved().current, rig.free()), (0, 4 << 30));
}

#[test]
fn a_capture_that_could_not_end_goes_under_pressure() {
    for from_another_pool in [false, true] {
        let rig = Sim::new(4 << 30, |builder| builder);
        let another = Pool::builder(&rig.context).build().unwrap();
        let memory = rig.captured(1 << 30);
        rig.fail(Call::Synchronize, 1);
        drop(memory);
        assert_eq!(rig.pool.reserved().current, 1 << 30);
        let pool = if from_another_pool { &another } else { &rig.pool };
        let all = pool.alloc(4 << 30, &rig.stream).unwrap();
        pool.free_block(all, &rig.stream).unwrap();
    }
}

#[test]
fn a_pools_end_takes_no_memory_from_unfinished_replays() {
    let rig = Sim::new(4 << 30, |builder| builder);
    let memory = rig.captured(1 << 30);
    let Sim { sim, context, pool, stream, .. } = rig;
    let call = Call::Synchronize;
    let error = DeviceError::Driver { call: call.name(), code: 1, name: String::new(), text: String::new() };
    sim.fail_next(call, 1, error.clone());
    sim.fail_next(call, 2, error);
    drop(pool);
    drop(memory);
    assert_eq!(sim.memory_info().unwrap().free, 3 << 30);
    context.synchronize().unwrap_err();
    context.synchronize().unwrap();
    assert_eq!(sim.memory_info().unwrap().free, 4 << 30);
    drop(stream);
}

#[test]
fn a_pool_destroyed_during_a_capture_says_what_stays() {
    for by_drop in [false, true] {
        let Sim { sim, device, context, pool, stream } = Sim::new(1 << 30, |builder| builder.name("early"));
        let block = pool.alloc(8 * MIB, &stream).unwrap();
        device.begin_capture(stream.handle()).unwrap();
        pool.free_block(block, &stream).unwrap();
        if !by_drop {
            let expected = Error::MemoryInUse { pool: "early".into(), bytes: 8 * MIB };
            assert_eq!(pool.destroy(), Err(expected));
            assert_eq!(pool.destroy(), Ok(()));
        }
        drop(pool);
        assert_eq!(sim.memory_info().unwrap().free, (1 << 30) - 8 * MIB);
        device.end_capture(stream.handle()).expect("no rule was broken");
        context.synchronize().unwrap();
        assert_eq!(sim.memory_info().unwrap().free, 1 << 30);
    }
}

#[test]
fn two_threads_default_streams_are_captured_apart() {
    let rig = Rig::new();
    let graphs = [MIB, 2 * MIB].map(|bytes| (rig.pool.capture_pool(), bytes));
    let turn = std::sync::Barrier::new(2);
    let places = std::thread::scope(|threads| {
        let each = graphs.each_ref().map(|(memory, bytes)| {
            let (rig, turn) = (&rig, &turn);
            threads.spawn(move || {
                let capturing = memory.begin(&rig.context.per_thread_stream().unwrap());
                let begun = rig.device.begin_capture(StreamHandle::PER_THREAD);
                // Nothing panics before the other thread was met for the last time.
                turn.wait();
                let stream = rig.context.per_thread_stream();
                let at = stream.clone().and_then(|stream| rig.pool.alloc(*bytes, &stream));
                turn.wait();
                begun.unwrap();
                let (capturing, stream, at) = (capturing.unwrap(), stream.unwrap(), at.unwrap());
                rig.device.end_capture(StreamHandle::PER_THREAD).expect("no rule was broken");
                drop(capturing);
                let used = memory.allocated();
                rig.pool.free_block(at, &rig.stream).unwrap();
                (used, stream.id())
            })
        });
        each.map(|thread| thread.join().unwrap())
    });
    assert_eq!(places.map(|(used, _)| used), [MIB, 2 * MIB], "each in its own memory");
    assert_ne!(places[0].1, places[1].1);
}

#[test]
fn a_foreign_stream_is_known_by_its_handle_while_captured() {
    let rig = Rig::new();
    let handle = rig.device.create_stream().unwrap();
    // SAFETY: the stream is destroyed at the end.
    let foreign = unsafe { rig.context.foreign_stream(handle) }.unwrap();
    let mut buffer = Buffer::<u8>::zeroed(&rig.pool, 512, &foreign).unwrap();
    rig.device.begin_capture(handle).unwrap();
    buffer.set_zero().expect("it becomes a node of the graph");
    rig.device.end_capture(handle).expect("no rule was broken");
    drop((buffer, foreign));
    // SAFETY: nobody uses it any more.
    unsafe { rig.device.destroy_stream(handle) }.unwrap();
}

#[test]
fn a_buffer_does_not_leave_a_stream_that_is_captured() {
    let rig = Rig::new();
    let buffer = Buffer::<u8>::zeroed(&rig.pool, 100, &rig.stream).unwrap();
    rig.device.begin_capture(rig.stream.handle()).unwrap();
    // The wait would be a part of the graph, and order nothing once that is made.
    let moved = buffer.on_stream(&rig.other);
    assert!(matches!(moved, Err(Error::Device(DeviceError::Invalid { .. }))), "{moved:?}");
    rig.device.end_capture(rig.stream.handle()).expect("no rule was broken");
    Buffer::<u8>::zeroed(&rig.pool, 100, &rig.other).unwrap().to_vec().expect("it is in no capture");
}
