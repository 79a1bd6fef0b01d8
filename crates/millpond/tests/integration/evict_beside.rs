//! Evictions beside what else a pool has: limits, callbacks, captures, threads that wait, guards, recordings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{Device, DevicePtr};
use millpond::guard::{Guard, Mistake};
use millpond::record::format::Record;
use millpond::record::{self, Chunks, records};
use millpond::testing::capturing::CapturingDevice;
use millpond::testing::checker::CheckerDevice;
use millpond::{Budget, Buffer, Context, Error, Keep, Limit, Pool, Stream};

use crate::shared::{Freeing, MIB, sim};

/// A tag of 60 MiB on the simulated device, on which so much memory is.
struct Tagged {
    sim: Arc<SimDevice>,
    context: Context,
    pool: Pool,
    tag: Pool,
    block: DevicePtr,
    stream: Stream,
}

impl Tagged {
    fn new(capacity: u64) -> Self {
        let (sim, context, stream) = sim(capacity);
        let pool = Pool::builder(&context).name("job").build().unwrap();
        let tag = pool.tagged("optimizer").unwrap();
        let block = tag.alloc(60 * MIB, &stream).unwrap();
        Self { sim, context, pool, tag, block, stream }
    }

    fn check(&self) {
        [&self.pool, &self.tag].iter().for_each(|pool| pool.check().unwrap());
    }
}

/// The host device with so much memory, whose streams run.
fn host(capacity: u64) -> (Arc<HostDevice>, Context, Stream) {
    let device = HostDevice::with_options(HostOptions::default().capacity(capacity)).unwrap();
    let context = Context::new(device.clone());
    let stream = context.create_stream().unwrap();
    (device, context, stream)
}

fn held(pool: &Pool) -> u64 {
    pool.reserved().current
}

// ---- limits --------------------------------------------------------------------------------------------

#[test]
fn a_budget_counts_evicted_memory_once_and_other_pools_get_it() {
    let (_sim, context, stream) = sim(1024 * MIB);
    let budget = Budget::bytes(100 * MIB);
    let [pool, other] =
        ["job", "other"].map(|name| Pool::builder(&context).name(name).budget(&budget).build().unwrap());
    let tag = pool.tagged("optimizer").unwrap();
    let block = tag.alloc(60 * MIB, &stream).unwrap();
    for _ in 0..3 {
        tag.evict(&stream).unwrap();
        assert_eq!(budget.held(), 60 * MIB);
        let taken = other.alloc(90 * MIB, &stream).unwrap();
        let Err(Error::OutOfMemory(report)) = tag.restore(&stream) else { panic!("beyond the budget") };
        assert!(matches!(report.limit, Limit::Budget { .. }), "{report}");
        assert!(tag.is_evicted() && budget.held() <= budget.limit());
        [&pool, &tag, &other].iter().for_each(|pool| pool.check().unwrap());
        other.free_block(taken, &stream).unwrap();
        tag.restore(&stream).unwrap();
        assert_eq!(held(&tag), 60 * MIB);
    }
    tag.free_block(block, &stream).unwrap();
}

#[test]
fn a_callback_makes_room_by_an_eviction() {
    let Tagged { pool, tag, stream, .. } = Tagged::new(100 * MIB);
    let (asked, on) = (Arc::new(AtomicUsize::new(0)), (tag.clone(), stream.clone()));
    let count = asked.clone();
    let id = pool.on_reclaim(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        on.0.evict(&on.1).is_ok_and(|bytes| bytes > 0)
    });
    let block = pool.alloc(90 * MIB, &stream).unwrap();
    assert_eq!((asked.load(Ordering::Relaxed), tag.is_evicted()), (1, true));
    pool.free_block(block, &stream).unwrap();
    tag.restore(&stream).unwrap();
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
    // It holds the tag, which would hold the pool.
    assert!(pool.remove_reclaim(id));
}

/// The observer of a restore without memory calls the tag: no lock is held.
#[test]
fn who_is_told_of_a_restore_without_memory_may_call_the_tag() {
    let Tagged { pool, tag, stream, .. } = Tagged::new(100 * MIB);
    let (told, on) = (Arc::new(AtomicUsize::new(0)), (tag.clone(), stream.clone()));
    let count = told.clone();
    let id = tag.on_out_of_memory(move |report| {
        assert_eq!((report.requested, on.0.is_evicted()), (60 * MIB, true));
        assert_eq!((on.0.evict(&on.1), on.0.trim_staging()), (Ok(0), Ok(0)));
        count.fetch_add(1, Ordering::Relaxed);
    });
    tag.evict(&stream).unwrap();
    let block = pool.alloc(90 * MIB, &stream).unwrap();
    assert!(matches!(tag.restore(&stream), Err(Error::OutOfMemory(_))));
    assert!(matches!(tag.restore_ahead(), Err(Error::OutOfMemory(_))));
    assert_eq!(tag.restore_free(), Ok(60 * MIB));
    assert_eq!(told.load(Ordering::Relaxed), 2);
    pool.free_block(block, &stream).unwrap();
    tag.restore(&stream).unwrap();
    assert!(tag.remove_out_of_memory(id));
}

