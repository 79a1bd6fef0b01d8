//! High-water marks of what several threads allocate: never below the true peak, and at most 1/128 above it, or 1 MiB for
//! each thread. Threads take turns here, so that there is one true peak, which the test keeps itself.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, scope};

use millpond::device::DevicePtr;
use millpond::{Context, Pool, Stats, Stream};

use crate::shared::{Freeing, KIB, MIB, Random, sim};

#[derive(Clone, Copy)]
struct Block {
    ptr: DevicePtr,
    /// Requested bytes, allocated bytes, and 1.
    figures: [u64; 3],
}

/// What is live in a pool, by a count of its own.
#[derive(Default)]
struct Model {
    now: [u64; 3],
    peak: [u64; 3],
}

impl Model {
    fn alloc(&mut self, block: Block) {
        self.now = std::array::from_fn(|at| self.now[at] + block.figures[at]);
        self.peak = std::array::from_fn(|at| self.peak[at].max(self.now[at]));
    }

    fn free(&mut self, block: Block) {
        self.now = std::array::from_fn(|at| self.now[at] - block.figures[at]);
    }

    fn reset(&mut self) {
        self.peak = self.now;
    }
}

fn peaks(stats: &Stats) -> [u64; 3] {
    [stats.requested.high, stats.allocated.high, stats.blocks.high]
}

/// Bytes and blocks by which marks may be too high in any pool, for a few threads. (A thread looks at its blocks when its
/// bytes have moved.)
const SOME: [u64; 3] = [4 * MIB, 4 * MIB, 32];

type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

/// A thread that does what it is told, while the others wait.
struct Worker<'a> {
    work: Sender<Work<'a>>,
    done: Receiver<()>,
}

impl<'a> Worker<'a> {
    fn spawn<'scope>(scope: &'scope Scope<'scope, 'a>) -> Self
    where
        'a: 'scope,
    {
        let ((work, todo), (done, is_done)) = (channel::<Work<'a>>(), channel());
        scope.spawn(move || {
            for work in todo {
                work();
                done.send(()).unwrap();
            }
        });
        Self { work, done: is_done }
    }

    fn run<T: Send + 'a>(&self, work: impl FnOnce() -> T + Send + 'a) -> T {
        let (result, is_there) = channel();
        self.work.send(Box::new(move || result.send(work()).unwrap())).unwrap();
        self.done.recv().unwrap();
        is_there.recv().unwrap()
    }
}

/// A pool, what is live in it, and the model.
struct Bench<'a> {
    pool: &'a Pool,
    stream: &'a Stream,
    model: RefCell<Model>,
}

impl<'a> Bench<'a> {
    fn new(pool: &'a Pool, stream: &'a Stream) -> Self {
        Self { pool, stream, model: RefCell::default() }
    }

    fn alloc(&self, worker: &Worker<'a>, bytes: u64) -> Block {
        let (pool, stream) = (self.pool, self.stream);
        let (ptr, allocated) = worker.run(move || {
            let before = pool.allocated().current;
            let ptr = pool.alloc(bytes, stream).unwrap();
            (ptr, pool.allocated().current - before)
        });
        let block = Block { ptr, figures: [bytes, allocated, 1] };
        self.model.borrow_mut().alloc(block);
        block
    }

    fn free(&self, worker: &Worker<'a>, block: Block) {
        let (pool, stream) = (self.pool, self.stream);
        worker.run(move || {
            pool.free_block(block.ptr, stream).unwrap();
        });
        self.model.borrow_mut().free(block);
    }

    fn reset(&self, worker: &Worker<'a>) {
        let pool = self.pool;
        worker.run(move || pool.reset_high_water());
        self.model.borrow_mut().reset();
    }

    /// The pool reports the levels, and each peak or a little more.
    #[track_caller]
    fn check(&self, what: &str) {
        self.check_within(|peak| std::array::from_fn(|at| peak[at] + (peak[at] / 128).max(SOME[at])), what);
    }

    #[track_caller]
    fn check_within(&self, most: impl Fn([u64; 3]) -> [u64; 3], what: &str) {
        let (model, stats) = (self.model.borrow(), self.pool.stats());
        assert_eq!([stats.requested.current, stats.allocated.current, stats.blocks.current], model.now);
        let (peak, most, reported) = (model.peak, most(model.peak), peaks(&stats));
        for (at, name) in ["requested", "allocated", "blocks"].into_iter().enumerate() {
            assert!(
                (peak[at]..=most[at]).contains(&reported[at]),
                "{what}: {name}: at most {}, reported {}: {stats:?}",
                peak[at],
                reported[at]
            );
        }
        assert!(stats.requested.high <= stats.allocated.high && stats.allocated.high <= stats.reserved.high);
    }
}

