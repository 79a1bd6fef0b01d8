//! Tags that are evicted and restored: whose bytes come back, who has the memory meanwhile, what waits for what, and what a
//! failing call leaves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{Device, DeviceError, DevicePtr, StreamHandle};
use millpond::testing::checker::CheckerDevice;
use millpond::{Buffer, Context, Error, Keep, Limit, Pool, Stream};

use crate::shared::{Freeing, MIB, Random, sim};
use crate::sleep::{Failing, Model};

const TOTAL: u64 = 256 * MIB;

/// The host device, with a pool and a tag on it.
struct Bench {
    context: Context,
    pool: Pool,
    tag: Pool,
    stream: Stream,
}

impl Bench {
    fn new() -> Self {
        let context = Context::new(
            HostDevice::with_options(HostOptions::default().capacity(TOTAL).pinned_capacity(4 * TOTAL))
                .unwrap(),
        );
        let (pool, stream) =
            (Pool::builder(&context).name("job").build().unwrap(), context.create_stream().unwrap());
        let tag = pool.tagged("optimizer").unwrap();
        Self { context, pool, tag, stream }
    }

    fn check(&self) {
        [&self.pool, &self.tag].iter().for_each(|pool| pool.check().unwrap());
    }
}

/// The simulated device with a pool on it, and a tag with a block of so many bytes.
struct Simulated {
    sim: Arc<SimDevice>,
    context: Context,
    pool: Pool,
    tag: Pool,
    block: DevicePtr,
    stream: Stream,
}

fn simulated(bytes: u64) -> Simulated {
    let (sim, context, stream) = sim(TOTAL);
    let pool = Pool::builder(&context).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let block = tag.alloc(bytes, &stream).unwrap();
    Simulated { sim, context, pool, tag, block, stream }
}

fn held(pool: &Pool) -> u64 {
    pool.reserved().current
}

#[test]
fn bytes_come_back_to_their_addresses_while_others_use_the_memory() {
    let bench = Bench::new();
    let mut model = Model::new();
    model.fill(&bench.tag, &bench.stream);
    for cycle in 0..50_u64 {
        let (addresses, before) = (model.addresses(), held(&bench.tag));
        assert_eq!(bench.tag.evict(&bench.stream), Ok(before));
        assert!(bench.tag.is_evicted() && !bench.tag.is_asleep());
        assert_eq!((held(&bench.tag), bench.tag.stats().asleep), (0, before));
        bench.check();
        // Every other time, all of the memory is written over.
        let taken = cycle.is_multiple_of(2).then(|| vec![cycle as u8; before as usize - (4 << 20)]);
        let taken =
            taken.map(|bytes| (Buffer::from_slice(&bench.pool, &bytes, &bench.stream).unwrap(), bytes));
        bench.check();
        if let Some((buffer, bytes)) = taken {
            assert!(buffer.to_vec().unwrap() == bytes);
        }
        bench.tag.restore(&bench.stream).unwrap();
        assert_eq!((bench.tag.is_evicted(), bench.tag.stats().asleep), (false, 0));
        assert_eq!(model.addresses(), addresses);
        model.assert_intact();
        bench.check();
        if cycle.is_multiple_of(10) {
            model.drop_one();
            model.add(&bench.tag, (100 << 10) + cycle * 8, &bench.stream);
        }
    }
}

#[test]
fn the_pages_serve_the_pool_and_no_memory_is_taken_for_it() {
    let Simulated { sim, pool, tag, block, stream, .. } = simulated(200 * MIB);
    assert_eq!(tag.evict(&stream), Ok(200 * MIB));
    assert_eq!((held(&pool), held(&tag)), (200 * MIB, 0));
    let created = sim.calls()[Call::CreatePage];
    let other = pool.alloc(200 * MIB, &stream).unwrap();
    assert_eq!((sim.calls()[Call::CreatePage], held(&pool)), (created, 200 * MIB));
    pool.check().unwrap();
    pool.free_block(other, &stream).unwrap();
    tag.restore(&stream).unwrap();
    tag.check().unwrap();
    pool.check().unwrap();
    assert_eq!(held(&tag), 200 * MIB);
    tag.free_block(block, &stream).unwrap();
}

/// While work is under way on the simulated device's stream, any call that would wait for it is an error.
#[test]
fn the_host_does_not_wait_and_nothing_goes_before_the_copy() {
    let Simulated { sim, pool, tag, block, stream, context } = simulated(100 * MIB);
    let work = sim.hold(stream.handle()).unwrap();
    let unmapped = sim.calls()[Call::Unmap];
    tag.evict(&stream).unwrap();
    // Others have the pages at once, behind the copy.
    let late = context.create_stream().unwrap();
    let other = pool.alloc(100 * MIB, &late).unwrap();
    assert!(!late.is_idle().unwrap(), "it waits for the copy");
    sim.touch(block, 100 * MIB, stream.handle()).unwrap();
    assert_eq!(sim.calls()[Call::Unmap], unmapped);
    pool.check().unwrap();
    sim.release(work);
    context.synchronize().unwrap();
    assert!(sim.calls()[Call::Unmap] > unmapped);
    assert!(sim.touch(block, 4, stream.handle()).is_err(), "a kernel that used the block would fail");
    pool.free_block(other, &late).unwrap();
    tag.restore(&stream).unwrap();
    sim.touch(block, 100 * MIB, stream.handle()).unwrap();
    tag.free_block(block, &stream).unwrap();
}

#[test]
fn a_stream_that_the_pool_may_not_have_wait_takes_other_memory() {
    let (sim, context, stream) = sim(TOTAL);
    let policies = millpond::ReusePolicies { internal_dependencies: false, ..millpond::ReusePolicies::ALL };
    let pool = Pool::builder(&context).reuse(policies).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    _ = tag.alloc(100 * MIB, &stream).unwrap();
    let work = sim.hold(stream.handle()).unwrap();
    tag.evict(&stream).unwrap();
    let late = context.create_stream().unwrap();
    _ = pool.alloc(50 * MIB, &late).unwrap();
    assert!(late.is_idle().unwrap());
    assert_eq!(held(&pool), 150 * MIB);
    sim.release(work);
}

