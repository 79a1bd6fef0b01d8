//! Segments go back to the driver without the pool's lock: its free waits for the device, which may wait for a function of the host
//! that asks the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DeviceError, DevicePtr, DeviceResult, Forward};
use millpond::guard::Guard;
use millpond::{Context, Error, Keep, Pool, Stream};

use crate::shared::{Freeing, MIB};

/// Fails where a call hangs.
const PATIENCE: Duration = Duration::from_secs(180);

fn within_patience<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, is_done) = channel();
    spawn(move || done.send(call()));
    is_done.recv_timeout(PATIENCE).expect("it hangs")
}

/// Contexts of the host device, and a pool of segments of each kind of memory.
fn pools_of_segments() -> Vec<(Context, Pool)> {
    let context = || {
        let options = HostOptions::default().capacity(256 * MIB).virtual_memory(false);
        Context::new(HostDevice::with_options(options).unwrap())
    };
    let builders: [fn(&Context) -> millpond::PoolBuilder; 3] =
        [Pool::builder, |context| context.pinned().unwrap(), |context| context.managed().unwrap()];
    let built = builders.into_iter().map(|builder| {
        let context = context();
        let pool = builder(&context).build().unwrap();
        (context, pool)
    });
    built.collect()
}

/// Has `give_back` free segments while a function of the host, which the device waits for, asks the pool for memory.
fn function_beside(context: &Context, pool: &Pool, give_back: impl FnOnce(Pool) + Send + 'static) {
    let (stream, own) = (context.create_stream().unwrap(), context.create_stream().unwrap());
    let lives = pool.alloc(4096, &stream).unwrap();
    let goes = pool.alloc(20 * MIB, &stream).unwrap();
    pool.free_block(goes, &stream).unwrap();
    stream.synchronize().unwrap();
    let (tell, told) = channel::<()>();
    let (asks, its) = (pool.clone(), own.clone());
    let work = move || {
        _ = told.recv();
        // By then the driver is asked to free the segment.
        sleep(Duration::from_millis(200));
        let block = asks.alloc(4096, &its).unwrap();
        asks.free_block(block, &its).unwrap();
        asks.check().unwrap();
    };
    stream.launch_host(work).unwrap();
    let gives = pool.clone();
    within_patience(move || {
        tell.send(()).unwrap();
        give_back(gives);
    });
    stream.synchronize().unwrap();
    pool.free_block(lives, &own).unwrap();
    pool.check().unwrap();
}

#[test]
fn a_function_of_the_host_may_ask_a_pool_that_is_trimmed() {
    for (context, pool) in pools_of_segments() {
        function_beside(&context, &pool, |pool| assert!(pool.trim_to(0).unwrap() >= 20 * MIB));
        assert!(pool.reserved().current <= 2 * MIB);
    }
}

#[test]
fn a_function_of_the_host_may_ask_a_pool_whose_other_memory_ends() {
    for (context, pool) in pools_of_segments() {
        let memory = pool.capture_pool();
        let stream = context.create_stream().unwrap();
        let capturing = memory.begin_where(|_| true).unwrap();
        let block = pool.alloc(5 * MIB, &stream).unwrap();
        drop(capturing);
        drop(memory);
        // The last block of memory that nobody claims.
        let held = pool.reserved().current;
        stream.synchronize().unwrap();
        function_beside(&context, &pool, move |pool| pool.free_block(block, &stream).unwrap());
        assert!(pool.reserved().current < held + 22 * MIB);
    }
}

/// A simulated device without virtual memory, whose free of a segment waits for the test once it is asked to.
#[derive(Debug)]
struct Waiting {
    below: Arc<SimDevice>,
    waits: AtomicBool,
    /// That the free has begun.
    begins: Sender<()>,
    /// What is to come of it.
    goes: std::sync::Mutex<Receiver<DeviceResult<()>>>,
}

