//! What the C++ shim asks of the pools: `crates/python/torch/pool.h` declares the same in C.
//!
//! The shim (`crates/python/torch/`) is PyTorch's allocator; these functions are what it stands on. They come to it as a
//! table of addresses, since this library's symbols are not visible to others. No exception passes through them: a
//! call that can fail returns null or a [`Failed`], of which the shim makes PyTorch's exception.

use std::ffi::{CString, c_char, c_int, c_void};
use std::slice;

use millpond::bindings;
use millpond::device::DevicePtr;
use millpond::{CapturePool, Error, Stream};

use super::blocks::{Block, Figures, book};
use super::captures::{self, PoolId};
use super::note;
use super::pinned::{self, PinnedFigures, free_pinned};
use super::torch::{address, alloc_tagged, block_around, caught, pointer, report};
use crate::devices::{self, Device, device};
use crate::failure::{Failure, Result};
use crate::tags;

/// Why a call did nothing. The shim gives it back to [`forget_failure`].
#[repr(C)]
#[derive(Debug)]
pub(super) struct Failed {
    is_out_of_memory: bool,
    text: *mut c_char,
}

/// Null where the call did what it is for.
pub(super) type Outcome = *mut Failed;

/// A block, as it was allocated or struck out.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Entry {
    ptr: *mut c_void,
    gpu: c_int,
    /// Bytes, as PyTorch rounds them, and as they were asked for.
    bytes: u64,
    requested: u64,
    stream: *mut c_void,
    pool: PoolId,
    /// Of the GPU, after it.
    allocated: u64,
    reserved: u64,
    /// A list of streams of other GPUs that use the block; null for none.
    elsewhere: *mut Vec<(c_int, u64)>,
}

