//! What pools write to recordings, also when the process ends badly. That recordings come back as traces is
//! tested in crates/replay/tests/recordings.rs.

use std::path::{Path, PathBuf};
use std::process::Output;

use millpond::device::sim::SimOptions;
use millpond::record::format::Record;
use millpond::record::{self, Chunks, records};
use millpond::{Error, Pool, Stream};

use crate::processes::{again, until};
use crate::shared::{Freeing, sim_with};

fn pool() -> (Pool, Stream) {
    let (_, context, stream) = sim_with(SimOptions::default());
    (Pool::builder(&context).build().unwrap(), stream)
}

/// What a recording has of each kind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    pools: Vec<String>,
    tags: Vec<String>,
    /// Names and files.
    frames: Vec<(String, String)>,
    threads: usize,
    allocs: usize,
    frees: usize,
    uses: usize,
    live: usize,
    trims: usize,
    ooms: usize,
    pool_ends: usize,
    dropped: u64,
    ends: usize,
}

fn counts(path: &Path) -> Counts {
    let mut chunks = Chunks::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut counts = Counts::default();
    let mut threads = std::collections::HashSet::new();
    while let Some(payload) = chunks.next_chunk().unwrap() {
        for record in records(payload) {
            match record.unwrap() {
                Record::Pool { name, .. } => counts.pools.push(name.to_owned()),
                Record::Tag { text, .. } => counts.tags.push(text.to_owned()),
                Record::Frame { name, file, .. } => counts.frames.push((name.to_owned(), file.to_owned())),
                Record::Thread { thread, .. } if thread > 0 => drop(threads.insert(thread)),
                Record::Alloc { .. } => counts.allocs += 1,
                Record::Free { .. } => counts.frees += 1,
                Record::Use { .. } => counts.uses += 1,
                Record::Live { .. } => counts.live += 1,
                Record::Trim { .. } => counts.trims += 1,
                Record::OutOfMemory { .. } => counts.ooms += 1,
                Record::PoolEnd { .. } => counts.pool_ends += 1,
                Record::Dropped { events } => counts.dropped += events,
                Record::End => counts.ends += 1,
                _ => {}
            }
        }
    }
    counts.threads = threads.len();
    counts
}

fn work(pool: &Pool, stream: &Stream, pairs: usize) {
    for _ in 0..pairs {
        let block = pool.alloc(1000, stream).unwrap();
        pool.free_block(block, stream).unwrap();
    }
}

#[test]
fn every_kind_of_event_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let (_, context, _) = sim_with(SimOptions::default());
    let pool = Pool::builder(&context).name("weights").hard_limit(16 << 20).build().unwrap();
    let [one, two] = [(); 2].map(|()| context.create_stream().unwrap());
    let before = pool.alloc(100, &one).unwrap();
    pool.start_recording(path.as_path()).unwrap();
    let block = {
        let _tag = record::tag("every kind");
        pool.alloc(5000, &one).unwrap()
    };
    pool.record_use(block, &two).unwrap();
    pool.free_block(block, &one).unwrap();
    assert!(matches!(pool.alloc(1 << 30, &one), Err(Error::OutOfMemory(_))));
    pool.trim_to(0).unwrap();
    pool.free_block(before, &two).unwrap();
    // None of these is an event.
    assert!(pool.free_block(before, &one).is_err());
    assert!(pool.alloc(0, &one).unwrap().is_null());
    let status = pool.stop_recording().unwrap().unwrap();
    assert_eq!((status.dropped, status.failure), (0, None));
    assert_eq!(status.bytes, std::fs::metadata(&path).unwrap().len());
    work(&pool, &one, 1);
    assert_eq!(pool.stop_recording(), Ok(None));

    let counts = counts(&path);
    assert_eq!(counts.pools, ["weights"]);
    assert!(counts.tags.contains(&"every kind".to_owned()));
    assert_eq!((counts.allocs, counts.frees, counts.uses, counts.live), (1, 2, 1, 1));
    assert_eq!((counts.ooms, counts.pool_ends, counts.dropped, counts.ends), (1, 1, 0, 1));
    // A request that is impossible trims nothing.
    assert_eq!(counts.trims, 1);
}

#[test]
fn call_sites_are_kept_where_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (pool, stream) = pool();
    let path = folder.path().join("sites.mprec");
    pool.start_recording(record::Options::new(&path).call_sites(true)).unwrap();
    work(&pool, &stream, 2);
    pool.stop_recording().unwrap();
    let frames = counts(&path).frames;
    // Without its module where debug information has line tables only.
    // Other tests of this process take call sites, too.
    let is_works =
        |(name, file): &(String, String)| name.ends_with("work") && file.ends_with("/recording.rs");
    assert!(frames.iter().any(is_works), "{frames:?}");
    let ours =
        |(name, file): &(String, String)| name.starts_with("millpond::") || file.contains("millpond/src/");
    assert!(!frames.iter().any(ours), "{frames:?}");
}

