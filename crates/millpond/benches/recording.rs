//! What recording costs: `cargo bench -p millpond --bench recording`.
//!
//! A pair is an allocation and a free on the simulated device, two events. What an event costs is half the
//! difference between a pair that is recorded and one that is not.

use divan::Bencher;
use millpond::device::DevicePtr;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Pool, Stream, record};

fn main() {
    divan::main();
}

fn pool() -> (Pool, Stream) {
    let context = Context::new(SimDevice::new(SimOptions::default()).expect("the options are the defaults"));
    let pool = Pool::builder(&context).build().expect("the options are the defaults");
    let stream = context.create_stream().expect("the simulated device has streams");
    (pool, stream)
}

/// Pairs in a sample: enough that rings fill and are emptied.
const PAIRS: usize = 10_000;

fn pairs((pool, stream): &(Pool, Stream)) {
    for _ in 0..PAIRS {
        let block: DevicePtr = pool.alloc(divan::black_box(4096), stream).expect("there is memory");
        // SAFETY: nobody else has the block, and there is no work on it.
        unsafe { pool.free(block, stream) }.expect("the block is live");
    }
}

#[divan::bench(items_count = PAIRS)]
fn pair_not_recorded(bencher: Bencher<'_, '_>) {
    let pool = pool();
    bencher.bench_local(|| pairs(&pool));
}

#[divan::bench(items_count = PAIRS)]
fn pair_recorded(bencher: Bencher<'_, '_>) {
    let folder = tempfile::tempdir().expect("there is room for temporary files");
    let pool = pool();
    pool.0.start_recording(folder.path().join("bench.mprec")).expect("the folder can be written");
    bencher.bench_local(|| pairs(&pool));
}

#[divan::bench(items_count = PAIRS)]
fn pair_recorded_under_a_tag(bencher: Bencher<'_, '_>) {
    let folder = tempfile::tempdir().expect("there is room for temporary files");
    let pool = pool();
    pool.0.start_recording(folder.path().join("bench.mprec")).expect("the folder can be written");
    let _tag = record::tag("bench");
    bencher.bench_local(|| pairs(&pool));
}

/// One sample in 16 MiB: what a pair of 4 KiB costs that is none.
#[divan::bench(items_count = PAIRS)]
fn pair_tracked_by_samples(bencher: Bencher<'_, '_>) {
    let pool = pool();
    pool.0.start_tracking(record::Tracking::sampled()).expect("this is no forked child");
    bencher.bench_local(|| pairs(&pool));
}

/// Each with its call stack.
#[divan::bench(items_count = PAIRS)]
fn pair_tracked(bencher: Bencher<'_, '_>) {
    let pool = pool();
    pool.0.start_tracking(record::Tracking::all()).expect("this is no forked child");
    bencher.bench_local(|| pairs(&pool));
}

#[divan::bench]
fn entering_and_leaving_a_tag() {
    let _tag = divan::black_box(record::tag("bench"));
}
