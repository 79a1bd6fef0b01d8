//! Random programs that capture graphs, replay them, and work beside them: every replay finds its memory, and nobody
//! else's bytes are touched.

use std::sync::Arc;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::{Device, DevicePtr};
use millpond::testing::capturing::{CapturingDevice, Graph};
use millpond::{CapturePool, Context, Error, Pool, Stream};
use proptest::prelude::*;

use crate::shared::{Freeing, are_all};

/// Little enough that programs run out of it.
const CAPACITY: u64 = 96 << 20;

/// Bytes of a graph's input and output.
const RECORD: u64 = 300_000;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Alloc {
        bytes: u64,
        stream: usize,
    },
    Free {
        which: usize,
        stream: usize,
    },
    /// Captures a graph that passes its input on through blocks of these sizes; in a memory of its own, or in that of
    /// the graph before.
    Capture {
        hops: Vec<u64>,
        shares: bool,
        forks: bool,
    },
    Replay {
        which: usize,
    },
    Drop {
        which: usize,
    },
    Trim,
    Synchronize,
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![1..20_000_u64, 900_000..1_200_000_u64, 1_048_576..9_437_184_u64]
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (bytes(), 0..3_usize).prop_map(|(bytes, stream)| Step::Alloc { bytes, stream }),
        4 => (any::<usize>(), 0..3_usize).prop_map(|(which, stream)| Step::Free { which, stream }),
        2 => (prop::collection::vec(bytes(), 1..6), any::<bool>(), any::<bool>())
            .prop_map(|(hops, shares, forks)| Step::Capture { hops, shares, forks }),
        4 => any::<usize>().prop_map(|which| Step::Replay { which }),
        1 => any::<usize>().prop_map(|which| Step::Drop { which }),
        1 => Just(Step::Trim),
        1 => Just(Step::Synchronize),
    ];
    prop::collection::vec(step, 1..60)
}

/// A graph that copies its input to its output.
struct Replayable {
    graph: Graph,
    memory: CapturePool,
    input: DevicePtr,
    output: DevicePtr,
}

/// A block of the program, filled with one value.
struct Live {
    at: DevicePtr,
    bytes: u64,
    value: u8,
    stream: usize,
}

pub(crate) struct World {
    device: Arc<CapturingDevice>,
    context: Context,
    pool: Pool,
    streams: Vec<Stream>,
    live: Vec<Live>,
    graphs: Vec<Replayable>,
    turn: u8,
}

impl World {
    pub(crate) fn new() -> Self {
        let options = HostOptions::default().capacity(CAPACITY);
        let device = CapturingDevice::new(HostDevice::with_options(options).unwrap());
        let context = Context::new(device.clone());
        let pool = Pool::builder(&context).build().unwrap();
        let streams = (0..3).map(|_| context.create_stream().unwrap()).collect();
        Self { device, context, pool, streams, live: Vec::new(), graphs: Vec::new(), turn: 0 }
    }

    pub(crate) fn run(mut self, steps: Vec<Step>) {
        for step in steps {
            self.take(step);
            self.pool.check().unwrap();
            assert_eq!(self.device.taken_from_graphs(), []);
        }
        self.end();
    }

    fn take(&mut self, step: Step) {
        self.turn = self.turn.wrapping_add(1);
        match step {
            Step::Alloc { bytes, stream } => {
                let Some(at) = self.alloc(bytes, stream) else { return };
                self.fill(at, self.turn, bytes, stream);
                self.live.push(Live { at, bytes, value: self.turn, stream });
            }
            Step::Free { which, stream } if !self.live.is_empty() => {
                let live = self.live.swap_remove(which % self.live.len());
                self.expect(live.at, live.value, live.bytes, live.stream);
                // All work on it is complete.
                self.pool.free_block(live.at, &self.streams[stream]).unwrap();
            }
            Step::Capture { hops, shares, forks } => self.capture(&hops, shares, forks),
            Step::Replay { which } if !self.graphs.is_empty() => self.replay(which % self.graphs.len()),
            Step::Drop { which } if !self.graphs.is_empty() => {
                let gone = self.graphs.swap_remove(which % self.graphs.len());
                drop(gone.graph);
                drop(gone.memory);
                self.pool.free_block(gone.input, &self.streams[0]).unwrap();
                self.pool.free_block(gone.output, &self.streams[0]).unwrap();
            }
            Step::Trim => _ = self.pool.trim_to(0).unwrap(),
            Step::Synchronize => self.context.synchronize().unwrap(),
            Step::Free { .. } | Step::Replay { .. } | Step::Drop { .. } => {}
        }
    }

