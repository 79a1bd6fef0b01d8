//! Events of `tracing` are sent with no lock held: a subscriber may use the pool that they are about.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use millpond::bindings::warn;
use millpond::device::host::HostDevice;
use millpond::device::sim::Call;
use millpond::device::{Device, DeviceError, DevicePtr, DeviceResult, Forward, StreamHandle};
use millpond::{Buffer, Context, Keep, Pool, Stream};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::processes::alone;
use crate::shared::{Freeing, MIB, sim};

thread_local! {
    /// What the subscriber uses on each event, and the texts that it has heard.
    static USED: RefCell<Option<(Context, Pool, Stream)>> = const { RefCell::new(None) };
    static HEARD: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// Does this on each event of the library's.
struct Hears<F>(F);

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Subscriber for Hears<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("millpond")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.0(event);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

fn fields(event: &Event<'_>) -> BTreeMap<String, String> {
    let mut fields = Fields(BTreeMap::new());
    event.record(&mut fields);
    fields.0
}

/// Allocates and frees in the pool, trims it, and asks its streams.
fn use_the_pool(event: &Event<'_>) {
    let text = fields(event).remove("message").unwrap_or_default();
    HEARD.with_borrow_mut(|heard| heard.insert(text));
    let used = USED.with_borrow(|used| used.clone());
    let Some((context, pool, stream)) = used else { return };
    for bytes in [512, 3 * MIB] {
        if let Ok(block) = pool.alloc(bytes, &stream) {
            pool.free_block(block, &stream).unwrap();
        }
    }
    _ = pool.trim_to(64 * MIB);
    _ = stream.record();
    _ = context.create_stream();
}

#[test]
fn what_a_pool_goes_through_is_told_with_its_name_and_bytes() {
    alone("what_a_pool_goes_through_is_told_with_its_name_and_bytes", || {
        let told = Arc::<Mutex<Vec<_>>>::default();
        let collected = told.clone();
        let collects = Hears(move |event: &Event<'_>| collected.lock().unwrap().push(fields(event)));
        tracing::subscriber::with_default(collects, || {
            let (_sim, context, stream) = sim(64 * MIB);
            let pool = Pool::builder(&context).name("told").hard_limit(32 * MIB).build().unwrap();
            let block = pool.alloc(8 * MIB, &stream).unwrap();
            pool.alloc(64 * MIB, &stream).unwrap_err();
            pool.free_block(block, &stream).unwrap();
            assert_eq!(pool.trim_to(0), Ok(8 * MIB));
            pool.destroy().unwrap();
        });
        let told = told.lock().unwrap();
        let (limit, bytes) = ((32 * MIB).to_string(), (8 * MIB).to_string());
        for (message, fields) in [
            ("a pool was built", vec![("limit", limit.as_str())]),
            ("out of memory", vec![("bytes", "67108864")]),
            ("a pool was trimmed", vec![("bytes", bytes.as_str()), ("keep", "0")]),
            ("a pool was destroyed", vec![("bytes", "0")]),
        ] {
            let event = told.iter().find(|event| event["message"] == message);
            let event = event.unwrap_or_else(|| panic!("{message:?} is not in {told:#?}"));
            assert_eq!(event["pool"], "told");
            fields.iter().for_each(|(name, value)| assert_eq!(event[*name], *value, "{message}"));
        }
    });
}

/// Asks a pool for what it can do, on a device whose calls fail now and then.
fn work() {
    let (sim, context, stream) = sim(256 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let other = context.create_stream().unwrap();
    USED.set(Some((context.clone(), pool.clone(), stream.clone())));
    Call::ALL.into_iter().for_each(|call| sim.fail_randomly(call, 0.05));
    let mut live = Vec::new();
    for step in 0_u64..2_000 {
        let on = if step % 3 == 0 { &other } else { &stream };
        let bytes = [512, 40_000, 3 * MIB, 17 * MIB, 90 * MIB][(step % 5) as usize] + 512 * (step % 7);
        live.extend(pool.alloc(bytes, on));
        _ = sim.launch(on.handle(), Duration::from_millis(1));
        if live.len() > 12 {
            live.drain(..8).for_each(|block| pool.free_block(block, on).unwrap());
        }
        match step % 50 {
            10 => _ = context.synchronize(),
            20 => _ = pool.trim_to(0),
            30 => _ = pool.alloc(300 * MIB, on),
            40 => _ = pool.capture_pool().begin(on).map(|_capturing| pool.alloc(5 * MIB, on)),
            _ => {}
        }
        // SAFETY: the stream is alive.
        _ = unsafe { context.foreign_stream(on.handle()) };
        drop(context.create_stream());
    }
    sim.fail_no_more();
    live.into_iter().for_each(|block| pool.free_block(block, &stream).unwrap());
    pool.check().unwrap();
    USED.take();
    context.synchronize().unwrap();
}

#[test]
fn a_subscriber_that_uses_the_pool_on_each_event_does_not_hang() {
    // `tracing` asks about an event once, perhaps in a thread of another test, where nobody listens.
    alone("a_subscriber_that_uses_the_pool_on_each_event_does_not_hang", || {
        let (done, is_done) = mpsc::channel();
        let worker = std::thread::spawn(move || {
            tracing::subscriber::with_default(Hears(use_the_pool), work);
            done.send(HEARD.take()).unwrap();
        });
        let heard = match is_done.recv_timeout(Duration::from_secs(300)) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("an event was sent with a lock held"),
            heard => heard,
        };
        worker.join().unwrap();
        let heard = heard.unwrap();
        // Each of them comes under the pool's lock, or under that of a stream.
        for text in [
            "a miss",
            "an old mapping could not be removed; it is tried again",
            "the device could not be asked what is complete",
        ] {
            assert!(heard.contains(text), "{text:?} is not in {heard:#?}");
        }
        // Without a lock.
        assert!(heard.contains("out of memory"), "{heard:#?}");
    });
}

/// Has a copy of buffers say something, and the pool sleep when it is heard. Returns the texts.
fn copy_of_a_pool_that_falls_asleep() -> BTreeSet<String> {
    let (sim, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let other = context.create_stream().unwrap();
    let [from, mut to] = [&stream, &other].map(|on| Buffer::<u32>::zeroed(&pool, 1000, on).unwrap());
    USED.set(Some((context, pool.clone(), stream.clone())));
    let failure = DeviceError::Unavailable("a test asked for it".to_owned());
    sim.fail_next(Call::DestroyEvent, 1, failure);
    to.copy_from(&from).unwrap();
    USED.take();
    assert!(pool.is_asleep());
    pool.wake().unwrap();
    HEARD.take()
}

#[test]
fn a_subscriber_may_put_the_pool_of_a_copy_to_sleep() {
    alone("a_subscriber_may_put_the_pool_of_a_copy_to_sleep", || {
        let (done, is_done) = mpsc::channel();
        let put_to_sleep = |event: &Event<'_>| {
            let text = fields(event).remove("message").unwrap_or_default();
            HEARD.with_borrow_mut(|heard| heard.insert(text));
            let used = USED.with_borrow(|used| used.clone());
            used.into_iter().for_each(|(_, pool, _)| _ = pool.sleep(Keep::Nothing).unwrap());
        };
        let copies = move || done.send(copy_of_a_pool_that_falls_asleep()).unwrap();
        let worker =
            std::thread::spawn(move || tracing::subscriber::with_default(Hears(put_to_sleep), copies));
        let heard = match is_done.recv_timeout(Duration::from_secs(60)) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the sleep waits for the copy of its own thread"),
            heard => heard,
        };
        worker.join().unwrap();
        assert!(heard.unwrap().contains("an event could not be destroyed"));
    });
}

/// A device that says something when it was given a copy to the host.
#[derive(Debug)]
struct Talks(Arc<HostDevice>);

// SAFETY: each call goes to the device below, and its answer is given back.
unsafe impl Forward for Talks {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        let given = unsafe { self.0.copy_to_host(to, from, bytes, stream) };
        warn("a copy was given");
        given
    }
}

#[test]
fn nothing_is_written_to_a_slice_after_a_subscriber_panicked() {
    alone("nothing_is_written_to_a_slice_after_a_subscriber_panicked", || {
        let context = Context::new(Arc::new(Talks(HostDevice::new().unwrap())));
        let (pool, stream) = (Pool::builder(&context).build().unwrap(), context.create_stream().unwrap());
        let buffer = Buffer::from_slice(&pool, &[7_u32; 1000], &stream).unwrap();
        stream.launch_host(|| std::thread::sleep(Duration::from_millis(200))).unwrap();
        let mut copied = vec![0; 1000];
        let panics = Hears(|event: &Event<'_>| {
            assert!(fields(event)["message"] != "a copy was given", "expected by the test");
        });
        let copy = AssertUnwindSafe(|| buffer.copy_to_slice(&mut copied));
        let panicked = tracing::subscriber::with_default(panics, || catch_unwind(copy));
        let left = copied.clone();
        stream.synchronize().unwrap();
        assert!(panicked.is_err() && copied == left);
    });
}
