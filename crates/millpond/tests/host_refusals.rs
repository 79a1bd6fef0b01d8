//! What becomes of a pool where the host refuses memory: each allocation of the host's that a call makes is refused once,
//! in a process of its own.
#![cfg(unix)]

mod shared;

#[path = "host_refusals/calls.rs"]
mod calls;
#[path = "host_refusals/refusing.rs"]
mod refusing;

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use calls::{CALLS, Call};
use millpond::device::sim::SimOptions;
use millpond::{Error, Pool};
use refusing::{refuse, refuse_for_good, refused};

use shared::{Freeing, sim_with};

/// Calls that may end the process, and by how many of their allocations at most. docs/out-of-memory.md names them.
const MAY_END: &[(&str, usize)] = &[
    // What is shared from the start, and made once: the standard library has no way to be refused it.
    ("Context::new", 7),
    ("PoolBuilder::build", 25),
    ("PoolBuilder::build with each option", 26),
    ("PoolBuilder::build with a wrong option", 3),
    ("PoolBuilder::build and record", 63),
    ("Context::default_pool, current_pool", 26),
    ("Context::create_stream", 2),
    ("Context::default_stream, foreign_stream", 4),
    ("CapturePool::begin, alloc, free, end", 14),
    ("Budget::bytes, fraction", 3),
    ("Pool::on_reclaim, on_out_of_memory, and their removal", 4),
    // Recordings.
    ("Pool::start_recording", 20),
    ("Pool::stop_recording", 10),
    ("Pool::alloc and free, recorded", 10),
    // Lists of what is to be given back at last.
    ("drop of a Pool", 2),
];

/// More allocations than any call makes.
const MOST: u64 = 5000;

const CHILD: &str = "MILLPOND_TEST_REFUSE";

/// How a call went with one allocation refused.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// It made fewer allocations.
    NotReached,
    /// It ended the process.
    Ended,
    /// It did something else.
    Failed,
}

/// Does the call in a forked child, while its allocation with this number is refused, and `for_good` all after it.
fn refuse_in_a_child(call: &Call, number: u64, for_good: bool) -> Outcome {
    // SAFETY: there is one thread, and the child does what the test is about.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        // SAFETY: it is to end where a call waits for ever.
        unsafe { libc::alarm(60) };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut bench = (call.bench)();
            bench.number = number;
            if for_good {
                refuse_for_good();
            }
            let before = refused();
            refuse(number);
            (call.act)(&bench);
            refuse(0);
            let was_reached = refused() > before;
            bench.finish();
            if was_reached { 0 } else { 3 }
        }));
        // SAFETY: it ends the process, and runs nothing of ours.
        unsafe { libc::_exit(outcome.unwrap_or(4)) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable, and the process is our child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(0) => Outcome::Done,
        Some(3) => Outcome::NotReached,
        None if libc::WTERMSIG(status) == libc::SIGABRT => Outcome::Ended,
        _ => Outcome::Failed,
    }
}

/// The child: prints the number of each refused allocation for which the call did not do what it should.
fn try_all(call: &Call, for_good: bool) {
    for number in 1..MOST {
        let outcome = refuse_in_a_child(call, number, for_good);
        match outcome {
            Outcome::Done => continue,
            Outcome::NotReached => return println!("\nallocations: {}", number - 1),
            Outcome::Ended => println!("\n{outcome:?}: {number}"),
            Outcome::Failed => return println!("\n{outcome:?}: {number}"),
        }
    }
    panic!("there is no end to its allocations");
}

/// Tries all allocations of all calls, in a child of its own each, which is this program and this test again.
fn try_all_calls(test: &str, for_good: bool) {
    if let Ok(number) = std::env::var(CHILD) {
        return try_all(&CALLS[number.parse::<usize>().unwrap()], for_good);
    }
    let files = tempfile::tempdir().unwrap();
    let mut wrong = String::new();
    for (number, Call { name, .. }) in CALLS.iter().enumerate() {
        let child = |backtrace| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
            command.env("TMPDIR", files.path()).env(CHILD, number.to_string());
            command.env("RUST_BACKTRACE", backtrace).output().unwrap()
        };
        let output = child("0");
        let said = String::from_utf8_lossy(&output.stdout);
        let ended = said.matches("Ended").count();
        let most = MAY_END.iter().find(|(listed, _)| listed == name).map_or(0, |(_, most)| *most);
        // What ends it once ends it as often as anything before it was refused for good.
        let is_as_listed =
            if for_good { ended == 0 || most > 0 } else { ended <= most && (most == 0) == (ended == 0) };
        if !output.status.success() || said.contains("Failed") || !is_as_listed {
            // Once more, to say where.
            let output = child("1");
            let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            let text: String = text.chars().take(20_000).collect();
            writeln!(wrong, "{name}: {ended} ended the process, and {most} may: {text}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn calls_outlive_each_refused_allocation_unless_they_are_listed() {
    try_all_calls("calls_outlive_each_refused_allocation_unless_they_are_listed", false);
}

#[test]
fn unlisted_calls_outlive_a_host_that_refuses_everything() {
    try_all_calls("unlisted_calls_outlive_a_host_that_refuses_everything", true);
}

/// Under a limit of its addresses, of which the records of blocks take most.
#[test]
fn a_limit_of_the_host_is_reported_as_such() {
    if std::env::var(CHILD).is_err() {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 600000 && exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
        command.args(["a_limit_of_the_host_is_reported_as_such", "--exact", "--test-threads=1"]);
        let output = command.env(CHILD, "limited").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let (_, context, stream) = sim_with(SimOptions::default());
    let pool = Pool::builder(&context).build().unwrap();
    let mut blocks = Vec::with_capacity(200_000);
    let error = loop {
        match pool.alloc(60_000, &stream) {
            Ok(ptr) => blocks.push(ptr),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::HostMemory { .. }), "after {} blocks: {error}", blocks.len());
    assert!(error.to_string().contains("the host refused"), "{error}");
    assert!(blocks.len() > 10_000, "{}", blocks.len());
    // Nothing changed: what was freed is had again.
    let last = blocks.pop().unwrap();
    pool.free_block(last, &stream).unwrap();
    blocks.push(pool.alloc(60_000, &stream).unwrap());
    blocks.into_iter().for_each(|ptr| pool.free_block(ptr, &stream).unwrap());
    pool.trim_to(0).unwrap();
    pool.check().unwrap();
}
