//! What becomes of a pool where the host refuses memory: each allocation of the host's that a call makes is refused once,
//! in a process of its own.
#![cfg(unix)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::process::{Command, exit};

use millpond::device::DevicePtr;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Error, Pool, Stream};

/// Refuses one allocation of the thread that asked for it.
struct Refusing;

thread_local! {
    /// Allocations until the one that is refused; 0 for none.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Whether this one is refused.
fn is_refused() -> bool {
    let counted = LEFT.try_with(|left| {
        let now = left.get();
        left.set(now.saturating_sub(1));
        now == 1
    });
    counted.unwrap_or(false)
}

// SAFETY: the system's allocator, which may refuse anything.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.realloc(ptr, layout, new) } }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

const MIB: u64 = 1 << 20;

type Call = fn(&Bench);

/// What is done while an allocation is refused, and what must be an error then rather than the end of the process.
const CALLS: [(&str, Call); 4] = [
    ("a free of a large block", |bench| bench.free(bench.large[0])),
    ("a hundred frees in no order", |bench| {
        // Every other one, so that nothing can be joined.
        bench.large.iter().step_by(2).for_each(|ptr| bench.free(*ptr));
    }),
    ("the statistics", |bench| assert!(bench.pool.stats().allocations > 0)),
    ("a pair from a magazine", |bench| {
        let ptr = bench.pool.alloc(512, &bench.stream).unwrap();
        bench.free(ptr);
    }),
];

struct Bench {
    pool: Pool,
    stream: Stream,
    large: Vec<DevicePtr>,
}

impl Bench {
    fn new() -> Self {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let pool = Pool::builder(&context).build().unwrap();
        let stream = context.create_stream().unwrap();
        let large = (0..200).map(|at| pool.alloc((3 + at % 7) * MIB, &stream).unwrap()).collect();
        let bench = Self { pool, stream, large };
        (0..3).for_each(|_| bench.free(bench.pool.alloc(512, &bench.stream).unwrap()));
        bench
    }

    fn free(&self, ptr: DevicePtr) {
        // SAFETY: nothing uses the blocks.
        unsafe { self.pool.free(ptr, &self.stream) }.unwrap();
    }
}

/// The child: does one thing while its allocation with this number is refused. Ends with 3 where there were fewer.
fn child(what: &str) -> ! {
    let (call, number) = what.split_once(':').expect("call and number");
    let (call, number): (usize, u64) = (call.parse().unwrap(), number.parse().unwrap());
    let bench = Bench::new();
    LEFT.set(number);
    CALLS[call].1(&bench);
    let was_reached = LEFT.replace(0) == 0;
    bench.pool.check().unwrap();
    exit(if was_reached { 0 } else { 3 });
}

const CHILD: &str = "MILLPOND_TEST_REFUSE";

#[test]
fn no_free_ends_the_process_for_lack_of_host_memory() {
    if let Ok(what) = std::env::var(CHILD) {
        child(&what);
    }
    let mut ended = BTreeMap::new();
    for (number, (name, _)) in CALLS.iter().enumerate() {
        for refused in 1..500 {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["no_free_ends_the_process_for_lack_of_host_memory", "--exact", "--test-threads=1"]);
            let output = command.env(CHILD, format!("{number}:{refused}")).output().unwrap();
            match output.status.code() {
                Some(0) => {}
                Some(3) => break,
                _ => {
                    let said = String::from_utf8_lossy(&output.stderr).into_owned();
                    ended.insert((*name, refused), said);
                }
            }
        }
    }
    assert!(ended.is_empty(), "{ended:#?}");
}

/// Under a limit of its addresses, of which a region's table takes most.
#[test]
fn a_limit_of_the_host_is_not_reported_as_the_devices() {
    if std::env::var(CHILD).is_err() {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 3000000 && exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
        command.args(["a_limit_of_the_host_is_not_reported_as_the_devices", "--exact", "--test-threads=1"]);
        let output = command.env(CHILD, "limited").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
    let pool = Pool::builder(&context).build().unwrap();
    let stream = context.create_stream().unwrap();
    let mut blocks = Vec::with_capacity(200_000);
    let error = loop {
        match pool.alloc(600_000, &stream) {
            Ok(ptr) => blocks.push(ptr),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::HostMemory { .. }), "after {} blocks: {error}", blocks.len());
    assert!(error.to_string().contains("the host refused"), "{error}");
    assert!(blocks.len() > 10_000, "{}", blocks.len());
    // Nothing changed: what was freed is had again.
    let last = blocks.pop().unwrap();
    // SAFETY: nothing uses the blocks.
    unsafe { pool.free(last, &stream) }.unwrap();
    blocks.push(pool.alloc(600_000, &stream).unwrap());
    // SAFETY: as above.
    blocks.into_iter().for_each(|ptr| unsafe { pool.free(ptr, &stream) }.unwrap());
    pool.trim_to(0).unwrap();
    pool.check().unwrap();
}