#[test]
fn events_of_many_threads_are_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("threads.mprec");
    let (pool, stream) = pool();
    pool.start_recording(path.as_path()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| work(&pool, &stream, 5_000));
        }
    });
    let status = pool.stop_recording().unwrap().unwrap();
    let counts = counts(&path);
    // 4 threads, 5,000 pairs each.
    assert_eq!((counts.threads, counts.allocs, counts.frees, counts.dropped), (4, 20_000, 20_000, 0));
    assert!(status.events >= 40_000);
}

#[test]
fn a_tag_of_an_ending_thread_is_written_before_its_events() {
    struct Last(Pool, Stream);
    impl Drop for Last {
        fn drop(&mut self) {
            let _tag = record::tag("the thread's end");
            work(&self.0, &self.1, 1);
        }
    }
    // Made before the thread's ring, and so dropped after it.
    thread_local!(static LAST: std::cell::OnceCell<Last> = const { std::cell::OnceCell::new() });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tags.mprec");
    let (pool, stream) = pool();
    pool.start_recording(path.as_path()).unwrap();
    let last = Last(pool.clone(), stream.clone());
    // To join a thread is to wait for what ends with it, too; a scope does not.
    std::thread::spawn(move || {
        LAST.with(|cell| {
            let Last(pool, stream) = cell.get_or_init(|| last);
            work(pool, stream, 1);
        });
    })
    .join()
    .unwrap();
    pool.stop_recording().unwrap();
    let mut chunks = Chunks::new(std::fs::File::open(&path).unwrap()).unwrap();
    let (mut tags, mut used) = (0, Vec::new());
    while let Some(payload) = chunks.next_chunk().unwrap() {
        for record in records(payload).map(Option::unwrap) {
            match record {
                Record::Tag { tag, .. } => tags = tags.max(tag),
                Record::Under { tag, .. } => used.push((tag, tags)),
                _ => {}
            }
        }
    }
    assert!(used.iter().any(|(tag, _)| *tag > 0), "{used:?}");
    assert!(used.iter().all(|(tag, known)| tag <= known), "{used:?}");
}

#[test]
fn a_recording_that_was_removed_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("removed.mprec");
    let (pool, stream) = pool();
    pool.start_recording(path.as_path()).unwrap();
    work(&pool, &stream, 1);
    std::fs::remove_file(&path).unwrap();
    work(&pool, &stream, 1);
    pool.flush_recording();
    let failure = pool.recording().unwrap().failure.unwrap();
    assert!(failure.contains("was removed"), "{failure}");
    let said = pool.stop_recording().unwrap_err().to_string();
    assert!(said.contains("removed.mprec") && said.contains("its last part is missing"), "{said}");
    // Another one can be made.
    pool.start_recording(path.as_path()).unwrap();
    work(&pool, &stream, 1);
    pool.stop_recording().unwrap();
    assert_eq!(counts(&path).allocs, 1);
}

#[test]
fn pools_share_a_named_file_until_the_last_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared.mprec");
    let (_, context, stream) = sim_with(SimOptions::default());
    let pools = ["a", "b"].map(|name| {
        let pool = Pool::builder(&context).name(name).record(path.as_path()).build().unwrap();
        work(&pool, &stream, 10);
        pool
    });
    let [a, b] = pools;
    drop(a);
    assert_eq!(counts(&path).ends, 0);
    work(&b, &stream, 10);
    drop(b);
    let counts = counts(&path);
    assert_eq!(counts.pools, ["a", "b"]);
    // 10 pairs of `a`, and twice 10 of `b`.
    assert_eq!((counts.allocs, counts.pool_ends, counts.ends), (30, 2, 1));
}

#[test]
fn a_file_that_cannot_be_made_is_named() {
    let (pool, stream) = pool();
    let said = pool.start_recording("/no/such/folder/run.mprec").unwrap_err().to_string();
    assert!(said.starts_with("cannot record to /no/such/folder/run.mprec: No such file"), "{said}");
    assert_eq!(pool.recording(), None);
    work(&pool, &stream, 1);
}

#[test]
fn a_full_disk_stops_no_pool_and_is_told() {
    let (pool, stream) = pool();
    // The head is refused already.
    assert!(matches!(pool.start_recording("/dev/full"), Err(Error::Recording { .. })));
    work(&pool, &stream, 10);
}

#[test]
fn a_recording_has_no_more_bytes_than_it_may_and_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let (pool, stream) = pool();
    pool.start_recording(record::Options::new(&*path).most_bytes(1 << 20)).unwrap();
    work(&pool, &stream, 400_000);
    let status = pool.stop_recording().unwrap().unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(((1 << 20)..(2 << 20)).contains(&bytes), "{bytes}");
    let counts = counts(&path);
    assert_eq!((counts.dropped, counts.ends), (status.dropped, 1));
    assert!(status.dropped > 0 && counts.allocs + counts.frees < 800_000, "{status:?}");
}