    /// `None` where memory ran out, which such programs do.
    fn alloc(&self, bytes: u64, stream: usize) -> Option<DevicePtr> {
        match self.pool.alloc(bytes, &self.streams[stream]) {
            Ok(at) => Some(at),
            Err(Error::OutOfMemory(_)) => None,
            Err(other) => panic!("{other}"),
        }
    }

    fn fill(&self, at: DevicePtr, value: u8, bytes: u64, stream: usize) {
        // SAFETY: the block is live, and used on this stream alone.
        unsafe { self.device.memset(at, value, bytes, self.streams[stream].handle()) }.unwrap();
    }

    fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64, stream: usize) {
        // SAFETY: as in `fill`.
        unsafe { self.device.copy(to, from, bytes, self.streams[stream].handle()) }.unwrap();
    }

    fn expect(&self, at: DevicePtr, value: u8, bytes: u64, stream: usize) {
        let handle = self.streams[stream].handle();
        let mut found = vec![!value; bytes as usize];
        // SAFETY: `found` is neither touched nor freed before the synchronise.
        unsafe { self.device.copy_to_host(found.as_mut_ptr(), at, bytes, handle) }.unwrap();
        // SAFETY: the stream lives.
        unsafe { self.device.synchronize_stream(handle) }.unwrap();
        assert!(are_all(&found, value), "{bytes} bytes at {at} are not all {value}");
    }

    fn capture(&mut self, hops: &[u64], shares: bool, forks: bool) {
        let Some(input) = self.alloc(RECORD, 0) else { return };
        let Some(output) = self.alloc(RECORD, 0) else {
            return self.pool.free_block(input, &self.streams[0]).unwrap();
        };
        let before = self.graphs.last().filter(|_| shares).map(|graph| graph.memory.clone());
        let memory = before.unwrap_or_else(|| self.pool.capture_pool());
        let capturing = memory.begin(&self.streams[0]).unwrap();
        self.device.begin_capture(self.streams[0].handle()).unwrap();
        self.pass_on(hops, input, output);
        if forks {
            self.fork();
        }
        let graph = self.device.end_capture(self.streams[0].handle()).expect("no rule was broken");
        drop(capturing);
        self.graphs.push(Replayable { graph, memory, input, output });
    }

    /// Gives the captured stream copies from block to block, each freed once it was read.
    fn pass_on(&self, hops: &[u64], input: DevicePtr, output: DevicePtr) {
        let mut last = (input, RECORD);
        for bytes in hops {
            let Some(at) = self.alloc(RECORD.max(*bytes), 0) else { break };
            self.fill(at, 0xEE, RECORD.max(*bytes), 0);
            self.copy(at, last.0, RECORD, 0);
            if last.0 != input {
                self.pool.free_block(last.0, &self.streams[0]).unwrap();
            }
            last = (at, *bytes);
        }
        self.copy(output, last.0, RECORD, 0);
        if last.0 != input {
            self.pool.free_block(last.0, &self.streams[0]).unwrap();
        }
        // Beside the capture, on a stream that is no part of it.
        if let Some(beside) = self.alloc(last.1, 2) {
            self.fill(beside, 0xDD, last.1, 2);
            self.pool.free_block(beside, &self.streams[2]).unwrap();
        }
    }

    /// Lets another stream join the capture, use memory of its own, and come back.
    fn fork(&self) {
        let (main, side) = (&self.streams[0], &self.streams[1]);
        side.wait_for(main).unwrap();
        if let Some(at) = self.alloc(RECORD, 1) {
            self.fill(at, 0xCC, RECORD, 1);
            self.pool.record_use(at, main).unwrap();
            self.pool.free_block(at, side).unwrap();
        }
        main.wait_for(side).unwrap();
    }

    fn replay(&mut self, which: usize) {
        let graph = &self.graphs[which];
        self.fill(graph.input, self.turn, RECORD, 0);
        // SAFETY: the graph's memory is kept, and graphs are replayed on this stream alone.
        unsafe { self.device.launch(&graph.graph, self.streams[0].handle()) }.unwrap();
        self.expect(graph.output, self.turn, RECORD, 0);
    }

    fn end(mut self) {
        for which in 0..self.graphs.len() {
            self.replay(which);
        }
        while !self.graphs.is_empty() {
            self.take(Step::Drop { which: 0 });
        }
        while !self.live.is_empty() {
            self.take(Step::Free { which: 0, stream: 0 });
        }
        self.context.synchronize().unwrap();
        self.pool.trim_to(0).unwrap();
        assert_eq!(self.pool.reserved().current, 0, "everything went back");
        self.pool.check().unwrap();
    }
}
