//! Pools that sleep and wake: whose bytes come back, what is refused meanwhile, and what a failing call leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{
    Device, DeviceError, DevicePtr, DeviceResult, EventHandle, Forward, PageHandle, StreamHandle,
};
use millpond::testing::checker::CheckerDevice;
use millpond::{Buffer, CapturePool, Context, Error, Keep, Limit, Pool, Stream};

use crate::shared::{Freeing, KIB, MIB, Random, sim};

const TOTAL: u64 = 256 * MIB;

/// The host device, with a pool on it.
struct Bench {
    device: Arc<HostDevice>,
    context: Context,
    pool: Pool,
    stream: Stream,
}

impl Bench {
    fn new() -> Self {
        let device = HostDevice::with_options(HostOptions::default().capacity(TOTAL)).unwrap();
        let context = Context::new(device.clone());
        let pool = Pool::builder(&context).name("model").build().unwrap();
        let stream = context.create_stream().unwrap();
        Self { device, context, pool, stream }
    }

    fn free_memory(&self) -> u64 {
        self.device.memory_info().unwrap().free
    }
}

/// Buffers of all lengths with known bytes.
pub(crate) struct Model {
    buffers: Vec<(Vec<u64>, Buffer<u64>)>,
    random: Random,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self { buffers: Vec::new(), random: Random(1) }
    }

    fn contents(seed: u64, len: usize) -> Vec<u64> {
        (0..len as u64).map(|at| seed.wrapping_mul(0x9e37_79b9).wrapping_add(at).rotate_left(17)).collect()
    }

    pub(crate) fn add(&mut self, pool: &Pool, bytes: u64, stream: &Stream) {
        let contents = Self::contents(self.random.below(u64::MAX >> 33), (bytes / 8) as usize);
        let buffer = Buffer::from_slice(pool, &contents, stream).unwrap();
        self.buffers.push((contents, buffer));
    }

    /// Blocks of all lengths, every second of which is freed again.
    pub(crate) fn fill(&mut self, pool: &Pool, stream: &Stream) {
        for round in 0..40 {
            let bytes = [8, 700, 5 * KIB, 40 * KIB, 300 * KIB, 1500 * KIB, 5 * MIB][round % 7];
            let more = 8 * self.random.below(64);
            self.add(pool, bytes + more, stream);
        }
        let mut at = 0;
        self.buffers.retain(|_| {
            at += 1;
            at % 2 == 0
        });
    }

    pub(crate) fn drop_one(&mut self) {
        let at = self.random.below(self.buffers.len() as u64) as usize;
        _ = self.buffers.swap_remove(at);
    }

    pub(crate) fn addresses(&self) -> Vec<u64> {
        self.buffers.iter().map(|(_, buffer)| buffer.ptr().raw()).collect()
    }

    pub(crate) fn assert_intact(&self) {
        for (contents, buffer) in &self.buffers {
            assert!(buffer.to_vec().unwrap() == *contents, "at {}", buffer.ptr());
        }
    }
}

#[test]
fn a_hundred_cycles_keep_every_byte_at_its_address() {
    let bench = Bench::new();
    let mut model = Model::new();
    model.fill(&bench.pool, &bench.stream);
    for cycle in 0..100 {
        let addresses = model.addresses();
        let (free, reserved) = (bench.free_memory(), bench.pool.reserved().current);
        bench.pool.sleep(Keep::InPinnedMemory).unwrap();
        let stats = bench.pool.stats();
        assert_eq!((stats.reserved.current, bench.free_memory()), (0, free + reserved));
        assert!(stats.asleep > 0 && stats.asleep <= reserved && bench.pool.is_asleep());
        bench.pool.check().unwrap();
        bench.pool.wake().unwrap();
        assert_eq!(bench.pool.stats().asleep, 0);
        assert_eq!(model.addresses(), addresses);
        model.assert_intact();
        bench.pool.check().unwrap();
        if cycle % 10 == 0 {
            model.drop_one();
            model.add(&bench.pool, 100 * KIB + cycle * 8, &bench.stream);
        }
    }
}

#[test]
fn later_sleeps_prepare_no_pinned_memory() {
    let (sim, context, stream) = sim(TOTAL);
    let pool = Pool::builder(&context).build().unwrap();
    let block = pool.alloc(100 * MIB, &stream).unwrap();
    let cycle = || {
        pool.sleep(Keep::InPinnedMemory).unwrap();
        pool.wake().unwrap();
        sim.calls()[Call::AllocSegment]
    };
    assert_eq!((cycle(), cycle(), cycle()), (1, 1, 1));
    assert_eq!(pool.trim_staging(), Ok(100 * MIB));
    assert_eq!(cycle(), 2);
    pool.free_block(block, &stream).unwrap();
}