#[test]
fn a_recording_that_rotates_keeps_its_last_part_and_says_what_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.mprec");
    let (pool, stream) = pool();
    pool.start_recording(record::Options::new(&*path).most_bytes(1 << 20).rotate(true)).unwrap();
    let kept = pool.alloc(1000, &stream).unwrap();
    work(&pool, &stream, 400_000);
    let status = pool.stop_recording().unwrap().unwrap();
    pool.free_block(kept, &stream).unwrap();
    assert_eq!((status.path.as_path(), status.dropped), (path.as_path(), 0));
    let old = folder.path().join("run.mprec.old");
    let [first, last] = [counts(&old), counts(&path)];
    // Each whole, with the pool and the block that lives.
    assert!(first.ends == 1 && last.ends == 1 && first.pools.len() == 1 && last.pools.len() == 1);
    // A part may end within a pair.
    assert!(
        (1..=2).contains(&(first.allocs - first.frees)) && last.allocs - last.frees == 1,
        "{first:?} {last:?}"
    );
    // But for what each begins with, and what is neither.
    let told = (first.allocs + first.frees + last.allocs + last.frees) as u64 + status.rotated;
    assert!(status.rotated > 0 && status.events.abs_diff(told) < 20, "{status:?}: {told} told");
}

fn fifo(folder: &tempfile::TempDir, name: &str) -> PathBuf {
    let path = folder.path().join(name);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    path
}

#[test]
fn a_pipe_does_not_rotate() {
    let folder = tempfile::tempdir().unwrap();
    let path = fifo(&folder, "pipe");
    let (pool, _) = pool();
    let error = pool.start_recording(record::Options::new(&*path).rotate(true)).unwrap_err().to_string();
    assert!(error.contains("it cannot rotate"), "{error}");
}

#[test]
fn a_pipe_beside_the_recording_is_no_older_one_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let old = fifo(&folder, "run.mprec.old");
    let (pool, _) = pool();
    let options = record::Options::new(folder.path().join("run.mprec"));
    let error = pool.start_recording(options.rotate(true)).unwrap_err().to_string();
    assert!(error.contains("is not a recording") && old.exists(), "{error}");
}

// ---- other processes ---------------------------------------------------------------------------------

/// Runs [`as_another_process`] in a process of its own.
fn in_another_process(what: &str, path: &Path) -> Output {
    again("as_another_process").env("RECORDING_TEST", what).env("MILLPOND_RECORD", path).output().unwrap()
}

#[test]
#[ignore = "what other tests run in a process of its own"]
fn as_another_process() {
    let Ok(what) = std::env::var("RECORDING_TEST") else { return };
    let (pool, stream) = pool();
    work(&pool, &stream, 10_000);
    match what.as_str() {
        "ends" => {
            // Neither dropped nor destroyed.
            std::mem::forget(pool);
            std::process::exit(0);
        }
        "aborts" => {
            // Longer than what a killed process may lose.
            std::thread::sleep(std::time::Duration::from_millis(500));
            work(&pool, &stream, 1);
            std::process::abort();
        }
        "forks" => {
            // SAFETY: the child uses the simulated device only, which has no threads, and leaves by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // A panic would end the child's only thread, and with it the child, as if all were well.
                let is_refused = matches!(pool.alloc(1000, &stream), Err(Error::Forked));
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!is_refused)) };
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
            work(&pool, &stream, 1);
        }
        "leaves a child" => {
            // SAFETY: the child only waits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: it waits for the parent's end and a while, then ends at once.
                unsafe {
                    libc::sleep(60);
                    libc::_exit(0);
                }
            }
            println!("child: {child}.");
            std::mem::forget(pool);
            std::process::exit(0);
        }
        "runs out of disk" => {
            limit_files(200_000);
            work(&pool, &stream, 20_000);
            std::thread::sleep(std::time::Duration::from_millis(300));
            let status = pool.recording().unwrap();
            assert!(status.failure.is_some() && status.bytes <= 200_000, "{status:?}");
            work(&pool, &stream, 10);
            limit_files(libc::RLIM_INFINITY);
        }
        "cannot record" => assert_eq!(pool.recording(), None),
        "twice" => {
            drop(pool);
            let (pool, stream) = self::pool();
            work(&pool, &stream, 1);
        }
        other => panic!("nothing is called {other}"),
    }
}

/// Makes writes fail that would make a file longer. The signal that comes with that is the system's own.
fn limit_files(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: it changes a setting of this process only, which runs nothing but this test.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) };
    assert_eq!(set, 0);
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("run.mprec")
}

