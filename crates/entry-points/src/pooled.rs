//! Allocations and frees that a pool serves. What it does not serve, `driver_memory` does.

use millpond::bindings::is_kept_for_capture;
use millpond::device::DevicePtr;
use millpond::{Error, Stream};

use crate::code::Code;
use crate::driver::{DeviceAddress, Handle};
use crate::driver_memory::{self, Asked, Kind};
use crate::gpus::{self, Gpu};
use crate::settings::{Mode, settings};
use crate::{captures, fast_path, known_blocks, report, streams};

/// Where memory comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// The pool of the stream's GPU, if that is the one that is named.
    Pool(Option<usize>),
    Driver,
}

/// Where an allocation's address goes.
pub(crate) type To = *mut DeviceAddress;

/// The pitch of what `cuMemAllocPitch` gives, as the driver has it on GPUs of today.
const PITCH: usize = 512;

/// `cuMemAlloc`: memory that any stream may use at once.
///
/// # Safety
/// `to` may be written. `real` is the driver's function, which writes there.
pub(crate) unsafe fn alloc(to: To, bytes: usize, real: impl Fn() -> Code) -> Code {
    let gpu = if bytes == 0 || to.is_null() || gpus::is_sync_the_drivers() { None } else { gpus::current() };
    let Some(gpu) = gpu else {
        // SAFETY: the caller's promise.
        return unsafe { from_driver(Kind::Plain, (to, bytes), 0, real) };
    };
    let allocated = alloc_waited(&gpu, bytes as u64);
    report::keep();
    // SAFETY: the caller's promise.
    unsafe { answer(to, allocated) }
}

/// Asks the pool, and once more where what CUDA itself takes has changed since it was seen.
fn from_pool(gpu: &Gpu, bytes: u64, stream: &Stream) -> millpond::Result<DevicePtr> {
    let pool = gpu.pool_of_thread()?;
    match pool.alloc(bytes, stream) {
        Err(Error::OutOfMemory(_)) if gpus::recount(true) => pool.alloc(bytes, stream),
        answer => answer,
    }
}

/// Allocates a block on which there is no work.
fn alloc_waited(gpu: &Gpu, bytes: u64) -> millpond::Result<DevicePtr> {
    let ptr = from_pool(gpu, bytes, &gpu.waited)?;
    // The stream has no work but waits for others' work on the block.
    let ready =
        gpu.waited.is_idle().and_then(|is_idle| if is_idle { Ok(()) } else { gpu.waited.synchronize() });
    if let Err(error) = ready {
        // SAFETY: nobody else knows the block.
        unsafe { gpu.free(ptr, &gpu.waited) }.ok();
        return Err(error);
    }
    Ok(ptr)
}

/// `cuMemAllocPitch`: rows of `width` bytes.
///
/// # Safety
/// As for [`alloc`], and `pitch` may be written.
pub(crate) unsafe fn alloc_pitch(
    to: To,
    pitch: *mut usize,
    (width, height): (usize, usize),
    real: impl Fn() -> Code,
) -> Code {
    let row = width.checked_next_multiple_of(PITCH).filter(|_| !pitch.is_null());
    let bytes = row.and_then(|row| row.checked_mul(height));
    // The driver refuses what makes no sense, or has a longer row.
    let Some((row, bytes)) = row.zip(bytes) else { return real() };
    // SAFETY: the caller's promise.
    unsafe {
        pitch.write(row);
        alloc(to, bytes, real)
    }
}

/// `cuMemAllocAsync`: memory for work that the stream is given afterwards.
///
/// Memory of another GPU than the stream's is the driver's.
///
/// # Safety
/// As for [`alloc`]; the handle is null or a live stream.
#[inline]
pub(crate) unsafe fn alloc_async(
    (to, bytes): (To, usize),
    stream: Handle,
    from: Source,
    real: impl Fn() -> Code,
) -> Code {
    let handle = stream.addr() as u64;
    if let Source::Pool(of) = from
        && !to.is_null()
        && !captures::is_any()
        && let Some(ptr) = streams::alloc_ready(handle, bytes as u64, of)
    {
        // SAFETY: the caller's promise.
        unsafe { to.write(ptr.raw()) };
        return Code::SUCCESS;
    }
    let may = bytes > 0 && !to.is_null() && settings().mode == Mode::Pool;
    if let Source::Pool(of) = from
        && may
        // SAFETY: the caller's promise.
        && let Some(is_captured) = unsafe { may_serve(stream) }
    {
        let alloc = |gpu: &Gpu, stream: &Stream| {
            let is_its = of.is_none_or(|of| of == gpu.ordinal);
            (is_its && serves(gpu, stream, is_captured)).then(|| from_pool(gpu, bytes as u64, stream))
        };
        // SAFETY: the caller's promise.
        let served = unsafe { streams::with(handle, alloc) };
        if let Some(allocated) = served.flatten() {
            report::keep();
            // SAFETY: the caller's promise.
            return unsafe { answer(to, allocated) };
        }
    }
    // SAFETY: the caller's promise.
    unsafe { from_driver(Kind::Plain, (to, bytes), handle, real) }
}

/// Whether a stream may be a pool's to serve, and is captured then. `None` where its memory is the graph's own.
///
/// # Safety
/// The handle is null or a live stream.
#[inline]
unsafe fn may_serve(stream: Handle) -> Option<bool> {
    // SAFETY: the caller's promise.
    let is_captured = unsafe { captures::is_captured(stream) };
    (!is_captured || captures::is_any_kept()).then_some(is_captured)
}

