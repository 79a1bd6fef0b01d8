//! Recordings of real pools, read back as traces; and what is said of those that are damaged.

use std::path::Path;
use std::sync::mpsc;

use millpond::device::DevicePtr;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::record::format::{MAGIC, Record};
use millpond::{Context, Pool, Stream, record};
use millpond_replay::evictions::{AsItRan, MovedTag};
use millpond_replay::offload::Offload;
use millpond_replay::read::{Limits, read, read_from};
use millpond_replay::replay::{FreeWhen, Program};
use millpond_replay::trace::{OpKind, Trace};

use crate::shared::only;

fn context() -> Context {
    Context::new(SimDevice::new(SimOptions::default()).unwrap())
}

fn free(pool: &Pool, block: DevicePtr, stream: &Stream) {
    // SAFETY: the tests free blocks of their own, and give them no work.
    unsafe { pool.free(block, stream) }.unwrap();
}

/// Allocations, and frees, in the trace's order: the sizes, and whether they are frees.
fn steps(trace: &Trace) -> Vec<(u64, bool)> {
    let ops = trace.ops.iter().filter(|op| op.kind != OpKind::FreeCompleted);
    ops.map(|op| (trace.blocks[op.block as usize].size, op.kind == OpKind::FreeRequested)).collect()
}

#[test]
fn what_a_pool_did_comes_back_as_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let context = context();
    let [one, two] = [(); 2].map(|()| context.create_stream().unwrap());
    let pool = Pool::builder(&context).hard_limit(64 << 20).record(path.as_path()).build().unwrap();
    let a = {
        let _outer = record::tag("step");
        let _inner = record::tag("forward");
        pool.alloc(3 << 20, &one).unwrap()
    };
    let b = pool.alloc(700, &two).unwrap();
    pool.record_use(a, &two).unwrap();
    free(&pool, a, &one);
    // What a request that fails takes and gives back is between two events.
    let high = pool.reserved().high;
    assert!(pool.alloc(1 << 30, &two).is_err());
    free(&pool, b, &two);
    pool.stop_recording().unwrap();

    let trace = only(&path);
    assert_eq!(
        steps(&trace),
        [(3 << 20, false), (700, false), (3 << 20, true), (1 << 30, false), (1 << 30, true), (700, true)]
    );
    assert_eq!(trace.streams, [one.id().0, two.id().0]);
    assert_eq!((trace.blocks[0].stream, trace.blocks[1].stream), (0, 1));
    let tags: Vec<_> = trace.stacks.frames(trace.blocks[0].stack).map(|frame| &*frame.name).collect();
    assert_eq!(tags, ["forward", "step"]);
    assert_eq!(trace.stacks.frames(trace.blocks[1].stack).count(), 0);
    assert_eq!(trace.recorded_ooms.len(), 1);
    assert_eq!((trace.recorded_ooms[0].size, trace.recorded_ooms[0].before_op), (1 << 30, 4));
    assert_eq!(trace.recorded_reserved, Some(high));
    assert!(trace.live_before.is_empty() && trace.lost_frees == 0);
    assert!(
        trace.remarks.len() == 1 && trace.remarks[0].starts_with("the program was told: out of memory in")
    );
}