#[test]
fn short_pages_wake_as_longer_ones() {
    let (sim, context, stream) = sim(TOTAL);
    let pool = Pool::builder(&context).build().unwrap();
    let blocks: Vec<_> = (0..11).map(|_| pool.alloc(2 * MIB, &stream).unwrap()).collect();
    let created = |calls: u64| sim.calls()[Call::CreatePage] - calls;
    assert_eq!(created(0), 11);
    pool.sleep(Keep::InPinnedMemory).unwrap();
    pool.free_block(blocks[3], &stream).unwrap();
    pool.wake().unwrap();
    pool.check().unwrap();
    // Two and one before the hole; four, two and one behind it.
    assert_eq!((created(11), pool.reserved().current), (5, 20 * MIB));
    blocks
        .iter()
        .filter(|block| **block != blocks[3])
        .for_each(|block| pool.free_block(*block, &stream).unwrap());
    pool.trim_to(0).unwrap();
    pool.check().unwrap();
    assert_eq!(pool.reserved().current, 0);
}

#[test]
fn without_bytes_to_keep_nothing_is_copied() {
    let (sim, context, stream) = sim(TOTAL);
    let pool = Pool::builder(&context).build().unwrap();
    let block = pool.alloc(100 * MIB, &stream).unwrap();
    assert_eq!(pool.sleep(Keep::Nothing), Ok(100 * MIB));
    assert_eq!(pool.reserved().current, 0);
    pool.wake().unwrap();
    assert_eq!((pool.size_of(block), pool.reserved().current), (Ok(100 * MIB), 100 * MIB));
    let calls = sim.calls();
    assert_eq!((calls[Call::Copy], calls[Call::AllocSegment]), (0, 0));
    pool.check().unwrap();
}

#[test]
fn what_uses_memory_is_refused_while_a_pool_sleeps() {
    let Bench { context, pool, stream, .. } = Bench::new();
    let mut buffer = Buffer::from_slice(&pool, &[1_u8; 100], &stream).unwrap();
    let other = Pool::builder(&context).build().unwrap();
    let mut elsewhere = Buffer::<u8>::zeroed(&other, 100, &stream).unwrap();
    pool.sleep(Keep::InPinnedMemory).unwrap();
    let asleep = Err(Error::Asleep { pool: "model".to_owned() });
    assert_eq!(pool.alloc(100, &stream).map(drop), asleep);
    assert_eq!(pool.alloc_zeroed(100, &stream).map(drop), asleep);
    assert_eq!(pool.reserve(100, &stream), asleep);
    assert_eq!(buffer.set_zero(), asleep);
    assert_eq!(buffer.copy_from_slice(&[2; 100]), asleep);
    assert_eq!(buffer.copy_to_slice(&mut [0; 100]), asleep);
    assert_eq!(buffer.to_vec().map(drop), asleep);
    assert_eq!(buffer.copy_from(&elsewhere), asleep);
    assert_eq!(elsewhere.copy_from(&buffer), asleep);
    assert_eq!((pool.trim_to(0), pool.trim_staging()), (Ok(0), Ok(0)));
    context.synchronize().unwrap();
    pool.wake().unwrap();
    elsewhere.copy_from(&buffer).unwrap();
    assert_eq!(elsewhere.to_vec().unwrap(), [1; 100]);
}

#[test]
fn blocks_freed_asleep_get_no_memory_again() {
    let (_sim, context, stream) = sim(TOTAL);
    let pool = Pool::builder(&context).build().unwrap();
    let blocks = [60 * MIB, 30 * MIB, 512, 20 * MIB].map(|bytes| pool.alloc(bytes, &stream).unwrap());
    pool.sleep(Keep::InPinnedMemory).unwrap();
    pool.free_block(blocks[0], &stream).unwrap();
    pool.check().unwrap();
    assert!(matches!(pool.free_block(blocks[0], &stream), Err(Error::DoubleFree { .. })));
    pool.wake().unwrap();
    pool.check().unwrap();
    assert!((50 * MIB..60 * MIB).contains(&pool.reserved().current), "{}", pool.reserved().current);
    let again = pool.alloc(60 * MIB, &stream).unwrap();
    for block in blocks[1..].iter().chain([&again]) {
        pool.free_block(*block, &stream).unwrap();
    }
    pool.trim_to(0).unwrap();
    pool.check().unwrap();
    assert_eq!(pool.reserved().current, 0);
}

