//! Threads' default streams: one handle, which means another stream on each thread.

use std::cell::RefCell;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{Device, DeviceError, StreamHandle};
use millpond::testing::checker::CheckerDevice;
use millpond::{Buffer, Context, Error, Pool, ReusePolicies, Stream};

use crate::shared::Freeing;

/// A checked device, a pool, and the main thread's default stream.
struct Bench {
    sim: Arc<SimDevice>,
    checker: Arc<CheckerDevice>,
    context: Context,
    pool: Pool,
    stream: Stream,
}

impl Bench {
    fn new(reuse: ReusePolicies) -> Self {
        let sim = SimDevice::new(SimOptions::default().capacity(64 << 20)).unwrap();
        let checker = CheckerDevice::new(sim.clone());
        let context = Context::new(checker.clone());
        let pool = Pool::builder(&context).reuse(reuse).build().unwrap();
        let stream = context.per_thread_stream().unwrap();
        Self { sim, checker, context, pool, stream }
    }
}

/// Runs `act` on a thread of its own.
fn elsewhere<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    thread::scope(|threads| threads.spawn(act).join().unwrap())
}

fn is_invalid<T>(result: millpond::Result<T>) -> bool {
    matches!(result, Err(Error::Device(DeviceError::Invalid { .. })))
}

#[test]
fn another_threads_synchronize_frees_nothing_that_is_in_use() {
    for reuse in [ReusePolicies::NONE, ReusePolicies::ALL] {
        let Bench { sim, checker, context, pool, stream } = Bench::new(reuse);
        let hold = sim.hold(stream.handle()).unwrap();
        let used = pool.alloc(4 << 20, &stream).unwrap();
        let block = checker.allocated(used, 4 << 20, stream.handle());
        let _freed = checker.freed(block, stream.handle());
        pool.free_block(used, &stream).unwrap();
        elsewhere(|| {
            let clone = stream.clone();
            assert!(is_invalid(clone.synchronize()));
            assert!(is_invalid(clone.is_idle()));
        });
        let third = context.create_stream().unwrap();
        let got = pool.alloc(4 << 20, &third).unwrap();
        checker.allocated(got, 4 << 20, third.handle());
        checker.verify().unwrap();
        sim.release(hold);
        stream.synchronize().unwrap();
        assert_eq!(stream.is_idle(), Ok(true));
    }
}

#[test]
fn no_other_thread_can_give_a_default_stream_work() {
    let Bench { sim, pool, context, stream, .. } = Bench::new(ReusePolicies::ALL);
    let mut buffer = Buffer::<u8>::new(&pool, 16, &stream).unwrap();
    let copies = |sim: &SimDevice| {
        let calls = sim.calls();
        [Call::Memset, Call::CopyFromHost, Call::CopyToHost, Call::Copy].map(|call| calls[call])
    };
    let before = copies(&sim);
    let live = pool.stats().blocks.current;
    elsewhere(|| {
        assert!(is_invalid(buffer.set_zero()));
        assert!(is_invalid(buffer.copy_from_slice(&[1; 16])));
        assert!(is_invalid(buffer.to_vec()));
        assert!(is_invalid(Buffer::<u8>::zeroed(&pool, 16, &stream)));
        assert!(is_invalid(Buffer::from_slice(&pool, &[1_u8; 16], &stream)));
        assert!(is_invalid(pool.alloc_zeroed(16, &stream)));
        let own = context.per_thread_stream().unwrap();
        let mut other = Buffer::<u8>::new(&pool, 16, &own).unwrap();
        assert!(is_invalid(other.copy_from(&buffer)), "it would have to wait for the other's stream");
        assert!(is_invalid(buffer.copy_from(&other)));
        other.set_zero().unwrap();
    });
    let [memsets, rest @ ..] = copies(&sim);
    assert_eq!((memsets, &rest[..]), (before[0] + 1, &before[1..]), "the thread's own only");
    assert_eq!(pool.stats().blocks.current, live, "nothing was lost");
    buffer.set_zero().unwrap();
}

