//! Old mappings of pages that moved: none goes while work on it may be pending, whatever else lies beside it.

use std::cell::Cell;
use std::sync::{Arc, mpsc};

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{Call, Hold, SimDevice, SimOptions};
use millpond::device::{DeviceError, DevicePtr};
use millpond::testing::checker::{BlockId, CheckerDevice};
use millpond::{Buffer, Context, Pool, Stream};

const PAGE: u64 = 2 << 20;

/// A program that says to a checker what it does, in blocks of so many pages.
struct Program {
    sim: Arc<SimDevice>,
    checker: Arc<CheckerDevice>,
    pool: Pool,
    stream: Stream,
    held: Cell<Option<Hold>>,
}

type Block = (DevicePtr, BlockId);

impl Program {
    fn new() -> Self {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let checker = CheckerDevice::new(sim.clone());
        let context = Context::new(checker.clone());
        let pool = Pool::builder(&context).page_sizes(PAGE, PAGE).release_threshold(0).build().unwrap();
        Self { sim, checker, pool, stream: context.create_stream().unwrap(), held: Cell::default() }
    }

    fn alloc(&self, pages: u64) -> Block {
        let at = self.pool.alloc(pages * PAGE, &self.stream).unwrap();
        self.check();
        (at, self.checker.allocated(at, pages * PAGE, self.stream.handle()))
    }

    fn free(&self, (at, block): Block) {
        self.checker.used(block, self.stream.handle());
        let _freeing = self.checker.freed(block, self.stream.handle());
        // SAFETY: the program's own block, which no other stream uses.
        unsafe { self.pool.free(at, &self.stream) }.unwrap();
        self.check();
    }

    /// From here on the stream's work is pending.
    fn run_ahead(&self) {
        self.held.set(Some(self.sim.hold(self.stream.handle()).unwrap()));
    }

    fn catch_up(&self) {
        self.held.take().into_iter().for_each(|hold| self.sim.release(hold));
    }

    fn check(&self) {
        self.pool.check().unwrap();
        self.checker.verify().unwrap_or_else(|report| panic!("{report}"));
    }

    fn unmaps(&self) -> u64 {
        self.pool.stats().calls.unmap
    }

    /// Six blocks side by side, of which the third has gone, and its page too.
    fn with_a_gap(&self) -> [Block; 4] {
        let [first, second, gap, fourth, _last] = std::array::from_fn(|_| self.alloc(1));
        self.free(gap);
        self.stream.synchronize().unwrap();
        self.pool.trim_to(0).unwrap();
        assert_eq!(self.pool.reserved().current, 4 * PAGE);
        [first, second, fourth, _last]
    }
}

/// The pages of the second and the fourth block move twice, so that a place has two old mappings of each.
fn moves_twice(program: &Program) -> Block {
    let [first, second, fourth, _] = program.with_a_gap();
    program.run_ahead();
    program.free(second);
    program.free(fourth);
    let two = program.alloc(2);
    program.free(two);
    let three = program.alloc(3);
    program.free(three);
    program.free(first);
    program.alloc(4)
}

#[test]
fn of_two_pending_mappings_of_a_page_neither_goes() {
    let program = Program::new();
    let before = program.unmaps();
    let four = moves_twice(&program);
    // One went with the trim.
    assert_eq!(program.unmaps(), before + 1, "work uses all others");
    program.free(four);
    program.catch_up();
    program.stream.synchronize().unwrap();
    program.pool.trim_to(0).unwrap();
    program.check();
    assert_eq!(program.pool.reserved().current, PAGE, "what is live");
}

#[test]
fn old_mappings_go_once_their_work_is_complete() {
    let program = Program::new();
    let four = moves_twice(&program);
    let before = program.unmaps();
    program.catch_up();
    program.free(four);
    // More than fits beside what is live: idle mappings make room, pages or not.
    let long: Vec<_> = (3..9).map(|pages| program.alloc(pages)).collect();
    long.into_iter().for_each(|block| program.free(block));
    program.stream.synchronize().unwrap();
    program.pool.trim_to(0).unwrap();
    assert!(program.unmaps() > before);
}

#[test]
fn more_pending_mappings_than_a_miss_looks_at_all_go_in_time() {
    let program = Program::new();
    let blocks: Vec<_> = (0..400).map(|_| program.alloc(1)).collect();
    program.run_ahead();
    blocks.iter().step_by(2).for_each(|block| program.free(*block));
    // Each moves two pages, and leaves two old mappings.
    let moved: Vec<_> = (0..100).map(|_| program.alloc(2)).collect();
    assert_eq!(program.pool.stats().pages_remapped, 200);
    let before = program.unmaps();
    program.catch_up();
    moved.into_iter().for_each(|block| program.free(block));
    program.stream.synchronize().unwrap();
    program.pool.trim_to(0).unwrap();
    assert_eq!(program.unmaps() - before, 400, "200 old ones, and those of what is free");
    assert_eq!(program.pool.reserved().current, 200 * PAGE);
}

