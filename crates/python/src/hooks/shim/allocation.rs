//! One allocation, from its beginning to its end.

use std::ffi::{c_int, c_void};

use millpond::bindings;
use millpond::device::DevicePtr;
use millpond::{CapturePool, Error, Stream};

use super::super::blocks::{TorchBlock, book};
use super::super::captures::{self, PoolId};
use super::super::outcome::{Outcome, or_default, outcome};
use super::super::sharing;
use super::super::torch::{address, alloc_tagged, block_around, caught, pointer, report};
use super::entries::{Entry, entry};
use crate::devices::{self, Device, device};
use crate::failure::Result;
use crate::frames;
use crate::thread_tag;

/// Allocates `bytes`, more than 0, for work on a stream.
///
/// # Safety
/// `stream` is null or a live stream of the GPU, as `streams` says; `out` may be written.
pub(super) unsafe extern "C" fn allocate(
    gpu: c_int,
    bytes: u64,
    stream: *mut c_void,
    out: *mut Entry,
) -> Outcome {
    outcome(|| {
        let device = device(gpu.into())?;
        // SAFETY: as promised to this function.
        let found = unsafe { device.streams.find(stream.addr() as u64) }?;
        let ptr = alloc_tagged(device, bytes, &found)
            .or_else(|error| from_others(gpu, device, bytes, &found, error))?;
        let pool = pool_of(gpu, device, ptr);
        let block =
            TorchBlock { requested: bytes, stream: stream.addr() as u64, pool, ..TorchBlock::default() };
        let mut book = book(gpu as usize).lock();
        book.enter(ptr.raw(), block);
        let entry = entry(gpu, device, (ptr.raw(), block), book.allocated());
        // SAFETY: as promised to this function.
        unsafe { out.write(entry) };
        Ok(())
    })
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
pub(super) unsafe extern "C" fn strike(ptr: *mut c_void, out: *mut Entry) -> bool {
    for (ordinal, device) in devices::present() {
        let mut book = book(ordinal).lock();
        if let Some((block, uses)) = book.strike(ptr.addr() as u64) {
            let mut entry = entry(ordinal as c_int, device, (ptr.addr() as u64, block), book.allocated());
            drop(book);
            if block.is_shared {
                sharing::withdraw(ptr.addr() as u64);
            }
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
pub(super) unsafe extern "C" fn free(entry: *const Entry) {
    let _called = frames::of_torch_free();
    report(caught(|| {
        // SAFETY: as promised to this function.
        let Entry { ptr, gpu, stream, elsewhere, .. } = unsafe { *entry };
        let device = device(gpu.into())?;
        // SAFETY: PyTorch's streams live as long as the process, or as their green context.
        let stream = unsafe { device.streams.find_to_free(stream.addr() as u64) }?;
        if !elsewhere.is_null() {
            // SAFETY: made by `strike`, and taken once.
            for (gpu, user) in *unsafe { Box::from_raw(elsewhere) } {
                let other = self::device(gpu.into())?;
                // SAFETY: as above.
                stream.wait_for(&*unsafe { other.streams.find(user) }?)?;
            }
        }
        // SAFETY: the block is PyTorch's, which frees it once and orders its uses.
        Ok(unsafe { thread_tag::free(device, address(ptr), &stream) }?)
    }));
}

/// Notes that work on a stream of a GPU uses a block until it is freed. Nothing is done for memory that is not the pools'.
///
/// # Safety
/// As for [`allocate`].
pub(super) unsafe extern "C" fn record_use(ptr: *mut c_void, gpu: c_int, stream: *mut c_void) -> Outcome {
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
                thread_tag::owner_of(device, address(ptr))?.0.record_use(address(ptr), &stream)?;
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
pub(super) unsafe extern "C" fn block_at(ptr: *mut c_void, bytes: *mut u64) -> *mut c_void {
    let (start, size) = or_default(|| Ok(block_around(address(ptr)))).unwrap_or((DevicePtr::NULL, 0));
    // SAFETY: as promised to this function.
    unsafe { bytes.write(size) };
    pointer(start)
}

/// Whether this process was forked from one that had pools: its parent's blocks are then dropped without a word.
pub(super) extern "C" fn is_forked() -> bool {
    devices::is_forked()
}