#[test]
fn memory_for_another_threads_stream_is_had_without_its_waiting() {
    let Bench { sim, checker, context, pool, stream } = Bench::new(ReusePolicies::ALL);
    let busy = context.create_stream().unwrap();
    let used = pool.alloc(4 << 20, &busy).unwrap();
    let block = checker.allocated(used, 4 << 20, busy.handle());
    let hold = sim.hold(busy.handle()).unwrap();
    let _freed = checker.freed(block, busy.handle());
    pool.free_block(used, &busy).unwrap();
    let got = elsewhere(|| pool.alloc(4 << 20, &stream)).expect("there is other memory");
    checker.allocated(got, 4 << 20, stream.handle());
    checker.verify().unwrap();
    sim.release(hold);
}

#[test]
fn the_default_streams_handle_is_no_stream_to_keep() {
    let Bench { sim, checker, context, pool, .. } = Bench::new(ReusePolicies::NONE);
    // SAFETY: the thread outlives the stream.
    let kept = unsafe { context.stream_from_raw(StreamHandle::PER_THREAD) }.unwrap();
    let used = pool.alloc(4 << 20, &kept).unwrap();
    let block = checker.allocated(used, 4 << 20, kept.handle());
    let hold = sim.hold(kept.handle()).unwrap();
    let _freed = checker.freed(block, kept.handle());
    pool.free_block(used, &kept).unwrap();
    elsewhere(|| {
        pool.trim_to(0).unwrap();
        pool.set_reuse(ReusePolicies::ALL);
        let own = context.create_stream().unwrap();
        let got = pool.alloc(4 << 20, &own).unwrap();
        checker.allocated(got, 4 << 20, own.handle());
        checker.verify().unwrap();
    });
    sim.release(hold);
    checker.synchronize().unwrap();
}

/// So many pairs of a block that is cached, on the thread's stream.
fn pairs(pool: &Pool, count: usize, stream: impl Fn() -> Stream) {
    for _ in 0..count {
        let block = pool.alloc(4096, &stream()).unwrap();
        pool.free_block(block, &stream()).unwrap();
    }
}

#[test]
fn a_pair_on_a_threads_default_stream_takes_no_event() {
    let Bench { sim, context, pool, stream, .. } = Bench::new(ReusePolicies::ALL);
    let presented = || context.per_thread_stream().unwrap();
    drop(stream);
    pairs(&pool, 3, presented);
    let before = sim.calls();
    pairs(&pool, 100, presented);
    let after = sim.calls();
    for call in [Call::RecordEvent, Call::QueryEvent, Call::StreamIsIdle, Call::Synchronize] {
        assert_eq!(after[call], before[call], "{call:?}");
    }
    assert_eq!(presented(), presented(), "one stream as long as the thread lives");
    assert_ne!(elsewhere(presented), presented());
}

#[test]
fn what_a_thread_caches_is_others_once_its_work_is_complete() {
    let Bench { sim, checker, context, pool, stream } = Bench::new(ReusePolicies::ALL);
    let other = context.create_stream().unwrap();
    let hold = sim.hold(stream.handle()).unwrap();
    let used = pool.alloc(4096, &stream).unwrap();
    let block = checker.allocated(used, 4096, stream.handle());
    let _freed = checker.freed(block, stream.handle());
    pool.free_block(used, &stream).unwrap();
    let records = sim.calls()[Call::RecordEvent];
    // Every cache is emptied, and another thread can mark nothing.
    elsewhere(|| {
        pool.trim_to(0).unwrap();
        for bytes in [4096, 1 << 20, 2 << 20] {
            let got = pool.alloc(bytes, &other).unwrap();
            checker.allocated(got, bytes, other.handle());
        }
    });
    checker.verify().unwrap();
    assert_eq!(sim.calls()[Call::RecordEvent], records);
    // The thread's next call under the pool's lock does, since the mark is wanted.
    let own = pool.alloc(512, &stream).unwrap();
    assert!(sim.calls()[Call::RecordEvent] > records);
    sim.release(hold);
    elsewhere(|| pool.trim_to(0)).unwrap();
    let waited = sim.calls()[Call::Synchronize];
    pool.free_block(own, &stream).unwrap();
    assert_eq!(sim.calls()[Call::Synchronize], waited);
    pool.check().unwrap();
}