/// A C++ function that says of a stream whether its allocations belong to a pool.
#[repr(C)]
#[derive(Debug)]
struct CFilter {
    filter: *mut c_void,
    takes: unsafe extern "C" fn(*mut c_void, *mut c_void) -> bool,
    drop: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: PyTorch's filters look at the calling thread, or at a capture's number; it calls them from any thread too.
unsafe impl Send for CFilter {}
// SAFETY: likewise: calling does not change the function.
unsafe impl Sync for CFilter {}

impl CFilter {
    fn takes(&self, stream: u64) -> bool {
        // SAFETY: `begin_pool` was promised that the function may be called until it is dropped.
        unsafe { (self.takes)(self.filter, std::ptr::without_provenance_mut(stream as usize)) }
    }
}

impl Drop for CFilter {
    fn drop(&mut self) {
        // SAFETY: made for this, and dropped once.
        unsafe { (self.drop)(self.filter) }
    }
}

/// Gets one entry of a list.
type Tell<T> = unsafe extern "C" fn(*mut c_void, *const T);

/// A range of addresses in a snapshot.
#[repr(C)]
#[derive(Debug)]
struct Segment {
    start: *mut c_void,
    bytes: u64,
    pool: PoolId,
}

/// What was live in a pool.
#[derive(Debug)]
struct Checkpoint {
    pool: PoolId,
    live: Vec<(u64, Block)>,
}

pub(super) fn outcome(call: impl FnOnce() -> Result<()>) -> Outcome {
    match caught(call) {
        Ok(()) => std::ptr::null_mut(),
        Err(failure) => failed(&failure),
    }
}

#[cold]
fn failed(failure: &Failure) -> Outcome {
    note(failure);
    let is_too_long = matches!(failure, Failure::Pool(Error::SizeOverflow { .. }));
    let mut text = failure.to_string();
    text.retain(|character| character != '\0');
    let text = CString::new(text).unwrap_or_default().into_raw();
    Box::into_raw(Box::new(Failed { is_out_of_memory: failure.is_out_of_memory() || is_too_long, text }))
}

pub(super) extern "C" fn forget_failure(failed: Outcome) {
    if !failed.is_null() {
        // SAFETY: made by `failed`, and given back once.
        drop(unsafe { (CString::from_raw((*failed).text), Box::from_raw(failed)) });
    }
}

/// Runs what cannot fail but by a panic or a device's error, which is printed.
fn or_default<T: Default>(call: impl FnOnce() -> Result<T>) -> T {
    caught(call).unwrap_or_else(|failure| {
        report(Err(failure));
        T::default()
    })
}

/// The device, where there is a pool on it already: a question must not make one.
fn present(number: c_int) -> Option<(usize, &'static Device)> {
    devices::present().find(|(ordinal, _)| usize::try_from(number) == Ok(*ordinal))
}

fn handle(stream: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(stream as usize)
}

// ---- one allocation ----------------------------------------------------------------------------------

/// Allocates `bytes`, more than 0, for work on a stream.
///
/// # Safety
/// `stream` is null or a live stream of the GPU, as `streams` says; `out` may be written.
unsafe extern "C" fn allocate(gpu: c_int, bytes: u64, stream: *mut c_void, out: *mut Entry) -> Outcome {
    outcome(|| {
        let device = device(gpu.into())?;
        // SAFETY: as promised to this function.
        let found = unsafe { device.streams.find(stream.addr() as u64) }?;
        let ptr = alloc_tagged(device, bytes, &found)
            .or_else(|error| from_others(gpu, device, bytes, &found, error))?;
        let pool = pool_of(gpu, device, ptr);
        let block = Block { requested: bytes, stream: stream.addr() as u64, pool, is_used_elsewhere: false };
        let mut book = book(gpu as usize).lock();
        book.enter(ptr.raw(), block);
        let entry = entry(gpu, device, (ptr.raw(), block), book.allocated());
        // SAFETY: as promised to this function.
        unsafe { out.write(entry) };
        Ok(())
    })
}

fn entry(gpu: c_int, device: &Device, (ptr, block): (u64, Block), allocated: u64) -> Entry {
    Entry {
        ptr: pointer(DevicePtr::new(ptr)),
        gpu,
        bytes: block.bytes(),
        requested: block.requested,
        stream: handle(block.stream),
        pool: block.pool,
        allocated,
        reserved: tags::reserved(device).0,
        elsewhere: std::ptr::null_mut(),
    }
}

/// The pool of PyTorch's in whose memory the block lies.
fn pool_of(gpu: c_int, device: &Device, ptr: DevicePtr) -> PoolId {
    if !captures::are_there_any() {
        return PoolId::default();
    }
    let memory = bindings::memory_of(&device.pool, ptr);
    memory.and_then(|memory| captures::with_memory(gpu, memory)).unwrap_or_default()
}

/// Memory ran out: asks the pools whose free memory others may have.
#[cold]
fn from_others(gpu: c_int, device: &Device, bytes: u64, stream: &Stream, error: Error) -> Result<DevicePtr> {
    if matches!(error, Error::OutOfMemory(_)) {
        for memory in captures::for_others(gpu) {
            if let Some(ptr) = alloc_from(&memory, device, bytes, stream) {
                return Ok(ptr);
            }
        }
    }
    Err(error.into())
}

fn alloc_from(memory: &CapturePool, device: &Device, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
    let thread = std::thread::current().id();
    let capturing = memory.begin_where(move |_| std::thread::current().id() == thread).ok()?;
    let found = device.pool.alloc(bytes, stream).ok();
    drop(capturing);
    found
}

/// Strikes a block out of the books, before [`free`]. `false`, and nothing done, where no pool here gave it.
///
/// # Safety
/// `out` may be written.
unsafe extern "C" fn strike(ptr: *mut c_void, out: *mut Entry) -> bool {
    for (ordinal, device) in devices::present() {
        let mut book = book(ordinal).lock();
        if let Some((block, uses)) = book.strike(ptr.addr() as u64) {
            let mut entry = entry(ordinal as c_int, device, (ptr.addr() as u64, block), book.allocated());
            if !uses.is_empty() {
                entry.elsewhere = Box::into_raw(Box::new(uses));
            }
            // SAFETY: as promised to this function.
            unsafe { out.write(entry) };
            return true;
        }
    }
    false
}

/// Frees a block after the work given to the stream of its allocation, and to those that used it.
///
/// # Safety
/// The entry is from [`strike`], and the block is the caller's.
unsafe extern "C" fn free(entry: *const Entry) {
    report(caught(|| {
        // SAFETY: as promised to this function.
        let Entry { ptr, gpu, stream, elsewhere, .. } = unsafe { *entry };
        let device = device(gpu.into())?;
        // SAFETY: PyTorch's streams live as long as the process.
        let stream = unsafe { device.streams.find(stream.addr() as u64) }?;
        if !elsewhere.is_null() {
            // SAFETY: made by `strike`, and taken once.
            for (gpu, user) in *unsafe { Box::from_raw(elsewhere) } {
                let other = self::device(gpu.into())?;
                // SAFETY: as above.
                stream.wait_for(&*unsafe { other.streams.find(user) }?)?;
            }
        }
        // SAFETY: the block is PyTorch's, which frees it once and orders its uses.
        Ok(unsafe { tags::free(device, address(ptr), &stream) }?)
    }));
}

/// Notes that work on a stream of a GPU uses a block until it is freed. Nothing is done for memory that is not the pools'.
///
/// # Safety
/// As for [`allocate`].
unsafe extern "C" fn record_use(ptr: *mut c_void, gpu: c_int, stream: *mut c_void) -> Outcome {
    outcome(|| {
        let (raw, user) = (ptr.addr() as u64, stream.addr() as u64);
        for (ordinal, device) in devices::present() {
            let mut book = book(ordinal).lock();
            let Some(block) = book.get(raw) else { continue };
            if ordinal as c_int != gpu {
                book.note_use_elsewhere(raw, gpu, user);
            } else if block.stream != user {
                drop(book);
                // SAFETY: as promised to this function.
                let stream = unsafe { device.streams.find(user) }?;
                tags::owner_of(device, address(ptr))?.0.record_use(address(ptr), &stream)?;
            }
            break;
        }
        Ok(())
    })
}

/// The live block in which an address lies, and the bytes asked for; null for memory that is not the pools'.
///
/// # Safety
/// `bytes` may be written.
unsafe extern "C" fn block_at(ptr: *mut c_void, bytes: *mut u64) -> *mut c_void {
    let (start, size) = or_default(|| Ok(block_around(address(ptr)))).unwrap_or((DevicePtr::NULL, 0));
    // SAFETY: as promised to this function.
    unsafe { bytes.write(size) };
    pointer(start)
}

/// Whether this process was forked from one that had pools: its parent's blocks are then dropped without a word.
extern "C" fn is_forked() -> bool {
    devices::is_forked()
}

// ---- the cache and its limits ------------------------------------------------------------------------

/// Waits for the GPUs, and gives back what no tensor has. While a graph is captured nothing is waited for.
extern "C" fn empty_cache() -> Outcome {
    outcome(|| {
        let waits = !captures::is_any_open();
        for (_, device) in devices::present() {
            if waits {
                device.context.synchronize()?;
            }
            for pool in tags::pools(device) {
                pool.trim_to(0)?;
            }
        }
        Ok(())
    })
}

/// Bytes that the largest allocation could get: what is free on the GPU or cached, within the program's limit.
extern "C" fn largest_allocation(gpu: c_int) -> u64 {
    or_default(|| {
        let device = device(gpu.into())?;
        let stats = device.pool.stats();
        let room = device.limit().saturating_sub(stats.allocated.current);
        Ok(room.min(device.pool.memory_info()?.free.saturating_add(stats.cached())))
    })
}

/// Free and total bytes of a GPU.
///
/// # Safety
/// Both may be written.
unsafe extern "C" fn memory_info(gpu: c_int, free: *mut u64, total: *mut u64) {
    let info = or_default(|| {
        let info = device(gpu.into())?.pool.memory_info()?;
        Ok((info.free, info.total))
    });
    // SAFETY: as promised to this function.
    unsafe { (free.write(info.0), total.write(info.1)) };
}

/// Limits what the pool of a GPU may hold to a share of the GPU's memory.
extern "C" fn set_fraction(gpu: c_int, fraction: f64) -> Outcome {
    outcome(|| {
        let device = device(gpu.into())?;
        let total = device.pool.device().properties().total_memory;
        device.set_limit((total as f64 * fraction) as u64)?;
        book(gpu as usize).lock().fraction = fraction;
        Ok(())
    })
}

extern "C" fn fraction(gpu: c_int) -> f64 {
    present(gpu).map_or(1.0, |(ordinal, _)| book(ordinal).lock().fraction)
}

// ---- figures -----------------------------------------------------------------------------------------

/// # Safety
/// `out` may be written.
unsafe extern "C" fn figures(gpu: c_int, out: *mut Figures) {
    let figures = present(gpu).map(|(ordinal, device)| book(ordinal).lock().figures(device));
    // SAFETY: as promised to this function.
    unsafe { out.write(figures.unwrap_or_default()) };
}

extern "C" fn reset_peaks(gpu: c_int) {
    if let Some((ordinal, device)) = present(gpu) {
        book(ordinal).lock().reset_peaks(device);
    }
}

extern "C" fn reset_accumulated(gpu: c_int) {
    if let Some((ordinal, device)) = present(gpu) {
        book(ordinal).lock().reset_accumulated(device);
    }
}

/// Tells what a GPU's pool holds: each range of addresses that is backed, then the live blocks in it, in the order of
/// their addresses. With `only`, of one pool of PyTorch's.
///
/// # Safety
/// `only` is null or a pool's name. The functions may be called with `context`, until this returns.
unsafe extern "C" fn snapshot(
    gpu: c_int,
    only: *const PoolId,
    context: *mut c_void,
    segment: Tell<Segment>,
    block: Tell<Entry>,
) {
    let Some((ordinal, device)) = present(gpu) else { return };
    // SAFETY: as promised to this function.
    let only = unsafe { only.as_ref() }.copied();
    let mut backed: Vec<_> = tags::pools(device).iter().flat_map(bindings::backed).collect();
    backed.sort_unstable_by_key(|range| range.start.raw());
    let live = book(ordinal).lock().live(only);
    let mut live = live.iter().peekable();
    for range in backed {
        let pool = range.memory.and_then(|memory| captures::with_memory(gpu, memory)).unwrap_or_default();
        if only.is_some_and(|only| only != pool) {
            continue;
        }
        let (start, end) = (range.start.raw(), range.start.raw() + range.bytes);
        let told = Segment { start: pointer(range.start), bytes: range.bytes, pool };
        // SAFETY: as promised to this function.
        unsafe { segment(context, &raw const told) };
        // What was allocated since the ranges were read lies in none.
        while let Some((ptr, entry_of)) = live.next_if(|(ptr, _)| *ptr < end) {
            if *ptr >= start {
                let told = entry(gpu, device, (*ptr, *entry_of), 0);
                // SAFETY: as above.
                unsafe { block(context, &raw const told) };
            }
        }
    }
}

// ---- pools of PyTorch's ------------------------------------------------------------------------------

extern "C" fn claim_pool(gpu: c_int, id: PoolId) -> Outcome {
    outcome(|| captures::claim(gpu, id))
}

/// # Safety
/// The filter may be called from any thread, until it is dropped, which [`end_pool`] does.
unsafe extern "C" fn begin_pool(gpu: c_int, id: PoolId, filter: CFilter) -> Outcome {
    outcome(|| captures::begin(gpu, id, Some(Box::new(move |stream| filter.takes(stream)))))
}

/// `false` where the pool was not being allocated from.
extern "C" fn end_pool(gpu: c_int, id: PoolId) -> bool {
    or_default(|| Ok(captures::end(gpu, id)))
}

/// Called by destructors, which must not throw.
extern "C" fn release_pool(gpu: c_int, id: PoolId) {
    if !devices::is_forked() {
        report(caught(|| captures::release(gpu, id)));
    }
}

/// # Safety
/// `out` may be written.
unsafe extern "C" fn pool_uses(gpu: c_int, id: PoolId, out: *mut c_int) -> Outcome {
    outcome(|| {
        let uses = captures::uses(gpu, id)?;
        // SAFETY: as promised to this function.
        unsafe { out.write(uses as c_int) };
        Ok(())
    })
}

/// Also called by destructors, with `false`.
extern "C" fn set_use_on_oom(gpu: c_int, id: PoolId, use_on_oom: bool) -> Outcome {
    if devices::is_forked() {
        return std::ptr::null_mut();
    }
    outcome(|| captures::set_use_on_oom(gpu, id, use_on_oom))
}

/// Whether exactly these blocks are live in a pool.
///
/// # Safety
/// There are so many addresses; each stands there once.
unsafe extern "C" fn are_live(gpu: c_int, id: PoolId, expected: *const *mut c_void, count: usize) -> bool {
    let live = present(gpu).map_or_else(Vec::new, |(ordinal, _)| book(ordinal).lock().live(Some(id)));
    // SAFETY: as promised to this function; a length of 0 has no address.
    let expected = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(expected, count) } };
    let mut expected: Vec<u64> = expected.iter().map(|ptr| ptr.addr() as u64).collect();
    expected.sort_unstable();
    expected.into_iter().eq(live.into_iter().map(|(ptr, _)| ptr))
}