fn with_pool<R>(test: impl FnOnce(&Context, &Pool, &Stream) -> R) -> R {
    let (_, context, stream) = sim(64 << 30);
    let pool = Pool::builder(&context).build().unwrap();
    test(&context, &pool, &stream)
}

/// Sizes as of a model's activations: a few large ones, many small ones.
fn activation(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => 1 + random.below(64 * KIB),
        1 | 2 => 1 + random.below(4 * MIB),
        _ => MIB + random.below(64 * MIB),
    }
}

#[test]
fn training_with_a_backward_thread_has_its_true_peak() {
    with_pool(|_, pool, stream| {
        scope(|scope| {
            let bench = Bench::new(pool, stream);
            let (forward, backward) = (Worker::spawn(scope), Worker::spawn(scope));
            let mut random = Random(7);
            for step in 0..6 {
                let mut activations = Vec::new();
                for _ in 0..60 {
                    activations.push(bench.alloc(&forward, activation(&mut random)));
                    // What an operation needs for itself.
                    let scratch = bench.alloc(&forward, activation(&mut random));
                    bench.free(&forward, scratch);
                }
                let mut gradients = Vec::new();
                while let Some(block) = activations.pop() {
                    gradients.push(bench.alloc(&backward, 1 + random.below(2 * block.figures[0])));
                    bench.free(&backward, block);
                    if gradients.len() > 3 {
                        bench.free(&backward, gradients.remove(0));
                    }
                }
                bench.check(&format!("step {step}"));
                // The optimizer, on the first thread again.
                gradients.into_iter().for_each(|gradient| bench.free(&forward, gradient));
            }
        });
    });
}

/// A thread rises where another one fell: each one's own peak was at another time.
#[test]
fn peaks_of_threads_that_take_turns_are_not_added_up() {
    with_pool(|_, pool, stream| {
        scope(|scope| {
            let bench = Bench::new(pool, stream);
            let workers: Vec<_> = (0..8).map(|_| Worker::spawn(scope)).collect();
            for round in 0..3 {
                for worker in &workers {
                    let blocks: Vec<_> = (0..5).map(|_| bench.alloc(worker, 20 * MIB)).collect();
                    blocks.into_iter().for_each(|block| bench.free(worker, block));
                }
                bench.check(&format!("round {round}"));
            }
            assert_eq!(pool.stats().requested.high, 100 * MIB);
        });
    });
}

#[test]
fn a_peak_that_several_threads_have_together_is_seen() {
    with_pool(|_, pool, stream| {
        scope(|scope| {
            let bench = Bench::new(pool, stream);
            let workers: Vec<_> = (0..4).map(|_| Worker::spawn(scope)).collect();
            // The blocks come from magazines.
            for worker in &workers {
                let blocks: Vec<_> = (0..9).map(|_| bench.alloc(worker, 768 * KIB)).collect();
                blocks.into_iter().for_each(|block| bench.free(worker, block));
            }
            let blocks: Vec<_> =
                workers.iter().map(|worker| (worker, bench.alloc(worker, 768 * KIB))).collect();
            blocks.into_iter().for_each(|(worker, block)| bench.free(worker, block));
            bench.check("peaked once");
            let all: Vec<_> = workers
                .iter()
                .flat_map(|worker| (0..9).map(move |_| worker))
                .map(|worker| (worker, bench.alloc(worker, 768 * KIB)))
                .collect();
            all.into_iter().for_each(|(worker, block)| bench.free(worker, block));
            bench.check("peaked together, and all freed before the look");
        });
    });
}

/// Random steps of several threads: blocks go from one to another, threads end and others come, marks start again.
#[test]
fn peaks_are_the_models_whatever_threads_do_in_turns() {
    let cases = if cfg!(miri) { 1 } else { 40 };
    for seed in 0..cases {
        let mut random = Random(seed);
        with_pool(|context, pool, stream| {
            scope(|scope| {
                let bench = Bench::new(pool, stream);
                let mut workers: Vec<_> = (0..1 + random.below(4)).map(|_| Worker::spawn(scope)).collect();
                let small = random.below(2) == 0;
                let mut live: Vec<Block> = Vec::new();
                for step in 0..if cfg!(miri) { 60 } else { 400 } {
                    let at = random.below(workers.len() as u64) as usize;
                    match random.below(100) {
                        0..=48 => {
                            let most = if small { 768 * KIB } else { 64 * MIB };
                            live.push(bench.alloc(&workers[at], 1 + random.below(most)));
                        }
                        49..=94 if !live.is_empty() => {
                            let block = random.below(live.len() as u64) as usize;
                            bench.free(&workers[at], live.swap_remove(block));
                        }
                        95 => bench.reset(&workers[at]),
                        96 => drop(pool.trim_to(random.below(64) * MIB).unwrap()),
                        97 => drop(std::mem::replace(&mut workers[at], Worker::spawn(scope))),
                        98 => context.synchronize().unwrap(),
                        _ => {}
                    }
                    bench.check(&format!("seed {seed}, step {step}"));
                }
                live.into_iter().for_each(|block| bench.free(&workers[0], block));
                bench.check(&format!("seed {seed}, at the end"));
                pool.check().unwrap();
            });
        });
    }
}

