//! The guard: planted mistakes are found, with the calls that allocated and freed the block.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond::device::host::HostDevice;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DevicePtr, DeviceResult, EventHandle, Forward, MemoryKind};
use millpond::guard::{Finding, Guard, Mistake};
use millpond::record::format::Record;
use millpond::record::{Chunks, StackFrame, Tracking, records, tag};
use millpond::{Buffer, Context, Error, Pool, Stream};
use proptest::prelude::*;

use crate::processes::again;
use crate::shared::{Freeing, KIB, MIB, sim};

struct Guarded {
    device: Arc<HostDevice>,
    context: Context,
    pool: Pool,
    stream: Stream,
}

fn guarded(guard: Guard) -> Guarded {
    let device = HostDevice::new().unwrap();
    let context = Context::new(device.clone());
    let pool = Pool::builder(&context).name("weights").guard(guard.only_count(true)).build().unwrap();
    let stream = context.create_stream().unwrap();
    Guarded { device, context, pool, stream }
}

impl Guarded {
    #[inline(never)]
    fn make(&self, bytes: u64) -> DevicePtr {
        std::hint::black_box(self.pool.alloc(bytes, &self.stream).unwrap())
    }

    #[inline(never)]
    fn give_back(&self, ptr: DevicePtr) {
        std::hint::black_box(self.pool.free_block(ptr, &self.stream)).unwrap();
    }

    /// A kernel that writes bytes of 7.
    fn write(&self, at: DevicePtr, bytes: u64, stream: &Stream) {
        // SAFETY: the tests write what is the pool's, and wait for it.
        unsafe { self.pool.device().memset(at, 7, bytes, stream.handle()) }.unwrap();
    }

    fn read(&self, at: DevicePtr) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        // SAFETY: the block is as long, and the copy is waited for.
        unsafe { self.pool.device().copy_to_host(bytes.as_mut_ptr(), at, 64, self.stream.handle()) }.unwrap();
        self.stream.synchronize().unwrap();
        bytes
    }

    /// Ends the pool, so that all of it was looked at.
    fn found(self) -> Vec<Finding> {
        self.pool.destroy().unwrap();
        self.pool.guard_findings()
    }
}

/// The only finding, which names both calls.
fn only(found: &[Finding]) -> &Finding {
    let [finding] = found else { panic!("{found:#?}") };
    let names = |stack: Vec<StackFrame>, name| stack.iter().any(|frame| frame.name.ends_with(name));
    assert!(
        names(finding.allocated.stack(), "make") && names(finding.freed.stack(), "give_back"),
        "{finding}"
    );
    assert_eq!(finding.pool, "weights");
    finding
}

#[test]
fn a_byte_behind_a_block_is_found() {
    for bytes in [1, 1000, 512 * KIB + 3, 3 * MIB] {
        let guarded = guarded(Guard::none().redzones(true));
        let block = {
            let _step = tag("step");
            guarded.make(bytes)
        };
        guarded.write(block, bytes + 1, &guarded.stream);
        guarded.give_back(block);
        let found = guarded.found();
        let finding = only(&found);
        assert_eq!((finding.mistake, finding.offset, finding.changed), (Mistake::Behind, bytes as i64, 1));
        assert_eq!((finding.ptr, finding.bytes, &finding.found[..]), (block, bytes, &[7][..]));
        assert_eq!(finding.allocated.tag().as_deref(), Some("step"));
        assert!(finding.freed.at >= finding.allocated.at);
        let text = finding.to_string();
        let start = format!(
            "1 byte was written behind a block of {bytes} bytes of pool 'weights': at offset {bytes}, now 07\n  allocated on stream "
        );
        assert!(
            text.starts_with(&start) && text.contains(", under step\n") && text.contains("guard.rs:"),
            "{text}"
        );
    }
}

#[test]
fn bytes_before_a_block_are_found() {
    let guarded = guarded(Guard::none().redzones(true));
    let block = guarded.make(5000);
    guarded.write(DevicePtr::new(block.raw() - 20), 20, &guarded.stream);
    guarded.give_back(block);
    let found = guarded.found();
    let finding = only(&found);
    assert_eq!((finding.mistake, finding.offset, finding.changed), (Mistake::Before, -20, 20));
    assert_eq!(finding.found, [7; 16]);
}

