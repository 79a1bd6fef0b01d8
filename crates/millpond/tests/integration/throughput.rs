//! Throughput mode: a pool whose slow paths take its time may hold more, within its growth allowance.

use std::collections::HashSet;
use std::time::Duration;

use millpond::device::sim::SimDevice;
use millpond::testing::checker::CheckerDevice;
use millpond::{Context, Pool, Stream};

use crate::shared::{Freeing, MIB, Random, sim};

const STEPS: u64 = 150_000;

/// Replaces blocks of sizes that never repeat, with so much time between two steps.
fn churn(pool: &Pool, stream: &Stream, sim: &SimDevice, think: Duration) {
    churn_of((64, 16 * MIB), pool, stream, || sim.advance_to(sim.now() + think));
}

/// Keeps so many blocks live, of 1 MiB to `most` bytes.
fn churn_of((live, most): (u64, u64), pool: &Pool, stream: &Stream, mut before: impl FnMut()) {
    let mut random = Random(42);
    let mut blocks = Vec::new();
    for _ in 0..STEPS {
        before();
        blocks.push(pool.alloc(MIB + random.below(most - MIB), stream).unwrap());
        if blocks.len() as u64 > live {
            let at = random.below(live) as usize;
            pool.free_block(blocks.swap_remove(at), stream).unwrap();
        }
    }
    blocks.into_iter().for_each(|block| pool.free_block(block, stream).unwrap());
    pool.check().unwrap();
}

#[test]
fn a_program_that_only_allocates_stays_within_its_allowance() {
    let (sim, device, stream) = sim(64 << 30);
    let pool = Pool::builder(&device).growth_allowance(1 << 30).build().unwrap();
    churn(&pool, &stream, &sim, Duration::ZERO);
    let stats = pool.stats();
    // 1.70 was measured, which is 519 MiB beyond what is allocated; outside of throughput mode it is 1.07.
    assert!(stats.reserved.high > stats.allocated.high * 5 / 4, "not in throughput mode: {stats:?}");
    // The allowance, and a little for the ends of pages.
    assert!(stats.reserved.high <= stats.allocated.high + (1 << 30) + 64 * MIB, "{stats:?}");
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
}

#[test]
fn throughput_mode_makes_no_block_longer_near_a_limit() {
    let (sim, device, stream) = sim(64 << 30);
    let pool = Pool::builder(&device).growth_allowance(1 << 30).build().unwrap();
    churn(&pool, &stream, &sim, Duration::ZERO);
    // Longer than what is cached by now. The class's longest is 18 MiB.
    let spare = |bytes| {
        let before = pool.stats().allocated.current;
        let block = pool.alloc(bytes, &stream).unwrap();
        let allocated = pool.stats().allocated.current - before;
        pool.free_block(block, &stream).unwrap();
        allocated - bytes
    };
    assert_eq!(spare(17 * MIB), MIB);
    pool.set_hard_limit(Some(pool.reserved().current * 9 / 8));
    assert_eq!(spare(21 * MIB), 0, "it would be 22 MiB long");
}

#[test]
fn classes_that_lend_blocks_stop_missing_within_the_allowance() {
    let (_, device, stream) = sim(64 << 30);
    // As much again as one class after the other would take.
    let pool = Pool::builder(&device).growth_allowance(5 << 30).build().unwrap();
    let large = (300, 64 * MIB);
    churn_of(large, &pool, &stream, || ());
    let before = pool.stats();
    churn_of(large, &pool, &stream, || ());
    let after = pool.stats();
    assert_eq!(after.allocations - before.allocations, STEPS);
    // 192 misses and 512 calls were measured; 117 and 368 where long pages were exchanged for short ones.
    assert!(after.misses - before.misses < STEPS / 700, "{before:?} {after:?}");
    assert!(after.calls.memory() - before.calls.memory() < STEPS / 280, "{before:?} {after:?}");
    assert!(
        after.reserved.high <= after.allocated.high + (5 << 30),
        "within the growth allowance: {after:?}"
    );
    // 1.337, measured; the allowance would be 1.44.
    assert!(after.reserved.high < after.allocated.high * 7 / 5, "{after:?}");
}

#[test]
fn throughput_mode_hands_blocks_over_once_the_stream_waits() {
    let (simulated, _, _) = sim(64 << 30);
    let checker = CheckerDevice::new(simulated.clone());
    let device = Context::new(checker.clone());
    let [freeing, allocating] = [(); 2].map(|()| device.create_stream().unwrap());
    let pool = Pool::builder(&device).growth_allowance(1 << 30).build().unwrap();
    churn(&pool, &freeing, &simulated, Duration::ZERO);
    // Longer than what is cached by now, so that no longer class lends a block.
    let bytes = 20 * MIB;
    let alloc = |stream: &Stream| {
        let at = pool.alloc(bytes, stream).unwrap();
        (at, checker.allocated(at, bytes, stream.handle()))
    };
    let free = |(at, block), stream: &Stream| {
        checker.used(block, stream.handle());
        _ = checker.freed(block, stream.handle());
        pool.free_block(at, stream).unwrap();
    };
    let theirs: Vec<_> = (0..300).map(|_| alloc(&freeing)).collect();
    let addresses: HashSet<_> = theirs.iter().map(|(at, _)| *at).collect();
    let hold = simulated.hold(freeing.handle()).unwrap();
    theirs.into_iter().for_each(|block| free(block, &freeing));
    let (waits, misses) = (pool.stats().stream_waits, pool.stats().misses);
    let ours: Vec<_> = (0..150).map(|_| alloc(&allocating)).collect();
    assert!(pool.stats().stream_waits > waits, "the work on the other stream is pending");
    // Of 150 blocks; one wait, 2 misses and 148 handed over were measured.
    assert!(pool.stats().stream_waits < waits + 30, "a wait for every few blocks");
    assert!(pool.stats().misses < misses + 10, "{:?}", pool.stats());
    let handed_over = ours.iter().filter(|(at, _)| addresses.contains(at)).count();
    assert!(handed_over > 100, "{handed_over}");
    pool.check().unwrap();
    ours.into_iter().for_each(|block| free(block, &allocating));
    simulated.release(hold);
    device.synchronize().unwrap();
    pool.destroy().unwrap();
    checker.verify().unwrap();
}

#[test]
fn outside_throughput_mode_little_more_than_live_is_held() {
    for (spare, think) in [(1 << 30, Duration::from_millis(2)), (0, Duration::ZERO)] {
        let (sim, device, stream) = sim(64 << 30);
        let pool = Pool::builder(&device).growth_allowance(spare).build().unwrap();
        churn(&pool, &stream, &sim, think);
        let stats = pool.stats();
        // 1.07 was measured for both.
        assert!(stats.reserved.high <= stats.allocated.high * 11 / 10, "{stats:?}");
    }
}
