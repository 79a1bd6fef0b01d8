//! Streams that their owner registered, found by the driver's handle: as fast as ours while they are registered, and safe
//! when that ends, also where the handle is another stream's then.

use std::sync::Arc;

use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{Device, DeviceError, StreamHandle};
use millpond::testing::capturing::CapturingDevice;
use millpond::testing::checker::CheckerDevice;
use millpond::testing::recycling::RecyclingDevice;
use millpond::{Buffer, Context, Error, Pool, RegisteredStream, ReusePolicies, Stream};

use crate::shared::{Freeing, MIB};

/// A device whose handles are recycled, over a checked one, and a pool.
struct Bench {
    sim: Arc<SimDevice>,
    checker: Arc<CheckerDevice>,
    device: Arc<RecyclingDevice>,
    context: Context,
    pool: Pool,
}

impl Bench {
    fn new(reuse: ReusePolicies) -> Self {
        let sim = SimDevice::new(SimOptions::default().capacity(64 << 20)).unwrap();
        let checker = CheckerDevice::new(sim.clone());
        let device = RecyclingDevice::new(checker.clone());
        let context = Context::new(device.clone());
        let pool = Pool::builder(&context).reuse(reuse).build().unwrap();
        Self { sim, checker, device, context, pool }
    }

    fn create(&self) -> StreamHandle {
        self.device.create_stream().unwrap()
    }

    fn destroy(&self, handle: StreamHandle) {
        // SAFETY: the tests know what they do; the simulated device refuses handles that it does not know.
        unsafe { self.device.destroy_stream(handle) }.unwrap();
    }

    fn register(&self, handle: StreamHandle) -> RegisteredStream {
        // SAFETY: as above.
        unsafe { self.context.register_stream(handle) }.unwrap()
    }

    fn present(&self, handle: StreamHandle) -> Stream {
        // SAFETY: as above.
        unsafe { self.context.foreign_stream(handle) }.unwrap()
    }

    /// Allocates 4 MiB, gives the stream work on it that stays pending, and frees it.
    fn free_pending(&self, stream: &Stream) -> millpond::device::sim::Hold {
        let below = self.device.handle_below(stream.handle());
        let at = self.pool.alloc(4 * MIB, stream).unwrap();
        let block = self.checker.allocated(at, 4 * MIB, below);
        let hold = self.sim.hold(below).unwrap();
        self.checker.used(block, below);
        let _freed = self.checker.freed(block, below);
        self.pool.free_block(at, stream).unwrap();
        hold
    }

    /// Allocates 4 MiB, which the checker finds to be nobody's.
    fn alloc_checked(&self, stream: &Stream) -> millpond::device::DevicePtr {
        let at = self.pool.alloc(4 * MIB, stream).unwrap();
        self.checker.allocated(at, 4 * MIB, self.device.handle_below(stream.handle()));
        self.checker.verify().unwrap();
        at
    }
}

fn is_invalid<T>(result: millpond::Result<T>) -> bool {
    matches!(result, Err(Error::Device(DeviceError::Invalid { .. })))
}

#[test]
fn whoever_presents_a_registered_handle_is_given_the_stream() {
    let bench = Bench::new(ReusePolicies::ALL);
    let handle = bench.create();
    let registered = bench.register(handle);
    let pair = || {
        let stream = bench.present(handle);
        assert_eq!(stream.id(), registered.id());
        let block = bench.pool.alloc(4096, &stream).unwrap();
        bench.pool.free_block(block, &registered).unwrap();
        block
    };
    let block = pair();
    let events = bench.sim.calls()[Call::RecordEvent];
    assert!((0..100).all(|_| pair() == block), "from the thread's cache of the stream");
    assert_eq!(bench.sim.calls()[Call::RecordEvent], events, "a free on it records no event");
    drop(registered);
    assert!(pair_costs_events(&bench, handle));
}

fn pair_costs_events(bench: &Bench, handle: StreamHandle) -> bool {
    let events = bench.sim.calls()[Call::RecordEvent];
    let stream = bench.present(handle);
    let block = bench.pool.alloc(4096, &stream).unwrap();
    bench.pool.free_block(block, &stream).unwrap();
    bench.sim.calls()[Call::RecordEvent] > events
}

