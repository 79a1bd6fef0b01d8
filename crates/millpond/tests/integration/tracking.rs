//! Who holds memory: what is known of live blocks, what a pool says at its end, and what it dumps when memory runs out.
//! That a dump comes back as a trace is tested in crates/replay/tests/dumps.rs.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use millpond::bindings::{SourceFrame, called_from};
use millpond::device::DevicePtr;
use millpond::device::sim::SimOptions;
use millpond::record::format::Record;
use millpond::record::{Chunks, LiveBlock, Tracking, holders, records, tag};
use millpond::{Context, Error, Pool, Stream};

use crate::processes::again;
use crate::shared::{Freeing, KIB, MIB, sim, sim_with};

fn pool(tracking: Tracking) -> (Pool, Stream) {
    let (_, context, stream) = sim_with(SimOptions::default());
    (Pool::builder(&context).name("weights").track(tracking).build().unwrap(), stream)
}

#[inline(never)]
fn make(pool: &Pool, bytes: u64, stream: &Stream) -> DevicePtr {
    std::hint::black_box(pool.alloc(bytes, stream).unwrap())
}

fn tracked(pool: &Pool) -> Vec<LiveBlock> {
    let blocks = pool.live_blocks().unwrap();
    blocks.into_iter().filter(|block| block.tracked.is_some()).collect()
}

#[test]
fn live_blocks_name_who_allocated_them() {
    let (pool, stream) = pool(Tracking::all().no_dump());
    let gone = make(&pool, 7000, &stream);
    let kept = {
        let _step = tag("step");
        let _cache = tag("cache");
        make(&pool, 5000, &stream)
    };
    pool.free_block(gone, &stream).unwrap();
    let blocks = pool.live_blocks().unwrap();
    assert_eq!(blocks.len(), 1);
    let LiveBlock { ptr, bytes, tracked: Some(tracked), .. } = &blocks[0] else { panic!("{blocks:?}") };
    assert_eq!((*ptr, *bytes, tracked.stream), (kept, 5000, stream.id().0));
    assert_eq!(tracked.tag().as_deref(), Some("step/cache"));
    let stack = tracked.stack();
    assert!(stack[0].name.ends_with("make") && stack[0].file.ends_with("tracking.rs"), "{stack:?}");
    assert!(tracked.age < Duration::from_secs(60) && tracked.blocks == 1.0);
    pool.free_block(kept, &stream).unwrap();
    assert!(pool.live_blocks().unwrap().is_empty());
}

#[test]
fn lines_of_an_interpreted_program_are_the_call_stack() {
    let (pool, stream) = pool(Tracking::all().no_dump());
    let block = {
        let _from = called_from(|| vec![SourceFrame::new("step", "train.py", 7)]);
        make(&pool, 5000, &stream)
    };
    let stack = tracked(&pool)[0].tracked.as_ref().unwrap().stack();
    assert_eq!(stack.iter().map(ToString::to_string).collect::<Vec<_>>(), ["step (train.py:7)"]);
    pool.free_block(block, &stream).unwrap();
}

#[test]
fn frees_that_fail_forget_no_block() {
    let (pool, stream) = pool(Tracking::all().no_dump());
    let block = make(&pool, 5000, &stream);
    assert!(pool.free_block(block.offset(512), &stream).is_err());
    assert_eq!(tracked(&pool).len(), 1);
    pool.free_block(block, &stream).unwrap();
    assert!(pool.free_block(block, &stream).is_err());
    let again = make(&pool, 5000, &stream);
    assert_eq!((again, tracked(&pool).len()), (block, 1));
    pool.free_block(again, &stream).unwrap();
}

