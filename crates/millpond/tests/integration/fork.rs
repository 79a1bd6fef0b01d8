//! Forked children, and processes that end in a signal handler: nothing there waits for a lock whose owner is gone.
//!
//! Each test runs in a process of its own (this program again), since a fork copies all that other tests are doing.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context as Task, Poll, Waker};
use std::time::{Duration, Instant};

use millpond::device::Kind;
use millpond::device::host::HostDevice;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DeviceResult};
use millpond::testing::checker::{CheckerDevice, Rule};
use millpond::{Advice, Buffer, Context, Error, Event, Keep, Place, Pool, Stream};

use crate::processes::alone;
use crate::shared::{Freeing, MIB, sim};

/// How often each test forks.
const CHILDREN: usize = 20;

/// What the parent has, made on the thread that forks.
struct World {
    context: Context,
    pool: Pool,
    stream: Stream,
}

impl World {
    fn over(device: Arc<dyn Device>) -> Self {
        let context = Context::new(device);
        let pool = Pool::builder(&context).build().unwrap();
        let stream = context.create_stream().unwrap();
        let world = Self { context, pool, stream };
        // Something for the fast path.
        let block = world.pool.alloc(4096, &world.stream).unwrap();
        world.pool.free_block(block, &world.stream).unwrap();
        world
    }

    fn sim() -> Self {
        Self::over(SimDevice::new(SimOptions::default()).unwrap())
    }

    fn host() -> Self {
        Self::over(HostDevice::new().unwrap())
    }

    /// Runs while other threads have the locks nearly always.
    fn while_busy(&self, run: impl FnOnce()) {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (pool, context, stream, done) = (&self.pool, &self.context, &self.stream, &done);
                scope.spawn(move || {
                    for round in 0.. {
                        if done.load(Ordering::Relaxed) {
                            break;
                        }
                        let block = pool.alloc((1 + (round + thread) % 7) * 3 * MIB, stream).unwrap();
                        pool.free_block(block, stream).unwrap();
                        pool.trim_to(0).unwrap();
                        // Streams of the host device are threads. Where one begins or ends at the fork, it may have a lock
                        // of the standard library's, for which each thread of the child would wait (seen with Rust 1.95).
                        if context.device().properties().kind == Kind::Sim {
                            let other = context.create_stream().unwrap();
                            other.wait_for(stream).unwrap();
                        }
                        drop(context.current_pool());
                        drop(millpond::record::tag("busy"));
                    }
                });
            }
            let result = catch_unwind(AssertUnwindSafe(run));
            done.store(true, Ordering::Relaxed);
            result.unwrap();
        });
    }
}

/// How a child ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// `exit`, which runs the destructors of the thread's variables.
    Exit,
    /// `_exit`.
    Quick,
}

/// Forks a child that does this and ends; fails if it does not end soon, or panics.
fn fork_and(end: End, child: impl FnOnce()) {
    // SAFETY: the child calls what the tests are about; the system's allocator is made for it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let failed = catch_unwind(AssertUnwindSafe(child)).is_err();
        match end {
            // The C library's: Rust's own takes a lock of the standard library's first, which a thread that began or ended at
            // the fork may have (seen with Rust 1.95, in `stack_overflow::thread_info`).
            // SAFETY: it ends the process; what it calls before is what the tests are about.
            End::Exit => unsafe { libc::exit(i32::from(failed)) },
            // SAFETY: it ends the process, and runs nothing of ours.
            End::Quick => unsafe { libc::_exit(i32::from(failed)) },
        }
    }
    assert_eq!(wait_for(pid), Some(0), "the child failed, or hung and was killed");
}

/// The child's exit status; `None` where it had to be killed.
fn wait_for(pid: libc::pid_t) -> Option<i32> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable, and the process is our child.
        let ended = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
        assert!(ended >= 0);
        if ended == pid {
            return Some(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 });
        }
        if Instant::now() > deadline {
            // SAFETY: our child, which was not waited for yet.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, &mut status, 0);
            }
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Forks children that do this to what the parent has, while other threads of it have the locks.
fn children_of(world: World, child: impl Fn(&World)) {
    world.while_busy(|| {
        for _ in 0..CHILDREN {
            fork_and(End::Exit, || child(&world));
        }
    });
    world.pool.check().unwrap();
}

#[test]
fn a_child_that_does_nothing_exits() {
    alone("a_child_that_does_nothing_exits", || {
        children_of(World::sim(), |_| ());
        children_of(World::host(), |_| ());
    });
}