#[test]
fn the_end_of_a_thread_ends_its_default_stream() {
    let Bench { sim, checker, context, pool, stream } = Bench::new(ReusePolicies::ALL);
    drop(stream);
    let (mut ended, mut held) = (Vec::new(), 0);
    for _ in 0..20 {
        ended.push(thread::scope(|threads| {
            let thread = threads.spawn(|| {
                pairs(&pool, 10, || context.per_thread_stream().unwrap());
                context.per_thread_stream().unwrap()
            });
            thread.join().unwrap()
        }));
        held = held.max(pool.reserved().current);
    }
    assert!(held <= 4 << 20, "the next thread has the memory of the last one: {held}");
    assert!(ended.iter().all(|stream| is_invalid(stream.synchronize())));
    pool.trim_to(0).unwrap();
    assert_eq!(pool.reserved().current, 0);
    assert_eq!(sim.calls()[Call::Synchronize], 0, "the host waited for nothing");
    checker.verify().unwrap();
}

#[test]
fn what_another_thread_frees_on_a_default_stream_waits_for_it() {
    let Bench { sim, checker, context, pool, stream } = Bench::new(ReusePolicies::ALL);
    let hold = sim.hold(stream.handle()).unwrap();
    let used = pool.alloc(4096, &stream).unwrap();
    let block = checker.allocated(used, 4096, stream.handle());
    let _freed = checker.freed(block, stream.handle());
    elsewhere(|| {
        pairs(&pool, 3, || context.per_thread_stream().unwrap());
        pool.free_block(used, &stream).unwrap();
        let own = context.per_thread_stream().unwrap();
        let got = pool.alloc(4096, &own).unwrap();
        checker.allocated(got, 4096, own.handle());
    });
    checker.verify().unwrap();
    sim.release(hold);
    // A later mark of the thread closes what the other one freed.
    pool.free_block(pool.alloc(4 << 20, &stream).unwrap(), &stream).unwrap();
    elsewhere(|| pool.trim_to(0)).unwrap();
    assert_eq!(sim.calls()[Call::Synchronize], 0);
    pool.check().unwrap();
}

#[test]
fn an_eviction_comes_behind_other_threads_default_streams() {
    let sim = SimDevice::new(SimOptions::default().capacity(64 << 20)).unwrap();
    let context = Context::new(sim.clone());
    let pool = Pool::builder(&context).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let stream = context.create_stream().unwrap();
    let _moments = Buffer::<u8>::zeroed(&tag, 4 << 20, &stream).unwrap();
    stream.synchronize().unwrap();
    let together = Barrier::new(2);
    thread::scope(|threads| {
        threads.spawn(|| {
            let own = context.per_thread_stream().unwrap();
            pairs(&pool, 3, || own.clone());
            sim.launch(StreamHandle::PER_THREAD, Duration::from_secs(1)).unwrap();
            together.wait();
            together.wait();
        });
        together.wait();
        let before = sim.now();
        let evicted = tag.evict(&stream);
        let took = sim.now() - before;
        // The thread ends whatever came of it.
        together.wait();
        assert!(evicted.unwrap() > 0);
        assert!(took >= Duration::from_millis(999), "nobody here can mark what that was given: {took:?}");
    });
}

/// A buffer that its thread uses once more when its variables go, and what came of that.
struct UsedLate(Buffer<u8>, mpsc::Sender<millpond::Result<()>>);

impl Drop for UsedLate {
    fn drop(&mut self) {
        self.1.send(self.0.set_zero()).unwrap();
    }
}

#[test]
fn a_threads_stream_takes_no_work_once_it_has_ended_and_evictions_go_on() {
    thread_local!(static LATE: RefCell<Option<UsedLate>> = const { RefCell::new(None) });
    let context = Context::new(SimDevice::new(SimOptions::default().capacity(64 << 20)).unwrap());
    let pool = Pool::builder(&context).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let stream = context.create_stream().unwrap();
    let _moments = Buffer::<u8>::zeroed(&tag, 4 << 20, &stream).unwrap();
    let (send, receive) = mpsc::channel();
    elsewhere(|| {
        // Before the thread has a stream: so it goes after that has ended.
        LATE.with_borrow(|late| assert!(late.is_none()));
        let own = context.per_thread_stream().unwrap();
        LATE.set(Some(UsedLate(Buffer::zeroed(&tag, 100, &own).unwrap(), send)));
    });
    assert!(is_invalid(receive.recv().unwrap()), "nobody could wait for that");
    // It was freed late, too, which no mark closes.
    assert!(tag.evict(&stream).unwrap() > 0);
    tag.check().unwrap();
}