#[test]
fn a_tag_that_is_evicted_is_known_and_can_be_offloaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let context = context();
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).record(path.as_path()).build().unwrap();
    let [weights, more] = ["weights", "weights.2"].map(|tag| pool.tagged(tag).unwrap());
    let kept = {
        let _inner = record::tag("layer");
        weights.alloc(5 << 20, &stream).unwrap()
    };
    let other = more.alloc(3 << 20, &stream).unwrap();
    for _ in 0..3 {
        // It is used, and other memory then is.
        let scratch = weights.alloc(1 << 20, &stream).unwrap();
        free(&weights, scratch, &stream);
        weights.evict(&stream).unwrap();
        more.evict(&stream).unwrap();
        let activations = pool.alloc(16 << 20, &stream).unwrap();
        free(&pool, activations, &stream);
        weights.restore(&stream).unwrap();
        more.restore(&stream).unwrap();
    }
    free(&weights, kept, &stream);
    free(&more, other, &stream);
    pool.stop_recording().unwrap();
    for tag in [weights, more] {
        tag.stop_recording().unwrap();
    }

    let trace = only(&path);
    let tags: Vec<_> = trace.stacks.frames(trace.blocks[0].stack).map(|frame| &*frame.name).collect();
    assert_eq!(tags, ["layer", "weights"]);
    let program = Program::new(&trace, FreeWhen::Completed);
    let found = Offload::of(&trace, &program, "weights").unwrap();
    assert_eq!((found.bytes, found.peak_before, found.peak_requested), (9 << 20, 24 << 20, 16 << 20));
    assert_eq!((found.times, found.bytes_a_time), (3, 16 << 20));
}

/// A job whose optimizer is evicted while activations have its memory, three times; recorded from its second step on if `late`.
fn evicting(path: &Path, late: bool) -> Trace {
    let context = context();
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).name("job").build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let record = |from: bool| {
        if from == late {
            [&pool, &tag].iter().for_each(|pool| pool.start_recording(path).unwrap());
        }
    };
    record(false);
    let state = [9, 3].map(|mib| tag.alloc(mib << 20, &stream).unwrap());
    for step in 0..3 {
        assert_eq!(tag.evict(&stream), Ok(12 << 20));
        if step == 0 {
            record(true);
        }
        let activations = pool.alloc(20 << 20, &stream).unwrap();
        free(&pool, activations, &stream);
        if step == 2 {
            free(&tag, state[1], &stream);
        }
        tag.restore_ahead().unwrap();
        tag.restore(&stream).unwrap();
    }
    tag.evict(&stream).unwrap();
    [&pool, &tag].iter().for_each(|pool| drop(pool.stop_recording().unwrap()));
    free(&tag, state[0], &stream);
    only(path)
}

#[test]
fn what_is_evicted_is_away_in_the_job_as_it_ran() {
    let folder = tempfile::tempdir().unwrap();
    for late in [false, true] {
        let trace = evicting(&folder.path().join(format!("{late}.mprec")), late);
        // The two blocks of the optimizer, and the activations; and no more was held than at once.
        assert_eq!((trace.blocks.len(), trace.live_before.len()), (5, if late { 2 } else { 0 }));
        assert_eq!(trace.recorded_reserved, Some(20 << 20));
        assert_eq!(Program::new(&trace, FreeWhen::Completed).peak_requested().0, 32 << 20);
        let AsItRan { trace: ran, tags } = AsItRan::of(&trace).unwrap();
        let [MovedTag { tag, left, bytes_left, came_back, bytes_back, .. }] = &tags[..] else {
            panic!("{tags:?}")
        };
        assert_eq!((tag.as_str(), *left, *bytes_left), ("optimizer", 4, 45 << 20));
        // One block was freed while it was away.
        assert_eq!((*came_back, *bytes_back), (3, 33 << 20));
        let program = Program::new(&ran, FreeWhen::Completed);
        assert_eq!(program.peak_requested().0, 20 << 20);
        assert_eq!(program.steps.iter().filter(|step| step.alloc).count(), 5 + 5);
        assert_eq!(ran.recorded_reserved, trace.recorded_reserved);
    }
}

#[test]
fn blocks_live_before_a_recording_are_so_in_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let context = context();
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).build().unwrap();
    let [freed, kept] = [10, 20].map(|bytes| pool.alloc(bytes, &stream).unwrap());
    pool.start_recording(path.as_path()).unwrap();
    free(&pool, freed, &stream);
    let later = pool.alloc(30, &stream).unwrap();
    pool.stop_recording().unwrap();
    free(&pool, later, &stream);
    free(&pool, kept, &stream);

    let trace = only(&path);
    let mut before: Vec<_> =
        trace.live_before.iter().map(|&block| trace.blocks[block as usize].size).collect();
    before.sort_unstable();
    assert_eq!(before, [10, 20]);
    assert_eq!(steps(&trace), [(10, true), (30, false)]);
    assert_eq!(trace.streams, [stream.id().0]);
}