#[test]
fn samples_estimate_what_is_live_by_call_stack() {
    let (pool, stream) = pool(Tracking::sampled().every(MIB).no_dump());
    let small: Vec<_> = (0..16_000).map(|_| make(&pool, 64 * KIB, &stream)).collect();
    let large: Vec<_> = (0..10).map(|_| pool.alloc(40 * MIB, &stream).unwrap()).collect();
    let blocks = pool.live_blocks().unwrap();
    assert_eq!(blocks.len(), small.len() + large.len());
    let holders = holders(&blocks);
    assert_eq!(holders.len(), 2);
    let of = |name: &str| holders.iter().find(|holder| holder.stack[0].name.ends_with(name)).unwrap();
    // 1,000 MiB in about 1,000 samples, whose standard deviation is 3 %.
    let estimated = of("make").bytes / MIB;
    assert!((700..1300).contains(&estimated), "{estimated} MiB");
    assert!(of("make").blocks.abs_diff(16_000) < 5_000);
    let other = holders.iter().find(|holder| !holder.stack[0].name.ends_with("make")).unwrap();
    assert_eq!((other.bytes, other.blocks), (400 * MIB, 10), "each of 40 intervals");
    small.into_iter().chain(large).for_each(|block| pool.free_block(block, &stream).unwrap());
    assert!(pool.live_blocks().unwrap().is_empty());
}

#[test]
fn blocks_that_pass_between_threads_are_forgotten_when_freed() {
    let (pool, stream) = pool(Tracking::all().no_dump());
    std::thread::scope(|scope| {
        let (send, blocks) = std::sync::mpsc::channel();
        let (pool, stream) = (&pool, &stream);
        for _ in 0..3 {
            let send = send.clone();
            scope.spawn(move || (0..2_000).for_each(|_| send.send(make(pool, 4096, stream)).unwrap()));
        }
        drop(send);
        scope.spawn(move || blocks.into_iter().for_each(|block| pool.free_block(block, stream).unwrap()));
    });
    assert!(pool.live_blocks().unwrap().is_empty());
    let live = make(&pool, 4096, &stream);
    assert_eq!(tracked(&pool).len(), 1);
    pool.free_block(live, &stream).unwrap();
}

#[test]
fn tracking_begins_and_ends_at_run_time() {
    let (_, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let before = make(&pool, 100, &stream);
    pool.start_tracking(Tracking::all().no_dump()).unwrap();
    let during = make(&pool, 200, &stream);
    assert_eq!((tracked(&pool).len(), pool.live_blocks().unwrap().len()), (1, 2));
    assert!(holders(&pool.live_blocks().unwrap()).iter().all(|holder| holder.bytes == 200));
    pool.stop_tracking().unwrap();
    assert!(tracked(&pool).is_empty());
    [before, during].into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
    assert!(pool.live_blocks().unwrap().is_empty());
}

#[test]
fn a_pool_is_tracked_and_recorded_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let (pool, stream) = pool(Tracking::all().no_dump());
    pool.start_recording(path.as_path()).unwrap();
    let block = make(&pool, 100, &stream);
    assert_eq!(pool.stop_recording().unwrap().unwrap().events, 4, "reserved twice, the block, the end");
    assert_eq!(tracked(&pool).len(), 1, "it is tracked still");
    pool.free_block(block, &stream).unwrap();
    assert!(tracked(&pool).is_empty());
}

// ---- leaks ---------------------------------------------------------------------------------------

fn in_another_process(what: &str, variables: &[(&str, &str)]) -> Output {
    let mut program = again("as_a_tracked_process");
    program.env("TRACKING_TEST", what).envs(variables.iter().copied()).output().unwrap()
}