#[test]
fn redzones_are_found_before_the_pool_ends() {
    let guarded = guarded(Guard::all());
    let block = guarded.make(5000);
    guarded.write(block.offset(5000), 3, &guarded.stream);
    guarded.give_back(block);
    guarded.stream.synchronize().unwrap();
    assert_eq!(only(&guarded.pool.guard_findings()).mistake, Mistake::Behind);
}

#[test]
fn a_late_kernel_that_writes_a_freed_block_is_found() {
    let guarded = guarded(Guard::all());
    let block = guarded.make(3 * MIB);
    guarded.give_back(block);
    guarded.write(block.offset(2 * MIB), 10, &guarded.stream);
    guarded.stream.synchronize().unwrap();
    let found = guarded.found();
    let finding = only(&found);
    assert_eq!((finding.mistake, finding.offset, finding.changed), (Mistake::AfterFree, 2 * MIB as i64, 10));
}

#[test]
fn an_unrecorded_use_on_another_stream_is_found() {
    let planted = |is_recorded: bool| {
        let guarded = guarded(Guard::all().nan(true));
        let other = guarded.context.create_stream().unwrap();
        let block = guarded.make(4 * KIB);
        other.wait(&guarded.stream.record().unwrap()).unwrap();
        guarded.device.launch(other.handle(), || std::thread::sleep(Duration::from_millis(100))).unwrap();
        guarded.write(block, 4 * KIB, &other);
        if is_recorded {
            guarded.pool.record_use(block, &other).unwrap();
        }
        guarded.give_back(block);
        other.synchronize().unwrap();
        guarded.found()
    };
    let found = planted(false);
    let finding = only(&found);
    assert_eq!((finding.mistake, finding.offset, finding.changed), (Mistake::AfterFree, 0, 4 * KIB));
    assert!(planted(true).is_empty());
}

#[test]
fn a_double_free_names_all_three_calls() {
    let guarded = guarded(Guard::all());
    let block = guarded.make(5000);
    guarded.give_back(block);
    let again = guarded.pool.free_block(block, &guarded.stream);
    assert!(matches!(again, Err(Error::DoubleFree { .. })), "{again:?}");
    let found = guarded.found();
    let finding = only(&found);
    assert_eq!((finding.mistake, finding.ptr), (Mistake::DoubleFree, block));
    let again = finding.again.as_ref().unwrap();
    assert!(again.stack().iter().any(|frame| frame.name.contains("a_double_free_names")), "{finding}");
    assert!(finding.to_string().contains("\n  freed again on stream "), "{finding}");
}

#[test]
fn fresh_and_freed_memory_show() {
    let guarded = guarded(Guard::all().nan(true));
    let block = guarded.make(5000);
    let floats = guarded.read(block);
    assert!(floats.chunks_exact(4).all(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan()));
    assert!(floats.chunks_exact(8).all(|bytes| f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan()));
    guarded.write(block, 5000, &guarded.stream);
    guarded.give_back(block);
    // The mistake that shows, and is no finding: a read.
    assert_eq!(guarded.read(block), [0xFF; 64]);
    assert!(guarded.found().is_empty());
}

#[test]
fn a_right_program_has_no_finding_and_the_same_contents() {
    let guarded = guarded(Guard::all().delay(Some(3)).quarantine(MIB));
    let other = guarded.context.create_stream().unwrap();
    let values: Vec<f32> = (0..50_000).map(|value| value as f32).collect();
    for step in 0..200 {
        let length = 1 + (step * 997) % values.len();
        let buffer = Buffer::from_slice(&guarded.pool, &values[..length], &guarded.stream).unwrap();
        let large = guarded.pool.alloc_aligned(3 * MIB + step as u64, 4096, &guarded.stream).unwrap();
        assert_eq!(large.raw() % 4096, 0);
        guarded.write(large, 3 * MIB + step as u64, &guarded.stream);
        assert_eq!(guarded.pool.size_of(large).unwrap(), 3 * MIB + step as u64);
        other.wait(&guarded.stream.record().unwrap()).unwrap();
        guarded.pool.record_use(large, &other).unwrap();
        guarded.pool.free_block(large, &guarded.stream).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), values[..length]);
    }
    // The quarantine is as long as it was asked to be, and the blocks that wait.
    assert!(guarded.pool.reserved().high < 128 * MIB, "{}", guarded.pool.reserved().high);
    guarded.pool.check().unwrap();
    let (device, pool) = (guarded.device.clone(), guarded.pool.clone());
    assert!(guarded.found().is_empty());
    assert_eq!(pool.reserved().current, 0);
    drop((pool, device));
}