/// Whether the pool serves the stream: while that is captured, only where the program keeps the graph's memory itself.
#[inline]
fn serves(gpu: &Gpu, stream: &Stream, is_captured: bool) -> bool {
    !is_captured || is_kept_for_capture(&gpu.pool, stream)
}

/// # Safety
/// `to` may be written.
#[inline]
unsafe fn answer(to: To, allocated: millpond::Result<DevicePtr>) -> Code {
    match allocated {
        Ok(ptr) => {
            // SAFETY: the caller's promise.
            unsafe { to.write(ptr.raw()) };
            Code::SUCCESS
        }
        Err(error) => Code::from(&error),
    }
}

/// Memory of the driver's. Where it has none left, what pools hold and nobody uses goes back first.
///
/// # Safety
/// `to` is null or may be written. `real` is the driver's function, which writes there.
pub(crate) unsafe fn from_driver(
    kind: Kind,
    (to, bytes): (To, usize),
    stream: u64,
    real: impl Fn() -> Code,
) -> Code {
    if bytes == 0 || to.is_null() {
        return real();
    }
    gpus::recount(false);
    let asked = Asked { kind, bytes: bytes as u64, stream };
    // SAFETY: the caller's promise.
    let code = unsafe { driver_memory::alloc(asked, to, &real) };
    // A forked child of a program with CUDA has none, and nothing to tell.
    if code != Code::NOT_INITIALIZED {
        report::keep();
    }
    if code != Code::OUT_OF_MEMORY {
        return code;
    }
    let has_changed = gpus::recount(true);
    if gpus::trim() == 0 && !has_changed {
        return code;
    }
    // SAFETY: the caller's promise.
    unsafe { driver_memory::alloc(asked, to, real) }
}

/// `cuMemFree`: waits for the GPU, as the driver does, unless it need not.
pub(crate) fn free(at: DeviceAddress, real: impl FnOnce() -> Code) -> Code {
    let Some(block) = gpus::block_at(at) else {
        return driver_memory::free((driver_memory::kind_of(at), at), None, real);
    };
    let gpu = &block.gpu;
    if block.start.raw() != at {
        return Code::INVALID_VALUE;
    }
    // Before: another thread may be given the address next.
    known_blocks::forget(at);
    if !settings().async_free {
        // To wait would end the capture.
        if captures::is_any() {
            gpu.free_late(block.start);
            return Code::SUCCESS;
        }
        if let Err(error) = gpu.wait() {
            return Code::from(&error);
        }
    }
    freed(free_block(gpu, block.start, &gpu.waited))
}

/// `cuMemFreeAsync`: after the work that the stream was given before.
///
/// # Safety
/// The handle is null or a live stream.
#[inline]
pub(crate) unsafe fn free_async(at: DeviceAddress, stream: Handle, real: impl FnOnce() -> Code) -> Code {
    let handle = stream.addr() as u64;
    // SAFETY: the program frees what it allocated, and orders its uses.
    if fast_path::are_open() && unsafe { streams::free_ready(handle, DevicePtr::new(at)) } {
        return Code::SUCCESS;
    }
    if settings().mode == Mode::Pool && at != 0 {
        // SAFETY: the caller's promise.
        let is_served = unsafe { may_serve(stream) }.is_some_and(|is_captured| {
            // SAFETY: as above.
            !is_captured
                || unsafe { streams::with(handle, |gpu, stream| serves(gpu, stream, true)) } == Some(true)
        });
        if !is_served {
            // A graph frees only what it allocated.
            return if gpus::block_at(at).is_some() { Code::INVALID_VALUE } else { real() };
        }
        // Before: another thread may be given the address next.
        known_blocks::forget(at);
        // SAFETY: the caller's promise.
        let served = unsafe {
            streams::with(handle, |gpu, stream| {
                free_block(gpu, DevicePtr::new(at), stream).or_else(|error| free_elsewhere(at, stream, error))
            })
        };
        match served {
            Some(Err(Error::ForeignPointer { .. })) => {}
            Some(done) => return freed(done),
            // A stream of another context: the pool cannot follow its order.
            None if gpus::block_at(at).is_some() => return free(at, real),
            None => {}
        }
    }
    driver_memory::free((Kind::Plain, at), Some(handle), real)
}

/// The block may be of another GPU than the stream.
#[cold]
fn free_elsewhere(at: DeviceAddress, stream: &Stream, error: Error) -> millpond::Result<()> {
    if !matches!(error, Error::ForeignPointer { .. }) {
        return Err(error);
    }
    let Some(block) = gpus::block_at(at) else { return Err(error) };
    let owner = &block.gpu;
    block.pool.record_use(DevicePtr::new(at), stream)?;
    free_block(owner, DevicePtr::new(at), &owner.waited)
}

#[inline]
fn free_block(gpu: &Gpu, at: DevicePtr, stream: &Stream) -> millpond::Result<()> {
    // SAFETY: the program frees what it allocated, and orders its uses, as the driver asks of it.
    unsafe { gpu.free(at, stream) }
}

#[inline]
fn freed(done: millpond::Result<()>) -> Code {
    match done {
        Ok(()) => Code::SUCCESS,
        Err(error) => Code::from(&error),
    }
}