#[test]
#[ignore = "what other tests run in a process of its own"]
fn as_a_tracked_process() {
    let Ok(what) = std::env::var("TRACKING_TEST") else { return };
    let (_, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).name("weights").build().unwrap();
    let _leaked = {
        let _tag = tag("cache");
        [make(&pool, MIB, &stream), make(&pool, MIB, &stream)]
    };
    match what.as_str() {
        "drops" => drop(pool),
        "frees" => {
            _leaked.into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
            drop(pool);
        }
        "exits" => {
            std::mem::forget(pool);
            std::process::exit(0);
        }
        "forks" => {
            // SAFETY: the child does nothing but end, with the handlers that it has of its parent.
            let child = unsafe { libc::fork() };
            if child == 0 {
                assert!(pool.live_blocks().is_err() && pool.stop_tracking().is_err());
                std::mem::forget(pool);
                std::process::exit(0);
            }
            let mut status = 1;
            // SAFETY: the child of above, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child's");
            drop(pool);
        }
        "runs out" => {
            assert!(matches!(pool.alloc(128 * MIB, &stream), Err(Error::OutOfMemory(_))));
            std::process::abort();
        }
        what => panic!("{what}"),
    }
}

fn report_of(what: &str) -> String {
    let output = in_another_process(what, &[("MILLPOND_LEAKS", "1")]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    let from = said.find("millpond: ").unwrap_or_else(|| panic!("{said}"));
    assert_eq!(said.matches("millpond: ").count(), 1, "{said}");
    said[from..].to_owned()
}

#[test]
fn a_pool_reports_what_is_live_at_its_end() {
    // The forked child says nothing.
    for how in ["drops", "exits", "forks"] {
        let report = report_of(how);
        let mut lines = report.lines();
        let first = lines.next().unwrap();
        assert_eq!(first, "millpond: live at the end of pool 'weights': 2.00 MiB in 2 blocks");
        let blocks: Vec<_> = lines.clone().filter(|line| line.contains(" in 1 block, for ")).collect();
        assert!(blocks.len() == 2 && blocks.iter().all(|line| line.ends_with(" s: cache")), "{report}");
        assert_eq!(lines.filter(|line| line.contains("make (tracking.rs:")).count(), 2, "{report}");
    }
    assert!(report_of("frees").starts_with("millpond: nothing tracked is live at the end of pool 'weights'"));
}

// ---- out of memory -------------------------------------------------------------------------------

#[derive(Debug, Default)]
struct Dumped {
    allocs: Vec<u64>,
    /// Those of them that have a call site.
    with_site: usize,
    frees: usize,
    ooms: Vec<u64>,
    messages: Vec<String>,
    ends: usize,
}

fn dumped(path: &Path) -> Dumped {
    let mut chunks = Chunks::new(std::fs::File::open(path).unwrap()).unwrap();
    let (mut dumped, mut has_site) = (Dumped::default(), false);
    while let Some(payload) = chunks.next_chunk().unwrap() {
        for record in records(payload) {
            match record.unwrap() {
                Record::Under { site, .. } => has_site = site > 0,
                Record::Alloc { size, .. } => {
                    dumped.allocs.push(size);
                    dumped.with_site += usize::from(has_site);
                }
                Record::Free { .. } => dumped.frees += 1,
                Record::OutOfMemory { size, .. } => dumped.ooms.push(size),
                Record::Message { text } => dumped.messages.push(text.to_owned()),
                Record::End => dumped.ends += 1,
                _ => {}
            }
        }
    }
    dumped
}

/// Asks for more than there is; returns the error's text.
fn run_out(pool: &Pool, stream: &Stream) -> String {
    match pool.alloc(1 << 40, stream) {
        Err(error @ Error::OutOfMemory(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn out_of_memory_dumps_what_is_live_and_was_freed_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oom.mprec");
    let (_, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let before = make(&pool, 100, &stream);
    pool.start_tracking(Tracking::all().dump(&path)).unwrap();
    let live = make(&pool, 300, &stream);
    let gone = make(&pool, 200, &stream);
    pool.free_block(gone, &stream).unwrap();
    let error = run_out(&pool, &stream);
    let dumped = dumped(&path);
    assert_eq!((dumped.frees, dumped.ends, &dumped.ooms[..]), (1, 1, &[1 << 40][..]));
    assert_eq!((&dumped.allocs[..], dumped.with_site), (&[300, 200, 100][..], 2));
    assert_eq!(dumped.messages, [error]);
    [before, live].into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
}

#[test]
fn a_program_that_runs_out_again_and_again_leaves_four_dumps() {
    let folder = tempfile::tempdir().unwrap();
    let (pool, stream) = pool(Tracking::sampled().dump(folder.path().join("oom.mprec")));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // Several at once.
            scope.spawn(|| (0..5).for_each(|_| drop(run_out(&pool, &stream))));
        }
    });
    let files = files(folder.path());
    assert_eq!(files.len(), 4, "{files:?}");
    assert!(files.iter().all(|file| dumped(file).ends == 1), "each is whole");
}

#[test]
fn errors_come_back_where_nothing_can_be_dumped() {
    let folder = tempfile::tempdir().unwrap();
    let (pool, stream) = pool(Tracking::sampled().dump(folder.path().join("none/there.mprec")));
    for _ in 0..2 {
        assert!(run_out(&pool, &stream).starts_with("out of memory in pool 'weights'"));
        assert!(!make(&pool, 100, &stream).is_null());
    }
    assert!(files(folder.path()).is_empty());
}

#[test]
fn an_error_inside_a_capture_is_dumped() {
    let folder = tempfile::tempdir().unwrap();
    let (pool, stream) = pool(Tracking::all().dump(folder.path()));
    let memory = pool.capture_pool();
    let capturing = memory.begin(&stream).unwrap();
    let block = make(&pool, MIB, &stream);
    run_out(&pool, &stream);
    pool.free_block(block, &stream).unwrap();
    drop(capturing);
    let files = files(folder.path());
    let name = format!("millpond-oom.{}.mprec", std::process::id());
    assert_eq!(files, [folder.path().join(name)]);
    assert_eq!(dumped(&files[0]).allocs, [MIB]);
}

#[test]
fn a_recording_has_the_error_before_the_program_has() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run.mprec");
    let output = in_another_process("runs out", &[("MILLPOND_RECORD", run.to_str().unwrap())]);
    assert!(!output.status.success());
    let dumped = dumped(&run);
    assert_eq!((&dumped.ooms[..], dumped.messages.len(), dumped.allocs.len()), (&[128 * MIB][..], 1, 2));
    assert_eq!(dumped.ends, 0, "it was killed");
}

#[test]
fn the_environment_asks_for_a_dump() {
    let folder = tempfile::tempdir().unwrap();
    let oom = folder.path().join("%p.mprec");
    let output = in_another_process("runs out", &[("MILLPOND_OOM_DUMP", oom.to_str().unwrap())]);
    let files = files(folder.path());
    assert_eq!(files.len(), 1);
    assert_eq!(dumped(&files[0]).allocs, [MIB, MIB]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("`millpond replay {}`", files[0].display())), "{said}");
}

#[test]
fn a_dump_of_a_pool_that_cannot_wake_has_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let (_, context, stream) = sim(64 * MIB);
    let asleep =
        Pool::builder(&context).track(Tracking::all().dump(folder.path().join("a.mprec"))).build().unwrap();
    let block = make(&asleep, 48 * MIB, &stream);
    asleep.sleep(millpond::Keep::Nothing).unwrap();
    let other = Pool::builder(&context).build().unwrap();
    let theirs = make(&other, 48 * MIB, &stream);
    assert!(matches!(asleep.wake(), Err(Error::OutOfMemory(_))));
    assert_eq!(dumped(&folder.path().join("a.mprec")).allocs, [48 * MIB]);
    other.free_block(theirs, &stream).unwrap();
    drop(other);
    asleep.wake().unwrap();
    asleep.free_block(block, &stream).unwrap();
}

#[test]
fn a_context_of_the_host_is_tracked_as_any() {
    let context = Context::host().unwrap();
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).track(Tracking::all().no_dump()).build().unwrap();
    let block = make(&pool, 5000, &stream);
    assert_eq!(holders(&pool.live_blocks().unwrap())[0].bytes, 5000);
    pool.free_block(block, &stream).unwrap();
}