#[test]
fn a_trim_gives_back_what_left_and_the_restore_takes_it_anew() {
    let job = Tagged::new(1024 * MIB);
    job.tag.evict(&job.stream).unwrap();
    job.context.synchronize().unwrap();
    job.tag.trim_to(0).unwrap();
    job.pool.trim_to(0).unwrap();
    job.check();
    assert_eq!((held(&job.pool), held(&job.tag)), (0, 0));
    let memory = job.sim.memory_info().unwrap();
    assert_eq!(memory.free, memory.total);
    let copies = job.sim.calls()[Call::Copy];
    job.tag.restore(&job.stream).unwrap();
    assert!(job.sim.calls()[Call::Copy] > copies && held(&job.tag) == 60 * MIB);
    job.check();
    job.tag.free_block(job.block, &job.stream).unwrap();
}

// ---- other states --------------------------------------------------------------------------------------

#[test]
fn a_tag_inside_a_tag_leaves_and_comes_back_whatever_that_does() {
    let (_device, context, stream) = host(256 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let outer = pool.tagged("model").unwrap();
    let inner = outer.tagged("optimizer").unwrap();
    let buffers = [(&outer, 1_u8), (&inner, 2)]
        .map(|(tag, value)| Buffer::from_slice(tag, &vec![value; 20 << 20], &stream).unwrap());
    let check = || {
        [&pool, &outer, &inner].iter().for_each(|pool| pool.check().unwrap());
        drop(Buffer::from_slice(&pool, &vec![9_u8; 30 << 20], &stream).unwrap());
    };
    for first in [&inner, &outer] {
        let last = if first == &inner { &outer } else { &inner };
        for back in [[first, last], [last, first]] {
            first.evict(&stream).unwrap();
            // Where the outer one is evicted, its own tag has nowhere to go.
            let evicted = last.evict(&stream);
            assert_eq!(evicted.is_ok(), last == &outer, "{evicted:?}");
            check();
            outer.sleep(Keep::InPinnedMemory).unwrap();
            check();
            outer.wake().unwrap();
            back.iter().for_each(|tag| tag.restore(&stream).unwrap());
            check();
            for (buffer, value) in buffers.iter().zip([1, 2]) {
                assert!(buffer.to_vec().unwrap() == vec![value; 20 << 20]);
            }
        }
    }
}

#[test]
fn neither_is_done_in_a_capture_and_a_graph_waits_for_the_restore() {
    let below = HostDevice::with_options(HostOptions::default().capacity(256 * MIB)).unwrap();
    let device = CapturingDevice::new(below);
    let context = Context::new(device.clone());
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let buffer = Buffer::from_slice(&tag, &vec![7_u8; 5 << 20], &stream).unwrap();
    let memory = pool.capture_pool();
    let refused = |done: Result<(), Error>| {
        let Err(error) = done else { panic!("it was done in a capture") };
        assert!(error.to_string().contains("captur"), "{error}");
    };
    let capture = |during: &dyn Fn()| {
        let capturing = memory.begin(&stream).unwrap();
        device.begin_capture(stream.handle()).unwrap();
        during();
        device.end_capture(stream.handle()).expect("no rule was broken");
        drop(capturing);
    };
    capture(&|| refused(tag.evict(&stream).map(drop)));
    // Another stream cannot be put behind the one that is captured.
    let other = context.create_stream().unwrap();
    capture(&|| drop(tag.evict(&other)));
    tag.evict(&stream).unwrap();
    capture(&|| {
        refused(tag.restore(&stream));
        let block = pool.alloc(9 << 20, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
    });
    tag.restore(&stream).unwrap();
    assert!(buffer.to_vec().unwrap() == vec![7; 5 << 20]);
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
}

#[test]
fn a_buffer_is_resized_before_and_after_but_not_while_it_is_away() {
    let (_device, context, stream) = host(256 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let mut buffer = Buffer::from_slice(&tag, &[5_u8; 3000], &stream).unwrap();
    tag.evict(&stream).unwrap();
    assert_eq!(buffer.resize(5000), Err(Error::Evicted { pool: tag.name().to_owned() }));
    assert_eq!(buffer.len(), 3000);
    tag.restore(&stream).unwrap();
    buffer.resize(6 << 20).unwrap();
    tag.evict(&stream).unwrap();
    tag.restore(&stream).unwrap();
    let bytes = buffer.to_vec().unwrap();
    assert!(bytes[..3000] == [5; 3000] && bytes[3000..] == vec![0; (6 << 20) - 3000]);
    tag.check().unwrap();
}

#[test]
fn a_tag_outlives_its_pool_and_comes_back_without_it() {
    for destroys in [false, true] {
        let (_device, context, stream) = host(256 * MIB);
        let pool = Pool::builder(&context).build().unwrap();
        let tag = pool.tagged("optimizer").unwrap();
        let buffer = Buffer::from_slice(&tag, &vec![3_u8; 9 << 20], &stream).unwrap();
        tag.evict(&stream).unwrap();
        if destroys {
            assert!(matches!(pool.destroy(), Err(Error::LiveBlocks { .. })));
        }
        drop(pool);
        assert!(tag.is_evicted());
        tag.restore(&stream).unwrap();
        assert!(buffer.to_vec().unwrap() == vec![3; 9 << 20], "{destroys}");
        assert!(matches!(tag.evict(&stream), Err(Error::CannotEvict { .. } | Error::PoolDestroyed { .. })));
        tag.check().unwrap();
        drop(buffer);
        context.synchronize().unwrap();
        tag.trim_to(0).unwrap();
        assert_eq!(held(&tag), 0);
    }
}

/// Its block is freed while copies of the eviction, or of the early restore, use the page.
#[test]
fn a_tag_that_ends_keeps_what_came_early_until_its_copies_are_complete() {
    for (uses, is_whole) in [(false, false), (true, false), (true, true)] {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let checker = CheckerDevice::new(sim);
        let context = Context::new(checker.clone());
        let stream = context.create_stream().unwrap();
        let pool = Pool::builder(&context).build().unwrap();
        let tag = pool.tagged("optimizer").unwrap();
        let block = tag.alloc(4 * MIB, &stream).unwrap();
        tag.evict(&stream).unwrap();
        if uses {
            // So the bytes have to be copied back.
            context.synchronize().unwrap();
            let other = pool.alloc(4 * MIB, &stream).unwrap();
            pool.free_block(other, &stream).unwrap();
        }
        if is_whole {
            tag.restore_ahead().unwrap();
        } else {
            assert_eq!(tag.restore_free(), Ok(0));
        }
        tag.free_block(block, &stream).unwrap();
        pool.destroy().unwrap();
        drop((pool, tag, stream, context));
        checker.verify_nothing_left().unwrap();
    }
}

// ---- guard ---------------------------------------------------------------------------------------------

/// A kernel that writes bytes of 7.
fn write(pool: &Pool, at: DevicePtr, bytes: u64, stream: &Stream) {
    // SAFETY: the tests write what is the pool's.
    unsafe { pool.device().memset(at, 7, bytes, stream.handle()) }.unwrap();
}

#[test]
fn a_guarded_tag_comes_back_with_its_redzones_and_its_overruns() {
    let (_device, context, stream) = host(256 * MIB);
    let pool = Pool::builder(&context).guard(Guard::all().only_count(true)).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let sizes = [1000, 5 * MIB, 700];
    let [sound, early, late] = sizes.map(|bytes| tag.alloc(bytes, &stream).unwrap());
    let contents = Buffer::from_slice(&tag, &vec![4_u8; 3 << 20], &stream).unwrap();
    write(&tag, early, sizes[1] + 2, &stream);
    let freed = tag.alloc(2000, &stream).unwrap();
    tag.free_block(freed, &stream).unwrap();
    write(&tag, freed.offset(10), 1, &stream);
    // The eviction waits for the work before the free only.
    stream.synchronize().unwrap();
    tag.evict(&stream).unwrap();
    // What was freed has been looked at: later it could not be.
    let found = tag.guard_findings();
    assert_eq!(found.iter().map(|found| found.mistake).collect::<Vec<_>>(), [Mistake::AfterFree]);
    drop(Buffer::from_slice(&pool, &vec![9_u8; 20 << 20], &stream).unwrap());
    tag.restore(&stream).unwrap();
    write(&tag, DevicePtr::new(late.raw() - 3), 3, &stream);
    assert!(contents.to_vec().unwrap() == vec![4; 3 << 20]);
    drop(contents);
    for block in [sound, early, late] {
        tag.free_block(block, &stream).unwrap();
    }
    tag.destroy().unwrap();
    let mut found: Vec<_> =
        tag.guard_findings()[1..].iter().map(|found| (found.mistake, found.offset)).collect();
    found.sort_by_key(|(_, offset)| *offset);
    assert_eq!(found, [(Mistake::Before, -3), (Mistake::Behind, 5 * MIB as i64)]);
    assert!(pool.guard_findings().is_empty());
}

#[test]
fn a_use_of_a_guarded_block_that_is_away_faults() {
    let (sim, context, stream) = sim(1024 * MIB);
    let pool = Pool::builder(&context).guard(Guard::all().only_count(true)).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let [kept, freed] = [5 * MIB, 3 * MIB].map(|bytes| tag.alloc(bytes, &stream).unwrap());
    tag.evict(&stream).unwrap();
    let other = pool.alloc(8 * MIB, &stream).unwrap();
    context.synchronize().unwrap();
    assert!(sim.touch(kept, 4, stream.handle()).is_err());
    assert!(matches!(tag.alloc(100, &stream), Err(Error::Evicted { .. })));
    tag.free_block(freed, &stream).unwrap();
    tag.restore(&stream).unwrap();
    sim.touch(kept, 5 * MIB, stream.handle()).unwrap();
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
    tag.free_block(kept, &stream).unwrap();
    pool.free_block(other, &stream).unwrap();
}

// ---- recordings ----------------------------------------------------------------------------------------

/// Evictions and restores that a recording has, by their pool's number, with their bytes.
fn moves(path: &std::path::Path) -> Vec<(u32, bool, u64)> {
    let mut chunks = Chunks::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut found = Vec::new();
    while let Some(payload) = chunks.next_chunk().unwrap() {
        let mut of = 0;
        for record in records(payload) {
            match record.unwrap() {
                Record::At { pool, .. } => of = pool,
                Record::Evicted { bytes, .. } => found.push((of, true, bytes)),
                Record::Restored { bytes, .. } => found.push((of, false, bytes)),
                _ => {}
            }
        }
    }
    found
}

#[test]
fn a_recording_has_each_eviction_and_restore_that_was_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let job = Tagged::new(100 * MIB);
    let start =
        || [&job.pool, &job.tag].iter().for_each(|pool| pool.start_recording(path.as_path()).unwrap());
    let stop = || [&job.pool, &job.tag].iter().for_each(|pool| drop(pool.stop_recording().unwrap()));
    start();
    job.tag.evict(&job.stream).unwrap();
    job.tag.evict(&job.stream).unwrap();
    let block = job.pool.alloc(90 * MIB, &job.stream).unwrap();
    // Neither a beginning nor a failure is an event.
    assert!(job.tag.restore(&job.stream).is_err());
    job.pool.free_block(block, &job.stream).unwrap();
    job.tag.restore_ahead().unwrap();
    job.tag.restore(&job.stream).unwrap();
    job.tag.restore(&job.stream).unwrap();
    stop();
    assert_eq!(moves(&path), [(2, true, 60 * MIB), (2, false, 60 * MIB)]);
    // One that begins meanwhile says so.
    std::fs::remove_file(&path).unwrap();
    job.tag.evict(&job.stream).unwrap();
    start();
    job.tag.restore(&job.stream).unwrap();
    stop();
    assert_eq!(moves(&path), [(2, true, 60 * MIB), (2, false, 60 * MIB)]);
    job.tag.free_block(job.block, &job.stream).unwrap();
}

#[test]
fn each_part_of_a_recording_that_rotates_says_what_is_evicted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let job = Tagged::new(1024 * MIB);
    let options = || record::Options::new(&path).most_bytes(64 << 10).rotate(true);
    [&job.pool, &job.tag].iter().for_each(|pool| pool.start_recording(options()).unwrap());
    job.tag.evict(&job.stream).unwrap();
    // Several parts.
    for _ in 0..20 {
        for _ in 0..1000 {
            job.pool.free_block(job.pool.alloc(1000, &job.stream).unwrap(), &job.stream).unwrap();
        }
        job.pool.flush_recording();
    }
    job.tag.restore(&job.stream).unwrap();
    [&job.pool, &job.tag].iter().for_each(|pool| drop(pool.stop_recording().unwrap()));
    assert_eq!(moves(&path), [(2, true, 60 * MIB), (2, false, 60 * MIB)]);
    assert_eq!(moves(&path.with_extension("mprec.old")), [(2, true, 60 * MIB)]);
    job.tag.free_block(job.block, &job.stream).unwrap();
}