#[test]
fn a_pool_that_sleeps_ends_without_a_wake() {
    let (sim, context, stream) = sim(TOTAL);
    let free = sim.memory_info().unwrap().free;
    for live in [false, true] {
        let pool = Pool::builder(&context).build().unwrap();
        let block = pool.alloc(50 * MIB, &stream).unwrap();
        let memory = pool.capture_pool();
        let capturing = memory.begin(&stream).unwrap();
        let scratch = pool.alloc(3 * MIB, &stream).unwrap();
        pool.free_block(scratch, &stream).unwrap();
        drop(capturing);
        pool.sleep(Keep::InPinnedMemory).unwrap();
        if live {
            assert!(matches!(pool.destroy(), Err(Error::LiveBlocks { .. })));
            assert!(matches!(pool.sleep(Keep::Nothing), Err(Error::PoolDestroyed { .. })));
        }
        context.free_block(block, &stream).unwrap();
        drop((pool, memory));
        let calls = sim.calls();
        assert_eq!(sim.memory_info().unwrap().free, free);
        assert_eq!(calls[Call::Reserve], calls[Call::Unreserve]);
        assert_eq!(calls[Call::AllocSegment], calls[Call::FreeSegment]);
    }
}

#[test]
fn a_wake_without_memory_loses_nothing_and_can_be_tried_again() {
    let bench = Bench::new();
    let mut model = Model::new();
    model.fill(&bench.pool, &bench.stream);
    let other = Pool::builder(&bench.context).name("other").build().unwrap();
    bench.pool.sleep(Keep::InPinnedMemory).unwrap();
    let taken = other.alloc(bench.free_memory() - 4 * MIB, &bench.stream).unwrap();
    for _ in 0..3 {
        let Err(Error::OutOfMemory(report)) = bench.pool.wake() else { panic!("there is no room") };
        assert_eq!(report.advice(), "free memory elsewhere on the device");
        assert!(bench.pool.is_asleep() && bench.pool.reserved().current == 0);
        bench.pool.check().unwrap();
    }
    other.free_block(taken, &bench.stream).unwrap();
    // What the other pool caches now goes to this one.
    bench.pool.wake().unwrap();
    model.assert_intact();
    bench.pool.check().unwrap();
}

#[test]
fn blocks_freed_before_a_failing_wake_do_not_come_back() {
    let bench = Bench::new();
    let mut model = Model::new();
    model.fill(&bench.pool, &bench.stream);
    (0..3).for_each(|_| model.add(&bench.pool, 20 * MIB, &bench.stream));
    let other = Pool::builder(&bench.context).name("other").build().unwrap();
    bench.pool.sleep(Keep::InPinnedMemory).unwrap();
    let taken = other.alloc(bench.free_memory() - 30 * MIB, &bench.stream).unwrap();
    for _ in 0..10 {
        model.drop_one();
        assert!(matches!(bench.pool.wake(), Err(Error::OutOfMemory(_))));
        assert_eq!(bench.pool.sleep(Keep::InPinnedMemory), Ok(0));
        bench.pool.check().unwrap();
    }
    other.free_block(taken, &bench.stream).unwrap();
    bench.pool.wake().unwrap();
    model.assert_intact();
    bench.pool.check().unwrap();
}

#[test]
fn other_pools_allocate_while_one_sleeps_and_wakes() {
    let bench = Bench::new();
    let mut model = Model::new();
    model.fill(&bench.pool, &bench.stream);
    let other = Pool::builder(&bench.context).name("other").build().unwrap();
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            let stream = bench.context.create_stream().unwrap();
            for round in 0..300_u64 {
                let bytes = vec![round as u8; 1000 + 3000 * round as usize];
                let buffer = Buffer::from_slice(&other, &bytes, &stream).unwrap();
                assert_eq!(buffer.to_vec().unwrap(), bytes);
            }
        });
        while !working.is_finished() {
            bench.pool.sleep(Keep::InPinnedMemory).unwrap();
            bench.pool.wake().unwrap();
            model.assert_intact();
        }
    });
    other.check().unwrap();
}

