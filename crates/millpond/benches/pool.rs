//! The pieces of a pair, through the public interface, on the simulated device: `cargo bench -p millpond`.
//!
//! What a whole pair costs beside other allocators is `millpond bench`. Here is what it is made of, and what stands
//! beside it: a miss, a free behind another stream, an event, a look at the figures.

use divan::{Bencher, black_box};
use millpond::device::DevicePtr;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Budget, Buffer, Context, Pool, Stream, Workspace};

fn main() {
    divan::main();
}

/// Pairs in a sample. Said here, since the first one of a pool is slow and would be taken for the pace of all.
const PAIRS: u32 = 1000;

/// What most of them need.
struct Rig {
    context: Context,
    pool: Pool,
    stream: Stream,
}

impl Rig {
    fn new() -> Self {
        let device = SimDevice::new(SimOptions::default()).unwrap();
        let context = Context::new(device);
        let pool = Pool::builder(&context).build().unwrap();
        let stream = context.create_stream().unwrap();
        Self { context, pool, stream }
    }

    fn alloc(&self, bytes: u64) -> DevicePtr {
        self.pool.alloc(black_box(bytes), &self.stream).unwrap()
    }

    fn free(&self, block: DevicePtr) {
        self.free_on(block, &self.stream);
    }

    fn free_on(&self, block: DevicePtr, stream: &Stream) {
        // SAFETY: nobody else has the block, and there is no work on it.
        unsafe { self.pool.free(block, stream) }.unwrap();
    }
}

#[divan::bench(args = [512, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20], sample_size = PAIRS)]
fn pair(bencher: Bencher, bytes: u64) {
    let rig = Rig::new();
    bencher.bench_local(|| rig.free(black_box(rig.alloc(bytes))));
}

/// Sixteen are taken before the first is given back, so that it is not always the same block.
#[divan::bench(args = [512, 1 << 20], sample_size = PAIRS)]
fn sixteen_pairs_first_in_first_out(bencher: Bencher, bytes: u64) {
    let rig = Rig::new();
    bencher.bench_local(|| {
        let blocks: [DevicePtr; 16] = std::array::from_fn(|_| rig.alloc(bytes));
        blocks.into_iter().for_each(|block| rig.free(block));
    });
}

/// Everything is given back to the device in between, so that each allocation maps a page.
#[divan::bench(args = [1 << 20, 64 << 20])]
fn a_miss(bencher: Bencher, bytes: u64) {
    let rig = Rig::new();
    bencher.with_inputs(|| rig.pool.trim_to(0).unwrap()).bench_local_values(|_| {
        let block = rig.alloc(bytes);
        rig.free(block);
    });
}

/// A miss under a budget of this process (0), and under one that so many processes of this user share.
#[divan::bench(args = [0, 1])]
fn a_miss_under_a_budget(bencher: Bencher, processes: usize) {
    let name = format!("bench-{}", std::process::id());
    let budget = match processes {
        0 => Budget::bytes(1 << 30),
        _ => Budget::named(&name, 1 << 30).unwrap(),
    };
    let Rig { context, stream, .. } = Rig::new();
    let pool = Pool::builder(&context).budget(&budget).build().unwrap();
    let rig = Rig { context, pool, stream };
    bencher.with_inputs(|| rig.pool.trim_to(0).unwrap()).bench_local_values(|_| {
        let block = rig.alloc(1 << 20);
        rig.free(block);
    });
    budget.path().map(std::fs::remove_file).transpose().unwrap();
}

/// The next allocation has to be ordered after the other stream.
#[divan::bench(sample_size = PAIRS)]
fn a_pair_freed_on_another_stream(bencher: Bencher) {
    let rig = Rig::new();
    let other = rig.context.create_stream().unwrap();
    bencher.bench_local(|| rig.free_on(rig.alloc(1 << 20), &other));
}

#[divan::bench]
fn recording_an_event(bencher: Bencher) {
    let rig = Rig::new();
    bencher.bench_local(|| rig.stream.record().unwrap());
}

#[divan::bench]
fn one_stream_waits_for_another(bencher: Bencher) {
    let rig = Rig::new();
    let other = rig.context.create_stream().unwrap();
    bencher.bench_local(|| other.wait_for(&rig.stream).unwrap());
}

#[divan::bench]
fn the_figures_of_a_pool(bencher: Bencher) {
    let rig = Rig::new();
    bencher.bench_local(|| rig.pool.stats());
}

#[divan::bench]
fn the_size_of_a_block(bencher: Bencher) {
    let rig = Rig::new();
    let block = rig.alloc(1 << 20);
    bencher.bench_local(|| rig.pool.size_of(black_box(block)).unwrap());
}

#[divan::bench(sample_size = PAIRS)]
fn a_buffer_made_and_dropped(bencher: Bencher) {
    let rig = Rig::new();
    bencher.bench_local(|| drop(Buffer::<f32>::new(&rig.pool, black_box(1024), &rig.stream).unwrap()));
}

#[divan::bench]
fn a_slice_of_a_workspace(bencher: Bencher) {
    let rig = Rig::new();
    let mut workspace = Workspace::new(&rig.pool, 1 << 20, &rig.stream).unwrap();
    bencher.bench_local(|| {
        workspace.reset();
        black_box(workspace.alloc::<f32>(black_box(1024)).unwrap().ptr())
    });
}