#[test]
fn a_child_that_has_a_default_stream_exits() {
    alone("a_child_that_has_a_default_stream_exits", || {
        let world = World::host();
        let _own = world.context.per_thread_stream().unwrap();
        children_of(world, |_| ());
    });
}

fn refused<T: std::fmt::Debug>(result: millpond::Result<T>) {
    assert_eq!(result.map(drop), Err(Error::Forked));
}

fn refused_by_device<T>(result: DeviceResult<T>) {
    refused(result.map(drop).map_err(Error::from));
}

/// Every call on a pool, and on a block that is live in it.
fn use_pool(pool: &Pool, block: millpond::device::DevicePtr, stream: &Stream) {
    refused(pool.alloc(4096, stream));
    refused(pool.alloc(3 * MIB, stream));
    refused(pool.alloc_aligned(4096, 1 << 16, stream));
    refused(pool.alloc_zeroed(4096, stream));
    refused(pool.free_block(block, stream));
    refused(pool.record_use(block, stream));
    refused(pool.size_of(block));
    refused(pool.reserve(MIB, stream));
    refused(pool.trim_to(0));
    refused(pool.sleep(Keep::InPinnedMemory));
    refused(pool.wake());
    refused(pool.evict(stream));
    refused(pool.restore(stream));
    refused(pool.restore_ahead());
    refused(pool.restore_free());
    assert!(!pool.is_evicted());
    refused(pool.trim_staging());
    refused(pool.tagged("late"));
    assert!(!pool.is_asleep() && pool.tags().is_empty());
    refused(pool.destroy());
    refused(pool.start_recording("/nonexistent/recording"));
    refused(pool.stop_recording());
    refused(pool.memory_info());
    refused(pool.check());
    assert!(pool.recording().is_none());
    assert!(pool.stats().allocations > 0);
    assert!(pool.reserved().high > 0 && pool.allocated().high > 0);
    pool.flush_recording();
    pool.reset_high_water();
    pool.set_reuse(millpond::ReusePolicies::NONE);
    pool.set_release_threshold(0);
    let id = pool.on_reclaim(|_| true);
    assert!(!pool.remove_reclaim(id));
    let id = pool.on_out_of_memory(|_| ());
    assert!(!pool.remove_out_of_memory(id));
    let memory = pool.capture_pool();
    refused(memory.begin(stream).map(drop));
    assert_eq!((memory.allocated(), memory.reserved()), (0, 0));
}

fn use_context(context: &Context, block: millpond::device::DevicePtr, stream: &Stream, event: &Event) {
    refused(context.create_stream());
    refused(context.default_stream());
    refused(context.per_thread_stream());
    refused(context.synchronize());
    refused(context.memory_info());
    refused(context.default_pool());
    refused(context.current_pool());
    refused(context.set_current_pool(None));
    refused(context.free_block(block, stream));
    refused(Pool::builder(context).build());
    refused(context.pinned());
    refused(context.managed());
    refused(stream.record());
    refused(stream.wait(event));
    refused(stream.wait_for(stream));
    refused(stream.synchronize());
    refused(stream.is_idle());
    refused(event.query());
    refused(event.synchronize());
    refused_by_device(context.device().create_stream());
    refused_by_device(context.device().create_event());
    refused_by_device(context.device().synchronize());
}

fn every_call_is_refused(world: World) {
    let block = world.pool.alloc(8192, &world.stream).unwrap();
    let event = world.stream.record().unwrap();
    // SAFETY: the stream lives until the end of the test.
    let registered =
        unsafe { world.context.register_stream(world.context.device().create_stream().unwrap()) };
    let registered = registered.unwrap();
    world.stream.launch_host(|| std::thread::sleep(Duration::from_millis(100))).unwrap();
    let mut awaited = Box::pin(world.stream.record().unwrap());
    let mut poll = move || awaited.as_mut().poll(&mut Task::from_waker(Waker::noop()));
    _ = poll();
    let mut buffer = Buffer::<u8>::zeroed(&world.pool, 100, &world.stream).unwrap();
    let memory = world.pool.capture_pool();
    let pinned = world.context.pinned().unwrap().build().unwrap();
    let mut staging = Buffer::<u8>::zeroed(&pinned, 100, &world.stream).unwrap();
    let managed = world.context.managed().unwrap().build().unwrap();
    let moving = Buffer::<u8>::zeroed(&managed, 100, &world.stream).unwrap();
    world.while_busy(|| {
        for _ in 0..CHILDREN {
            fork_and(End::Exit, || {
                assert_eq!(poll(), Poll::Ready(Err(Error::Forked)));
                refused(registered.handle_here());
                refused(staging.as_slice());
                refused(staging.as_mut_slice());
                refused(staging.copy_from(&buffer));
                refused(moving.prefetch(Place::Host, &world.stream));
                refused(moving.advise(Advice::ReadMostly(true)));
                refused(moving.residency());
                refused_by_device(pinned.device().memory_info());
                use_pool(&world.pool, block, &world.stream);
                use_context(&world.context, block, &world.stream, &event);
                refused(memory.begin(&world.stream).map(drop));
                refused(buffer.set_zero());
                refused(buffer.copy_from_slice(&[1; 100]));
                refused(buffer.to_vec());
            });
        }
    });
    if world.pool.device().properties().kind == Kind::Host {
        assert_eq!(buffer.to_vec().unwrap(), [0; 100]);
    }
    world.pool.free_block(block, &world.stream).unwrap();
}

