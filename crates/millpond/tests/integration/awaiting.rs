//! Functions of the program run in stream order, and events can be awaited, on every device.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context as Task, Poll, Wake, Waker};
use std::thread::{Thread, current, park, sleep};
use std::time::Duration;

use millpond::device::host::HostDevice;
use millpond::device::sim::Call;
use millpond::device::{Device, DeviceError, DeviceResult, EventHandle, Forward};
use millpond::testing::capturing::CapturingDevice;
use millpond::testing::checker::CheckerDevice;
use millpond::{Buffer, Context, Error, Pool, Result};

use crate::shared::{MIB, sim};

/// Wakes the thread that waits, and counts that.
struct Unparks(Thread, AtomicUsize);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// The result, and how often the task was woken.
fn block_on<F: Future>(future: F) -> (F::Output, usize) {
    let unparks = Arc::new(Unparks(current(), AtomicUsize::new(0)));
    let waker = Waker::from(unparks.clone());
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Task::from_waker(&waker)) {
            Poll::Ready(done) => return (done, unparks.1.load(Ordering::SeqCst)),
            Poll::Pending => park(),
        }
    }
}

/// A device of threads, and its context.
fn host() -> (Arc<HostDevice>, Context) {
    let device = HostDevice::new().unwrap();
    (device.clone(), Context::new(device))
}

#[test]
fn a_function_of_the_host_runs_between_works_of_its_stream() {
    let (device, context) = host();
    let stream = context.create_stream().unwrap();
    let (send, receive) = mpsc::channel();
    let say = |what: &'static str| {
        let send = send.clone();
        move || send.send(what).unwrap()
    };
    device.launch(stream.handle(), || sleep(Duration::from_millis(20))).unwrap();
    device.launch(stream.handle(), say("before")).unwrap();
    stream.launch_host(say("between")).unwrap();
    device.launch(stream.handle(), say("after")).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(receive.try_iter().collect::<Vec<_>>(), ["before", "between", "after"]);
}

#[test]
fn later_work_of_the_stream_does_not_delay_who_is_told() {
    let (device, context) = host();
    let stream = context.create_stream().unwrap();
    let (blocks, goes_on) = mpsc::channel::<()>();
    let (told, is_told) = mpsc::channel();
    let event = stream.record().unwrap();
    stream.on_complete(move || told.send(()).unwrap()).unwrap();
    device.launch(stream.handle(), move || goes_on.recv().unwrap()).unwrap();
    is_told.recv_timeout(Duration::from_secs(20)).expect("the later work is pending still");
    assert_eq!(block_on(event).0, Ok(()));
    assert!(!stream.is_idle().unwrap());
    blocks.send(()).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_task_that_awaits_an_event_is_woken_once() {
    let (device, context) = host();
    let pool = Pool::builder(&context).build().unwrap();
    let stream = pool.create_stream().unwrap();
    for _ in 0..20 {
        let (blocks, goes_on) = mpsc::channel::<()>();
        device.launch(stream.handle(), move || goes_on.recv().unwrap()).unwrap();
        let buffer = Buffer::from_slice(&pool, &[7_u32; 4], &stream).unwrap();
        let event = stream.record().unwrap();
        let wakes = std::thread::spawn(move || {
            sleep(Duration::from_millis(2));
            blocks.send(()).unwrap();
        });
        let (done, woken) = block_on(event);
        assert!(done == Ok(()) && woken <= 1, "{woken}");
        wakes.join().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [7; 4]);
    }
}

/// A device that fails at some time, and tells nobody.
#[derive(Debug)]
struct Failed(Arc<dyn Device>, AtomicBool);

// SAFETY: all is passed on, but for a question that is refused and changes nothing.
unsafe impl Forward for Failed {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    unsafe fn query_event(&self, event: EventHandle) -> DeviceResult<bool> {
        if self.1.load(Ordering::Relaxed) {
            return Err(DeviceError::Unavailable("it fell off the bus".to_owned()));
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.query_event(event) }
    }
}

#[test]
fn who_asks_an_awaited_event_again_learns_that_the_device_failed() {
    let device = Arc::new(Failed(HostDevice::new().unwrap(), AtomicBool::new(false)));
    let context = Context::new(device.clone());
    let stream = context.create_stream().unwrap();
    let (blocks, goes_on) = mpsc::channel::<()>();
    stream.launch_host(move || goes_on.recv().unwrap()).unwrap();
    let mut event = pin!(stream.record().unwrap());
    let mut poll = || event.as_mut().poll(&mut Task::from_waker(Waker::noop()));
    assert_eq!(poll(), Poll::Pending);
    assert_eq!(poll(), Poll::Pending);
    device.1.store(true, Ordering::Relaxed);
    assert!(matches!(poll(), Poll::Ready(Err(Error::Device(_)))));
    device.1.store(false, Ordering::Relaxed);
    blocks.send(()).unwrap();
    context.synchronize().unwrap();
}