#[test]
fn threads_that_hand_over_blocks_are_put_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let context = context();
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).record(path.as_path()).build().unwrap();
    // What one thread frees, the others get at once: addresses have many lives on many threads.
    const THREADS: usize = 4;
    const PAIRS: usize = 20_000;
    std::thread::scope(|scope| {
        for _ in 0..THREADS / 2 {
            let (give, take) = mpsc::sync_channel(8);
            let (pool, stream) = (&pool, &stream);
            scope.spawn(move || {
                for size in 0..PAIRS as u64 {
                    give.send(pool.alloc(1 + size % 5000, stream).unwrap()).unwrap();
                }
            });
            scope.spawn(move || take.into_iter().for_each(|block| free(pool, block, stream)));
        }
    });
    pool.stop_recording().unwrap();

    let trace = only(&path);
    assert_eq!(trace.blocks.len(), THREADS / 2 * PAIRS);
    assert_eq!((trace.live_before.len(), trace.lost_frees), (0, 0));
    assert_eq!(trace.ops.len(), 3 * trace.blocks.len());
}

/// A program's events, of which blocks of 5,000 bytes stay: recorded whole, or in parts that rotate.
fn recorded(options: record::Options, pairs: u64) -> record::Status {
    let context = context();
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).record(options).build().unwrap();
    let _tag = record::tag("weights");
    let kept: Vec<_> = (0..100).map(|_| pool.alloc(5000, &stream).unwrap()).collect();
    let mut held = std::collections::VecDeque::new();
    for step in 0..pairs {
        held.push_back(pool.alloc(1000 + step, &stream).unwrap());
        if held.len() > 10 {
            free(&pool, held.pop_front().unwrap(), &stream);
        }
    }
    held.into_iter().chain(kept).for_each(|block| free(&pool, block, &stream));
    pool.stop_recording().unwrap().unwrap()
}

#[test]
fn each_part_of_a_recording_that_rotates_is_read_alone() {
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str| folder.path().join(name);
    recorded(record::Options::new(named("whole.mprec")), 50_000);
    let whole = only(&named("whole.mprec"));
    let options = record::Options::new(named("run.mprec")).most_bytes(400_000).rotate(true);
    let status = recorded(options, 50_000);
    assert_eq!((status.dropped, status.events), (0, record_events(&named("whole.mprec"))));
    let bytes = |name: &str| std::fs::metadata(named(name)).unwrap().len();
    assert!(bytes("run.mprec") <= 500_000 && bytes("run.mprec.old") <= 500_000);

    for (name, is_last) in [("run.mprec.old", false), ("run.mprec", true)] {
        let part = only(&named(name));
        assert!(
            part.lacks.as_ref().unwrap().starts_with("the recording rotates, and this is its part "),
            "{name}"
        );
        assert!(part.remarks.is_empty() && part.lost_frees == 0, "{name}: {:?}", part.remarks);
        // What lived at its start, and what came since, is what the whole recording has.
        let (steps, all) = (steps(&part), steps(&whole));
        let at = if is_last {
            all.len() - steps.len()
        } else {
            all.windows(9).position(|some| some == &steps[..9]).unwrap()
        };
        assert_eq!(steps, all[at..at + steps.len()], "{name}");
        assert_eq!(live_at_start(&part), live_after(&all[..at]), "{name}");
        let of_weights = part.live_before.iter().map(|&block| part.blocks[block as usize]);
        assert!(
            of_weights
                .clone()
                .all(|block| part.stacks.frames(block.stack).any(|frame| &*frame.name == "weights"))
        );
        assert!(part.recorded_reserved.is_some_and(|held| held > 500_000), "{:?}", part.recorded_reserved);
    }
    // What is in neither is said.
    let [older, last] = ["run.mprec.old", "run.mprec"].map(|name| only(&named(name)).lacks.unwrap());
    assert!(status.rotated > 0 && older.contains(&format!("with {} events", status.rotated)), "{older}");
    assert_ne!(older, last);
}