#[test]
fn a_stream_stays_registered_until_the_last_registration_ends() {
    let bench = Bench::new(ReusePolicies::ALL);
    let handle = bench.create();
    let (one, two) = (bench.register(handle), bench.register(handle));
    drop(one);
    _ = bench.pool.alloc(4096, &two).unwrap();
    assert!(!pair_costs_events(&bench, handle));
    drop(two);
    assert!(pair_costs_events(&bench, handle));
    let again = bench.register(handle);
    assert!(!pair_costs_events(&bench, handle));
    drop(again);
    bench.destroy(handle);
}

#[test]
fn streams_that_need_no_registration_may_have_one() {
    let bench = Bench::new(ReusePolicies::ALL);
    let own = bench.context.create_stream().unwrap();
    let streams = [own.handle(), StreamHandle::LEGACY, StreamHandle::PER_THREAD];
    for handle in streams {
        let registered = bench.register(handle);
        assert_eq!(registered.handle(), handle);
        drop(registered);
    }
    own.synchronize().unwrap();
    let presented = bench.present(own.handle());
    drop(own);
    presented.synchronize().expect("it is ours, and lives as long as anybody has it");
}

#[test]
fn what_was_freed_before_the_end_waits_for_its_work() {
    for reuse in [ReusePolicies::NONE, ReusePolicies::ALL] {
        let bench = Bench::new(reuse);
        let handle = bench.create();
        let registered = bench.register(handle);
        let hold = bench.free_pending(&bench.present(handle));
        drop(registered);
        bench.destroy(handle);
        // It has the same handle, and is another stream.
        let again = bench.create();
        assert_eq!(again, handle);
        let stream = bench.register(again);
        _ = bench.alloc_checked(&stream);
        bench.sim.release(hold);
        drop(stream);
        bench.destroy(again);
    }
}

#[test]
fn after_the_end_memory_comes_back_without_a_synchronise() {
    let bench = Bench::new(ReusePolicies::ALL);
    let handle = bench.create();
    let registered = bench.register(handle);
    let hold = bench.free_pending(&registered);
    drop(registered);
    bench.destroy(handle);
    bench.sim.release(hold);
    let reserved = bench.pool.reserved().current;
    _ = bench.alloc_checked(&bench.context.create_stream().unwrap());
    assert_eq!(bench.pool.reserved().current, reserved, "an event told that the work is complete");
    assert_eq!(bench.sim.calls()[Call::Synchronize], 0);
}

#[test]
fn a_clone_that_is_left_frees_late_and_safely() {
    let bench = Bench::new(ReusePolicies::ALL);
    let handle = bench.create();
    let registered = bench.register(handle);
    let clone = registered.clone();
    let at = bench.pool.alloc(4 * MIB, &clone).unwrap();
    drop(registered);
    assert!(is_invalid(clone.record()) && is_invalid(clone.synchronize()) && is_invalid(clone.is_idle()));
    assert!(matches!(Buffer::<u8>::zeroed(&bench.pool, 16, &clone), Err(Error::Device(_))));
    // Work after the end is nothing that the pool knows of; the free must not be taken for complete.
    let below = bench.device.handle_below(handle);
    let block = bench.checker.allocated(at, 4 * MIB, below);
    let hold = bench.sim.hold(below).unwrap();
    bench.checker.used(block, below);
    let _freed = bench.checker.freed(block, below);
    bench.pool.free_block(at, &clone).unwrap();
    drop(clone);
    bench.destroy(handle);
    let other = bench.context.create_stream().unwrap();
    _ = bench.alloc_checked(&other);
    bench.sim.release(hold);
    bench.context.synchronize().unwrap();
    bench.pool.trim_to(4 * MIB).unwrap();
    assert_eq!(bench.pool.reserved().current, 4 * MIB, "a synchronise told that it is complete");
}