// SAFETY: the device below frees what it is given, later.
unsafe impl Forward for Waiting {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        if self.waits.swap(false, Ordering::Relaxed) {
            self.begins.send(()).unwrap();
            self.goes.lock().unwrap().recv_timeout(PATIENCE).expect("the test says how it ends")?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.below.free_segment(at) }
    }
}

struct Bench {
    device: Arc<Waiting>,
    pool: Pool,
    stream: Stream,
    begun: Receiver<()>,
    end: Sender<DeviceResult<()>>,
}

const LIMIT: u64 = 64 * MIB;

impl Bench {
    fn new() -> Self {
        let below = SimDevice::new(SimOptions::default().virtual_memory(false)).unwrap();
        let ((begins, begun), (end, goes)) = (channel(), channel());
        let device = Arc::new(Waiting {
            below,
            waits: AtomicBool::new(false),
            begins,
            goes: std::sync::Mutex::new(goes),
        });
        let context = Context::new(device.clone());
        let pool = Pool::builder(&context).hard_limit(LIMIT).build().unwrap();
        let stream = context.create_stream().unwrap();
        Self { device, pool, stream, begun, end }
    }

    /// A free segment of so many bytes.
    fn free_segment(&self, bytes: u64) -> DevicePtr {
        let block = self.pool.alloc(bytes, &self.stream).unwrap();
        self.pool.free_block(block, &self.stream).unwrap();
        block
    }

    /// Another thread trims. Returns once it waits for the driver.
    fn trims(&self) -> JoinHandle<millpond::Result<u64>> {
        self.device.waits.store(true, Ordering::Relaxed);
        let pool = self.pool.clone();
        let trimming = spawn(move || pool.trim_to(0));
        self.begun.recv_timeout(PATIENCE).unwrap();
        trimming
    }

    /// Another thread does this, which is to wait for the trim.
    fn beside<R: Send + 'static>(
        &self,
        act: impl FnOnce(Pool, Stream) -> R + Send + 'static,
    ) -> JoinHandle<R> {
        let (pool, stream) = (self.pool.clone(), self.stream.clone());
        let beside = spawn(move || act(pool, stream));
        sleep(Duration::from_millis(50));
        assert!(!beside.is_finished());
        beside
    }
}

fn refused() -> DeviceError {
    DeviceError::Invalid { call: "free_segment", what: "a test asked for it".to_owned() }
}

#[test]
fn what_leaves_counts_and_is_nobodys_until_the_driver_has_it() {
    let bench = Bench::new();
    let goes = bench.free_segment(40 * MIB);
    let trimming = bench.trims();
    assert_eq!(bench.pool.reserved().current, 40 * MIB);
    bench.pool.check().unwrap();
    let freed = bench.pool.free_block(goes, &bench.stream);
    assert!(matches!(freed, Err(Error::ForeignPointer { .. })), "{freed:?}");
    // A second trim finds nothing, and does not wait.
    assert_eq!(bench.pool.trim_to(0), Ok(0));
    // So does one that would keep that much without what leaves.
    let kept = bench.free_segment(10 * MIB);
    assert_ne!(kept, goes);
    assert_eq!(bench.pool.trim_to(10 * MIB), Ok(0));
    bench.end.send(Ok(())).unwrap();
    assert_eq!(trimming.join().unwrap(), Ok(40 * MIB));
    assert_eq!(bench.pool.reserved().current, 10 * MIB);
    bench.pool.check().unwrap();
}

#[test]
fn who_is_short_of_memory_waits_for_what_leaves() {
    let bench = Bench::new();
    _ = bench.free_segment(40 * MIB);
    let trimming = bench.trims();
    let allocating = bench.beside(|pool, stream| pool.alloc(50 * MIB, &stream));
    bench.end.send(Ok(())).unwrap();
    let block = allocating.join().unwrap().unwrap();
    assert_eq!(trimming.join().unwrap(), Ok(40 * MIB));
    assert_eq!(bench.pool.reserved(), millpond::Level { current: 50 * MIB, high: 50 * MIB });
    bench.pool.free_block(block, &bench.stream).unwrap();
    bench.pool.check().unwrap();
}