#[test]
fn the_eviction_comes_behind_the_work_of_all_streams() {
    let Simulated { sim, pool, tag, stream, context, .. } = simulated(100 * MIB);
    let other = context.create_stream().unwrap();
    // Nobody told the pool that it uses the block.
    let work = sim.hold(other.handle()).unwrap();
    tag.evict(&stream).unwrap();
    _ = pool.alloc(100 * MIB, &stream).unwrap();
    assert!(!stream.is_idle().unwrap(), "the pages are in use");
    sim.release(work);
    sim.advance_to(sim.now() + Duration::from_secs(1));
    assert!(stream.is_idle().unwrap());
}

/// The tag is evicted on one stream, and its pages are in use as long as another has the work that it is given first.
fn assert_leaves_behind(
    of: StreamHandle,
    on: &Stream,
    Simulated { sim, context, pool, tag, .. }: &Simulated,
) {
    let work = sim.hold(of).unwrap();
    tag.evict(on).unwrap();
    let late = context.create_stream().unwrap();
    _ = pool.alloc(100 * MIB, &late).unwrap();
    sim.advance_to(sim.now() + Duration::from_secs(1));
    assert!(!late.is_idle().unwrap(), "the pages are in use");
    sim.release(work);
    sim.advance_to(sim.now() + Duration::from_secs(1));
    assert!(late.is_idle().unwrap());
}

#[test]
fn the_eviction_comes_behind_the_last_work_of_a_foreign_stream() {
    let bench = simulated(100 * MIB);
    let handle = bench.sim.create_stream().unwrap();
    // SAFETY: nobody destroys it.
    let foreign = unsafe { bench.context.foreign_stream(handle) }.unwrap();
    // The pools know it, and have marked its work until here.
    bench.pool.free_block(bench.pool.alloc(512, &foreign).unwrap(), &foreign).unwrap();
    assert_leaves_behind(handle, &foreign, &bench);
}

#[test]
fn the_eviction_comes_behind_the_work_of_the_threads_own_stream() {
    let bench = simulated(100 * MIB);
    let own = bench.context.per_thread_stream().unwrap();
    bench.pool.free_block(bench.pool.alloc(512, &own).unwrap(), &own).unwrap();
    // Another stream is named, and nobody has marked that work.
    assert_leaves_behind(own.handle(), &bench.stream, &bench);
}

#[test]
fn what_uses_memory_is_refused_while_a_tag_is_evicted() {
    let Bench { context, pool, tag, stream } = Bench::new();
    let mut buffer = Buffer::from_slice(&tag, &[1_u8; 100], &stream).unwrap();
    let mut elsewhere = Buffer::<u8>::zeroed(&pool, 100, &stream).unwrap();
    tag.evict(&stream).unwrap();
    let evicted = Err(Error::Evicted { pool: "job/optimizer".to_owned() });
    assert_eq!(tag.alloc(100, &stream).map(drop), evicted);
    assert_eq!(tag.reserve(100, &stream), evicted);
    assert_eq!(buffer.set_zero(), evicted);
    assert_eq!(buffer.copy_from_slice(&[2; 100]), evicted);
    assert_eq!(buffer.copy_to_slice(&mut [0; 100]), evicted);
    assert_eq!(buffer.to_vec().map(drop), evicted);
    assert_eq!(buffer.copy_from(&elsewhere), evicted);
    assert_eq!(elsewhere.copy_from(&buffer), evicted);
    assert_eq!((tag.trim_to(0), tag.trim_staging()), (Ok(0), Ok(0)));
    // It does not sleep and does not wake.
    assert_eq!((tag.sleep(Keep::Nothing), tag.wake()), (Ok(0), Ok(())));
    assert_eq!(tag.evict(&stream), Ok(0));
    context.synchronize().unwrap();
    tag.restore(&stream).unwrap();
    elsewhere.copy_from(&buffer).unwrap();
    assert_eq!(elsewhere.to_vec().unwrap(), [1; 100]);
    assert!(tag.trim_staging().unwrap() > 0);
}

#[test]
fn a_pool_that_sleeps_keeps_its_evicted_tag() {
    let Bench { pool, tag, stream, .. } = Bench::new();
    let mut model = Model::new();
    model.fill(&tag, &stream);
    let kept = Buffer::from_slice(&pool, &vec![5_u8; 5 << 20], &stream).unwrap();
    let freed = Buffer::from_slice(&pool, &vec![6_u8; 5 << 20], &stream).unwrap();
    tag.evict(&stream).unwrap();
    pool.sleep(Keep::InPinnedMemory).unwrap();
    drop(freed);
    assert_eq!((held(&pool), tag.is_evicted()), (0, true));
    // What is free in a pool that sleeps has no memory.
    tag.restore(&stream).unwrap();
    model.assert_intact();
    pool.check().unwrap();
    pool.wake().unwrap();
    tag.evict(&stream).unwrap();
    pool.sleep(Keep::InPinnedMemory).unwrap();
    pool.wake().unwrap();
    assert!(tag.is_evicted());
    tag.restore(&stream).unwrap();
    model.assert_intact();
    assert_eq!(kept.to_vec().unwrap(), vec![5; 5 << 20]);
    // And one that sleeps is not evicted.
    tag.sleep(Keep::InPinnedMemory).unwrap();
    assert!(matches!(tag.evict(&stream), Err(Error::Asleep { .. })));
    tag.restore(&stream).unwrap();
    assert!(tag.is_asleep());
    tag.wake().unwrap();
    pool.sleep(Keep::Nothing).unwrap();
    tag.wake().unwrap();
    let refused = tag.evict(&stream);
    assert!(matches!(&refused, Err(Error::CannotEvict { why, .. }) if why.contains("wake")), "{refused:?}");
    assert!(!tag.is_evicted());
    pool.wake().unwrap();
}