#[test]
fn quarantined_blocks_go_where_memory_is_short() {
    let device = HostDevice::new().unwrap();
    let context = Context::new(device);
    let guard = Guard::all().quarantine(1 << 40).only_count(true);
    let pool = Pool::builder(&context).hard_limit(64 * MIB).guard(guard).build().unwrap();
    let stream = context.create_stream().unwrap();
    for _ in 0..20 {
        let block = pool.alloc(20 * MIB, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
    }
    assert!(pool.guard_findings().is_empty());
}

#[test]
fn live_blocks_and_misuse_are_as_the_program_knows_them() {
    let device = HostDevice::new().unwrap();
    let context = Context::new(device);
    let builder = Pool::builder(&context).guard(Guard::all().only_count(true));
    let pool = builder.track(Tracking::all().no_dump()).build().unwrap();
    let stream = context.create_stream().unwrap();
    let [kept, gone] = [5000, 7000].map(|bytes| pool.alloc(bytes, &stream).unwrap());
    pool.free_block(gone, &stream).unwrap();
    let live = pool.live_blocks().unwrap();
    assert_eq!((live.len(), live[0].ptr, live[0].bytes), (1, kept, 5000));
    assert!(live[0].tracked.is_some());
    let inside = pool.free_block(kept.offset(8), &stream);
    assert!(matches!(inside, Err(Error::InteriorPointer { .. })), "{inside:?}");
    let shared = pool.share(kept, &stream).unwrap_err().to_string();
    assert!(shared.contains("its pool is guarded"), "{shared}");
    pool.free_block(kept, &stream).unwrap();
    assert!(pool.guard_findings().is_empty());
}

#[test]
fn what_pages_and_segments_hold_is_guarded_in_sleep_too() {
    let guarded = guarded(Guard::all());
    let block = guarded.make(3 * MIB);
    guarded.write(block.offset(3 * MIB), 1, &guarded.stream);
    guarded.pool.sleep(millpond::Keep::InPinnedMemory).unwrap();
    guarded.pool.wake().unwrap();
    guarded.give_back(block);
    assert_eq!(only(&guarded.found()).mistake, Mistake::Behind);
    let device = HostDevice::new().unwrap();
    let context = Context::new(device);
    let pool = context.pinned().unwrap().guard(Guard::all().only_count(true)).build().unwrap();
    assert_eq!(pool.device().properties().memory, MemoryKind::Pinned);
    let stream = context.create_stream().unwrap();
    let block = pool.alloc(100, &stream).unwrap();
    // SAFETY: the byte is the pool's; that is the mistake.
    unsafe { pool.device().memset(block.offset(100), 7, 1, stream.handle()) }.unwrap();
    pool.free_block(block, &stream).unwrap();
    pool.destroy().unwrap();
    assert_eq!(pool.guard_findings()[0].mistake, Mistake::Behind);
}

#[test]
fn a_sleep_without_bytes_is_no_mistake() {
    let guarded = guarded(Guard::all());
    let (small, large) = (guarded.make(1000), guarded.make(5 * MIB));
    guarded.write(small, 1000, &guarded.stream);
    let freed = guarded.make(2000);
    guarded.give_back(freed);
    guarded.stream.synchronize().unwrap();
    guarded.pool.sleep(millpond::Keep::Nothing).unwrap();
    // One is freed while the pool sleeps.
    guarded.give_back(large);
    guarded.pool.wake().unwrap();
    guarded.write(small, 1000, &guarded.stream);
    // From the wake on, it is watched again.
    let again = guarded.make(3000);
    guarded.write(again.offset(3000), 1, &guarded.stream);
    guarded.give_back(again);
    let other = guarded.make(100);
    guarded.pool.sleep(millpond::Keep::Nothing).unwrap();
    guarded.pool.wake().unwrap();
    guarded.give_back(small);
    guarded.write(DevicePtr::new(other.raw() - 1), 1, &guarded.stream);
    guarded.give_back(other);
    let found = guarded.found();
    assert_eq!(
        found.iter().map(|finding| finding.mistake).collect::<Vec<_>>(),
        [Mistake::Behind, Mistake::Before]
    );
}

#[test]
fn nothing_without_memory_is_looked_at_while_threads_free() {
    let Guarded { context, pool, .. } = guarded(Guard::all().quarantine(200_000));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                let stream = context.create_stream().unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    match pool.alloc(5000, &stream) {
                        Ok(ptr) => pool.free_block(ptr, &stream).unwrap(),
                        Err(error) => assert!(matches!(error, Error::Asleep { .. }), "{error}"),
                    }
                }
            });
        }
        for _ in 0..3000 {
            pool.sleep(millpond::Keep::InPinnedMemory).unwrap();
            // It looks at what was freed before.
            pool.trim_to(0).unwrap();
            pool.wake().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(pool.guard_findings().is_empty());
}

