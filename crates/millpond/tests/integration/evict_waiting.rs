//! What waits for copies. Evictions hold no lock meanwhile: the copies may come behind a function of the host that asks the tag for
//! something. Each stream that uses a tag's buffers comes behind its restore.

use std::sync::mpsc::{Sender, channel};
use std::thread::{sleep, spawn, yield_now};
use std::time::Duration;

use millpond::device::DeviceError;
use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::Call;
use millpond::testing::capturing::CapturingDevice;
use millpond::{Buffer, Context, Error, Keep, Pool, Result, Stream};

use crate::shared::{Freeing, MIB, sim};

/// A pool on the host device, whose streams run, and a tag of it.
struct Tagged {
    context: Context,
    pool: Pool,
    tag: Pool,
    stream: Stream,
}

impl Tagged {
    fn new() -> Self {
        let device = HostDevice::with_options(HostOptions::default().capacity(256 * MIB)).unwrap();
        let context = Context::new(device);
        let pool = Pool::builder(&context).page_sizes(2 * MIB, 2 * MIB).build().unwrap();
        let tag = pool.tagged("optimizer").unwrap();
        let stream = context.create_stream().unwrap();
        Self { context, pool, tag, stream }
    }
}

/// Gives the stream a function that asks the tag for something, a while after it is told to.
fn ask_on_stream(stream: &Stream, tag: &Pool) -> Sender<()> {
    let (tell, told) = channel::<()>();
    let asked = tag.clone();
    let work = move || {
        _ = told.recv();
        sleep(Duration::from_millis(100));
        asked.check().unwrap();
    };
    stream.launch_host(work).unwrap();
    tell
}

/// Evicts the tag behind this stream. Fails where that hangs.
fn evict(tag: &Pool, stream: &Stream) -> millpond::Result<u64> {
    let (done, is_done) = channel();
    let leaves = (tag.clone(), stream.clone());
    spawn(move || done.send(leaves.0.evict(&leaves.1)));
    is_done.recv_timeout(Duration::from_secs(30)).expect("it hangs")
}

#[test]
fn an_eviction_that_waits_for_the_device_holds_no_lock() {
    let Tagged { context, pool: _pool, tag, stream } = Tagged::new();
    let block = tag.alloc(5 * MIB, &stream).unwrap();
    let ((given, is_given), (end, is_end)) = (channel(), channel::<()>());
    let asked = tag.clone();
    let other = spawn(move || {
        let own = context.per_thread_stream().unwrap();
        let work = move || {
            while !asked.is_evicted() {
                yield_now();
            }
            // By then the eviction waits.
            sleep(Duration::from_millis(100));
            asked.check().unwrap();
        };
        own.launch_host(work).unwrap();
        given.send(()).unwrap();
        is_end.recv().unwrap();
    });
    is_given.recv().unwrap();
    assert_eq!(evict(&tag, &stream), Ok(6 * MIB));
    end.send(()).unwrap();
    other.join().unwrap();
    tag.restore(&stream).unwrap();
    tag.free_block(block, &stream).unwrap();
}

#[test]
fn an_eviction_that_is_refused_late_does_not_wait_for_its_copies() {
    let Tagged { pool, tag, stream, .. } = Tagged::new();
    let block = tag.alloc(5 * MIB, &stream).unwrap();
    pool.sleep(Keep::InPinnedMemory).unwrap();
    tag.wake().unwrap();
    let tell = ask_on_stream(&stream, &tag);
    let refused = evict(&tag, &stream);
    assert!(matches!(refused, Err(Error::CannotEvict { .. })), "{refused:?}");
    // The copies are to come. Until they are complete, no page goes.
    let other = tag.context().create_stream().unwrap();
    tag.free_block(block, &other).unwrap();
    other.synchronize().unwrap();
    tag.trim_to(0).unwrap();
    assert_eq!(tag.reserved().current, 6 * MIB);
    tell.send(()).unwrap();
    tag.context().synchronize().unwrap();
    tag.trim_to(0).unwrap();
    assert_eq!(tag.reserved().current, 0);
    tag.check().unwrap();
}

#[test]
fn a_tag_that_leaves_again_without_its_pool_waits_without_a_lock() {
    let Tagged { context, pool, tag, stream } = Tagged::new();
    let stays = pool.alloc(2 * MIB, &stream).unwrap();
    let used = pool.alloc(4 * MIB, &stream).unwrap();
    let block = tag.alloc(4 * MIB, &stream).unwrap();
    tag.evict(&stream).unwrap();
    // The pool uses the pages. So those that the tag gets are others, behind the function.
    let other = pool.alloc(4 * MIB, &stream).unwrap();
    stream.synchronize().unwrap();
    let tell = ask_on_stream(&stream, &tag);
    pool.free_block(used, &stream).unwrap();
    tag.restore_ahead().unwrap();
    // It keeps its live blocks, and gets no pages any more.
    drop(pool);
    tell.send(()).unwrap();
    assert_eq!(evict(&tag, &context.create_stream().unwrap()), Ok(0));
    tag.restore(&stream).unwrap();
    tag.check().unwrap();
    tag.free_block(block, &stream).unwrap();
    [stays, other].into_iter().for_each(|block| context.free_block(block, &stream).unwrap());
}

/// A tag's buffers on a stream of their own, while its bytes are to come back behind work of another stream.
struct ComingBack {
    pool: Pool,
    tag: Pool,
    buffers: [Buffer<u8>; 2],
    /// That of the buffers.
    own: Stream,
    /// Ends the work that the bytes come behind.
    tell: Sender<()>,
}