#[test]
fn blocks_freed_while_evicted_get_no_memory_and_no_copy() {
    let (sim, context, stream) = sim(TOTAL);
    let pool = Pool::builder(&context).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let blocks = [60 * MIB, 30 * MIB, 512, 20 * MIB].map(|bytes| tag.alloc(bytes, &stream).unwrap());
    tag.evict(&stream).unwrap();
    tag.free_block(blocks[0], &stream).unwrap();
    tag.check().unwrap();
    assert!(matches!(tag.free_block(blocks[0], &stream), Err(Error::DoubleFree { .. })));
    let other = pool.alloc(60 * MIB, &stream).unwrap();
    context.synchronize().unwrap();
    tag.restore(&stream).unwrap();
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
    assert!((50 * MIB..60 * MIB).contains(&held(&tag)), "{}", held(&tag));
    // All of them freed: nothing comes back at all.
    tag.evict(&stream).unwrap();
    blocks[1..].iter().for_each(|block| tag.free_block(*block, &stream).unwrap());
    context.synchronize().unwrap();
    let copies = sim.calls()[Call::Copy];
    tag.restore(&stream).unwrap();
    assert_eq!((held(&tag), sim.calls()[Call::Copy]), (0, copies));
    pool.free_block(other, &stream).unwrap();
    tag.check().unwrap();
}