/// Events of a recording, as its pool counts them.
fn record_events(path: &std::path::Path) -> u64 {
    let mut chunks = record::Chunks::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut events = 0;
    while let Some(payload) = chunks.next_chunk().unwrap() {
        let is_event = |record: &Record<'_>| {
            matches!(
                record,
                Record::Alloc { .. } | Record::Free { .. } | Record::Reserved { .. } | Record::PoolEnd { .. }
            )
        };
        events += record::records(payload).flatten().filter(is_event).count() as u64;
    }
    events
}

fn live_at_start(trace: &Trace) -> Vec<u64> {
    let mut sizes: Vec<_> =
        trace.live_before.iter().map(|&block| trace.blocks[block as usize].size).collect();
    sizes.sort_unstable();
    sizes
}

/// The sizes of the blocks that live after these steps.
fn live_after(steps: &[(u64, bool)]) -> Vec<u64> {
    let mut live: Vec<u64> = Vec::new();
    for &(size, is_free) in steps {
        match live.iter().position(|&other| other == size).filter(|_| is_free) {
            Some(at) => drop(live.remove(at)),
            None => live.push(size),
        }
    }
    live.sort_unstable();
    live
}

#[test]
fn parts_of_threads_that_hand_over_blocks_lose_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let context = context();
    let stream = context.create_stream().unwrap();
    let options = record::Options::new(&*path).most_bytes(200_000).rotate(true);
    let pool = Pool::builder(&context).record(options).build().unwrap();
    let (give, take) = mpsc::sync_channel(64);
    std::thread::scope(|scope| {
        let (pool, stream) = (&pool, &stream);
        scope.spawn(move || take.iter().for_each(|block| free(pool, block, stream)));
        for step in 0..60_000 {
            give.send(pool.alloc(512 + step, stream).unwrap()).unwrap();
        }
        drop(give);
    });
    let status = pool.stop_recording().unwrap().unwrap();
    assert!(status.rotated > 0 && status.dropped == 0, "{status:?}");
    for name in ["run.mprec.old", "run.mprec"] {
        let part = only(&folder.path().join(name));
        // Each block has a size of its own: it is allocated once, and freed once.
        let (allocated, freed): (Vec<_>, Vec<_>) =
            steps(&part).into_iter().partition(|&(_, is_free)| !is_free);
        let mut known: Vec<_> =
            live_at_start(&part).into_iter().chain(allocated.iter().map(|&(size, _)| size)).collect();
        known.sort_unstable();
        assert!(known.is_sorted_by(|one, next| one < next), "{name}: a block twice");
        assert!(freed.iter().all(|(size, _)| known.binary_search(size).is_ok()), "{name}");
        assert!(part.live_before.len() <= 66 && part.lost_frees == 0, "{name}: {}", part.live_before.len());
    }
    // The last of all that lives is freed.
    let last = only(&path);
    assert_eq!(steps(&last).iter().filter(|(_, is_free)| *is_free).count(), last.blocks.len());
}

#[test]
fn pools_of_two_devices_are_two_traces_of_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let contexts = [context(), context()];
    let pools: Vec<_> = contexts
        .iter()
        .map(|context| Pool::builder(context).record(path.as_path()).build().unwrap())
        .collect();
    for (count, (context, pool)) in contexts.iter().zip(&pools).enumerate() {
        let stream = context.create_stream().unwrap();
        for _ in 0..=count {
            _ = pool.alloc(100, &stream).unwrap();
        }
    }
    pools.iter().for_each(|pool| drop(pool.stop_recording().unwrap()));
    let traces = read(&path, Limits::default()).unwrap();
    assert_eq!(traces.iter().map(|trace| trace.blocks.len()).collect::<Vec<_>>(), [1, 2]);
}