#[test]
fn a_segment_that_the_driver_keeps_is_free_again() {
    let bench = Bench::new();
    let first = bench.free_segment(40 * MIB);
    let trimming = bench.trims();
    bench.end.send(Err(refused())).unwrap();
    assert!(matches!(trimming.join().unwrap(), Err(Error::Device(DeviceError::Invalid { .. }))));
    bench.pool.check().unwrap();
    let misses = bench.pool.stats().misses;
    let again = bench.pool.alloc(40 * MIB, &bench.stream).unwrap();
    assert_eq!((again, bench.pool.stats().misses), (first, misses));
    bench.pool.free_block(again, &bench.stream).unwrap();
    assert_eq!(bench.pool.trim_to(0), Ok(40 * MIB));
    bench.pool.check().unwrap();
}

#[test]
fn a_pool_that_ends_waits_for_what_leaves() {
    let bench = Bench::new();
    _ = bench.free_segment(40 * MIB);
    let trimming = bench.trims();
    let ending = bench.beside(|pool, _| pool.destroy());
    bench.end.send(Ok(())).unwrap();
    assert_eq!(ending.join().unwrap(), Ok(()));
    assert_eq!(trimming.join().unwrap(), Ok(40 * MIB));
    assert_eq!(bench.pool.reserved().current, 0);
}

#[test]
fn segments_of_a_guard_go_when_the_pool_sleeps() {
    let (sim, context, stream) = crate::shared::sim(256 * MIB);
    let pool = Pool::builder(&context).guard(Guard::none().pages(true)).build().unwrap();
    let block = pool.alloc(4 * MIB, &stream).unwrap();
    sim.launch(stream.handle(), Duration::from_millis(5)).unwrap();
    pool.free_block(block, &stream).unwrap();
    assert!(pool.reserved().current > 0, "work still uses it");
    _ = pool.sleep(Keep::Nothing).unwrap();
    assert_eq!(pool.reserved().current, 0);
    pool.wake().unwrap();
    pool.check().unwrap();
}

/// A simulated device without virtual memory, whose segments are aligned as little as a page of the host's.
#[derive(Debug)]
struct Unaligned(Arc<SimDevice>);

const OFF: u64 = 4096;

// SAFETY: each segment lies in a longer one of the device below.
unsafe impl Forward for Unaligned {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn alloc_segment(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        Ok(self.0.alloc_segment(bytes + OFF)?.offset(OFF))
    }

    unsafe fn free_segment(&self, at: DevicePtr) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.free_segment(DevicePtr::new(at.raw() - OFF)) }
    }
}

#[test]
fn a_segment_that_is_not_aligned_goes_even_where_a_limit_forbids_two() {
    const ALIGN: u64 = 64 << 10;
    let context = Context::new(Arc::new(Unaligned(
        SimDevice::new(SimOptions::default().virtual_memory(false)).unwrap(),
    )));
    let stream = context.create_stream().unwrap();
    for limit in [30 * MIB, 100 * MIB] {
        let pool = Pool::builder(&context).hard_limit(limit).build().unwrap();
        let alloc = || pool.alloc_aligned(20 * MIB, ALIGN, &stream).unwrap();
        let block = alloc();
        assert_eq!((block.raw() % ALIGN, pool.reserved().current), (0, 22 * MIB));
        pool.check().unwrap();
        pool.free_block(block, &stream).unwrap();
        pool.trim_to(0).unwrap();
        let taken = pool.stats().calls.alloc;
        let block = alloc();
        assert_eq!(
            (block.raw() % ALIGN, pool.stats().calls.alloc),
            (0, taken + 1),
            "the next one is long enough"
        );
        pool.free_block(block, &stream).unwrap();
    }
}