#[test]
fn calls_on_what_the_parent_has_are_refused_at_once() {
    alone("calls_on_what_the_parent_has_are_refused_at_once", || {
        every_call_is_refused(World::sim());
        every_call_is_refused(World::host());
    });
}

/// The parent's objects, to be dropped in a child.
fn drop_all(world: World) {
    let buffer = Buffer::<u8>::from_slice(&world.pool, &[7; 5000], &world.stream).unwrap();
    let kept = Buffer::<u8>::from_slice(&world.pool, &[8; 5000], &world.stream).unwrap();
    let event = world.stream.record().unwrap();
    let workspace = millpond::Workspace::new(&world.pool, MIB, &world.stream).unwrap();
    let memory = world.pool.capture_pool();
    let World { context, pool, stream } = world;
    let all = (buffer, event, workspace, memory, context, pool, stream);
    fork_and(End::Exit, move || drop(all));
    // In the parent all but `kept` went with the closure: the child dropped copies.
    assert_eq!(kept.to_vec().unwrap(), [8; 5000]);
}

#[test]
fn what_a_child_drops_stays_with_its_parent() {
    alone("what_a_child_drops_stays_with_its_parent", || {
        (0..CHILDREN).for_each(|_| drop_all(World::host()));
        // While others have the locks: clones, of which a child drops the last.
        let world = World::sim();
        let pool = Pool::builder(&world.context).build().unwrap();
        let cell = std::cell::RefCell::new(Some((pool, world.context.create_stream().unwrap())));
        world.while_busy(|| (0..CHILDREN).for_each(|_| fork_and(End::Exit, || drop(cell.take()))));
        assert!(cell.borrow().is_some());
    });
}

/// A context of one's own works as any other.
fn use_own(context: &Context) {
    let pool = Pool::builder(context).build().unwrap();
    let stream = context.create_stream().unwrap();
    let buffer = Buffer::<u8>::from_slice(&pool, &[5; 1000], &stream).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 1..50 {
                    let block = pool.alloc(round * 100_000, &stream).unwrap();
                    pool.free_block(block, &stream).unwrap();
                }
            });
        }
    });
    if context.device().properties().kind == Kind::Host {
        assert_eq!(buffer.to_vec().unwrap(), [5; 1000]);
    }
    stream.synchronize().unwrap();
    drop(buffer);
    pool.trim_to(0).unwrap();
    pool.check().unwrap();
    assert_eq!(pool.reserved().current, 0);
}

#[test]
fn a_context_of_the_childs_own_works() {
    alone("a_context_of_the_childs_own_works", || {
        let shared = Context::host().unwrap();
        let world = World::host();
        world.while_busy(|| {
            for _ in 0..CHILDREN {
                fork_and(End::Exit, || {
                    use_own(&Context::new(SimDevice::new(SimOptions::default()).unwrap()));
                    use_own(&Context::host().unwrap());
                    drop(millpond::record::tag("child"));
                });
            }
        });
        use_own(&shared);
    });
}

#[test]
fn a_childs_child_is_refused_too() {
    alone("a_childs_child_is_refused_too", || {
        let world = World::sim();
        fork_and(End::Exit, || {
            let own = World::sim();
            fork_and(End::Exit, || {
                refused(own.pool.alloc(4096, &own.stream));
                refused(world.pool.alloc(4096, &world.stream));
                use_own(&Context::host().unwrap());
            });
            let block = own.pool.alloc(4096, &own.stream).unwrap();
            own.pool.free_block(block, &own.stream).unwrap();
        });
    });
}