/// What is live in a pool now, for [`restore`]. [`forget_checkpoint`] drops it.
extern "C" fn checkpoint(gpu: c_int, id: PoolId) -> *mut c_void {
    let live = present(gpu).map_or_else(Vec::new, |(ordinal, _)| book(ordinal).lock().live(Some(id)));
    Box::into_raw(Box::new(Checkpoint { pool: id, live })).cast()
}

/// # Safety
/// From [`checkpoint`], and not used any more.
unsafe extern "C" fn forget_checkpoint(checkpoint: *mut c_void) {
    // SAFETY: as promised to this function.
    drop(unsafe { Box::from_raw(checkpoint.cast::<Checkpoint>()) });
}

/// Makes live in a pool what was live at the checkpoint, at the same addresses; and nothing else. Tells what was freed
/// for it, which is everything that was live, and then what was allocated.
///
/// # Safety
/// From [`checkpoint`]. Work on all of these blocks is ordered before the work to come. The functions may be called with
/// `context`, until this returns.
unsafe extern "C" fn restore(
    gpu: c_int,
    checkpoint: *const c_void,
    context: *mut c_void,
    freed: Tell<Entry>,
    allocated: Tell<Entry>,
) -> Outcome {
    outcome(|| {
        // SAFETY: as promised to this function.
        let Checkpoint { pool, live } = unsafe { &*checkpoint.cast::<Checkpoint>() };
        let (device, memory) = (device(gpu.into())?, captures::memory(gpu, *pool)?);
        let now = book(gpu as usize).lock().live(Some(*pool));
        for (ptr, _) in now {
            let mut entry = std::mem::MaybeUninit::uninit();
            // SAFETY: it is written where there is such a block, and freed after that; as promised to this function.
            unsafe {
                if strike(handle(ptr), entry.as_mut_ptr()) {
                    freed(context, entry.as_ptr());
                    free(entry.as_ptr());
                }
            }
        }
        for (ptr, block) in live {
            // SAFETY: PyTorch's streams live as long as the process.
            let stream = unsafe { device.streams.find(block.stream) }?;
            // SAFETY: as promised to this function.
            if !unsafe { bindings::alloc_at(&memory, DevicePtr::new(*ptr), block.requested, &stream) }? {
                return Err(Failure::Broken(format!(
                    "{ptr:#x} cannot be live again as it was at PyTorch's checkpoint: something else lies there"
                )));
            }
            let block = Block { is_used_elsewhere: false, ..*block };
            let mut book = book(gpu as usize).lock();
            book.enter(*ptr, block);
            let told = entry(gpu, device, (*ptr, block), book.allocated());
            drop(book);
            // SAFETY: as promised to this function.
            unsafe { allocated(context, &raw const told) };
        }
        Ok(())
    })
}

