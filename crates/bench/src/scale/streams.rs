//! Beside many streams.

use std::time::Duration;

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Pool, Stream};

use super::Meter;
use super::pages::CAPACITY;
use crate::Result;

/// Calls that are watched at once: one alone is as short as a look at the clock.
const AT_ONCE: u64 = 100;

fn streams(context: &Context, count: u64) -> Result<Vec<Stream>> {
    (0..count).map(|_| Ok(context.create_stream()?)).collect()
}

fn context() -> Result<Context> {
    Ok(Context::new(SimDevice::new(SimOptions::default().capacity(CAPACITY))?))
}

pub(super) fn new_stream(meter: &mut Meter, count: u64) -> Result<()> {
    let context = context()?;
    let mut all = streams(&context, count)?;
    for _ in 0..20 {
        all.extend(meter.watch_many(AT_ONCE, || streams(&context, AT_ONCE))?);
    }
    Ok(())
}

pub(super) fn foreign_stream(meter: &mut Meter, count: u64) -> Result<()> {
    let context = context()?;
    let all = streams(&context, count)?;
    for stream in all.iter().rev().take(20) {
        meter.watch_many(AT_ONCE, || {
            // SAFETY: the stream lives.
            (0..AT_ONCE).try_for_each(|_| Ok(unsafe { context.foreign_stream(stream.handle()) }.map(drop)?))
        })?;
    }
    Ok(())
}

/// A thread caches blocks of so many streams, and then needs more than is free.
pub(super) fn take_back(meter: &mut Meter, count: u64) -> Result<()> {
    let sim = SimDevice::new(SimOptions::default().capacity(CAPACITY))?;
    let context = Context::new(sim.clone());
    let pool = Pool::builder(&context).release_threshold(u64::MAX).build()?;
    let all = streams(&context, count)?;
    let pair = |stream: &Stream| -> Result<()> {
        let block = pool.alloc(4096, stream)?;
        // SAFETY: it is freed once, and no work uses it.
        unsafe { pool.free(block, stream) }?;
        sim.advance_to(sim.now() + Duration::from_millis(100));
        Ok(())
    };
    all.iter().try_for_each(pair)?;
    // The first miss takes what all of them hold. Later ones look where there is something again.
    _ = pool.alloc(64 << 20, &all[0])?;
    for more in 1..21 {
        pair(&all[0])?;
        _ = meter.watch(1, || Ok(pool.alloc((64 + more) << 20, &all[0])?))?;
    }
    Ok(())
}
