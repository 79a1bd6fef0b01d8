//! What bindings to other languages need, so that their own part of a call stays as short as the pool's.
//!
//! A binding finds the pool and the stream that a handle stands for, and must keep them while it uses them. A thread
//! that asks for the same two again and again may remember a [`Shortcut`] instead. Its calls take a few nanoseconds:
//! they never wait, call back or fail.

use std::mem::ManuallyDrop;
use std::sync::Arc;

pub use crate::budgets::Amount;
pub use crate::cache::{Shortcut, on_thread_end};
use crate::capture::CapturePool;
use crate::core::freeing;
use crate::device::{Device, DevicePtr, StreamHandle};
use crate::error::Result;
/// For what is printed of names from elsewhere.
pub use crate::live::figures::is_unshown;
/// Warns by `tracing`, or on the standard error if nobody listens there, as in most programs in C.
pub use crate::log::warn_in_any_case as warn;
use crate::order::{RegisteredStream, Stream};
pub use crate::physical::{Mapping, watch_mappings};
/// The [decay](crate::PoolBuilder::decay) of programs that rely on the driver's pools, which give back at once.
pub use crate::policy::decay::DELAY as DECAY;
use crate::pool::{Context, Pool};
pub use crate::record::called_from::{CalledFrom, SourceFrame, called_from, freed_from};
/// For `millpond run`, which says what was recorded.
pub use crate::record::file::refuse_to_replace;
pub use crate::record::names::{kept_name, recording_begun, recording_names};
use crate::sharing::{Received, SharedEvent};
/// Runs a write that the limit of file sizes may refuse, without the signal that ends the process.
pub use crate::system::file_limit::refusing as within_file_limit;
pub use crate::system::lock::{Condvar, Mutex, MutexGuard, RwLock};
pub use crate::system::process::{Forked, PerProcess, Process, on_fork};
/// For the files that commands are given.
pub use crate::system::short_file::{read_short, read_short_text};
use crate::typed::{Buffer, Opened};

impl Shortcut {
    /// The calling thread's; `None` where it has none, as before it first had a block of the pool.
    #[must_use]
    pub fn new(pool: &Pool, stream: &Stream) -> Option<Self> {
        Self::of_thread(&pool.inner().caches, stream)
    }
}

/// Whether the stream is registered. While that is so, whoever presents its handle may be given a [`Shortcut`] for it.
#[must_use]
pub fn is_registered(stream: &Stream) -> bool {
    stream.is_registered()
}

/// How many [captures](CapturePool::begin) the pool was told of that are under way.
#[must_use]
pub fn captures_under_way(pool: &Pool) -> usize {
    if pool.inner().is_here() { pool.inner().routes.len() } else { 0 }
}

/// Whether an allocation on the stream comes from the memory of a [capture](CapturePool::begin) that the pool was told of.
#[must_use]
pub fn is_kept_for_capture(pool: &Pool, stream: &Stream) -> bool {
    captures_under_way(pool) > 0 && pool.inner().routes.of(stream).is_some()
}

/// The first part of a registration's end: from now on, it is not what makes [`is_registered`] say yes. Between this and
/// the drop, a binding takes back the shortcuts that it gave out by the stream's handle.
pub fn withdraw(registered: &mut RegisteredStream) {
    registered.withdraw();
}

/// What [`Context::open_shared`] opens, as a plain block of bytes: the pool that frees it, its address, its bytes, and the event.
///
/// # Errors
/// Those of [`Context::open_shared`].
pub fn open_shared(
    context: &Context,
    received: Received,
    stream: &Stream,
) -> Result<(Pool, DevicePtr, u64, SharedEvent)> {
    let Opened { buffer, event, .. } = context.open_shared::<u8>(received, stream)?;
    let (pool, bytes) = (Pool::new(buffer.core().clone(), None), buffer.byte_len());
    Ok((pool, buffer.into_raw(), bytes, event))
}

/// The page that a received block lies on: where on it the block begins, and the bytes of the page. `None` where it lies on several.
#[must_use]
pub fn page_around(received: &Received) -> Option<(u64, u64)> {
    received.token().only_page()
}

/// Unlike any other pool's of the process, those that ended among them.
#[must_use]
pub fn number_of(pool: &Pool) -> u64 {
    pool.inner().number
}

/// Makes later work on `stream` wait for the recorded uses of a live block, of which it is the stream, and for the copies of a
/// [restore](Pool::restore). Null has none.
///
/// # Errors
/// As for [`Pool::free`]. [`Error::Asleep`](crate::Error::Asleep) and [`Error::Evicted`](crate::Error::Evicted).
/// [`Error::Device`](crate::Error::Device) while one of the uses is being captured.
pub fn wait_for_uses(pool: &Pool, ptr: DevicePtr, stream: &Stream) -> Result<()> {
    pool.inner().check_stream(stream)?;
    if ptr.is_null() {
        return Ok(());
    }
    let _awake = pool.inner().stay_awake_for(stream)?;
    freeing::order_after_uses(pool.inner(), ptr, Some(stream))
}

/// Calls with what gives work on the pool's memory to `stream`: the device, and the stream's handle. The memory is there meanwhile, and
/// the work comes behind the copies of a [restore](Pool::restore).
///
/// # Errors
/// [`Error::Asleep`](crate::Error::Asleep), [`Error::Evicted`](crate::Error::Evicted) and [`Error::Forked`](crate::Error::Forked), and those for a
/// stream of another device.
pub fn while_there<R>(
    pool: &Pool,
    stream: &Stream,
    call: impl FnOnce(&dyn Device, StreamHandle) -> R,
) -> Result<R> {
    pool.inner().check_process()?;
    pool.inner().check_stream(stream)?;
    let handle = stream.handle_here()?;
    let _awake = pool.inner().stay_awake_for(stream)?;
    Ok(call(stream.device().as_ref(), handle))
}