/// A small recording's bytes.
fn small() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let context = context();
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).record(path.as_path()).build().unwrap();
    for round in 0..3 {
        let _tag = record::tag("small");
        let block = pool.alloc(1000 + round, &stream).unwrap();
        // Each in a chunk of its own.
        _ = pool.recording();
        free(&pool, block, &stream);
        std::thread::sleep(std::time::Duration::from_millis(120));
    }
    pool.stop_recording().unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn a_cut_file_is_read_to_its_last_whole_chunk() {
    let whole = small();
    let all = read_from(&mut &whole[..], "whole", Limits::default()).unwrap().remove(0);
    assert_eq!(all.remarks, [""; 0]);
    let mut lengths = std::collections::BTreeSet::new();
    for cut in 0..whole.len() {
        match read_from(&mut &whole[..cut], "cut", Limits::default()) {
            Ok(traces) => {
                let trace = &traces[0];
                assert_eq!(trace.ops, all.ops[..trace.ops.len()], "{cut}");
                let said = [trace.lacks.as_slice(), trace.remarks.as_slice()].concat();
                assert_eq!(said.len(), 1, "{cut}: {said:?}");
                // A process that is killed writes whole chunks; of a chunk that is cut, nobody knows how much followed.
                assert_eq!(trace.lacks.is_some(), said[0].contains("what follows is left out"), "{said:?}");
                lengths.insert(trace.ops.len());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(lengths.len() > 1, "{lengths:?}");
}

#[test]
fn a_damaged_recording_lacks_what_follows() {
    let mut file = small();
    // In the last chunk.
    let late = file.len() - 5;
    file[late] ^= 1;
    let trace = read_from(&mut &file[..], "damaged", Limits::default()).unwrap().remove(0);
    let lacks = trace.lacks.unwrap();
    assert!(lacks.contains("a damaged chunk") && lacks.contains("what follows is left out"), "{lacks}");
}

/// A recording with one chunk of this payload.
fn with_payload(payload: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend(1u32.to_le_bytes());
    let length = (payload.len() as u32).to_le_bytes();
    let mut sum = crc32fast::Hasher::new();
    sum.update(&length);
    sum.update(payload);
    file.extend(length);
    file.extend(sum.finalize().to_le_bytes());
    file.extend(payload);
    file
}

fn with_records(records: &[Record<'_>]) -> Vec<u8> {
    with_payload(&records.iter().flat_map(|record| postcard::to_stdvec(record).unwrap()).collect::<Vec<_>>())
}

fn said(file: &[u8]) -> String {
    read_from(&mut &*file, "x", Limits::default()).unwrap_err().to_string()
}

#[test]
fn a_senseless_file_is_refused_with_the_reason() {
    const POOL: Record<'_> = Record::Pool { pool: 1, name: "p", device: "d", ordinal: 0, device_key: 1 };
    const AT: Record<'_> = Record::At { pool: 1, stream: 1 };
    const ALLOC: Record<'_> = Record::Alloc { after: 1, address: 512, size: 1 };
    assert!(said(&with_records(&[ALLOC])).contains("an event of a pool that is not defined"));
    let huge = Record::Alloc { after: u64::MAX, address: i64::MIN, size: u64::MAX };
    assert!(said(&with_records(&[POOL, AT, huge])).contains("beyond what any device has"));
    let under = |tag, site| with_records(&[POOL, AT, Record::Under { tag, site }, ALLOC]);
    assert!(said(&under(7, 0)).contains("a tag that is not defined"));
    assert!(said(&under(0, 7)).contains("a call site that is not defined"));
    let inside_itself = Record::Tag { tag: 1, inside: 1, text: "" };
    assert!(said(&with_records(&[inside_itself])).contains("a tag inside one that is not defined"));
    let far = Record::Pool { pool: 1, name: "p", device: "d", ordinal: 1 << 30, device_key: 1 };
    assert!(said(&with_records(&[far, AT, ALLOC])).contains("device 1073741824"));
    let last = Record::Pool { pool: 1, name: "p", device: "d", ordinal: u32::MAX, device_key: 1 };
    assert!(said(&with_records(&[last, AT, ALLOC])).contains("device 4294967295"));
    let many: Vec<_> = (0..300)
        .map(|key| Record::Pool { pool: key, name: "p", device: "d", ordinal: 0, device_key: key.into() })
        .collect();
    assert!(said(&with_records(&many)).contains("more devices than any machine has"));
    assert!(said(&with_payload(&[250])).contains("a record that cannot be read"));
    // A list that claims 2^32 frames.
    assert!(said(&with_payload(&[4, 1, 0xff, 0xff, 0xff, 0xff, 0x0f])).contains("cannot be read"));
    // Nothing is said of PyTorch where the file is none of its.
    let mut torn = with_records(&[POOL, AT, ALLOC]);
    torn.pop();
    assert!(
        said(&torn).contains("holds no allocation: byte 12: the file ends inside a chunk"),
        "{}",
        said(&torn)
    );
    assert_eq!(said(&with_records(&[POOL, Record::End])), "holds no allocation: record for longer");
    let mut newer = with_records(&[POOL]);
    newer[8] = 5;
    assert!(
        said(&newer).contains("of version 5, but this millpond reads up to version 4"),
        "{}",
        said(&newer)
    );
    newer[8] = 1;
    assert!(said(&newer).contains("holds no allocation"), "an older one is read: {}", said(&newer));
}

#[test]
fn dropped_events_are_reported_be_it_one_or_many() {
    const POOL: Record<'_> = Record::Pool { pool: 1, name: "p", device: "d", ordinal: 0, device_key: 1 };
    const AT: Record<'_> = Record::At { pool: 1, stream: 1 };
    const ALLOC: Record<'_> = Record::Alloc { after: 1, address: 512, size: 1 };
    let lacks = |events| {
        let file = with_records(&[POOL, AT, ALLOC, Record::Dropped { events }, Record::End]);
        read_from(&mut &file[..], "x", Limits::default()).unwrap().remove(0).lacks.unwrap()
    };
    let rest = "dropped while recording: more waited for the disk than may";
    assert_eq!(lacks(1), format!("1 event was {rest}"));
    assert_eq!(lacks(2), format!("2 events were {rest}"));
}

#[test]
fn any_checked_payload_is_a_trace_or_an_error() {
    let whole = small();
    let payload = &whole[20..];
    for at in 0..payload.len().min(2000) {
        for change in [1, 0x80, 0xff] {
            let mut changed = payload.to_vec();
            changed[at] ^= change;
            let _ = read_from(&mut &with_payload(&changed)[..], "changed", Limits::default());
        }
    }
    proptest::proptest!(|(payload: Vec<u8>)| {
        let _ = read_from(&mut &with_payload(&payload)[..], "random", Limits::default());
    });
}

#[test]
fn recording_begun_amid_threads_work_loses_no_block() {
    let folder = tempfile::tempdir().unwrap();
    let context = context();
    let pool = Pool::builder(&context).build().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let stream = context.create_stream().unwrap();
                let mut live = Vec::new();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    live.push(pool.alloc(4096, &stream).unwrap());
                    if live.len() > 50 {
                        live.drain(..25).for_each(|block| free(&pool, block, &stream));
                    }
                }
                live.into_iter().for_each(|block| free(&pool, block, &stream));
            });
        }
        for round in 0..20 {
            let path = folder.path().join(format!("{round}.mprec"));
            pool.start_recording(path.as_path()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
            pool.stop_recording().unwrap();
            let trace = only(&path);
            assert_eq!(trace.lost_frees, 0, "round {round}");
            // At most what both threads ever hold, and one that each is just freeing.
            assert!(trace.live_before.len() <= 2 * 52, "round {round}: {}", trace.live_before.len());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