#[test]
fn a_stream_destroyed_too_early_is_not_taken_for_its_successor() {
    let bench = Bench::new(ReusePolicies::ALL);
    let handle = bench.create();
    let registered = bench.register(handle);
    let hold = bench.free_pending(&registered);
    bench.destroy(handle);
    let again = bench.create();
    assert_eq!(again, handle);
    assert!(is_invalid(registered.record()) && is_invalid(registered.synchronize()));
    let records = bench.sim.calls()[Call::RecordEvent];
    let successor = bench.present(again);
    assert_ne!(successor.id(), registered.id());
    _ = bench.alloc_checked(&successor);
    let anew = bench.register(again);
    _ = bench.alloc_checked(&anew);
    drop(registered);
    assert_eq!(
        bench.sim.calls()[Call::RecordEvent],
        records,
        "its last tick is not closed on another stream"
    );
    _ = bench.alloc_checked(&anew);
    bench.sim.release(hold);
}

#[test]
fn a_registered_stream_is_known_while_it_is_captured() {
    let sim = SimDevice::new(SimOptions::default()).unwrap();
    let device = CapturingDevice::new(sim.clone());
    let context = Context::new(device.clone());
    let pool = Pool::builder(&context).build().unwrap();
    let (handle, other) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    // SAFETY: the streams are destroyed with the device only.
    let (registered, memory) = unsafe { (context.register_stream(handle).unwrap(), pool.capture_pool()) };
    let capturing = memory.begin(&registered).unwrap();
    device.begin_capture(handle).unwrap();
    device.begin_capture(other).unwrap();
    // SAFETY: as above.
    let (found, refused) =
        unsafe { (context.foreign_stream(handle).unwrap(), context.register_stream(other)) };
    assert_eq!(found.id(), registered.id(), "the driver does not say");
    assert!(is_invalid(refused.map(drop)));
    let block = pool.alloc(4096, &found).unwrap();
    pool.free_block(block, &registered).unwrap();
    device.end_capture(handle).unwrap();
    device.end_capture(other).unwrap();
    drop(capturing);
}

/// Threads present handles while others register, unregister and destroy the streams.
#[test]
fn registrations_come_and_go_under_the_threads_that_use_them() {
    let bench = Bench::new(ReusePolicies::ALL);
    let rounds = if cfg!(miri) { 5 } else { 300 };
    for _ in 0..rounds {
        let handle = bench.create();
        let registered = bench.register(handle);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    for _ in 0..10 {
                        let stream = bench.present(handle);
                        let block = bench.pool.alloc(4096, &stream).unwrap();
                        bench.pool.free_block(block, &stream).unwrap();
                    }
                });
            }
            threads.spawn(|| drop((registered, bench.register(handle))));
        });
        bench.destroy(handle);
    }
    bench.pool.trim_to(0).unwrap();
    assert_eq!(bench.pool.stats().blocks.current, 0);
    bench.pool.check().unwrap();
}

/// As those of a green context, which the program destroys while memory that was freed on them is pending.
#[test]
fn a_stream_that_ends_before_its_owner_said_holds_nobody_up() {
    let bench = Bench::new(ReusePolicies::default());
    let (handle, own) = (bench.create(), bench.context.create_stream().unwrap());
    // SAFETY: the tests know what they do, as above.
    let stream = unsafe { bench.context.stream_from_raw(handle) }.unwrap();
    let hold = bench.free_pending(&stream);
    bench.destroy(handle);
    // Its memory is nobody's yet, and no call fails. Nor where the handle is an idle stream's.
    let block = bench.alloc_checked(&own);
    assert_eq!(bench.create(), handle);
    _ = bench.alloc_checked(&own);
    bench.sim.release(hold);
    // All the rest of the device: what was freed there is needed, and a wait for the device tells.
    _ = bench.pool.alloc(56 * MIB, &own).unwrap();
    assert_eq!(bench.pool.reserved().current, 64 * MIB);
    bench.pool.free_block(block, &stream).unwrap();
    drop(stream);
    _ = bench.pool.alloc(4 * MIB, &own).unwrap();
    bench.pool.check().unwrap();
}