#[test]
fn a_sleep_does_not_hide_a_write_to_a_freed_block() {
    let guarded = guarded(Guard::all());
    let block = guarded.make(1000);
    guarded.give_back(block);
    guarded.stream.synchronize().unwrap();
    guarded.write(block.offset(10), 3, &guarded.stream);
    guarded.pool.sleep(millpond::Keep::Nothing).unwrap();
    guarded.pool.wake().unwrap();
    assert_eq!(only(&guarded.found()).mistake, Mistake::AfterFree);
}

/// Counts how often it is asked for an event.
#[derive(Debug)]
struct Asked(Arc<SimDevice>, AtomicU64);

// SAFETY: each call goes to the device below, and its answer is given back.
unsafe impl Forward for Asked {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    unsafe fn query_event(&self, event: EventHandle) -> DeviceResult<bool> {
        self.1.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.0.query_event(event) }
    }
}

#[test]
fn redzones_ask_for_the_first_of_many_pending_frees_only() {
    const PAIRS: u64 = 1000;
    let sim = SimDevice::new(SimOptions::default()).unwrap();
    let device = Arc::new(Asked(sim.clone(), AtomicU64::new(0)));
    let context = Context::new(device.clone());
    let pool = Pool::builder(&context).guard(Guard::none().redzones(true)).build().unwrap();
    let [busy, idle] = [(); 2].map(|()| context.create_stream().unwrap());
    sim.launch(busy.handle(), Duration::from_secs(1000)).unwrap();
    for _ in 0..PAIRS {
        for stream in [&busy, &idle] {
            let block = pool.alloc(600, stream).unwrap();
            pool.free_block(block, stream).unwrap();
        }
    }
    let asked = device.1.load(Ordering::Relaxed);
    assert!(asked < 20 * PAIRS, "{asked}");
    // What the stream without work freed has gone back meanwhile.
    assert!(pool.allocated().current < (PAIRS + 100) * 2048, "{}", pool.allocated().current);
}

#[test]
fn the_simulated_device_has_no_bytes_and_no_findings() {
    let (device, context, stream) = sim(1 << 30);
    let pool = Pool::builder(&context).guard(Guard::all()).build().unwrap();
    let block = pool.alloc(5000, &stream).unwrap();
    pool.free_block(block, &stream).unwrap();
    drop(pool);
    drop(device);
}