fn coming_back(context: &Context) -> ComingBack {
    let pool = Pool::builder(context).page_sizes(2 * MIB, 2 * MIB).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let [other, own] = [0; 2].map(|_| context.create_stream().unwrap());
    let buffers = [7, 8].map(|value| Buffer::from_slice(&tag, &vec![value; 5 << 20], &own).unwrap());
    tag.evict(&other).unwrap();
    let used = Buffer::from_slice(&pool, &vec![9_u8; 20 << 20], &other).unwrap();
    other.synchronize().unwrap();
    let (tell, told) = channel::<()>();
    other.launch_host(move || _ = told.recv()).unwrap();
    drop(used);
    tag.restore(&other).unwrap();
    ComingBack { pool, tag, buffers, own, tell }
}

fn host() -> std::sync::Arc<HostDevice> {
    HostDevice::with_options(HostOptions::default().capacity(256 * MIB)).unwrap()
}

#[test]
fn each_stream_that_uses_buffers_of_a_tag_comes_behind_its_restore() {
    let context = Context::new(host());
    let ComingBack { pool, tag, buffers: [one, mut other], own, tell } = coming_back(&context);
    // A copy on a third stream, and one on the buffers' own.
    let third = context.create_stream().unwrap();
    let mut copies = [&own, &third].map(|on| Buffer::<u8>::new(&pool, 5 << 20, on).unwrap());
    copies.iter_mut().try_for_each(|copy| copy.copy_from(&one)).unwrap();
    other.fill(10).unwrap();
    for _ in 0..50 {
        assert!(!own.is_idle().unwrap() && !third.is_idle().unwrap(), "the bytes are not back");
        sleep(Duration::from_millis(1));
    }
    // Who uses nothing of the tag does not wait.
    let beside = Pool::builder(&context).build().unwrap();
    let free = Buffer::from_slice(&beside, &[11_u8; 100], &context.create_stream().unwrap()).unwrap();
    assert_eq!(free.to_vec(), Ok(vec![11; 100]));
    tell.send(()).unwrap();
    assert!(copies.iter().all(|copy| copy.to_vec() == Ok(vec![7; 5 << 20])));
    assert!(one.to_vec() == Ok(vec![7; 5 << 20]) && other.to_vec() == Ok(vec![10; 5 << 20]));
    drop([one, other]);
    [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
}

#[test]
fn what_is_shared_after_a_restore_comes_behind_it() {
    let context = Context::new(host());
    let ComingBack { pool: _pool, buffers: [one, _other], tell, .. } = coming_back(&context);
    let shared = one.share().unwrap();
    for _ in 0..50 {
        assert!(!shared.event().query().unwrap(), "the bytes are not back");
        sleep(Duration::from_millis(1));
    }
    tell.send(()).unwrap();
    context.synchronize().unwrap();
    assert!(shared.event().query().unwrap());
}

#[test]
fn a_stream_that_is_captured_before_the_restore_is_complete_says_so() {
    let device = CapturingDevice::new(host());
    let context = Context::new(device.clone());
    let ComingBack { pool, buffers: [mut one, _other], own, tell, .. } = coming_back(&context);
    // Its end waits for the device.
    let memory = pool.capture_pool();
    let capture = |during: &mut dyn FnMut() -> Result<()>| {
        let capturing = memory.begin(&own).unwrap();
        device.begin_capture(own.handle()).unwrap();
        let done = during();
        device.end_capture(own.handle()).expect("no rule was broken");
        drop(capturing);
        done
    };
    let said = capture(&mut || one.fill(1)).map_err(|error| error.to_string());
    tell.send(()).unwrap();
    assert!(said.as_ref().is_err_and(|said| said.contains("before the capture")), "{said:?}");
    context.synchronize().unwrap();
    capture(&mut || one.fill(1)).unwrap();
}

#[test]
fn a_write_comes_behind_the_copies_of_an_eviction_that_failed() {
    let (mut behind, mut is_over) = (0, false);
    for nth in 1.. {
        let (sim, context, stream) = sim(256 * MIB);
        let pool = Pool::builder(&context).page_sizes(2 * MIB, 2 * MIB).build().unwrap();
        let tag = pool.tagged("optimizer").unwrap();
        let mut buffer = Buffer::<u8>::new(&tag, 32 << 20, &context.create_stream().unwrap()).unwrap();
        context.synchronize().unwrap();
        // The eviction comes behind this stream, and so do its copies.
        let hold = sim.hold(stream.handle()).unwrap();
        let copies = || [Call::Copy, Call::CopyToHost].map(|call| sim.calls()[call]);
        let before = copies();
        sim.fail_next(Call::RecordEvent, nth, DeviceError::Unavailable("asked for".to_owned()));
        is_over = tag.evict(&stream).is_ok();
        sim.fail_no_more();
        let began = copies() != before;
        if !is_over {
            buffer.fill(2).unwrap();
            let written = buffer.stream().record().unwrap();
            sim.advance_to(sim.now() + Duration::from_secs(1));
            let is_written = written.query().unwrap();
            assert_eq!(is_written, !began, "the failing event was number {nth}");
            behind += u32::from(began);
        }
        sim.release(hold);
        context.synchronize().unwrap();
        [&pool, &tag].iter().for_each(|pool| pool.check().unwrap());
        if is_over {
            break;
        }
    }
    assert!(is_over && behind > 0, "{behind}");
}