/// Safe code only. What a copy reads that is still to run is what was there when it was given.
#[test]
fn pending_copies_read_what_they_were_given() {
    let page = PAGE as usize;
    let device = HostDevice::with_options(HostOptions::default().capacity(256 << 20)).unwrap();
    let context = Context::new(device.clone());
    let pool = Pool::builder(&context).build().unwrap();
    // For what is copied from and to: its pages never move.
    let other = Pool::builder(&context).build().unwrap();
    let stream = context.create_stream().unwrap();
    let source = Buffer::<u8>::from_slice(&other, &vec![0xab; 2 * page], &stream).unwrap();
    let mut result = Buffer::<u8>::zeroed(&other, 2 * page, &stream).unwrap();
    let new = |pages: usize| Buffer::<u8>::new(&pool, pages * page, &stream).unwrap();
    let [first, second, gap, fourth, _last] = std::array::from_fn(|_| new(1));
    drop(gap);
    stream.synchronize().unwrap();
    pool.trim_to(0).unwrap();
    drop((second, fourth));
    let mut two = new(2);
    two.copy_from(&source).unwrap();
    stream.synchronize().unwrap();
    let (go, wait) = mpsc::channel::<()>();
    device.launch(stream.handle_here().unwrap(), move || wait.recv().unwrap()).unwrap();
    result.copy_from(&two).unwrap();
    drop(two);
    drop(new(3));
    drop(first);
    let _four = new(4);
    pool.check().unwrap();
    go.send(()).unwrap();
    assert!(result.to_vec().unwrap().iter().all(|byte| *byte == 0xab));
}

fn planned() -> DeviceError {
    DeviceError::Invalid { call: "planned", what: "a test asked for it".to_owned() }
}

#[test]
fn what_a_request_left_with_a_captures_memory_is_trimmed() {
    let sim = SimDevice::new(SimOptions::default()).unwrap();
    let context = Context::new(sim.clone());
    let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
    let memory = pool.capture_pool();
    let capturing = memory.begin(&stream).unwrap();
    sim.fail_next(Call::Map, 1, planned());
    sim.fail_next(Call::ReleasePage, 1, planned());
    pool.alloc(100 << 20, &stream).unwrap_err();
    drop(capturing);
    sim.fail_no_more();
    let left = pool.reserved().current;
    assert!(0 < left && left < 100 << 20, "one failure keeps one page, not {left} bytes");
    assert_eq!(pool.trim_to(0), Ok(left));
    assert_eq!(pool.reserved().current, 0);
    pool.check().unwrap();
}

/// A mapping that a capture's memory could not remove changes nothing for those that graphs use.
#[test]
fn what_graphs_use_stays_beside_a_mapping_that_is_stuck() {
    let sim = SimDevice::new(SimOptions::default()).unwrap();
    let context = Context::new(sim.clone());
    let pool = Pool::builder(&context).page_sizes(PAGE, PAGE).build().unwrap();
    let stream = context.create_stream().unwrap();
    let memory = pool.capture_pool();
    let _capturing = memory.begin(&stream).unwrap();
    let alloc = |pages: u64| pool.alloc(pages * PAGE, &stream);
    // SAFETY: each is freed once, and nothing uses it.
    let free = |block| unsafe { pool.free(block, &stream) }.unwrap();
    let blocks: [DevicePtr; 6] = std::array::from_fn(|_| alloc(1).unwrap());
    [0, 2, 4].into_iter().for_each(|at| free(blocks[at]));
    // Two pages move, and stay mapped where the graph uses them.
    let moved = alloc(2).unwrap();
    assert_eq!(pool.stats().pages_remapped, 2);
    // A mapping without access that cannot be removed.
    sim.fail_next(Call::SetAccess, 1, planned());
    sim.fail_next(Call::Unmap, 1, planned());
    sim.fail_next(Call::Unmap, 2, planned());
    alloc(7).unwrap_err();
    sim.fail_no_more();
    pool.check().unwrap();
    let before = pool.stats().calls.unmap;
    free(moved);
    for pages in [2, 3, 4, 5] {
        let block = alloc(pages).unwrap();
        pool.check().unwrap();
        free(block);
    }
    assert!(pool.stats().calls.unmap <= before + 1, "only the stuck one goes");
}

#[test]
fn a_segment_that_peers_cannot_use_is_not_lost() {
    let sims = SimDevice::group(2, SimOptions::default().virtual_memory(false)).unwrap();
    let [context, peer] = [0, 1].map(|number: usize| Context::new(sims[number].clone()));
    let pool = Pool::builder(&context).accessible_from([&peer]).build().unwrap();
    let stream = context.create_stream().unwrap();
    sims[0].fail_next(Call::SetPeerAccess, 1, planned());
    sims[0].fail_next(Call::FreeSegment, 1, planned());
    pool.alloc(3 << 20, &stream).unwrap_err();
    sims[0].fail_no_more();
    pool.check().unwrap();
    let left = pool.reserved().current;
    assert!(left > 0 && pool.trim_to(0) == Ok(left), "it is free, and goes with a trim");
    pool.check().unwrap();
}
