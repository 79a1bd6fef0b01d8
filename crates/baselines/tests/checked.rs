//! Random programs of several streams on a device that checks every call, and on which memory runs out and
//! calls fail.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::DevicePtr;
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::testing::checker::{BlockId, CheckerDevice};
use millpond::{Context, Stream};
use millpond_baselines::{Allocator, by_name};
use proptest::prelude::*;

const CAPACITY: u64 = 256 << 20;
const STREAMS: usize = 3;
/// How long each kernel takes.
const KERNEL: Duration = Duration::from_micros(300);

#[derive(Debug, Clone)]
enum Step {
    Alloc { stream: usize, bytes: u64 },
    Use { which: usize, stream: usize },
    Free { which: usize, stream: usize },
    Pass(Duration),
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    let bytes = prop_oneof![1..(64u64 << 10), (1 << 19)..(3u64 << 20), (5 << 20)..(90u64 << 20)];
    prop_oneof![
        8 => (stream.clone(), bytes).prop_map(|(stream, bytes)| Step::Alloc { stream, bytes }),
        3 => (0..100usize, stream.clone()).prop_map(|(which, stream)| Step::Use { which, stream }),
        4 => (0..100usize, stream).prop_map(|(which, stream)| Step::Free { which, stream }),
        2 => (0..2000u64).prop_map(|micros| Step::Pass(Duration::from_micros(micros))),
        1 => Just(Step::Trim),
    ]
}

struct Live {
    ptr: DevicePtr,
    block: BlockId,
    stream: usize,
}

struct World {
    sim: Arc<SimDevice>,
    checker: Arc<CheckerDevice>,
    allocator: Box<dyn Allocator>,
    streams: Vec<Stream>,
    live: Vec<Live>,
    /// Whether calls of the device may fail, and so of the allocator.
    faulty: bool,
}

impl World {
    fn new(name: &str, faulty: bool) -> Self {
        let sim = SimDevice::new(SimOptions::default().capacity(CAPACITY)).unwrap();
        let checker = CheckerDevice::new(sim.clone());
        let context = Context::new(checker.clone());
        let streams = (0..STREAMS).map(|_| context.create_stream().unwrap()).collect();
        let allocator = by_name(name, &context).unwrap();
        Self { sim, checker, allocator, streams, live: Vec::new(), faulty }
    }

    fn set_faults(&self, chance: f64) {
        let calls = [Call::AllocSegment, Call::CreatePage, Call::Map, Call::SetAccess, Call::Reserve];
        for call in calls.into_iter().filter(|_| self.faulty) {
            self.sim.fail_randomly(call, chance);
        }
    }

    fn work(&self, block: BlockId, stream: &Stream) {
        self.sim.launch(stream.handle(), KERNEL).unwrap();
        self.checker.used(block, stream.handle());
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Alloc { stream, bytes } => self.alloc(stream, bytes),
            Step::Use { which, stream } if !self.live.is_empty() => {
                let &Live { ptr, block, stream: owner } = &self.live[which % self.live.len()];
                let stream = &self.streams[stream];
                stream.wait_for(&self.streams[owner]).unwrap();
                self.work(block, stream);
                self.allocator.record_use(ptr, stream).unwrap();
                self.checker.use_recorded(block, stream.handle());
            }
            Step::Free { which, stream } if !self.live.is_empty() => {
                let live = self.live.swap_remove(which % self.live.len());
                self.free(&live, stream);
            }
            Step::Pass(time) => self.sim.advance_to(self.sim.now() + time),
            Step::Trim => {
                let trimmed = self.allocator.trim();
                assert!(self.faulty || trimmed.is_ok(), "{trimmed:?}");
            }
            Step::Use { .. } | Step::Free { .. } => {}
        }
    }

    fn alloc(&mut self, at: usize, bytes: u64) {
        let stream = &self.streams[at];
        self.set_faults(0.1);
        let ptr = self.allocator.allocate(bytes, stream);
        self.set_faults(0.0);
        let Ok(ptr) = ptr else { return };
        let block = self.checker.allocated(ptr, bytes, stream.handle());
        self.work(block, stream);
        self.live.push(Live { ptr, block, stream: at });
    }

    fn free(&self, live: &Live, stream: usize) {
        let stream = &self.streams[stream];
        stream.wait_for(&self.streams[live.stream]).unwrap();
        let _freeing = self.checker.freed(live.block, stream.handle());
        // SAFETY: the block is the test's, and the stream waits for its work.
        unsafe { self.allocator.free(live.ptr, stream) }.unwrap();
    }

    /// Frees what is live and drops the allocator; then nothing is left.
    fn end(mut self) {
        for live in std::mem::take(&mut self.live) {
            self.free(&live, live.stream);
        }
        assert_eq!(self.allocator.usage().requested.current, 0);
        let Self { checker, allocator, streams, .. } = self;
        drop((allocator, streams));
        if let Err(report) = checker.verify_nothing_left() {
            panic!("{report}");
        }
    }
}

fn check(name: &str, faulty: bool, program: &[Step]) {
    let mut world = World::new(name, faulty);
    for step in program {
        world.run(step);
        if let Err(report) = world.checker.verify() {
            panic!("{name}: {report}");
        }
    }
    world.end();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn caching_keeps_stream_order_and_loses_nothing(program in prop::collection::vec(step(), 1..120)) {
        check("caching", false, &program);
    }

    #[test]
    fn expandable_keeps_stream_order_and_loses_nothing(program in prop::collection::vec(step(), 1..120)) {
        check("expandable", false, &program);
    }

    #[test]
    fn bfc_keeps_stream_order_and_loses_nothing(program in prop::collection::vec(step(), 1..120)) {
        check("bfc", false, &program);
    }

    #[test]
    fn failing_device_calls_cost_no_memory_and_no_order(
        which in 0..3usize,
        program in prop::collection::vec(step(), 1..120),
    ) {
        check(["caching", "expandable", "bfc"][which], true, &program);
    }
}