// ---- pinned memory -----------------------------------------------------------------------------------

/// # Safety
/// `out` may be written.
unsafe extern "C" fn allocate_pinned(gpu: c_int, bytes: u64, out: *mut *mut c_void) -> Outcome {
    outcome(|| {
        let ptr = pinned::allocate(gpu, bytes)?;
        // SAFETY: as promised to this function.
        unsafe { out.write(ptr) };
        Ok(())
    })
}

/// # Safety
/// `stream` as for [`allocate`]; `is_known` may be written.
unsafe extern "C" fn record_pinned(
    context: *mut c_void,
    ptr: *mut c_void,
    gpu: c_int,
    stream: *mut c_void,
    is_known: *mut bool,
) -> Outcome {
    outcome(|| {
        let (context, ptr) = (context.addr() as u64, ptr.addr() as u64);
        // SAFETY: as promised to this function.
        let known = unsafe { pinned::record(context, ptr, gpu, stream.addr() as u64) }?;
        // SAFETY: as promised to this function.
        unsafe { is_known.write(known) };
        Ok(())
    })
}

extern "C" fn empty_pinned() -> Outcome {
    outcome(pinned::empty)
}

/// # Safety
/// `out` may be written.
unsafe extern "C" fn pinned_figures(out: *mut PinnedFigures) {
    let figures = or_default(pinned::figures);
    // SAFETY: as promised to this function.
    unsafe { out.write(figures) };
}

