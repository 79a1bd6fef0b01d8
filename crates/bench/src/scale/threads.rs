//! Beside many threads.

use std::sync::{RwLock, mpsc};

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Pool, Stream};

use super::Meter;
use super::pages::CAPACITY;
use crate::{Error, Result};

/// Pairs that are watched at once.
const AT_ONCE: u64 = 1000;

/// Bytes of a thread's stack.
const STACK: usize = 128 << 10;

fn allocate_and_free(pool: &Pool, stream: &Stream) -> Result<()> {
    let block = pool.alloc(4096, stream)?;
    // SAFETY: it is freed once, and no work uses it.
    Ok(unsafe { pool.free(block, stream) }?)
}

/// Pairs of a thread that comes after so many others, all of which have used a pool and live on.
pub(super) fn pair(meter: &mut Meter, threads: u64) -> Result<()> {
    let context = Context::new(SimDevice::new(SimOptions::default().capacity(CAPACITY))?);
    let [pool, other] = [(); 2].map(|()| Pool::builder(&context).build());
    let (pool, other, stream) = (pool?, other?, context.create_stream()?);
    let pairs = |count: u64| (0..count).try_for_each(|_| allocate_and_free(&pool, &stream));
    // The others live until this is let go of.
    let end = RwLock::new(());
    std::thread::scope(|scope| {
        let keeps_them = end.write();
        let (tell, used) = mpsc::channel();
        for _ in 0..threads {
            let tell = tell.clone();
            let wait = || {
                let (tell, done) = (tell, allocate_and_free(&other, &stream));
                _ = tell.send(done);
                drop(end.read());
            };
            let started = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, wait);
            started.map_err(|_| Error::Thread)?;
        }
        used.iter().take(threads as usize).collect::<Result<()>>()?;
        // On a thread of its own: this one is older than the others.
        let last = scope.spawn(|| {
            pairs(AT_ONCE)?;
            (0..20).try_for_each(|_| meter.watch_many(AT_ONCE, || pairs(AT_ONCE)))
        });
        let done = last.join().unwrap_or(Err(Error::Thread));
        drop(keeps_them);
        done
    })
}
