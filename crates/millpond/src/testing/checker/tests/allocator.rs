//! A small allocator, right and wrong: the checker tells them apart by random programs alone.

use proptest::prelude::*;

use super::*;

const BLOCK: u64 = 512;
const BLOCKS: u64 = 8;

/// What the allocator knows about order.
#[derive(Debug, Clone, Copy)]
enum Care {
    /// Gives the last freed block to whoever asks.
    None,
    /// Orders the new stream after the block's last one.
    Events,
}

/// Blocks of one size on one page; the last freed is the first given out.
struct Toy<'a> {
    bench: &'a Bench,
    care: Care,
    free: Vec<(DevicePtr, Option<StreamHandle>)>,
}

impl<'a> Toy<'a> {
    fn new(bench: &'a Bench, care: Care) -> Self {
        bench.new_page_at(0);
        let free = (0..BLOCKS).map(|block| (bench.at(0, block * BLOCK), None)).collect();
        Self { bench, care, free }
    }

    fn alloc(&mut self, stream: StreamHandle) -> Option<DevicePtr> {
        let (at, last) = self.free.pop()?;
        match (self.care, last) {
            (Care::Events, Some(last)) if last != stream => self.bench.order(last, stream),
            _ => {}
        }
        Some(at)
    }

    fn free(&mut self, at: DevicePtr, stream: StreamHandle) {
        self.free.push((at, Some(stream)));
    }
}

/// Runs a program of (stream, allocate or free, which block).
fn run(care: Care, program: &[(usize, bool, usize)]) -> Bench {
    let bench = Bench::new();
    let mut toy = Toy::new(&bench, care);
    let streams: Vec<_> = (0..3).map(|_| bench.held_stream()).collect();
    let mut live = Vec::new();
    for &(stream, allocate, which) in program {
        let stream = streams[stream].0;
        if allocate && let Some(at) = toy.alloc(stream) {
            live.push((at, stream, bench.checker.allocated(at, BLOCK, stream)));
        } else if !live.is_empty() {
            let (at, stream, block) = live.swap_remove(which % live.len());
            bench.checker.used(block, stream);
            bench.free(block, stream);
            toy.free(at, stream);
        }
    }
    bench
}

fn programs() -> impl Strategy<Value = Vec<(usize, bool, usize)>> {
    prop::collection::vec((0..3_usize, any::<bool>(), any::<usize>()), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_allocator_that_orders_its_streams_passes(program in programs()) {
        run(Care::Events, &program).passes();
    }
}

#[test]
fn an_allocator_that_ignores_streams_is_caught_by_random_programs() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let caught = runner.run(&programs(), |program| {
        let verdict = run(Care::None, &program).checker.verify();
        prop_assert!(verdict.is_ok());
        Ok(())
    });
    let proptest::test_runner::TestError::Fail(_, smallest) = caught.unwrap_err() else {
        panic!("the programs were rejected");
    };
    assert_eq!(smallest.len(), 3, "allocate, free, allocate on another stream: {smallest:?}");
}