#[test]
fn pages_that_nobody_used_come_back_without_a_copy() {
    let Simulated { sim, context, pool, tag, stream, .. } = simulated(100 * MIB);
    for waits in [false, true] {
        tag.evict(&stream).unwrap();
        if waits {
            context.synchronize().unwrap();
        }
        let (copies, created) = (sim.calls()[Call::Copy], sim.calls()[Call::CreatePage]);
        tag.restore(&stream).unwrap();
        assert_eq!((sim.calls()[Call::Copy], sim.calls()[Call::CreatePage]), (copies, created));
        assert_eq!((held(&pool), held(&tag)), (0, 100 * MIB));
        [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
    }
}

#[test]
fn a_restore_has_the_stream_wait_and_one_ahead_does_not() {
    let Simulated { sim, pool, tag, stream, context, .. } = simulated(100 * MIB);
    tag.evict(&stream).unwrap();
    let other = pool.alloc(100 * MIB, &stream).unwrap();
    context.synchronize().unwrap();
    pool.free_block(other, &stream).unwrap();
    let copies = sim.calls()[Call::Copy];
    tag.restore_ahead().unwrap();
    assert!(sim.calls()[Call::Copy] > copies && stream.is_idle().unwrap() && tag.is_evicted());
    assert!(matches!(tag.alloc(512, &stream), Err(Error::Evicted { .. })));
    tag.restore_ahead().unwrap();
    let begun = sim.calls()[Call::Copy];
    tag.restore(&stream).unwrap();
    assert_eq!(sim.calls()[Call::Copy], begun);
    assert!(!stream.is_idle().unwrap(), "it waits for the copies");
    sim.advance_to(sim.now() + Duration::from_secs(1));
    assert!(stream.is_idle().unwrap());
    // What began ahead can be taken back.
    tag.evict(&stream).unwrap();
    tag.restore_ahead().unwrap();
    tag.evict(&stream).unwrap();
    assert_eq!((held(&tag), tag.is_evicted()), (0, true));
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
    tag.restore(&stream).unwrap();
}

#[test]
fn free_memory_comes_back_behind_the_work_that_uses_it() {
    let Simulated { sim, context, pool, tag, block, stream } = simulated(100 * MIB);
    tag.evict(&stream).unwrap();
    let other = pool.alloc(100 * MIB, &stream).unwrap();
    context.synchronize().unwrap();
    let work = sim.hold(stream.handle()).unwrap();
    pool.free_block(other, &stream).unwrap();
    let (created, unmapped) = (sim.calls()[Call::CreatePage], sim.calls()[Call::Unmap]);
    let late = context.create_stream().unwrap();
    // The host cannot wait for held work: that would be an error.
    tag.restore(&late).unwrap();
    assert_eq!((sim.calls()[Call::CreatePage], sim.calls()[Call::Unmap]), (created, unmapped));
    assert_eq!((held(&pool), held(&tag)), (0, 100 * MIB));
    sim.touch(other, 100 * MIB, stream.handle()).unwrap();
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
    assert!(!late.is_idle().unwrap(), "it waits for the copies, and they for the work");
    sim.release(work);
    context.synchronize().unwrap();
    // Nothing of the pool's is left there.
    pool.trim_to(0).unwrap();
    assert!(sim.touch(other, 4, stream.handle()).is_err());
    tag.free_block(block, &stream).unwrap();
    context.synchronize().unwrap();
    tag.trim_to(0).unwrap();
    let memory = sim.memory_info().unwrap();
    assert_eq!(memory.free, memory.total);
}

#[test]
fn one_tag_leaves_while_another_comes_into_its_memory() {
    let (sim, context, stream) = sim(TOTAL);
    let pool = Pool::builder(&context).hard_limit(120 * MIB).build().unwrap();
    let [one, two] = ["encoder", "decoder"].map(|name| pool.tagged(name).unwrap());
    let first = one.alloc(100 * MIB, &stream).unwrap();
    one.evict(&stream).unwrap();
    let second = two.alloc(100 * MIB, &stream).unwrap();
    context.synchronize().unwrap();
    for (leaves, comes, block) in [(&two, &one, first), (&one, &two, second)] {
        let work = sim.hold(stream.handle()).unwrap();
        let created = sim.calls()[Call::CreatePage];
        leaves.evict(&stream).unwrap();
        comes.restore(&stream).unwrap();
        assert_eq!((held(comes), sim.calls()[Call::CreatePage]), (100 * MIB, created));
        [&pool, &one, &two].iter().for_each(|pool| pool.check().unwrap());
        sim.release(work);
        context.synchronize().unwrap();
        sim.touch(block, 100 * MIB, stream.handle()).unwrap();
    }
}

#[test]
fn what_was_copied_first_serves_others_first() {
    let Simulated { sim, pool, tag, stream, context, .. } = simulated(240 * MIB);
    tag.evict(&stream).unwrap();
    let start = sim.now();
    let other = context.create_stream().unwrap();
    let block = pool.alloc(100 * MIB, &other).unwrap();
    // All copies take 4.5 ms, those of the first batch 2.4.
    sim.advance_to(start + Duration::from_millis(3));
    assert_eq!((sim.now() < start + Duration::from_millis(4), other.is_idle()), (true, Ok(true)));
    pool.free_block(block, &other).unwrap();
}

#[test]
fn as_much_comes_back_as_the_pool_has_free() {
    let Simulated { sim, context, pool, tag, block, stream } = simulated(96 * MIB);
    tag.evict(&stream).unwrap();
    let others = [40 * MIB, 56 * MIB].map(|bytes| pool.alloc(bytes, &stream).unwrap());
    context.synchronize().unwrap();
    let (created, work) = (sim.calls()[Call::CreatePage], sim.hold(stream.handle()).unwrap());
    assert_eq!(tag.restore_free(), Ok(96 * MIB), "all is in use");
    pool.free_block(others[0], &stream).unwrap();
    assert_eq!(tag.restore_free(), Ok(56 * MIB));
    assert_eq!((tag.restore_free(), held(&pool), tag.is_evicted()), (Ok(56 * MIB), 56 * MIB, true));
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
    // What came can leave again.
    tag.evict(&stream).unwrap();
    assert_eq!((held(&pool), held(&tag)), (96 * MIB, 0));
    assert_eq!(tag.restore_free(), Ok(56 * MIB));
    pool.free_block(others[1], &stream).unwrap();
    assert_eq!(tag.restore_free(), Ok(0));
    let copies = sim.calls()[Call::Copy];
    tag.restore(&stream).unwrap();
    assert_eq!((sim.calls()[Call::CreatePage], sim.calls()[Call::Copy]), (created, copies));
    assert_eq!((tag.restore_free(), tag.is_evicted()), (Ok(0), false));
    sim.release(work);
    context.synchronize().unwrap();
    sim.touch(block, 96 * MIB, stream.handle()).unwrap();
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
}

/// A page that the pool wrote to, and parked: the mapping where it came from could not be removed before.
#[test]
fn what_the_pool_wrote_to_and_parked_comes_back_with_a_copy() {
    let Simulated { sim, pool, tag, stream, .. } = simulated(32 * MIB);
    tag.evict(&stream).unwrap();
    let other = pool.alloc(32 * MIB, &stream).unwrap();
    pool.free_block(other, &stream).unwrap();
    sim.advance_to(sim.now() + Duration::from_secs(1));
    let what = "a test asked for it".to_owned();
    sim.fail_next(Call::Unmap, 2, DeviceError::Invalid { call: "test", what });
    pool.trim_to(0).unwrap();
    assert!((1..32 * MIB).contains(&held(&pool)), "one page is parked: {}", held(&pool));
    let copies = sim.calls()[Call::Copy];
    tag.restore(&stream).unwrap();
    assert_eq!(sim.calls()[Call::Copy], copies + 1, "all pages in one copy");
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
}

/// Two streams of the pool use what the tag left, in sizes that move pages about, while it comes back bit by bit.
#[test]
fn bytes_survive_while_memory_goes_back_and_forth() {
    let bench = Bench::new();
    let late = bench.context.create_stream().unwrap();
    let mut model = Model::new();
    model.fill(&bench.tag, &bench.stream);
    (0..4).for_each(|_| model.add(&bench.tag, 7 * MIB, &bench.stream));
    let mut random = Random(7);
    let mut others = Vec::new();
    for step in 0..600_u64 {
        match random.below(8) {
            0 => _ = bench.tag.evict(&bench.stream).unwrap(),
            1 => bench.tag.restore(&late).unwrap(),
            2 | 3 => _ = bench.tag.restore_free().unwrap(),
            4 if !others.is_empty() => drop(others.swap_remove(random.below(others.len() as u64) as usize)),
            _ if others.len() < 6 => {
                let stream = if random.below(2) == 0 { &bench.stream } else { &late };
                let bytes = vec![step as u8; 1000 + random.below(12 << 20) as usize];
                others.push((Buffer::from_slice(&bench.pool, &bytes, stream).unwrap(), bytes));
            }
            _ => others.drain(..).for_each(|(buffer, bytes)| assert!(buffer.to_vec().unwrap() == bytes)),
        }
        bench.check();
        if step.is_multiple_of(50) {
            bench.tag.restore(&bench.stream).unwrap();
            model.assert_intact();
        }
    }
}

#[test]
fn nobody_is_given_what_copies_still_write_to() {
    let Simulated { pool, tag, block, stream, context, .. } = simulated(100 * MIB);
    let beside = tag.alloc(30 * MIB, &stream).unwrap();
    tag.evict(&stream).unwrap();
    // Free while the page comes back, since others on it are live.
    tag.free_block(beside, &stream).unwrap();
    let other = pool.alloc(130 * MIB, &stream).unwrap();
    context.synchronize().unwrap();
    pool.free_block(other, &stream).unwrap();
    tag.restore(&stream).unwrap();
    let late = context.create_stream().unwrap();
    tag.free_block(block, &late).unwrap();
    assert!(late.is_idle().unwrap());
    // Neither do its pages go.
    tag.trim_to(0).unwrap();
    assert!(held(&tag) >= 100 * MIB);
    let again = tag.alloc(100 * MIB, &late).unwrap();
    assert!(!late.is_idle().unwrap(), "it waits for the copies");
    tag.check().unwrap();
    context.synchronize().unwrap();
    tag.free_block(again, &late).unwrap();
    context.synchronize().unwrap();
    tag.trim_to(0).unwrap();
    tag.check().unwrap();
    assert_eq!(held(&tag), 0);
}

#[test]
fn bytes_survive_an_eviction_of_what_was_being_restored() {
    let bench = Bench::new();
    let mut model = Model::new();
    model.fill(&bench.tag, &bench.stream);
    for cycle in 0..20_u8 {
        bench.tag.evict(&bench.stream).unwrap();
        if cycle.is_multiple_of(2) {
            let bytes = vec![cycle; 60 << 20];
            drop(Buffer::from_slice(&bench.pool, &bytes, &bench.stream).unwrap());
        }
        bench.tag.restore_ahead().unwrap();
        bench.tag.evict(&bench.stream).unwrap();
        bench.check();
        if cycle.is_multiple_of(3) {
            let bytes = vec![cycle; 60 << 20];
            drop(Buffer::from_slice(&bench.pool, &bytes, &bench.stream).unwrap());
        }
        bench.tag.restore(&bench.stream).unwrap();
        bench.check();
        model.assert_intact();
    }
}

#[test]
fn tags_take_turns_on_a_device_that_has_room_for_one() {
    let Bench { context, pool, stream, .. } = Bench::new();
    let mut models: Vec<(Pool, Model)> = Vec::new();
    for name in ["encoder", "denoiser", "decoder"] {
        let (tag, mut model) = (pool.tagged(name).unwrap(), Model::new());
        for _ in 0..3 {
            model.add(&tag, 60 * MIB, &stream);
        }
        tag.evict(&stream).unwrap();
        models.push((tag, model));
    }
    for _ in 0..4 {
        for (tag, model) in &models {
            tag.restore(&stream).unwrap();
            model.assert_intact();
            tag.evict(&stream).unwrap();
            tag.check().unwrap();
            pool.check().unwrap();
        }
    }
    drop((models, context));
}

#[test]
fn only_a_part_of_a_pool_with_pages_is_evicted() {
    let (_, context, stream) = sim(TOTAL);
    let without = Context::new(SimDevice::new(SimOptions::default().virtual_memory(false)).unwrap());
    let pools = [context.pinned().unwrap(), context.managed().unwrap(), Pool::builder(&context)];
    for pool in pools.map(|builder| builder.build().unwrap()) {
        let Err(Error::CannotEvict { .. }) = pool.evict(&stream) else { panic!("{pool:?}") };
        assert!(!pool.is_evicted());
        pool.restore(&stream).unwrap();
    }
    let tag = Pool::builder(&without).build().unwrap().tagged("optimizer").unwrap();
    let refused = tag.evict(&without.create_stream().unwrap());
    assert!(matches!(refused, Err(Error::CannotEvict { .. })), "{refused:?}");
}

#[test]
fn a_pool_with_blocks_of_other_processes_is_not_evicted() {
    let Bench { pool: _pool, tag, stream, .. } = Bench::new();
    let buffer = Buffer::<u8>::zeroed(&tag, MIB as usize, &stream).unwrap();
    let shared = buffer.share().unwrap();
    let refused = tag.evict(&stream).unwrap_err();
    assert!(matches!(&refused, Error::CannotEvict { why, .. } if why.contains("let go")), "{refused}");
    drop(shared);
    tag.evict(&stream).unwrap();
    assert!(matches!(buffer.share(), Err(Error::Evicted { .. })));
    tag.restore(&stream).unwrap();
    drop(buffer.share().unwrap());
}

#[test]
fn a_tag_that_is_evicted_ends_without_a_restore() {
    let (sim, context, stream) = sim(TOTAL);
    let free = sim.memory_info().unwrap().free;
    for (live, of_whole) in [(false, false), (true, false), (false, true), (true, true)] {
        let pool = Pool::builder(&context).build().unwrap();
        let tag = pool.tagged("optimizer").unwrap();
        let block = tag.alloc(50 * MIB, &stream).unwrap();
        tag.evict(&stream).unwrap();
        let taken = of_whole.then(|| pool.alloc(40 * MIB, &stream).unwrap());
        if !live {
            tag.free_block(block, &stream).unwrap();
        }
        drop((pool, tag));
        taken
            .into_iter()
            .chain(live.then_some(block))
            .for_each(|block| context.free_block(block, &stream).unwrap());
        context.synchronize().unwrap();
        let calls = sim.calls();
        assert_eq!(sim.memory_info().unwrap().free, free, "{live} {of_whole}");
        assert_eq!(calls[Call::Reserve], calls[Call::Unreserve], "{live} {of_whole}");
        assert_eq!(calls[Call::CreatePage], calls[Call::ReleasePage]);
        assert_eq!(calls[Call::AllocSegment], calls[Call::FreeSegment]);
    }
}

#[test]
fn a_restore_without_memory_loses_nothing_and_says_what_is_missing() {
    let bench = Bench::new();
    let mut model = Model::new();
    model.fill(&bench.tag, &bench.stream);
    let before = held(&bench.tag);
    bench.tag.evict(&bench.stream).unwrap();
    let free = bench.context.device().memory_info().unwrap().free + held(&bench.pool);
    let taken = bench.pool.alloc(free - 4 * MIB, &bench.stream).unwrap();
    for _ in 0..3 {
        let Err(Error::OutOfMemory(report)) = bench.tag.restore(&bench.stream) else {
            panic!("there is no room")
        };
        // But for pages that have no live byte.
        let lacking = bench.tag.stats().asleep;
        assert!(lacking > 0 && lacking <= before);
        assert_eq!((report.requested, report.limit), (lacking, Limit::Device));
        assert_eq!((bench.tag.is_evicted(), held(&bench.tag)), (true, 0));
        bench.check();
    }
    bench.pool.free_block(taken, &bench.stream).unwrap();
    bench.tag.restore(&bench.stream).unwrap();
    model.assert_intact();
    bench.check();
}

#[test]
fn the_hard_limit_counts_pages_that_pass_once() {
    let (_sim, context, stream) = sim(1024 * MIB);
    let pool = Pool::builder(&context).hard_limit(100 * MIB).build().unwrap();
    let tag = pool.tagged("a").unwrap();
    _ = tag.alloc(60 * MIB, &stream).unwrap();
    for _ in 0..3 {
        tag.evict(&stream).unwrap();
        let all = pool.alloc(100 * MIB, &stream).unwrap();
        let Err(Error::OutOfMemory(report)) = tag.restore(&stream) else { panic!("beyond the limit") };
        assert_eq!(report.limit, Limit::HardLimit(100 * MIB));
        pool.free_block(all, &stream).unwrap();
        tag.restore(&stream).unwrap();
        assert_eq!(held(&tag), 60 * MIB);
    }
}

#[test]
fn pages_that_the_pool_used_come_back_without_new_ones() {
    let (sim, context, stream) = sim(1024 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let block = tag.alloc(100 * MIB, &stream).unwrap();
    let (created, released) = (sim.calls()[Call::CreatePage], sim.calls()[Call::ReleasePage]);
    for _ in 0..3 {
        tag.evict(&stream).unwrap();
        let other = pool.alloc(100 * MIB, &stream).unwrap();
        sim.launch(stream.handle(), Duration::from_millis(1)).unwrap();
        pool.free_block(other, &stream).unwrap();
        tag.restore(&stream).unwrap();
        [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
        assert_eq!(held(&tag), 100 * MIB);
    }
    assert_eq!((sim.calls()[Call::CreatePage], sim.calls()[Call::ReleasePage]), (created, released));
    tag.free_block(block, &stream).unwrap();
}

#[test]
fn no_byte_is_lost_where_the_host_lacks_pinned_memory() {
    let options = HostOptions::default().capacity(TOTAL).pinned_capacity(8 * MIB);
    let context = Context::new(HostDevice::with_options(options).unwrap());
    let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
    let tag = pool.tagged("optimizer").unwrap();
    let mut model = Model::new();
    model.fill(&tag, &stream);
    let refused = tag.evict(&stream);
    assert!(matches!(refused, Err(Error::Device(DeviceError::OutOfMemory { .. }))), "{refused:?}");
    assert!(!tag.is_evicted());
    model.assert_intact();
    tag.check().unwrap();
}

#[test]
fn pinned_memory_has_a_limit_is_counted_and_goes_back() {
    let (sim, context, stream) = sim(TOTAL);
    let pool = Pool::builder(&context).pinned_limit(50 * MIB).build().unwrap();
    let [first, second] = ["first", "second"].map(|tag| pool.tagged(tag).unwrap());
    let blocks = [&first, &second].map(|tag| tag.alloc(30 * MIB, &stream).unwrap());
    first.evict(&stream).unwrap();
    assert_eq!((first.stats().pinned, second.stats().pinned), (30 * MIB, 0));
    for _ in 0..2 {
        let refused = second.evict(&stream);
        assert!(
            matches!(&refused, Err(Error::CannotEvict { why, .. }) if why.contains("pinned_limit")),
            "{refused:?}"
        );
        assert!(!second.is_evicted());
    }
    assert_eq!(pool.trim_staging(), Ok(0), "it is needed");
    first.restore(&stream).unwrap();
    assert_eq!((first.stats().pinned, pool.trim_staging()), (30 * MIB, Ok(30 * MIB)));
    assert_eq!((first.stats().pinned, sim.calls()[Call::FreeSegment]), (0, 1));
    second.evict(&stream).unwrap();
    assert_eq!(second.stats().pinned, 30 * MIB);
    // The next one prepares none.
    second.restore(&stream).unwrap();
    second.evict(&stream).unwrap();
    assert_eq!(sim.calls()[Call::AllocSegment], 2);
    second.restore(&stream).unwrap();
    [&first, &second].iter().zip(blocks).for_each(|(tag, block)| tag.free_block(block, &stream).unwrap());
}

#[test]
fn a_tag_that_ends_leaves_the_limit_of_pinned_memory_to_the_next() {
    let (_, context, stream) = sim(TOTAL);
    let pool = Pool::builder(&context).pinned_limit(50 * MIB).build().unwrap();
    for is_restored in [true, false, true] {
        let tag = pool.tagged("model").unwrap();
        let block = tag.alloc(30 * MIB, &stream).unwrap();
        tag.evict(&stream).unwrap();
        if is_restored {
            tag.restore(&stream).unwrap();
        }
        tag.free_block(block, &stream).unwrap();
        context.synchronize().unwrap();
        tag.destroy().unwrap();
    }
}

#[test]
fn a_tag_that_ended_needs_no_pinned_memory() {
    let Simulated { context, pool: _pool, tag, block, stream, .. } = simulated(30 * MIB);
    tag.evict(&stream).unwrap();
    assert!(matches!(tag.destroy(), Err(Error::LiveBlocks { .. })));
    assert_eq!(tag.trim_staging(), Ok(0));
    tag.free_block(block, &stream).unwrap();
    context.synchronize().unwrap();
    assert_eq!(tag.trim_staging(), Ok(30 * MIB));
    assert_eq!((tag.restore(&stream), tag.stats().pinned), (Ok(()), 0));
}

#[test]
fn a_captured_block_is_there_again_for_the_replay() {
    let Bench { context, pool: _pool, tag, stream } = Bench::new();
    let memory = tag.capture_pool();
    let capturing = memory.begin(&stream).unwrap();
    let input = Buffer::from_slice(&tag, &[7_u8; 100_000], &stream).unwrap();
    let scratch = Buffer::<u8>::new(&tag, 3 << 20, &stream).unwrap();
    drop(scratch);
    drop(capturing);
    let (reserved, at) = (memory.reserved(), input.ptr());
    for _ in 0..3 {
        tag.evict(&stream).unwrap();
        assert_eq!(memory.reserved(), 0);
        context.synchronize().unwrap();
        tag.restore(&stream).unwrap();
        assert_eq!(memory.reserved(), reserved, "also what a replay uses between its kernels");
        assert_eq!((input.ptr(), input.to_vec().unwrap()), (at, vec![7; 100_000]));
        tag.check().unwrap();
    }
}

#[test]
fn addresses_of_a_capture_go_back_whose_last_block_is_freed_while_it_is_away() {
    let sim = SimDevice::new(SimOptions::default().capacity(TOTAL)).unwrap();
    let checker = CheckerDevice::new(sim.clone());
    let context = Context::new(checker.clone());
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).build().unwrap();
    let tag = pool.tagged("captured").unwrap();
    let memory = tag.capture_pool();
    let capturing = memory.begin(&stream).unwrap();
    let block = tag.alloc(3 * MIB, &stream).unwrap();
    drop((capturing, memory));
    context.synchronize().unwrap();
    tag.evict(&stream).unwrap();
    // The copy is not complete: what describes the memory is needed until then.
    tag.free_block(block, &stream).unwrap();
    context.synchronize().unwrap();
    tag.check().unwrap();
    drop((pool, tag, stream, context));
    checker.verify_nothing_left().unwrap();
}

#[test]
fn no_mapping_goes_before_the_work_on_it() {
    const LENGTHS: [u64; 3] = [40 * MIB, 700, 9 * MIB];
    let sim = SimDevice::new(SimOptions::default().capacity(TOTAL)).unwrap();
    let checker = CheckerDevice::new(sim.clone());
    let context = Context::new(checker.clone());
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    for round in 0..4 {
        let blocks = LENGTHS.map(|bytes| {
            let at = tag.alloc(bytes, &stream).unwrap();
            let block = checker.allocated(at, bytes, stream.handle());
            checker.used(block, stream.handle());
            (at, block)
        });
        // For the checker, blocks end with the eviction, and others begin there with the restore.
        let ended = blocks.map(|(_, block)| checker.freed(block, stream.handle()));
        tag.evict(&stream).unwrap();
        drop(ended);
        let other = (round % 2 == 0).then(|| {
            let at = pool.alloc(50 * MIB, &stream).unwrap();
            let block = checker.allocated(at, 50 * MIB, stream.handle());
            checker.used(block, stream.handle());
            (at, block)
        });
        if let Some((at, block)) = other {
            let _freeing = checker.freed(block, stream.handle());
            pool.free_block(at, &stream).unwrap();
        }
        tag.restore(&stream).unwrap();
        for ((at, _), bytes) in blocks.into_iter().zip(LENGTHS) {
            let block = checker.allocated(at, bytes, stream.handle());
            checker.used(block, stream.handle());
            let _freeing = checker.freed(block, stream.handle());
            tag.free_block(at, &stream).unwrap();
        }
        checker.verify().unwrap();
    }
    drop((pool, tag, stream, context));
    checker.verify_nothing_left().unwrap();
}

#[test]
fn threads_use_both_pools_while_the_tag_goes_and_comes() {
    let Bench { context, pool, tag, stream } = Bench::new();
    thread::scope(|scope| {
        let users: Vec<_> = [(&pool, 1_u8), (&tag, 2), (&tag, 3)]
            .into_iter()
            .map(|(pool, number)| {
                let context = &context;
                scope.spawn(move || {
                    let stream = context.create_stream().unwrap();
                    let mut kept = Vec::new();
                    for done in 0..300_usize {
                        let bytes = vec![number.wrapping_add(done as u8); 5000 + 3000 * done];
                        let refused =
                            |error: Error| assert!(matches!(error, Error::Evicted { .. }), "{error}");
                        match Buffer::from_slice(pool, &bytes, &stream) {
                            Ok(buffer) => kept.push((bytes, buffer)),
                            Err(error) => refused(error),
                        }
                        if kept.len() > 20 {
                            let (bytes, buffer) = kept.remove(done % 20);
                            stream.synchronize().unwrap();
                            buffer.to_vec().map(|_| drop(bytes)).unwrap_or_else(refused);
                        }
                    }
                })
            })
            .collect();
        while users.iter().any(|user| !user.is_finished()) {
            tag.evict(&stream).unwrap();
            thread::yield_now();
            tag.restore(&stream).unwrap();
            stream.synchronize().unwrap();
        }
    });
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
}

/// A tag of the tag was evicted into it: the pages are parked, and mapped nowhere.
#[test]
fn what_a_tag_holds_and_uses_nowhere_leaves_with_it() {
    let Simulated { context, pool, tag, block, stream, .. } = simulated(20 * MIB);
    let inner = tag.tagged("moments").unwrap();
    let moments = inner.alloc(50 * MIB, &stream).unwrap();
    assert_eq!(inner.evict(&stream), Ok(50 * MIB));
    context.synchronize().unwrap();
    tag.trim_to(u64::MAX).unwrap();
    assert_eq!(held(&tag), 70 * MIB);
    assert_eq!(tag.evict(&stream), Ok(70 * MIB));
    assert_eq!((held(&pool), held(&tag)), (70 * MIB, 0));
    let other = pool.alloc(70 * MIB, &stream).unwrap();
    assert_eq!(held(&pool), 70 * MIB);
    [&pool, &tag, &inner].iter().for_each(|pool| pool.check().unwrap());
    pool.free_block(other, &stream).unwrap();
    // Its own tag comes back without it.
    inner.restore(&stream).unwrap();
    tag.restore(&stream).unwrap();
    [&pool, &tag, &inner].iter().for_each(|pool| pool.check().unwrap());
    inner.free_block(moments, &stream).unwrap();
    tag.free_block(block, &stream).unwrap();
}

/// Each device call of an eviction and a restore, at each place, fails once, and then also the next one of its kind.
#[test]
fn whichever_call_fails_it_is_there_or_evicted_and_can_be_tried_again() {
    const CALLS: [Call; 15] = [
        Call::WaitEvent,
        Call::Pinned,
        Call::AllocSegment,
        Call::CreateStream,
        Call::Copy,
        Call::CreateEvent,
        Call::RecordEvent,
        Call::QueryEvent,
        Call::SynchronizeEvent,
        Call::SynchronizeStream,
        Call::Unmap,
        Call::ReleasePage,
        Call::CreatePage,
        Call::Map,
        Call::SetAccess,
    ];
    for call in CALLS {
        for (nth, twice) in [(1, false), (2, false), (1, true), (2, true), (5, true)] {
            let (sim, context, stream) = sim(2048 * MIB);
            let pool = Pool::builder(&context).build().unwrap();
            let tag = pool.tagged("optimizer").unwrap();
            let blocks = [600 * MIB, 512, 300 * MIB, 3 * MIB].map(|bytes| tag.alloc(bytes, &stream).unwrap());
            let before = held(&tag);
            let settle = |what: &dyn Fn() -> Result<(), Error>| {
                sim.fail_next(call, nth, DeviceError::Unavailable("asked for".to_owned()));
                if twice {
                    sim.fail_next(call, nth + 1, DeviceError::Unavailable("asked for".to_owned()));
                }
                let done = what();
                [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
                sim.fail_no_more();
                let said = done.as_ref().map_or_else(ToString::to_string, |()| "asked for".to_owned());
                assert!(said.contains("asked for"), "{call:?} {nth} {twice}: {said}");
                done.is_ok()
            };
            let evicted = settle(&|| tag.evict(&stream).map(drop));
            assert_eq!(
                (tag.is_evicted(), held(&tag)),
                (evicted, if evicted { 0 } else { before }),
                "{call:?}"
            );
            tag.evict(&stream).unwrap();
            // Half of the pages are in use elsewhere, in other lengths. Some are free again, and may be in use.
            let other = pool.alloc(450 * MIB, &stream).unwrap();
            let (late, freed) = (context.create_stream().unwrap(), pool.alloc(200 * MIB, &stream).unwrap());
            pool.free_block(freed, &late).unwrap();
            let restored = settle(&|| tag.restore(&stream));
            assert_eq!(tag.is_evicted(), !restored, "{call:?} {nth}");
            if !restored {
                assert_eq!(tag.stats().asleep, before, "{call:?} {nth} {twice}");
            }
            tag.restore(&stream).unwrap();
            assert_eq!((held(&tag), tag.stats().asleep), (before, 0), "{call:?} {nth}");
            blocks.into_iter().for_each(|block| tag.free_block(block, &stream).unwrap());
            pool.free_block(other, &stream).unwrap();
            context.synchronize().unwrap();
            [&pool, &tag].iter().for_each(|pool| assert!(pool.trim_to(0).is_ok()));
            assert_eq!((held(&pool), held(&tag)), (0, 0), "{call:?} {nth}");
            [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
        }
    }
}

/// Over real bytes: none is lost, whichever call of an eviction and a restore fails.
#[test]
fn no_byte_is_lost_whichever_call_fails() {
    let below = HostDevice::with_options(HostOptions::default().capacity(TOTAL / 2)).unwrap();
    let device = Failing::over(below);
    let context = Context::new(device.clone());
    // Short pages take more calls.
    let pool = Pool::builder(&context).page_sizes(2 * MIB, 2 * MIB).build().unwrap();
    let stream = context.create_stream().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let mut model = Model::new();
    model.fill(&tag, &stream);
    let (mut failed, mut used) = (0, 0);
    for nth in (0..).step_by(3) {
        device.left.store(nth, Ordering::Relaxed);
        let evicted = tag.evict(&stream);
        [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
        // Most of the memory is used by others, unless that fails.
        if let Ok(block) = pool.alloc(80 * MIB, &stream) {
            // SAFETY: the block is the test's own.
            unsafe { device.below.memset(block, 1, 80 * MIB, stream.handle()) }.unwrap();
            pool.free_block(block, &stream).unwrap();
            used += 1;
        }
        let restored = tag.restore(&stream);
        [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
        let is_over = device.left.swap(-1, Ordering::Relaxed) >= 0;
        failed += u32::from(evicted.is_err() || restored.is_err());
        tag.restore(&stream).unwrap();
        assert!(!tag.is_evicted());
        stream.synchronize().unwrap();
        model.assert_intact();
        if is_over {
            break;
        }
        // Everything is taken anew.
        pool.trim_to(0).unwrap();
    }
    assert!(failed > 5 && used > 5, "{failed} failed, and the memory was used {used} times");
}

#[test]
fn a_mapping_that_the_device_never_removes_is_its_error_and_the_tag_stays_evicted() {
    let Simulated { sim, pool, tag, block, stream, .. } = simulated(100 * MIB);
    tag.evict(&stream).unwrap();
    // The tag's mappings are there until the copies are complete.
    let other = pool.alloc(100 * MIB, &stream).unwrap();
    for nth in 1..1000 {
        sim.fail_next(Call::Unmap, nth, DeviceError::Unavailable("asked for".to_owned()));
    }
    let said = tag.restore(&stream).unwrap_err().to_string();
    assert!(said.contains("asked for"), "{said}");
    assert!(tag.is_evicted());
    sim.fail_no_more();
    tag.restore(&stream).unwrap();
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
    tag.free_block(block, &stream).unwrap();
    pool.free_block(other, &stream).unwrap();
}