extern "C" fn reset_pinned(peaks: bool) {
    report(caught(|| pinned::reset(peaks)));
}

// ---- the table ---------------------------------------------------------------------------------------

macro_rules! table {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?,)*) => {
        /// The functions, in the order of `pool.h`.
        #[repr(C)]
        #[derive(Debug)]
        pub(super) struct Table {
            /// Bytes of this struct: tells a shim that was built for another one.
            bytes: usize,
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        /// What the shim gets.
        pub(super) static TABLE: Table = Table { bytes: size_of::<Table>(), $($name,)* };
    };
}

table! {
    forget_failure: fn(Outcome),
    allocate: fn(c_int, u64, *mut c_void, *mut Entry) -> Outcome,
    strike: fn(*mut c_void, *mut Entry) -> bool,
    free: fn(*const Entry),
    record_use: fn(*mut c_void, c_int, *mut c_void) -> Outcome,
    block_at: fn(*mut c_void, *mut u64) -> *mut c_void,
    is_forked: fn() -> bool,
    empty_cache: fn() -> Outcome,
    largest_allocation: fn(c_int) -> u64,
    memory_info: fn(c_int, *mut u64, *mut u64),
    set_fraction: fn(c_int, f64) -> Outcome,
    fraction: fn(c_int) -> f64,
    figures: fn(c_int, *mut Figures),
    reset_peaks: fn(c_int),
    reset_accumulated: fn(c_int),
    snapshot: fn(c_int, *const PoolId, *mut c_void, Tell<Segment>, Tell<Entry>),
    claim_pool: fn(c_int, PoolId) -> Outcome,
    begin_pool: fn(c_int, PoolId, CFilter) -> Outcome,
    end_pool: fn(c_int, PoolId) -> bool,
    release_pool: fn(c_int, PoolId),
    pool_uses: fn(c_int, PoolId, *mut c_int) -> Outcome,
    set_use_on_oom: fn(c_int, PoolId, bool) -> Outcome,
    are_live: fn(c_int, PoolId, *const *mut c_void, usize) -> bool,
    checkpoint: fn(c_int, PoolId) -> *mut c_void,
    forget_checkpoint: fn(*mut c_void),
    restore: fn(c_int, *const c_void, *mut c_void, Tell<Entry>, Tell<Entry>) -> Outcome,
    allocate_pinned: fn(c_int, u64, *mut *mut c_void) -> Outcome,
    free_pinned: fn(*mut c_void),
    record_pinned: fn(*mut c_void, *mut c_void, c_int, *mut c_void, *mut bool) -> Outcome,
    empty_pinned: fn() -> Outcome,
    pinned_figures: fn(*mut PinnedFigures),
    reset_pinned: fn(bool),
}