#[test]
fn events_complete_for_their_tasks_in_their_own_order() {
    let (device, context) = host();
    let streams = [context.create_stream().unwrap(), context.create_stream().unwrap()];
    let (blocks, goes_on) = mpsc::channel::<()>();
    device.launch(streams[0].handle(), move || goes_on.recv().unwrap()).unwrap();
    device.launch(streams[1].handle(), || sleep(Duration::from_millis(5))).unwrap();
    let [late, early] = [0, 1].map(|at| streams[at].record().unwrap());
    let mut late = pin!(late);
    let waker = Waker::from(Arc::new(Unparks(current(), AtomicUsize::new(0))));
    assert!(late.as_mut().poll(&mut Task::from_waker(&waker)).is_pending());
    // Behind the other, it would never be.
    assert_eq!(block_on(early).0, Ok(()));
    blocks.send(()).unwrap();
    assert_eq!(block_on(late).0, Ok(()));
}

#[test]
fn an_event_that_is_dropped_while_it_is_awaited_harms_nobody() {
    let (device, context) = host();
    let stream = context.create_stream().unwrap();
    for _ in 0..10 {
        device.launch(stream.handle(), || sleep(Duration::from_millis(1))).unwrap();
        let mut event = Box::pin(stream.record().unwrap());
        let waker = Waker::from(Arc::new(Unparks(current(), AtomicUsize::new(0))));
        _ = event.as_mut().poll(&mut Task::from_waker(&waker));
        drop(event);
    }
    drop((stream, context));
    assert_eq!(Arc::strong_count(&device), 1);
}

#[test]
fn a_simulated_and_a_checked_device_run_functions_too() {
    let (sim, _context, stream) = sim(64 * MIB);
    let (send, receive) = mpsc::channel();
    sim.launch(stream.handle(), Duration::from_millis(3)).unwrap();
    let before = sim.now();
    let on_complete = send.clone();
    stream.on_complete(move || on_complete.send(1).unwrap()).unwrap();
    assert!(sim.now() >= before + Duration::from_millis(3), "once the work is complete");
    stream.launch_host(move || send.send(2).unwrap()).unwrap();
    assert_eq!(receive.try_iter().collect::<Vec<_>>(), [1, 2]);
    sim.launch(stream.handle(), Duration::from_millis(3)).unwrap();
    assert_eq!(block_on(stream.record().unwrap()).0, Ok(()));
    let checked = Context::new(CheckerDevice::new(HostDevice::new().unwrap())).create_stream().unwrap();
    assert_eq!(block_on(checked.record().unwrap()).0, Ok(()));
}

#[test]
fn a_stream_that_is_captured_runs_no_function() {
    let device = CapturingDevice::new(HostDevice::new().unwrap());
    let stream = Context::new(device.clone()).create_stream().unwrap();
    device.begin_capture(stream.handle()).unwrap();
    let refused = |result: Result<()>| {
        assert!(matches!(result, Err(Error::Device(DeviceError::Invalid { .. }))), "{result:?}");
    };
    refused(stream.launch_host(|| unreachable!("it is refused")));
    refused(stream.on_complete(|| unreachable!("it is refused")));
    _ = device.end_capture(stream.handle()).unwrap();
}

#[test]
fn whatever_call_fails_is_said_and_the_next_try_is_told() {
    let (sim, context, stream) = sim(64 * MIB);
    let failure = DeviceError::Unavailable("planned".to_owned());
    for call in [Call::CreateStream, Call::WaitEvent, Call::SynchronizeStream, Call::RecordEvent] {
        sim.fail_next(call, 1, failure.clone());
        let told = stream.on_complete(|| unreachable!("it is dropped"));
        assert_eq!(told, Err(Error::Device(failure.clone())), "{call:?}");
        let (send, receive) = mpsc::channel();
        stream.on_complete(move || send.send(()).unwrap()).unwrap();
        assert_eq!(receive.try_recv(), Ok(()));
    }
    sim.launch(stream.handle(), Duration::from_millis(3)).unwrap();
    let event = stream.record().unwrap();
    sim.fail_next(Call::WaitEvent, 1, failure.clone());
    assert_eq!(block_on(event).0, Err(Error::Device(failure)));
    assert_eq!(block_on(stream.record().unwrap()).0, Ok(()));
    drop((stream, context));
    let calls = sim.calls();
    // One for all of it, beside the stream itself, and one that failed.
    assert_eq!((calls[Call::CreateStream], calls[Call::DestroyStream]), (3, 2));
}