/// The buffers of one thread are used, freed and refused at any moment of another thread's sleeps.
#[test]
fn threads_use_buffers_while_their_pool_sleeps_and_wakes() {
    let Bench { context, pool, .. } = Bench::new();
    thread::scope(|scope| {
        let users: Vec<_> = (0..3_u8)
            .map(|number| {
                let (context, pool) = (&context, &pool);
                scope.spawn(move || {
                    let stream = context.create_stream().unwrap();
                    let (mut done, mut kept) = (0, Vec::new());
                    while done < 300 {
                        let bytes = vec![number.wrapping_add(done as u8); 5000 + 100 * done];
                        match Buffer::from_slice(pool, &bytes, &stream) {
                            Ok(buffer) => kept.push((bytes, buffer)),
                            Err(error) => assert!(matches!(error, Error::Asleep { .. }), "{error}"),
                        }
                        if kept.len() > 20 {
                            let (bytes, buffer) = kept.remove(done % 20);
                            match buffer.to_vec() {
                                Ok(found) => assert!(found == bytes),
                                Err(error) => assert!(matches!(error, Error::Asleep { .. }), "{error}"),
                            }
                        }
                        done += 1;
                    }
                })
            })
            .collect();
        while users.iter().any(|user| !user.is_finished()) {
            pool.sleep(Keep::InPinnedMemory).unwrap();
            pool.wake().unwrap();
        }
    });
    pool.check().unwrap();
}

#[test]
fn a_capture_and_a_sleep_exclude_each_other_but_graphs_memory_stays_in_place() {
    let Bench { context, pool, stream, .. } = Bench::new();
    let memory = pool.capture_pool();
    let capturing = memory.begin(&stream).unwrap();
    let input = Buffer::from_slice(&pool, &[7_u8; 100_000], &stream).unwrap();
    let scratch = Buffer::<u8>::new(&pool, 3 << 20, &stream).unwrap();
    assert!(matches!(pool.sleep(Keep::InPinnedMemory), Err(Error::CannotSleep { .. })));
    assert!(!pool.is_asleep());
    drop(scratch);
    drop(capturing);
    let reserved = memory.reserved();
    pool.sleep(Keep::InPinnedMemory).unwrap();
    assert_eq!(memory.reserved(), 0);
    let late = memory.begin(&stream).unwrap();
    assert!(matches!(pool.alloc(100, &stream), Err(Error::Asleep { .. })));
    drop(late);
    assert!(matches!(pool.alloc(100, &stream), Err(Error::Asleep { .. })));
    pool.wake().unwrap();
    assert_eq!(memory.reserved(), reserved, "also what a replay uses between its kernels");
    assert_eq!(input.to_vec().unwrap(), [7; 100_000]);
    // A claim that ends asleep lets go once the pool is awake.
    pool.sleep(Keep::Nothing).unwrap();
    drop((input, memory));
    pool.check().unwrap();
    pool.wake().unwrap();
    context.synchronize().unwrap();
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
    pool.check().unwrap();
}

/// Blocks of a capture, the last of which got the pages of two that were freed: they lie in two places.
fn allocate_moving(pool: &Pool, memory: &CapturePool, stream: &Stream) -> [DevicePtr; 2] {
    let _capturing = memory.begin(stream).unwrap();
    let [first, between, last] = [8 * MIB; 3].map(|bytes| pool.alloc(bytes, stream).unwrap());
    [first, last].into_iter().for_each(|block| pool.free_block(block, stream).unwrap());
    let long = pool.alloc(16 * MIB, stream).unwrap();
    assert!(pool.stats().pages_remapped > 0);
    [between, long]
}

