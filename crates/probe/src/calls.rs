//! What the device's calls cost, each timed alone by the host.

use std::sync::Arc;

use millpond::device::{Advice, Device, DeviceResult, Place};

use crate::Result;
use crate::owned::{OwnedStream, Segment};
use crate::run::{Run, Scale, made, timed};

/// Pages grow by this factor, from the smallest one on.
const STEP: u64 = 8;
/// Calls of a batch that is timed as one: each takes too little for a clock.
const BATCH: u64 = 50;
/// Addresses that are reserved at a time.
const RANGE: u64 = 1 << 30;

/// Create, map, set access, unmap and release, of pages of several sizes.
pub(crate) fn pages(device: &Arc<dyn Device>, run: &mut Run<'_>) -> Result<()> {
    if !device.properties().virtual_memory {
        run.leave_out("pages", &"this memory has none that can be mapped");
        return Ok(());
    }
    let most = run.effort.most_bytes;
    let least = device.properties().granularity;
    let sizes = std::iter::successors(Some(least), |size| Some(size * STEP));
    for bytes in sizes.take_while(|size| *size <= most.max(least)) {
        let at = device.reserve(bytes)?;
        let names = ["create", "map", "set access", "unmap", "release"].map(|name| (name, Scale::Call));
        run.figures(names, Some(bytes), || {
            let (page, create) = made(|| Ok(device.create_page(bytes)?))?;
            // SAFETY: range and page are ours, of this size, and used by nobody else; no work is given to a stream.
            let map = timed(|| Ok(unsafe { device.map(at, bytes, page) }?)).inspect_err(|_| {
                // SAFETY: the page is not used again.
                unsafe { device.release_page(page) }.ok();
            })?;
            // SAFETY: as above.
            let access = timed(|| Ok(unsafe { device.set_access(at, bytes) }?));
            // SAFETY: as above.
            let unmap = timed(|| Ok(unsafe { device.unmap(at, bytes) }?));
            // SAFETY: the page is not used again.
            let release = timed(|| Ok(unsafe { device.release_page(page) }?));
            Ok([create, map, access?, unmap?, release?])
        });
        // SAFETY: each sample unmapped what it mapped.
        unsafe { device.unreserve(at, bytes) }?;
    }
    Ok(())
}

/// Whole segments: of the device's memory, of pinned and of managed memory.
pub(crate) fn segments(device: &Arc<dyn Device>, run: &mut Run<'_>) -> Result<()> {
    segments_of(device, ["allocate", "free"], run);
    match device.pinned(None) {
        Ok(pinned) => segments_of(&pinned, ["allocate, pinned", "free, pinned"], run),
        Err(why) => run.leave_out("pinned", &why),
    }
    match device.managed() {
        Ok(managed) => segments_of(&managed, ["allocate, managed", "free, managed"], run),
        Err(why) => run.leave_out("managed", &why),
    }
    Ok(())
}

fn segments_of(device: &Arc<dyn Device>, names: [&str; 2], run: &mut Run<'_>) {
    let most = run.effort.most_bytes;
    let sizes = std::iter::successors(Some(1 << 20), |size| Some(size * STEP));
    for bytes in sizes.take_while(|size| *size <= most) {
        run.figures(names.map(|name| (name, Scale::Call)), Some(bytes), || {
            let (segment, allocate) = made(|| Segment::new(device, bytes))?;
            let free = timed(|| {
                drop(segment);
                Ok(())
            })?;
            Ok([allocate, free])
        });
    }
}