#[test]
fn the_peaks_of_one_thread_are_exact() {
    with_pool(|_, pool, stream| {
        scope(|scope| {
            let bench = Bench::new(pool, stream);
            let worker = Worker::spawn(scope);
            let (mut random, mut live) = (Random(3), Vec::new());
            for step in 0..2000 {
                if random.below(100) < 52 || live.is_empty() {
                    live.push(bench.alloc(&worker, 1 + random.below(3 * MIB)));
                } else {
                    let at = random.below(live.len() as u64) as usize;
                    bench.free(&worker, live.swap_remove(at));
                }
                if step % 500 == 499 {
                    bench.reset(&worker);
                }
                bench.check_within(|peak| peak, &format!("step {step}"));
            }
        });
    });
}

#[test]
fn marks_start_again_from_what_all_threads_have() {
    with_pool(|_, pool, stream| {
        scope(|scope| {
            let bench = Bench::new(pool, stream);
            let (one, other) = (Worker::spawn(scope), Worker::spawn(scope));
            let kept = [bench.alloc(&one, 10 * MIB), bench.alloc(&other, 6 * MIB)];
            let gone = bench.alloc(&other, 30 * MIB);
            bench.free(&one, gone);
            bench.reset(&one);
            assert_eq!(peaks(&pool.stats()), [16 * MIB, 16 * MIB, 2]);
            // No thread rises unseen beyond it, and none reports what it had before.
            let again = bench.alloc(&other, 20 * MIB);
            bench.free(&one, again);
            bench.check("after a reset");
            kept.into_iter().for_each(|block| bench.free(&other, block));
            bench.check("when all is freed");
        });
    });
}

/// Where threads truly run at once, a mark is never below what was live at any time, nor above what their own peaks add up to.
#[test]
fn marks_of_concurrent_threads_lie_between_the_bounds() {
    const THREADS: u64 = 4;
    with_pool(|context, pool, _| {
        scope(|scope| {
            for seed in 0..THREADS {
                scope.spawn(move || {
                    let stream = context.create_stream().unwrap();
                    let (mut random, mut live) = (Random(seed), Vec::new());
                    for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
                        if live.len() < 8 && random.below(2) == 0 {
                            live.push(pool.alloc(64 * KIB * (1 + random.below(4)), &stream).unwrap());
                        } else if let Some(block) = live.pop() {
                            pool.free_block(block, &stream).unwrap();
                        }
                        if random.below(64) == 0 {
                            let stats = pool.stats();
                            assert!(stats.requested.high >= stats.requested.current);
                            assert!(stats.requested.high <= THREADS * 8 * 256 * KIB, "{stats:?}");
                            assert!(stats.blocks.high <= THREADS * 8, "{stats:?}");
                        }
                    }
                    for block in live {
                        pool.free_block(block, &stream).unwrap();
                    }
                });
            }
        });
        let stats = pool.stats();
        assert_eq!((stats.blocks.current, stats.requested.current), (0, 0));
        assert_eq!(stats.allocations, stats.frees);
        pool.check().unwrap();
    });
}

#[test]
fn captured_memory_counts_among_the_peaks() {
    with_pool(|_, pool, stream| {
        scope(|scope| {
            let bench = Bench::new(pool, stream);
            let (one, other) = (Worker::spawn(scope), Worker::spawn(scope));
            let blocks = [bench.alloc(&one, 8 * MIB), bench.alloc(&other, 4 * MIB)];
            bench.free(&other, blocks[0]);
            // No thread has a cache meanwhile, and all is counted in one place.
            let memory = pool.capture_pool();
            let capturing = memory.begin_where(|_| true).unwrap();
            let captured = bench.alloc(&one, 2 * MIB);
            bench.check("in a capture");
            drop(capturing);
            bench.free(&other, captured);
            bench.free(&one, blocks[1]);
            let last = bench.alloc(&one, 11 * MIB);
            bench.check("after a capture");
            bench.free(&one, last);
        });
    });
}