/// A replay uses addresses whose pages moved while it was captured.
#[test]
fn all_addresses_of_a_graphs_pages_are_there_after_a_sleep() {
    let Bench { context, pool, stream, .. } = Bench::new();
    let memory = pool.capture_pool();
    let capturing = memory.begin(&stream).unwrap();
    let [first, between, last] = [8 * MIB; 3].map(|bytes| pool.alloc(bytes, &stream).unwrap());
    pool.free_block(first, &stream).unwrap();
    pool.free_block(last, &stream).unwrap();
    let long = pool.alloc(16 * MIB, &stream).unwrap();
    drop(capturing);
    assert_eq!((pool.stats().pages_remapped > 0, memory.reserved()), (true, 24 * MIB));
    let device = context.device();
    // What one of its kernels writes by the first addresses is read by the last ones.
    let uses = |value: u8| {
        let mut seen = vec![0; 16 << 20];
        // SAFETY: a graph may use its memory at any time, and `seen` lives until the stream is done.
        unsafe {
            device.memset(first, value, 8 * MIB, stream.handle()).unwrap();
            device.memset(last, value, 8 * MIB, stream.handle()).unwrap();
            device.copy_to_host(seen.as_mut_ptr(), long, 16 * MIB, stream.handle()).unwrap();
        }
        stream.synchronize().unwrap();
        seen.iter().filter(|seen| **seen == value).count() as u64
    };
    let shared = uses(7);
    assert!(shared > 0);
    for (round, keep) in [Keep::InPinnedMemory, Keep::Nothing].into_iter().enumerate() {
        pool.sleep(keep).unwrap();
        assert_eq!(memory.reserved(), 0);
        pool.wake().unwrap();
        assert_eq!(memory.reserved(), 24 * MIB);
        assert_eq!(uses(8 + round as u8), shared);
        pool.check().unwrap();
    }
    pool.sleep(Keep::Nothing).unwrap();
    drop(memory);
    [between, long].into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
    pool.wake().unwrap();
    context.synchronize().unwrap();
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
    pool.check().unwrap();
}

#[test]
fn what_cannot_be_mapped_again_cannot_sleep() {
    let (_, context, _) = sim(TOTAL);
    let without = Context::new(SimDevice::new(SimOptions::default().virtual_memory(false)).unwrap());
    let pools = [context.pinned().unwrap(), context.managed().unwrap(), Pool::builder(&without)];
    for pool in pools.map(|builder| builder.build().unwrap()) {
        let Err(Error::CannotSleep { .. }) = pool.sleep(Keep::Nothing) else { panic!("{pool:?}") };
        assert!(!pool.is_asleep());
        pool.wake().unwrap();
    }
}

#[test]
fn an_awake_pool_wakes_and_a_sleeping_one_sleeps_for_nothing() {
    let (sim, context, stream) = sim(TOTAL);
    let pool = Pool::builder(&context).build().unwrap();
    pool.wake().unwrap();
    assert_eq!(pool.sleep(Keep::InPinnedMemory), Ok(0), "it holds nothing");
    pool.wake().unwrap();
    _ = pool.alloc(50 * MIB, &stream).unwrap();
    assert_eq!(pool.sleep(Keep::InPinnedMemory), Ok(50 * MIB));
    let copies = sim.calls()[Call::Copy];
    assert_eq!(pool.sleep(Keep::Nothing), Ok(0));
    pool.wake().unwrap();
    assert!(sim.calls()[Call::Copy] > copies, "the bytes stay kept");
    pool.check().unwrap();
}

#[test]
fn a_tag_sleeps_alone_or_with_its_pool() {
    let Bench { context, pool, stream, .. } = Bench::new();
    let (weights, cache) = (pool.tagged("weights").unwrap(), pool.tagged("cache").unwrap());
    assert_eq!((weights.name(), pool.tagged("weights").unwrap().name()), ("model/weights", "model/weights"));
    let (mut model, mut others) = (Model::new(), Model::new());
    model.fill(&weights, &stream);
    others.fill(&cache, &stream);
    others.fill(&pool, &stream);
    let held = |pool: &Pool| pool.reserved().current;
    let before = held(&weights);
    assert_eq!(weights.sleep(Keep::InPinnedMemory), Ok(before));
    assert_eq!((held(&weights), pool.is_asleep(), cache.is_asleep()), (0, false, false));
    others.assert_intact();
    others.fill(&cache, &stream);
    others.fill(&pool, &stream);
    weights.wake().unwrap();
    model.assert_intact();
    pool.sleep(Keep::InPinnedMemory).unwrap();
    assert_eq!([&pool, &weights, &cache].map(held), [0; 3]);
    cache.wake().unwrap();
    assert!(pool.is_asleep() && weights.is_asleep());
    pool.wake().unwrap();
    model.assert_intact();
    others.assert_intact();
    assert!(pool.trim_staging().unwrap() > 0);
    [&pool, &weights, &cache].iter().for_each(|pool| pool.check().unwrap());
    assert!(matches!(pool.destroy(), Err(Error::LiveBlocks { .. })));
    assert!(matches!(weights.alloc(8, &stream), Err(Error::PoolDestroyed { .. })));
    assert!(matches!(pool.tagged("late"), Err(Error::PoolDestroyed { .. })));
    drop((model, others, context));
}