#[test]
fn the_parent_goes_on_as_before() {
    alone("the_parent_goes_on_as_before", || {
        let world = World::sim();
        let before = world.pool.stats();
        fork_and(End::Quick, || refused(world.pool.alloc(4096, &world.stream)));
        let block = world.pool.alloc(4096, &world.stream).unwrap();
        world.pool.free_block(block, &world.stream).unwrap();
        assert_eq!(world.pool.stats().misses, before.misses, "its magazines are as they were");
        world.pool.check().unwrap();
    });
}

#[test]
fn a_callback_may_fork_and_the_childs_request_is_refused() {
    alone("a_callback_may_fork_and_the_childs_request_is_refused", || {
        let (_, context, stream) = sim(64 * MIB);
        let pool = Pool::builder(&context).build().unwrap();
        let _full = pool.alloc(60 * MIB, &stream).unwrap();
        static CHILD: AtomicUsize = AtomicUsize::new(usize::MAX);
        pool.on_reclaim(|_| {
            // SAFETY: as in `fork_and`.
            CHILD.store(unsafe { libc::fork() } as usize, Ordering::Relaxed);
            true
        });
        let error = pool.alloc(32 * MIB, &stream).unwrap_err();
        match CHILD.load(Ordering::Relaxed) {
            0 => std::process::exit(i32::from(error != Error::Forked)),
            child => assert_eq!(wait_for(child as libc::pid_t), Some(0)),
        }
        assert!(matches!(error, Error::OutOfMemory(_)));
    });
}

#[test]
fn the_checker_reports_calls_in_a_forked_process() {
    alone("the_checker_reports_calls_in_a_forked_process", || {
        let checker = CheckerDevice::new(SimDevice::new(SimOptions::default()).unwrap());
        let world = World::over(checker.clone());
        let mut buffer = Buffer::<u8>::zeroed(&world.pool, 100, &world.stream).unwrap();
        fork_and(End::Exit, || {
            // A pool makes none.
            refused(world.pool.alloc(40 * MIB, &world.stream));
            refused(buffer.set_zero());
            drop(world.pool.clone());
            checker.verify().unwrap();
            refused_by_device(checker.create_stream());
            assert!(checker.verify().unwrap_err().breaks(Rule::Forked));
        });
        checker.verify().unwrap();
    });
}

#[test]
fn a_child_that_ends_a_capture_waits_for_no_lock() {
    alone("a_child_that_ends_a_capture_waits_for_no_lock", || {
        let world = World::sim();
        let (memory, released) = (world.pool.capture_pool(), world.pool.capture_pool());
        let capturing = memory.begin(&world.stream).unwrap();
        // It goes when the last capture has ended.
        drop(released);
        let cell = std::cell::Cell::new(Some(capturing));
        world.while_busy(|| (0..CHILDREN).for_each(|_| fork_and(End::Exit, || drop(cell.take()))));
        assert!(cell.take().is_some());
    });
}

/// Ends the process, on whatever thread it interrupts.
extern "C" fn exit_now(_: libc::c_int) {
    // SAFETY: what the test is about.
    unsafe { libc::exit(0) }
}

#[test]
fn exit_in_a_signal_handler_ends_the_process() {
    alone("exit_in_a_signal_handler_ends_the_process", || {
        for turn in 0..CHILDREN {
            let world = if turn % 2 == 0 { World::sim() } else { World::host() };
            // SAFETY: as in `fork_and`.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // The one thread has the pool's lock nearly always.
                let own = World::sim();
                // SAFETY: a handler with the signature of one.
                unsafe { libc::signal(libc::SIGUSR1, exit_now as *const () as libc::sighandler_t) };
                // SAFETY: the parent waits for this.
                unsafe { libc::raise(libc::SIGSTOP) };
                loop {
                    let block = own.pool.alloc(40 * MIB, &own.stream).unwrap();
                    own.pool.free_block(block, &own.stream).unwrap();
                    own.pool.trim_to(0).unwrap();
                }
            }
            let mut status = 0;
            // SAFETY: our child, which stops itself.
            unsafe {
                assert_eq!(libc::waitpid(pid, &mut status, libc::WUNTRACED), pid);
                libc::kill(pid, libc::SIGCONT);
                std::thread::sleep(Duration::from_millis(20 + turn as u64));
                libc::kill(pid, libc::SIGUSR1);
            }
            assert_eq!(wait_for(pid), Some(0), "it hung, and was killed");
            drop(world);
        }
    });
}
