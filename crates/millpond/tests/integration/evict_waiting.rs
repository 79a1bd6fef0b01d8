//! Evictions hold no lock while copies are waited for: these may come behind a function of the host that asks the tag for something.

use std::sync::mpsc::{Sender, channel};
use std::thread::{sleep, spawn, yield_now};
use std::time::Duration;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::{Context, Error, Keep, Pool, Stream};

use crate::shared::{Freeing, MIB};

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