#[test]
fn the_hard_limit_holds_for_a_pool_and_its_tags_together() {
    let (_sim, context, stream) = sim(1024 * MIB);
    let pool = Pool::builder(&context).hard_limit(100 * MIB).build().unwrap();
    let tag = pool.tagged("a").unwrap();
    let block = pool.alloc(60 * MIB, &stream).unwrap();
    for refused in [tag.alloc(60 * MIB, &stream), tag.alloc(41 * MIB, &stream)] {
        let Err(Error::OutOfMemory(report)) = refused else { panic!("beyond the limit") };
        assert_eq!(report.limit, Limit::HardLimit(100 * MIB));
    }
    // What is free in one of them goes back for another.
    pool.free_block(block, &stream).unwrap();
    let block = tag.alloc(60 * MIB, &stream).unwrap();
    assert_eq!((pool.reserved().current, tag.reserved().current), (0, 60 * MIB));
    tag.sleep(Keep::Nothing).unwrap();
    let instead = pool.alloc(60 * MIB, &stream).unwrap();
    let Err(Error::OutOfMemory(report)) = tag.wake() else { panic!("beyond the limit") };
    assert_eq!(report.limit, Limit::HardLimit(100 * MIB));
    pool.free_block(instead, &stream).unwrap();
    tag.wake().unwrap();
    tag.free_block(block, &stream).unwrap();
}

#[test]
fn blocks_of_a_pool_that_sleeps_stand_in_nobodys_way() {
    let (_sim, context, stream) = sim(TOTAL);
    let [sleeping, awake] = [(); 2].map(|()| Pool::builder(&context).build().unwrap());
    _ = sleeping.alloc(150 * MIB, &stream).unwrap();
    sleeping.sleep(Keep::Nothing).unwrap();
    let block = awake.alloc(200 * MIB, &stream).unwrap();
    assert!(sleeping.wake().is_err());
    awake.free_block(block, &stream).unwrap();
    sleeping.wake().unwrap();
}

#[test]
fn no_mapping_goes_before_the_work_on_it() {
    const LENGTHS: [u64; 3] = [40 * MIB, 700, 9 * MIB];
    let sim = SimDevice::new(SimOptions::default().capacity(TOTAL)).unwrap();
    let checker = CheckerDevice::new(sim.clone());
    let context = Context::new(checker.clone());
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).build().unwrap();
    for keep in [Keep::InPinnedMemory, Keep::Nothing] {
        let blocks = LENGTHS.map(|bytes| {
            let at = pool.alloc(bytes, &stream).unwrap();
            let block = checker.allocated(at, bytes, stream.handle());
            checker.used(block, stream.handle());
            (at, block)
        });
        // For the checker, blocks end with the sleep, and others begin there with the wake.
        let ended = blocks.map(|(_, block)| checker.freed(block, stream.handle()));
        pool.sleep(keep).unwrap();
        drop(ended);
        pool.wake().unwrap();
        for ((at, _), bytes) in blocks.into_iter().zip(LENGTHS) {
            let block = checker.allocated(at, bytes, stream.handle());
            checker.used(block, stream.handle());
            let _freeing = checker.freed(block, stream.handle());
            pool.free_block(at, &stream).unwrap();
        }
    }
    checker.verify().unwrap();
}

/// Found by `millpond soak --seed 41`, program 3324.
#[test]
fn a_wake_after_one_that_could_not_wait_comes_after_its_copies() {
    let sim = SimDevice::new(SimOptions::default().capacity(TOTAL)).unwrap();
    let checker = CheckerDevice::new(sim.clone());
    let context = Context::new(checker.clone());
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).build().unwrap();
    let block = pool.alloc(9 * MIB, &stream).unwrap();
    pool.sleep(Keep::InPinnedMemory).unwrap();
    sim.fail_next(Call::SynchronizeStream, 1, DeviceError::Unavailable("asked for".to_owned()));
    pool.wake().unwrap_err();
    pool.wake().unwrap();
    checker.verify().unwrap();
    pool.free_block(block, &stream).unwrap();
    drop((pool, stream, context));
    checker.verify_nothing_left().unwrap();
}

