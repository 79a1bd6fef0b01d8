//! Threads that share streams and pools, truly at the same time. What they do is random, and differs from
//! run to run by how they interleave; what must hold is the same. On the host device bytes are real: each
//! block holds its owner's pattern until it is freed. Streams end and pools are destroyed in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DevicePtr};
use millpond::testing::checker::CheckerDevice;
use millpond::{Context, Error, Pool, ReusePolicies, Stream};

use super::options::GRANULARITY;
use crate::shared::{Freeing, Random, are_all};

const THREADS: u64 = 4;
const STEPS: usize = 400;
/// Blocks that a thread keeps at once, so that memory is scarce but there is some.
const KEPT: usize = 6;

/// So many bytes to ask for.
fn bytes(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => 1 + random.below(512),
        1 => 1 + random.below(64 << 10),
        2 => 1 + random.below(2 * GRANULARITY),
        _ => GRANULARITY * (1 + random.below(2)),
    }
}

/// What the threads share.
struct Shared {
    checker: Arc<CheckerDevice>,
    context: Context,
    pools: Vec<Pool>,
    streams: Vec<Stream>,
    /// Bytes can be read back.
    bytes: bool,
}

struct Block {
    at: DevicePtr,
    bytes: u64,
    pool: usize,
    /// The stream that is ordered after all its work.
    stream: usize,
    pattern: u8,
    checked: millpond::testing::checker::BlockId,
}

impl Shared {
    fn new(device: Arc<dyn Device>, bytes: bool, reuse: ReusePolicies) -> Self {
        let checker = CheckerDevice::new(device);
        let context = Context::new(checker.clone());
        let pool = |name: &str| Pool::builder(&context).name(name).live(false).reuse(reuse).build().unwrap();
        let pools = vec![pool("one"), pool("two")];
        let streams = (0..3).map(|_| context.create_stream().unwrap()).collect();
        Self { checker, context, pools, streams, bytes }
    }

    fn alloc(&self, random: &mut Random) -> Option<Block> {
        let (pool, stream) = (random.below(2) as usize, random.below(3) as usize);
        let (bytes, pattern) = (bytes(random), random.below(256) as u8);
        let on = &self.streams[stream];
        let at = match self.pools[pool].alloc(bytes, on) {
            Ok(at) => at,
            Err(Error::OutOfMemory(_)) => return None,
            Err(other) => panic!("{other}"),
        };
        let checked = self.checker.allocated(at, bytes, on.handle());
        // SAFETY: the block is live, and its stream is ordered after its allocation.
        unsafe { self.checker.memset(at, pattern, bytes, on.handle()) }.unwrap();
        Some(Block { at, bytes, pool, stream, pattern, checked })
    }

    /// Lets another stream use the block from now on.
    fn hand_over(&self, block: &mut Block, to: usize) {
        self.streams[to].wait_for(&self.streams[block.stream]).unwrap();
        block.stream = to;
    }

    /// Reads the whole block back, on its stream.
    fn read(&self, block: &Block) {
        let stream = &self.streams[block.stream];
        let mut found = vec![0; block.bytes as usize];
        let to = found.as_mut_ptr();
        // SAFETY: the vector lives until the stream is synchronised; the block is live and ordered.
        unsafe { self.checker.copy_to_host(to, block.at, block.bytes, stream.handle()) }.unwrap();
        stream.synchronize().unwrap();
        let intact = are_all(&found, block.pattern);
        assert!(!self.bytes || intact, "{} bytes at {} were overwritten", block.bytes, block.at);
    }

    fn free(&self, block: Block) {
        let stream = &self.streams[block.stream];
        let _freed = self.checker.freed(block.checked, stream.handle());
        self.pools[block.pool].free_block(block.at, stream).unwrap();
    }