/// What a buffer of pinned memory is asked after an event, and whether that waited for the work that its stream was given later.
fn waited_for_later_work(between: impl FnOnce(&mut Buffer<u32>, &Buffer<u32>)) -> bool {
    let (device, context) = host();
    let (pool, pinned) =
        (Pool::builder(&context).build().unwrap(), context.pinned().unwrap().build().unwrap());
    let stream = context.create_stream().unwrap();
    let from = Buffer::from_slice(&pool, &[7_u32; 100], &stream).unwrap();
    let mut read = Buffer::<u32>::uninit(&pinned, 100, &stream).unwrap();
    read.copy_from(&from).unwrap();
    let copied = stream.record().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let (release, released) = mpsc::channel::<()>();
    let ends = is_over.clone();
    let later = move || {
        _ = released.recv_timeout(Duration::from_secs(2));
        ends.store(true, Ordering::SeqCst);
    };
    device.launch(stream.handle(), later).unwrap();
    between(&mut read, &from);
    assert_eq!(read.as_slice_after(&copied).unwrap(), [7; 100]);
    assert_eq!(read.as_view().slice(1..3).unwrap().as_slice_after(&copied).unwrap(), [7; 2]);
    let waited = is_over.load(Ordering::SeqCst);
    _ = release.send(());
    waited
}

#[test]
fn what_was_copied_is_read_while_its_stream_goes_on() {
    assert!(!waited_for_later_work(|_, _| ()));
}

#[test]
fn a_later_write_is_waited_for_whatever_the_event() {
    assert!(waited_for_later_work(|read, from| read.copy_from(from).unwrap()));
    assert!(waited_for_later_work(|read, _| read.slice_mut(..50).unwrap().fill(7).unwrap()));
    // A kernel may write there.
    assert!(waited_for_later_work(|read, _| _ = read.ptr()));
    assert!(waited_for_later_work(|read, _| _ = read.as_view_mut().ptr()));
}

#[test]
fn an_event_from_before_the_buffer_says_nothing_of_its_memory() {
    let (device, context) = host();
    let pinned = context.pinned().unwrap().build().unwrap();
    let stream = context.create_stream().unwrap();
    let before = stream.record().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = is_over.clone();
    let work = move || {
        sleep(Duration::from_millis(50));
        ends.store(true, Ordering::SeqCst);
    };
    device.launch(stream.handle(), work).unwrap();
    let read = Buffer::<u32>::uninit(&pinned, 100, &stream).unwrap();
    read.as_slice_after(&before).unwrap();
    assert!(is_over.load(Ordering::SeqCst), "who had the memory before may write to it");
}

#[test]
fn an_event_from_before_a_move_says_nothing_of_the_buffer() {
    let (device, context) = host();
    let (pool, pinned) =
        (Pool::builder(&context).build().unwrap(), context.pinned().unwrap().build().unwrap());
    let (stream, other) = (context.create_stream().unwrap(), context.create_stream().unwrap());
    let from = Buffer::from_slice(&pool, &[7_u32; 100], &stream).unwrap();
    let mut read = Buffer::<u32>::zeroed(&pinned, 100, &stream).unwrap();
    device.launch(stream.handle(), || sleep(Duration::from_millis(50))).unwrap();
    read.copy_from(&from).unwrap();
    // The other stream's ticks are further than those of the copy.
    (0..10).for_each(|_| drop(other.record().unwrap()));
    let before = other.record().unwrap();
    let read = read.on_stream(&other).unwrap();
    assert_eq!(read.as_slice_after(&before).unwrap(), [7; 100]);
}

#[test]
fn a_panic_whose_drop_panics_too_ends_no_thread() {
    struct Twice;
    impl Drop for Twice {
        fn drop(&mut self) {
            panic!("once more");
        }
    }
    let (_, context) = host();
    let stream = context.create_stream().unwrap();
    stream.launch_host(|| std::panic::panic_any(Twice)).unwrap();
    let said = stream.synchronize().unwrap_err().to_string();
    assert!(said.contains("panicked"), "{said}");
}

#[test]
fn a_waker_that_another_one_replaces_may_wait_for_the_device() {
    struct Waits(Context, mpsc::Sender<()>);
    impl Wake for Waits {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Waits {
        fn drop(&mut self) {
            // The work before the event ends now, and its thread tells the event.
            self.1.send(()).unwrap();
            self.0.synchronize().unwrap();
        }
    }
    let (_, context) = host();
    let stream = context.create_stream().unwrap();
    let (send, receive) = mpsc::channel();
    stream.launch_host(move || receive.recv().unwrap()).unwrap();
    let mut event = pin!(stream.record().unwrap());
    let waits = Waker::from(Arc::new(Waits(context.clone(), send)));
    assert!(event.as_mut().poll(&mut Task::from_waker(&waits)).is_pending());
    drop(waits);
    // The event's clone goes.
    let polled = event.as_mut().poll(&mut Task::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(Ok(())));
}