/// Each device call of a sleep and a wake, at each place, fails once, and then also the next one of its kind.
#[test]
fn whichever_call_fails_it_is_awake_or_asleep_and_can_be_tried_again() {
    const CALLS: [Call; 15] = [
        Call::Pinned,
        Call::AllocSegment,
        Call::CreateStream,
        Call::DestroyStream,
        Call::Copy,
        Call::CreateEvent,
        Call::DestroyEvent,
        Call::RecordEvent,
        Call::SynchronizeEvent,
        Call::SynchronizeStream,
        Call::Synchronize,
        Call::Unmap,
        Call::ReleasePage,
        Call::CreatePage,
        Call::Map,
    ];
    for call in CALLS.into_iter().chain([Call::SetAccess]) {
        for (nth, twice) in [(1, false), (2, false), (1, true), (2, true), (5, true)] {
            let (sim, context, stream) = sim(2048 * MIB);
            let pool = Pool::builder(&context).build().unwrap();
            let blocks =
                [600 * MIB, 512, 300 * MIB, 3 * MIB].map(|bytes| pool.alloc(bytes, &stream).unwrap());
            let memory = pool.capture_pool();
            let captured = allocate_moving(&pool, &memory, &stream);
            let fail = || {
                sim.fail_next(call, nth, DeviceError::Unavailable("asked for".to_owned()));
                if twice {
                    sim.fail_next(call, nth + 1, DeviceError::Unavailable("asked for".to_owned()));
                }
            };
            let settle = |what: &dyn Fn() -> Result<(), Error>| {
                fail();
                _ = what();
                pool.check().unwrap();
                sim.fail_no_more();
            };
            settle(&|| pool.sleep(Keep::InPinnedMemory).map(drop));
            if !pool.is_asleep() {
                assert_eq!(pool.stats().asleep, 0, "{call:?}");
                let block = pool.alloc(MIB, &stream).unwrap();
                pool.free_block(block, &stream).unwrap();
            }
            pool.sleep(Keep::InPinnedMemory).unwrap();
            assert_eq!(pool.reserved().current, 0, "{call:?} {nth}");
            settle(&|| pool.wake());
            assert_eq!(pool.is_asleep(), pool.alloc(512, &stream).is_err());
            pool.wake().unwrap();
            assert_eq!((pool.is_asleep(), pool.stats().asleep), (false, 0));
            blocks.into_iter().chain(captured).for_each(|block| pool.free_block(block, &stream).unwrap());
            drop(memory);
            context.synchronize().unwrap();
            pool.trim_to(0).unwrap();
            // The block of 512 bytes is live.
            assert!(pool.reserved().current <= 2 * MIB, "{call:?} {nth}");
            pool.check().unwrap();
        }
    }
}

/// The host device, of which one call fails.
#[derive(Debug)]
pub(crate) struct Failing {
    pub(crate) below: Arc<dyn Device>,
    /// Calls until then; none where it is negative.
    pub(crate) left: AtomicI64,
}

impl Failing {
    /// None fails yet.
    pub(crate) fn over(below: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { below, left: AtomicI64::new(-1) })
    }

    fn call(&self) -> DeviceResult<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(DeviceError::Unavailable("asked for".to_owned()));
        }
        Ok(())
    }
}

// SAFETY: all is passed on, but for calls that are refused and change nothing.
unsafe impl Forward for Failing {
    fn below(&self) -> &dyn Device {
        self.below.as_ref()
    }

    fn create_page(&self, bytes: u64) -> DeviceResult<PageHandle> {
        self.call()?;
        self.below.create_page(bytes)
    }

    unsafe fn map(&self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<()> {
        self.call()?;
        // SAFETY: the caller's promise.
        unsafe { self.below.map(at, bytes, page) }
    }

    unsafe fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.call()?;
        // SAFETY: the caller's promise.
        unsafe { self.below.set_access(at, bytes) }
    }

    unsafe fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.call()?;
        // SAFETY: the caller's promise.
        unsafe { self.below.unmap(at, bytes) }
    }

    unsafe fn release_page(&self, page: PageHandle) -> DeviceResult<()> {
        self.call()?;
        // SAFETY: the caller's promise.
        unsafe { self.below.release_page(page) }
    }

    unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        self.call()?;
        // SAFETY: the caller's promise.
        unsafe { self.below.copy(to, from, bytes, stream) }
    }

    unsafe fn synchronize_event(&self, event: EventHandle) -> DeviceResult<()> {
        self.call()?;
        // SAFETY: the caller's promise.
        unsafe { self.below.synchronize_event(event) }
    }

    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> DeviceResult<()> {
        self.call()?;
        // SAFETY: the caller's promise.
        unsafe { self.below.synchronize_stream(stream) }
    }
}