    /// Allocates and frees on a stream that ends then, in a pool that stays and in one that is destroyed.
    fn visit(&self, random: &mut Random) {
        let stream = self.context.create_stream().unwrap();
        let guest = Pool::builder(&self.context).name("guest").live(false).build().unwrap();
        let mut blocks = Vec::new();
        for pool in [&self.pools[random.below(2) as usize], &guest] {
            for _ in 0..=random.below(4) {
                let bytes = bytes(random) / 2 + 1;
                match pool.alloc(bytes, &stream) {
                    Ok(at) => blocks.push((pool, at, self.checker.allocated(at, bytes, stream.handle()))),
                    Err(Error::OutOfMemory(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
        let kept = random.below(2) as usize * blocks.len();
        let free = |(pool, at, checked): (&Pool, DevicePtr, millpond::testing::checker::BlockId)| {
            let _freed = self.checker.freed(checked, stream.handle());
            pool.free_block(at, &stream).unwrap();
        };
        blocks.drain(kept..).for_each(free);
        match guest.destroy() {
            Ok(()) => {}
            Err(Error::LiveBlocks { .. }) => assert!(kept > 0),
            Err(other) => panic!("{other}"),
        }
        blocks.into_iter().for_each(free);
    }

    fn run_thread(&self, seed: u64) {
        let mut random = Random(seed);
        let mut blocks = Vec::new();
        for _ in 0..STEPS {
            match random.below(10) {
                0..5 if blocks.len() < KEPT => blocks.extend(self.alloc(&mut random)),
                5..7 if !blocks.is_empty() => {
                    let block = random.below(blocks.len() as u64) as usize;
                    self.hand_over(&mut blocks[block], random.below(3) as usize);
                }
                7 if !blocks.is_empty() => self.read(&blocks[random.below(blocks.len() as u64) as usize]),
                9 if random.below(4) == 0 => self.visit(&mut random),
                8 => drop(self.pools[0].trim_to(random.below(8) * GRANULARITY).unwrap()),
                _ if !blocks.is_empty() => {
                    let block = random.below(blocks.len() as u64) as usize;
                    self.free(blocks.swap_remove(block));
                }
                _ => {}
            }
        }
        blocks.into_iter().for_each(|block| self.free(block));
    }

    /// Looks and synchronises while the others work.
    fn run_observer(&self, done: &AtomicBool) {
        // Relaxed: only ends the loop.
        while !done.load(Ordering::Relaxed) {
            for pool in &self.pools {
                pool.check().unwrap();
                let stats = pool.stats();
                assert!(stats.reserved.current <= stats.reserved.high);
            }
            self.context.synchronize().unwrap();
            std::thread::yield_now();
        }
    }

    fn finish(self) {
        for pool in &self.pools {
            pool.check().unwrap();
            let stats = pool.stats();
            assert_eq!((stats.blocks.current, stats.requested.current), (0, 0));
            assert_eq!(stats.allocations, stats.frees);
        }
        self.context.synchronize().unwrap();
        for pool in &self.pools {
            pool.trim_to(0).unwrap();
            assert_eq!(pool.reserved().current, 0);
        }
        let checker = self.checker.clone();
        drop(self);
        if let Err(report) = checker.verify_nothing_left() {
            panic!("{report}");
        }
    }
}

fn stress(device: Arc<dyn Device>, bytes: bool, reuse: ReusePolicies) {
    let shared = Shared::new(device, bytes, reuse);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|seed| {
                scope.spawn({
                    let shared = &shared;
                    move || shared.run_thread(seed)
                })
            })
            .collect();
        let observer = scope.spawn(|| shared.run_observer(&done));
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        // Relaxed: see `run_observer`.
        done.store(true, Ordering::Relaxed);
        observer.join().unwrap();
        results.into_iter().for_each(|result| result.unwrap());
    });
    shared.finish();
}

fn sim(virtual_memory: bool) -> Arc<dyn Device> {
    let capacity = 24 * GRANULARITY;
    SimDevice::new(SimOptions::default().capacity(capacity).virtual_memory(virtual_memory)).unwrap()
}

fn host() -> Arc<dyn Device> {
    let capacity = Some(24 * GRANULARITY);
    HostDevice::with_options(HostOptions::default().capacity(capacity)).unwrap()
}

#[test]
fn threads_share_a_simulated_device() {
    stress(sim(true), false, ReusePolicies::ALL);
}

#[test]
fn threads_share_a_simulated_device_without_virtual_memory() {
    stress(sim(false), false, ReusePolicies::ALL);
}

#[test]
fn threads_share_a_simulated_device_without_reuse_policies() {
    stress(sim(true), false, ReusePolicies::NONE);
}

#[test]
fn threads_share_the_host_device_and_find_their_bytes() {
    stress(host(), true, ReusePolicies::ALL);
}