#[test]
fn findings_stand_in_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let guarded = guarded(Guard::all());
    _ = guarded.make(7000);
    guarded.pool.start_recording(path.clone()).unwrap();
    let block = guarded.make(5000);
    guarded.write(block.offset(5000), 1, &guarded.stream);
    guarded.give_back(block);
    guarded.stream.synchronize().unwrap();
    guarded.pool.stop_recording().unwrap();
    let mut chunks = Chunks::new(std::fs::File::open(path).unwrap()).unwrap();
    let (mut texts, mut live) = (Vec::new(), Vec::new());
    while let Some(payload) = chunks.next_chunk().unwrap() {
        for record in records(payload) {
            match record.unwrap() {
                Record::Message { text } => texts.push(text.to_owned()),
                Record::Live { size, .. } => live.push(size),
                _ => {}
            }
        }
    }
    assert_eq!(live, [7000], "as the program knows it");
    assert_eq!(texts.len(), 1);
    assert!(texts[0].contains("written behind a block of 5000 bytes"), "{texts:?}");
}

#[test]
fn a_finding_aborts_the_process_and_says_why() {
    let name = "guard::a_finding_aborts_the_process_and_says_why";
    let part = "MILLPOND_TEST_GUARD";
    if std::env::var_os(part).is_some() {
        let context = Context::host().unwrap();
        // By the environment.
        let pool = Pool::builder(&context).name("weights").build().unwrap();
        let stream = context.create_stream().unwrap();
        let block = pool.alloc(1000, &stream).unwrap();
        // SAFETY: the byte is the pool's; that is the mistake.
        unsafe { pool.device().memset(block.offset(1000), 0, 1, stream.handle()) }.unwrap();
        pool.free_block(block, &stream).unwrap();
        drop(pool);
        unreachable!("the guard aborts");
    }
    let ended = again(name).env(part, "1").env("MILLPOND_GUARD", "all").output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success());
    assert!(text.contains("millpond: guard: 1 byte was written behind a block of 1000 bytes"), "{text}");
    assert!(text.contains("guard.rs:"), "{text}");
}

#[test]
fn large_blocks_end_where_nothing_is_mapped() {
    let bytes = 3 * MIB + 700;
    let fenced = guarded(Guard::none().pages(true));
    let write = |at| {
        // SAFETY: the device says so where nothing is mapped. Else the byte is the pool's.
        unsafe { fenced.pool.device().memset(at, 7, 1, fenced.stream.handle()) }
    };
    let block = fenced.make(bytes);
    write(block).unwrap();
    write(block.offset(bytes - 1)).unwrap();
    write(block.offset(bytes + 512)).unwrap_err();
    fenced.give_back(block);
    fenced.stream.synchronize().unwrap();
    write(block).unwrap_err();
    let guarded = guarded(Guard::all().pages(true));
    for _ in 0..3 {
        let blocks = [bytes, 5000, MIB, 2 * MIB].map(|bytes| guarded.make(bytes));
        guarded.write(blocks[0], bytes, &guarded.stream);
        assert_eq!(guarded.pool.live_blocks().unwrap().len(), 4);
        blocks.iter().for_each(|block| guarded.give_back(*block));
        guarded.pool.check().unwrap();
    }
    // Where its alignment leaves more room behind it than a redzone.
    let aligned = guarded.pool.alloc_aligned(bytes, MIB, &guarded.stream).unwrap();
    assert_eq!(aligned.raw() % MIB, 0);
    guarded.write(aligned, bytes, &guarded.stream);
    guarded.give_back(aligned);
    // In the bytes between it and its page's end.
    let block = guarded.make(bytes);
    guarded.write(block.offset(bytes), 2, &guarded.stream);
    guarded.give_back(block);
    let pool = guarded.pool.clone();
    assert_eq!(only(&guarded.found()).mistake, Mistake::Behind);
    assert_eq!(pool.reserved().current, 0);
}

/// What a random program does next.
#[derive(Debug, Clone, Copy)]
enum Act {
    Alloc {
        bytes: u64,
        stream: usize,
    },
    /// By work on a stream that is ordered after the block's own, and noted.
    Write {
        block: usize,
        stream: usize,
    },
    Free {
        block: usize,
    },
    Synchronize {
        stream: usize,
    },
    Trim,
}