/// Calls with the first `bytes` bytes of a live block as a [`Buffer`] on `stream`: so a binding's own blocks do what buffers
/// do. The block stays the caller's. `what` names the binding's call, for an error.
///
/// # Errors
/// Those of `call`. As for [`Pool::free`], for a pointer that is no live block of the pool.
/// [`Error::LengthMismatch`](crate::Error::LengthMismatch) for a block that is shorter.
///
/// # Safety
/// Nobody frees the block meanwhile. `stream` is ordered after all work on it, but for recorded uses.
pub unsafe fn with_buffer<R>(
    what: &'static str,
    (pool, ptr, bytes): (&Pool, DevicePtr, u64),
    stream: &Stream,
    call: impl FnOnce(&mut Buffer<u8>) -> Result<R>,
) -> Result<R> {
    // SAFETY: the caller's promise.
    let mut buffer =
        ManuallyDrop::new(unsafe { Buffer::of_block(what, (pool, ptr, bytes as usize), stream) }?);
    let result = call(&mut buffer);
    // Without a free. After a panic, pool and stream just stay.
    _ = ManuallyDrop::into_inner(buffer).into_raw();
    result
}

/// While it lives, the pool is neither put to sleep nor evicted: somebody uses its memory without asking the pool. [`keep_in_place`] makes
/// it.
#[derive(Debug)]
pub struct KeptInPlace {
    _resident: Arc<()>,
}

/// Keeps a pool's memory where it is, for who uses it without asking the pool.
///
/// ```
/// # let device = millpond::Context::host()?;
/// # let pool = millpond::Pool::builder(&device).build()?;
/// # let stream = device.create_stream()?;
/// use millpond::{Error, Keep, bindings::keep_in_place};
///
/// let block = pool.alloc(1000, &stream)?;
/// let kept = keep_in_place(&pool)?;
/// assert!(matches!(pool.sleep(Keep::Nothing), Err(Error::CannotSleep { .. })));
/// drop(kept);
/// pool.sleep(Keep::Nothing)?;
/// assert!(matches!(keep_in_place(&pool), Err(Error::Asleep { .. })));
/// # pool.wake()?;
/// # // SAFETY: nobody else has it.
/// # unsafe { pool.free(block, &stream) }?;
/// # Ok::<(), millpond::Error>(())
/// ```
///
/// # Errors
/// [`Error::Asleep`](crate::Error::Asleep), [`Error::Evicted`](crate::Error::Evicted) and [`Error::Forked`](crate::Error::Forked).
pub fn keep_in_place(pool: &Pool) -> Result<KeptInPlace> {
    Ok(KeptInPlace { _resident: pool.inner().keep_in_place()? })
}

/// Whether both are handles of one pool.
#[must_use]
pub fn is_same_pool(one: &Pool, other: &Pool) -> bool {
    Arc::ptr_eq(one.inner(), other.inner())
}

/// A range of addresses that pages back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backed {
    /// The first address.
    pub start: DevicePtr,
    /// Bytes from there on.
    pub bytes: u64,
    /// [Names](memory_number) the memory of a capture that it belongs to; `None` for the pool's own.
    pub memory: Option<u64>,
}

/// The address ranges of a pool that pages back, those of captures too, in no order. Waits for the pool's lock.
#[must_use]
pub fn backed(pool: &Pool) -> Vec<Backed> {
    let ranges = pool.inner().backed().into_iter();
    ranges.map(|(start, bytes, memory)| Backed { start, bytes, memory }).collect()
}

/// Names the memory of a capture among all of this process.
#[must_use]
pub fn memory_number(memory: &CapturePool) -> u64 {
    memory.number()
}

/// Names the memory of a capture in whose addresses a block of the pool lies; `None` for the pool's own.
#[must_use]
pub fn memory_of(pool: &Pool, ptr: DevicePtr) -> Option<u64> {
    pool.inner().memory_of(ptr)
}

/// Allocates a block in the memory of a capture at an address where a block of as many bytes was before. `false`, and
/// nothing done, where that is not free. For checkpoints of what is live there.
///
/// ```
/// # let device = millpond::Context::host()?;
/// # let pool = millpond::Pool::builder(&device).build()?;
/// # let stream = device.create_stream()?;
/// use millpond::bindings::alloc_at;
///
/// let memory = pool.capture_pool();
/// let capturing = memory.begin(&stream)?;
/// let block = pool.alloc(1000, &stream)?;
/// drop(capturing);
/// // SAFETY: nobody else has the block, and no work uses it.
/// unsafe {
///     pool.free(block, &stream)?;
///     assert!(alloc_at(&memory, block, 1000, &stream)?);
///     assert!(!alloc_at(&memory, block, 1000, &stream)?, "it is live");
///     pool.free(block, &stream)?;
/// }
/// # Ok::<(), millpond::Error>(())
/// ```
///
/// # Errors
/// Those of [`Pool::alloc`], but for want of memory.
///
/// # Safety
/// All work on what lay there is ordered before the work that will use the block.
pub unsafe fn alloc_at(memory: &CapturePool, ptr: DevicePtr, bytes: u64, stream: &Stream) -> Result<bool> {
    memory.alloc_at((ptr, bytes), stream)
}
