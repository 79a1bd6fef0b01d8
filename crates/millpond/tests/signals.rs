//! What becomes of a program whose signal handler allocates: a debug build ends it with a message where the handler meets
//! its own thread inside the pool. It neither hangs nor counts wrong.
#![cfg(all(unix, debug_assertions))]

mod shared;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::OnceLock;

use millpond::device::sim::SimDevice;
use millpond::{Context, Pool, Stream};

use shared::Freeing;

thread_local! {
    /// Allocations of this thread's until one is interrupted, and this one; 0 for never.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Raises a signal in an allocation: the same code is interrupted in each run.
struct Interrupting;

fn interrupt() {
    let left = LEFT.replace(LEFT.get().saturating_sub(1));
    if left == 1 {
        // SAFETY: the handler returns.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
}

// SAFETY: the system's allocator, as it is.
unsafe impl GlobalAlloc for Interrupting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        interrupt();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        interrupt();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, new) }
    }
}

#[global_allocator]
static ALLOCATOR: Interrupting = Interrupting;

static POOL: OnceLock<(Pool, Stream)> = OnceLock::new();

const CHILD: &str = "MILLPOND_TEST_INTERRUPT";
const BYTES: u64 = 4096;

fn pairs(count: usize) {
    let (pool, stream) = POOL.get().unwrap();
    let blocks: Vec<_> = (0..count).map(|_| pool.alloc(BYTES, stream).unwrap()).collect();
    blocks.into_iter().for_each(|block| pool.free_block(block, stream).unwrap());
}

extern "C" fn handler(_: libc::c_int) {
    pairs(64);
}

/// The child: allocates and frees while the allocation with this number is interrupted. Prints whether one was.
fn interrupted_at(number: u64) {
    let context = Context::new(SimDevice::new(Default::default()).unwrap());
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).build().unwrap();
    POOL.set((pool.clone(), stream)).unwrap();
    // SAFETY: the handler has the right type; a pool's calls in it are what is tried here. A hang ends by the alarm.
    unsafe {
        libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t);
        libc::alarm(20);
    }
    LEFT.set(number);
    pairs(300);
    pairs(300);
    let was_reached = LEFT.replace(0) == 0;
    pool.check().unwrap();
    assert_eq!(pool.allocated().current, 0);
    println!("{}", if was_reached { "reached" } else { "over" });
}

#[test]
fn a_handler_that_meets_its_thread_in_the_pool_ends_the_process() {
    if let Ok(number) = std::env::var(CHILD) {
        return interrupted_at(number.parse().unwrap());
    }
    let mut ended = 0;
    for number in 1.. {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = "a_handler_that_meets_its_thread_in_the_pool_ends_the_process";
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, number.to_string());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        match output.status.signal() {
            None if output.status.success() && said.contains("over") => break,
            None if output.status.success() => {}
            Some(libc::SIGABRT) if said.contains("Set a flag in the handler") => ended += 1,
            _ => panic!("allocation {number}: {}: {said}", output.status),
        }
    }
    assert!(ended > 0, "some are made under a lock");
}