fn act() -> impl Strategy<Value = Act> {
    let bytes = prop_oneof![1..5000_u64, 1..4 * MIB];
    prop_oneof![
        4 => (bytes, 0..3_usize).prop_map(|(bytes, stream)| Act::Alloc { bytes, stream }),
        4 => (any::<usize>(), 0..3_usize).prop_map(|(block, stream)| Act::Write { block, stream }),
        3 => any::<usize>().prop_map(|block| Act::Free { block }),
        1 => (0..3_usize).prop_map(|stream| Act::Synchronize { stream }),
        1 => Just(Act::Trim),
    ]
}

/// A mistake, and at which step.
#[derive(Debug, Clone, Copy)]
struct Planted {
    step: usize,
    mistake: Mistake,
    /// Bytes outside of the block, or how far in a freed one.
    at: u64,
}

fn planted() -> impl Strategy<Value = Option<Planted>> {
    let mistake = prop_oneof![Just(Mistake::Before), Just(Mistake::Behind), Just(Mistake::AfterFree)];
    let planted = (0..40_usize, mistake, 0..400_u64);
    proptest::option::of(planted.prop_map(|(step, mistake, at)| Planted { step, mistake, at }))
}

/// Does what the program says, and at its end what is left to do. Returns the mistake that was made: with its block and offset.
fn play(guarded: &Guarded, acts: &[Act], planted: Option<Planted>) -> Option<(Mistake, DevicePtr, i64)> {
    let streams = [(); 3].map(|()| guarded.context.create_stream().unwrap());
    let mut live: Vec<(DevicePtr, u64, usize)> = Vec::new();
    let mut made = None;
    let free = |(block, bytes, stream): (DevicePtr, u64, usize), plants: bool| {
        let at = planted.map_or(0, |planted| planted.at);
        let mistake = planted.filter(|_| plants).map(|planted| planted.mistake);
        let outside = |offset: i64| {
            let wrong = DevicePtr::new(block.raw().wrapping_add_signed(offset));
            guarded.write(wrong, 1, &streams[stream]);
            offset
        };
        let before = match mistake {
            Some(Mistake::Before) => Some(outside(-1 - at as i64)),
            Some(Mistake::Behind) => Some(outside((bytes + at) as i64)),
            _ => None,
        };
        guarded.pool.free_block(block, &streams[stream]).unwrap();
        let after = (mistake == Some(Mistake::AfterFree)).then(|| outside((at % bytes) as i64));
        mistake.zip(before.or(after)).map(|(mistake, offset)| (mistake, block, offset))
    };
    for (step, act) in acts.iter().enumerate() {
        let plants = made.is_none() && planted.is_some_and(|planted| planted.step <= step);
        match *act {
            Act::Alloc { bytes, stream } => {
                let block = guarded.pool.alloc(bytes, &streams[stream]).unwrap();
                guarded.write(block, bytes, &streams[stream]);
                live.push((block, bytes, stream));
            }
            Act::Write { block, stream } if !live.is_empty() => {
                let (block, bytes, own) = live[block % live.len()];
                streams[stream].wait(&streams[own].record().unwrap()).unwrap();
                guarded.write(block, bytes, &streams[stream]);
                guarded.pool.record_use(block, &streams[stream]).unwrap();
            }
            Act::Free { block } if !live.is_empty() => {
                let at = block % live.len();
                made = made.or(free(live.swap_remove(at), plants));
            }
            Act::Synchronize { stream } => streams[stream].synchronize().unwrap(),
            Act::Trim => drop(guarded.pool.trim_to(0).unwrap()),
            Act::Write { .. } | Act::Free { .. } => {}
        }
    }
    for block in live {
        let plants = made.is_none() && planted.is_some();
        made = made.or(free(block, plants));
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    guarded.pool.check().unwrap();
    made
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn just_what_is_planted_is_found(
        acts in proptest::collection::vec(act(), 1..60),
        planted in planted(),
        seed in proptest::option::of(any::<u64>()),
        nan in any::<bool>(),
    ) {
        let guarded = guarded(Guard::all().delay(seed).nan(nan));
        let made = play(&guarded, &acts, planted);
        let pool = guarded.pool.clone();
        let found: Vec<_> =
            guarded.found().iter().map(|found| (found.mistake, found.ptr, found.offset)).collect();
        prop_assert_eq!(found, Vec::from_iter(made));
        prop_assert_eq!(pool.reserved().current, 0);
    }
}