/// The host device, of which a copy waits as long as there is somebody to wait for.
#[derive(Debug)]
struct Waits {
    below: Arc<HostDevice>,
    copies: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

// SAFETY: all is passed on.
unsafe impl Forward for Waits {
    fn below(&self) -> &dyn Device {
        self.below.as_ref()
    }

    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64, on: StreamHandle) -> DeviceResult<()> {
        self.copies.send(()).unwrap();
        _ = self.go_on.lock().unwrap().recv();
        // SAFETY: the caller's promise.
        unsafe { self.below.copy(to, from, bytes, on) }
    }
}

#[test]
fn who_synchronises_does_not_wait_until_a_pool_sleeps() {
    let (copies, copying) = mpsc::channel();
    let (sleeper_may_go_on, go_on) = mpsc::channel();
    let below = HostDevice::with_options(HostOptions::default()).unwrap();
    let context = Context::new(Arc::new(Waits { below, copies, go_on: Mutex::new(go_on) }));
    let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
    let _kept = Buffer::from_slice(&pool, &[1_u8; 100], &stream).unwrap();
    stream.synchronize().unwrap();
    let other = context.create_stream().unwrap();
    // Also where a part of it is evicted, whose pages passed to it.
    let tag = pool.tagged("part").unwrap();
    let part = Buffer::from_slice(&tag, &[2_u8; 100], &stream).unwrap();
    sleeper_may_go_on.send(()).unwrap();
    tag.evict(&stream).unwrap();
    copying.recv().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pool.sleep(Keep::InPinnedMemory).unwrap());
        copying.recv().unwrap();
        let (done, is_done) = mpsc::channel();
        scope.spawn(move || done.send(other.synchronize()));
        let synchronised = is_done.recv_timeout(Duration::from_secs(20));
        drop(sleeper_may_go_on);
        assert_eq!(synchronised, Ok(Ok(())), "it waits for the lock that the sleeper has");
    });
    pool.wake().unwrap();
    tag.restore(&stream).unwrap();
    assert_eq!(part.to_vec(), Ok(vec![2; 100]));
}

/// The same over real bytes: none is lost, whichever call of a sleep and a wake fails.
#[test]
fn no_byte_is_lost_whichever_call_fails() {
    let below = HostDevice::with_options(HostOptions::default().capacity(2 * TOTAL)).unwrap();
    let device = Failing::over(below);
    let context = Context::new(device.clone());
    let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
    let mut model = Model::new();
    model.fill(&pool, &stream);
    // Several batches.
    (0..3).for_each(|_| model.add(&pool, 48 * MIB, &stream));
    let mut failed = 0;
    for nth in (0..).step_by(5) {
        device.left.store(nth, Ordering::Relaxed);
        let slept = pool.sleep(Keep::InPinnedMemory);
        pool.check().unwrap();
        let woken = pool.wake();
        pool.check().unwrap();
        if device.left.swap(-1, Ordering::Relaxed) >= 0 {
            break;
        }
        failed += u32::from(slept.is_err() || woken.is_err());
        pool.wake().unwrap();
        assert!(!pool.is_asleep());
        model.assert_intact();
    }
    assert!(failed > 20, "{failed}");
}

#[test]
fn no_byte_is_lost_where_the_host_lacks_pinned_memory() {
    let options = HostOptions::default().capacity(TOTAL).pinned_capacity(8 * MIB);
    let context = Context::new(HostDevice::with_options(options).unwrap());
    let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
    let mut model = Model::new();
    model.fill(&pool, &stream);
    let refused = pool.sleep(Keep::InPinnedMemory);
    assert!(matches!(refused, Err(Error::Device(DeviceError::OutOfMemory { .. }))), "{refused:?}");
    assert!(!pool.is_asleep());
    model.assert_intact();
    pool.check().unwrap();
}

#[test]
fn a_pool_with_blocks_of_other_processes_does_not_sleep() {
    let Bench { pool, stream, .. } = Bench::new();
    let buffer = Buffer::<u8>::zeroed(&pool, MIB as usize, &stream).unwrap();
    let shared = buffer.share().unwrap();
    let refused = pool.sleep(Keep::Nothing).unwrap_err();
    assert!(matches!(&refused, Error::CannotSleep { why, .. } if why.contains("let go")), "{refused}");
    assert!(!pool.is_asleep());
    drop(shared);
    pool.sleep(Keep::InPinnedMemory).unwrap();
    assert!(matches!(buffer.share(), Err(Error::Asleep { .. })));
    pool.wake().unwrap();
    drop(buffer.share().unwrap());
    pool.check().unwrap();
}