#[test]
fn a_bad_record_variable_is_reported_without_tracing() {
    let output = in_another_process("cannot record", Path::new("/no/such/folder/run.mprec"));
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = "millpond: MILLPOND_RECORD is ignored: cannot record to /no/such/folder/run.mprec: ";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_process_that_leaks_its_pools_leaves_whole_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let output = in_another_process("ends", &file(&folder));
    assert!(output.status.success(), "{output:?}");
    let counts = counts(&file(&folder));
    // What each of these processes begins with (`as_another_process`).
    assert_eq!((counts.allocs, counts.frees, counts.pool_ends, counts.ends), (10_000, 10_000, 0, 1));
}

#[test]
fn a_process_that_aborts_leaves_all_but_its_last_moment() {
    let folder = tempfile::tempdir().unwrap();
    assert!(!in_another_process("aborts", &file(&folder)).status.success());
    let counts = counts(&file(&folder));
    // One pair more, just before the end.
    assert!((10_000..=10_001).contains(&counts.allocs), "{counts:?}");
    assert_eq!(counts.ends, 0);
}

#[test]
fn a_forked_child_writes_nothing_to_its_parent_s_recording() {
    let folder = tempfile::tempdir().unwrap();
    let output = in_another_process("forks", &file(&folder));
    assert!(output.status.success(), "{output:?}");
    let counts = counts(&file(&folder));
    // The pair after the child has ended.
    assert_eq!((counts.allocs, counts.frees, counts.ends), (10_001, 10_001, 1));
}

#[test]
fn a_child_that_lives_longer_does_not_keep_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    // The child has the pipe of the standard output, too, until it ends.
    let said = folder.path().join("said");
    let mut parent = again("as_another_process");
    parent.env("RECORDING_TEST", "leaves a child").env("MILLPOND_RECORD", file(&folder));
    let to = std::fs::File::create(&said).unwrap();
    assert!(parent.stdout(to).stderr(std::process::Stdio::null()).status().unwrap().success());
    let said = std::fs::read_to_string(said).unwrap();
    let child: i32 = said.split_once("child: ").unwrap().1.split_once('.').unwrap().0.parse().unwrap();
    // It may not have run yet: it closes the recording before anything else.
    let open = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.unwrap().path());
    until("the child closes the recording", || {
        let mut open =
            std::fs::read_dir(format!("/proc/{child}/fd")).unwrap().filter_map(|entry| open(entry).ok());
        !open.any(|path| path == file(&folder))
    });
    // The name is free for another recording, and the first one is kept beside it.
    let (pool, stream) = pool();
    pool.start_recording(file(&folder)).unwrap();
    work(&pool, &stream, 1);
    let path = pool.stop_recording().unwrap().unwrap().path;
    // SAFETY: the child of a test's process, which only waits.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert_eq!(path, file(&folder));
    assert_eq!(counts(&folder.path().join("run.mprec.old")).allocs, 10_000);
}

#[test]
fn what_a_full_disk_refused_is_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let output = in_another_process("runs out of disk", &file(&folder));
    assert!(output.status.success(), "{output:?}");
    let counts = counts(&file(&folder));
    // 10,000 pairs before the disk is full, 20,000 while it is seen, and 10 while it is known.
    assert_eq!((counts.allocs, counts.frees, counts.dropped, counts.ends), (30_010, 30_010, 0, 1));
}

#[test]
fn consecutive_pools_share_the_environments_file() {
    let folder = tempfile::tempdir().unwrap();
    let output = in_another_process("twice", &file(&folder));
    assert!(output.status.success(), "{output:?}");
    let counts = counts(&file(&folder));
    assert_eq!((counts.pools.len(), counts.allocs, counts.pool_ends, counts.ends), (2, 10_001, 2, 1));
}

#[test]
fn the_environment_lets_recordings_rotate() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = again("as_another_process");
    process.env("RECORDING_TEST", "ends").env("MILLPOND_RECORD", file(&folder));
    let output =
        process.env("MILLPOND_RECORD_LIMIT", "64KiB").env("MILLPOND_RECORD_ROTATE", "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let old = file(&folder).with_extension("mprec.old");
    assert_eq!((counts(&old).ends, counts(&file(&folder)).ends), (1, 1));
}

#[test]
fn processes_that_name_one_file_do_not_collide() {
    let folder = tempfile::tempdir().unwrap();
    let (pool, stream) = pool();
    pool.start_recording(file(&folder)).unwrap();
    work(&pool, &stream, 5);
    assert!(in_another_process("ends", &file(&folder)).status.success());
    pool.stop_recording().unwrap();
    assert_eq!(counts(&file(&folder)).allocs, 5);
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let other = files.iter().find(|path| **path != file(&folder)).unwrap();
    assert_eq!(counts(other).allocs, 10_000);
}