/// Calls that do not depend on a size. `cost_table` finds them by their names.
pub(crate) fn others(device: &Arc<dyn Device>, run: &mut Run<'_>) -> Result<()> {
    let owned = OwnedStream::new(device)?;
    let stream = owned.handle();
    batch(run, "ask for free memory", || device.memory_info().map(drop));
    if device.properties().virtual_memory {
        let granularity = device.properties().granularity;
        let range = RANGE.next_multiple_of(granularity);
        // A sample has two figures: reserve, and its counterpart.
        run.figures(
            [("reserve addresses", Scale::Each(1)), ("give addresses back", Scale::Each(1))],
            None,
            || {
                let (at, reserve) = made(|| Ok(device.reserve(range)?))?;
                // SAFETY: it was just reserved, and nothing is mapped there.
                let back = timed(|| Ok(unsafe { device.unreserve(at, range) }?))?;
                Ok([reserve, back])
            },
        );
    }
    run.figures([("create a stream", Scale::Each(1)), ("destroy a stream", Scale::Each(1))], None, || {
        let (owned, create) = made(|| OwnedStream::new(device))?;
        let destroy = timed(|| {
            drop(owned);
            Ok(())
        })?;
        Ok([create, destroy])
    });
    // SAFETY: the stream is valid until its owner goes.
    batch(run, "ask for a stream's number", || unsafe { device.stream_id(stream) }.map(drop));
    run.figures(
        [("create an event", Scale::Each(BATCH)), ("destroy an event", Scale::Each(BATCH))],
        None,
        || {
            let mut events = Vec::with_capacity(BATCH as usize);
            let create = timed(|| {
                for _ in 0..BATCH {
                    events.push(device.create_event()?);
                }
                Ok(())
            });
            let destroy = timed(|| {
                for event in events {
                    // SAFETY: it was just made, and is not used again.
                    unsafe { device.destroy_event(event) }?;
                }
                Ok(())
            })?;
            Ok([create?, destroy])
        },
    );
    let event = device.create_event()?;
    // SAFETY: event and stream are valid until they are destroyed, below.
    unsafe {
        batch(run, "record an event", || device.record_event(event, stream));
        batch(run, "query an event", || device.query_event(event).map(drop));
        batch(run, "make a stream wait", || device.wait_event(stream, event));
    }
    // SAFETY: it is not used again.
    unsafe { device.destroy_event(event) }?;
    owned.wait()?;
    submissions(device, &owned, run)?;
    driver_pool(device, &owned, run);
    managed(device, &owned, run)?;
    owned.wait()
}

/// A call that is timed in batches.
fn batch(run: &mut Run<'_>, what: &str, mut call: impl FnMut() -> DeviceResult<()>) {
    run.figure(what, None, Scale::Each(BATCH), || {
        timed(|| {
            for _ in 0..BATCH {
                call()?;
            }
            Ok(())
        })
    });
}

/// What giving work to a stream takes the host, with the stream idle before.
fn submissions(device: &Arc<dyn Device>, owned: &OwnedStream, run: &mut Run<'_>) -> Result<()> {
    let memory = Segment::new(device, 4096)?;
    run.figure("give work to a stream", None, Scale::Each(BATCH), || {
        let submitted = timed(|| {
            for _ in 0..BATCH {
                // SAFETY: the segment has so many bytes, lives until after the wait, and only this stream uses it.
                unsafe { device.memset(memory.at(), 0, 4096, owned.handle()) }?;
            }
            Ok(())
        });
        owned.wait()?;
        submitted
    });
    Ok(())
}

/// The driver's stream-ordered pool, where a free block is there.
fn driver_pool(device: &Arc<dyn Device>, owned: &OwnedStream, run: &mut Run<'_>) {
    let pool = match device.driver_pool() {
        Ok(pool) => pool,
        Err(why) => return run.leave_out("allocate in stream order", &why),
    };
    let names =
        [("allocate in stream order", Scale::Each(BATCH)), ("free in stream order", Scale::Each(BATCH))];
    run.figures(names, None, || {
        let [mut allocate, mut free] = [0.0; 2];
        for _ in 0..BATCH {
            // SAFETY: the stream is valid.
            let (at, ns) = made(|| Ok(unsafe { pool.alloc_async(1 << 20, owned.handle()) }?))?;
            allocate += ns;
            // SAFETY: it was just allocated, and nobody uses it.
            free += timed(|| Ok(unsafe { pool.free_async(at, owned.handle()) }?))?;
        }
        owned.wait()?;
        Ok([allocate, free])
    });
}

/// What is said of managed memory, where the device has it. It lies where it is to lie already.
fn managed(device: &Arc<dyn Device>, owned: &OwnedStream, run: &mut Run<'_>) -> Result<()> {
    const BYTES: u64 = 2 << 20;
    let Ok(managed) = device.managed() else { return Ok(()) };
    let memory = Segment::new(&managed, BYTES)?;
    // SAFETY: the segment has so many bytes, lives until after the waits, and only this stream uses it.
    unsafe { device.memset(memory.at(), 0, BYTES, owned.handle()) }?;
    owned.wait()?;
    run.figure("prefetch managed memory", None, Scale::Each(BATCH), || {
        let submitted = timed(|| {
            for _ in 0..BATCH {
                // SAFETY: the stream is valid, and the segment lives until after the wait.
                unsafe { managed.prefetch(memory.at(), BYTES, Place::Device, owned.handle()) }?;
            }
            Ok(())
        });
        owned.wait()?;
        submitted
    });
    let advice = Advice::PreferredLocation(Some(Place::Device));
    batch(run, "advise on managed memory", || managed.advise(memory.at(), BYTES, advice));
    Ok(())
}
