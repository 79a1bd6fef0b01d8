//! For `--watch`: a pool on a simulated device that is given the program's allocations and frees. So what the pool would have
//! held is known at the end, and `MILLPOND_RECORD` records the program as it records any pool.
//!
//! The streams of the simulated device have no work, so their memory is used again at once. A replay of the recording knows
//! better: it takes the times into account.

use millpond::bindings::{Mutex, PerProcess};
use millpond::device::DevicePtr;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Pool, Stats, Stream};
use rustc_hash::FxHashMap;

use crate::messages;

#[derive(Debug, Default)]
struct Shadow {
    pool: Mutex<Option<Shadowed>>,
}

#[derive(Debug)]
struct Shadowed {
    context: Context,
    pool: Pool,
    streams: FxHashMap<u64, Stream>,
    blocks: FxHashMap<u64, ShadowBlock>,
}

/// A block of the pool that stands for one of the program's, and the stream that it was allocated on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShadowBlock {
    ptr: DevicePtr,
    stream: u64,
}

static SHADOW: PerProcess<Shadow> = PerProcess::new(Default::default);

/// The program got memory at an address, for work on a stream.
pub(crate) fn alloc(at: u64, bytes: u64, stream: u64) {
    with(|shadow| {
        let on = shadow.stream(stream)?;
        let ptr = shadow.pool.alloc(bytes, &on)?;
        shadow.blocks.insert(at, ShadowBlock { ptr, stream });
        Ok(())
    });
}

/// The program frees what is at an address. The block is of nobody until it is [settled](settle).
pub(crate) fn take(at: u64) -> Option<ShadowBlock> {
    SHADOW.get().pool.lock().as_mut()?.blocks.remove(&at)
}

/// The driver did free it, in the order of a stream, or of the one of the allocation; or it did not.
pub(crate) fn settle(at: u64, block: ShadowBlock, stream: Option<u64>, is_freed: bool) {
    with(|shadow| {
        if !is_freed {
            shadow.blocks.insert(at, block);
            return Ok(());
        }
        let on = shadow.stream(stream.unwrap_or(block.stream))?;
        // SAFETY: it is in no table any more, and no work uses it: the device has none.
        unsafe { shadow.pool.free(block.ptr, &on) }
    });
}

/// What the pool did; `None` where the program allocated nothing.
pub(crate) fn stats() -> Option<Stats> {
    SHADOW.get().pool.lock().as_ref().map(|shadow| shadow.pool.stats())
}

fn with(call: impl FnOnce(&mut Shadowed) -> millpond::Result<()>) {
    let mut pool = SHADOW.get().pool.lock();
    let done = match &mut *pool {
        Some(shadow) => call(shadow),
        empty => Shadowed::new().and_then(|new| call(empty.insert(new))),
    };
    drop(pool);
    if let Err(error) = done {
        messages::say(&format!("the program is watched no further: {error}"));
    }
}

impl Shadowed {
    fn new() -> millpond::Result<Self> {
        /// More than any GPU has: the program's own driver refuses what is too much.
        const CAPACITY: u64 = 1 << 40;
        let context = Context::new(SimDevice::new(SimOptions::default().capacity(CAPACITY))?);
        let pool = Pool::builder(&context).name("watched").live(false).build()?;
        Ok(Self { context, pool, streams: FxHashMap::default(), blocks: FxHashMap::default() })
    }

    fn stream(&mut self, handle: u64) -> millpond::Result<Stream> {
        if let Some(known) = self.streams.get(&handle) {
            return Ok(known.clone());
        }
        let made = self.context.create_stream()?;
        self.streams.insert(handle, made.clone());
        Ok(made)
    }
}
