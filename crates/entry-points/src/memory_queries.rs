//! What asks about memory, and is told of a pool's block what the driver would tell of its own.

use std::ffi::{c_int, c_uint, c_void};

use millpond::Stats;

use crate::code::Code;
use crate::driver::{self, DeviceAddress, Handle};
use crate::gpus::{self, Block, Place};
use crate::settings::{Mode, settings};
use crate::{driver_memory, known_blocks};

/// `cuMemGetInfo`: what a pool has ready is free, and a limit leaves no more than it leaves.
///
/// # Safety
/// Both may be written, or are null.
pub(crate) unsafe fn memory_info(free: *mut usize, total: *mut usize) -> Code {
    let mut info = (0usize, 0usize);
    // SAFETY: both are writable. The driver writes each only where both are named.
    let code = unsafe { driver::cuMemGetInfo_v2(&mut info.0, &mut info.1) };
    if !code.is_success() {
        return code;
    }
    gpus::recount(false);
    let pools = gpus::current().map(|gpu| gpu.pools()).unwrap_or_default();
    let cached: u64 = pools.iter().map(|pool| pool.stats().cached()).sum();
    let mut info = (info.0 as u64 + cached, info.1 as u64);
    if let Some(limit) = settings().limit {
        let all = gpus::stats();
        let sum = |figure: fn(&Stats) -> u64| all.iter().map(|(_, stats)| figure(stats)).sum();
        let left =
            driver_memory::left(sum(|stats| stats.allocated.current), sum(Stats::cached)).unwrap_or(u64::MAX);
        info = (info.0.min(left), info.1.min(limit));
    }
    // SAFETY: the caller's promise.
    unsafe {
        free.as_mut().into_iter().for_each(|free| *free = info.0 as usize);
        total.as_mut().into_iter().for_each(|total| *total = info.1 as usize);
    }
    Code::SUCCESS
}

/// An address at which no driver has memory. What it says of that, it says of any other such.
const NOWHERE: DeviceAddress = 8;

/// `cuMemGetAddressRange`.
///
/// # Safety
/// Both may be written, or are null.
pub(crate) unsafe fn address_range(
    start: *mut DeviceAddress,
    bytes: *mut usize,
    at: DeviceAddress,
    real: impl FnOnce() -> Code,
) -> Code {
    let block = match gpus::find(at) {
        Place::Block(block) => block,
        // SAFETY: the caller's promise.
        Place::Free => return unsafe { driver::cuMemGetAddressRange_v2(start, bytes, NOWHERE) },
        Place::Elsewhere => return real(),
    };
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(start) = start.as_mut() {
            *start = block.start.raw();
        }
        if let Some(bytes) = bytes.as_mut() {
            *bytes = block.bytes as usize;
        }
    }
    Code::SUCCESS
}

/// `CUpointer_attribute`. The others of a block are those of the memory that it lies on.
const CONTEXT: c_int = 1;
const SYNC_MEMOPS: c_int = 6;
const BUFFER_ID: c_int = 7;
const IS_LEGACY_IPC_CAPABLE: c_int = 10;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;
const ALLOWED_HANDLE_TYPES: c_int = 14;
const MEMORY_POOL: c_int = 17;
const MAPPING_SIZE: c_int = 18;
const MAPPING_START: c_int = 19;
const MEMORY_BLOCK_ID: c_int = 20;

/// Writes what an attribute of the pool's block is; `false`, and nothing done, where the driver knows it.
///
/// # Safety
/// `to` may be written, as the attribute's type is.
unsafe fn attribute(block: &Block, attribute: c_int, to: *mut c_void) -> bool {
    let identity = || known_blocks::of(block.start.raw(), block.gpu.ordinal, |_| ());
    // SAFETY: the caller's promise.
    unsafe {
        match attribute {
            CONTEXT => to.cast::<u64>().write(block.gpu.primary()),
            SYNC_MEMOPS => to.cast::<u8>().write(identity().is_synchronous.into()),
            BUFFER_ID | MEMORY_BLOCK_ID => to.cast::<u64>().write(identity().number),
            RANGE_START | MAPPING_START => to.cast::<u64>().write(block.start.raw()),
            RANGE_SIZE | MAPPING_SIZE => to.cast::<usize>().write(block.bytes as usize),
            IS_LEGACY_IPC_CAPABLE => to.cast::<u8>().write(0),
            MEMORY_POOL => to.cast::<u64>().write(0),
            // What the driver wrote may be longer, and has no more.
            ALLOWED_HANDLE_TYPES => to.cast::<u32>().write(0),
            _ => return false,
        }
    }
    true
}

/// `cuPointerGetAttribute`.
///
/// # Safety
/// `to` may be written, as the attribute's type is.
pub(crate) unsafe fn pointer_attribute(
    to: *mut c_void,
    which: c_int,
    at: DeviceAddress,
    real: impl FnOnce() -> Code,
) -> Code {
    match if to.is_null() { Place::Elsewhere } else { gpus::find(at) } {
        Place::Block(block) if which == ALLOWED_HANDLE_TYPES => {
            let code = real();
            // SAFETY: the caller's promise.
            code.is_success().then(|| unsafe { attribute(&block, which, to) });
            code
        }
        // SAFETY: the caller's promise.
        Place::Block(block) if unsafe { attribute(&block, which, to) } => Code::SUCCESS,
        // SAFETY: the caller's promise.
        Place::Free => unsafe { driver::cuPointerGetAttribute(to, which, NOWHERE) },
        Place::Block(_) | Place::Elsewhere => real(),
    }
}

/// `cuPointerGetAttributes`.
///
/// # Safety
/// Both lists have `count` entries, and what the second one's point to may be written.
pub(crate) unsafe fn pointer_attributes(
    count: c_uint,
    (which, to): (*mut c_int, *mut *mut c_void),
    at: DeviceAddress,
    real: impl FnOnce() -> Code,
) -> Code {
    let block = match gpus::find(at) {
        Place::Block(block) => block,
        // SAFETY: the caller's promise.
        Place::Free => return unsafe { driver::cuPointerGetAttributes(count, which, to, NOWHERE) },
        Place::Elsewhere => return real(),
    };
    let code = real();
    for entry in (0..count as usize).take_while(|_| code.is_success()) {
        // SAFETY: the caller's promise.
        unsafe { attribute(&block, which.add(entry).read(), to.add(entry).read()) };
    }
    code
}

/// `cuPointerSetAttribute`. Where the driver cannot have synchronous copies of a block wait, all of its context do.
///
/// # Safety
/// `value` is readable, as the attribute's type is.
pub(crate) unsafe fn set_pointer_attribute(
    value: *const c_void,
    which: c_int,
    at: DeviceAddress,
    real: impl FnOnce() -> Code,
) -> Code {
    let code = real();
    let block = if which == SYNC_MEMOPS && !value.is_null() { gpus::block_at(at) } else { None };
    let Some(block) = block else { return code };
    // SAFETY: the caller's promise: the attribute is a truth value, and some write an int.
    let waits = unsafe { value.cast::<u8>().read() } != 0;
    if waits && !code.is_success() && !has_copies_wait() {
        return code;
    }
    known_blocks::of(block.start.raw(), block.gpu.ordinal, |identity| identity.is_synchronous = waits);
    Code::SUCCESS
}

/// Has all synchronous copies of the thread's context wait; `false` where the driver is too old for that.
fn has_copies_wait() -> bool {
    /// `CU_CTX_SYNC_MEMOPS`
    const SYNC_ALL: c_uint = 0x80;
    let mut flags = 0;
    // SAFETY: `flags` is writable.
    let asked = unsafe { driver::cuCtxGetFlags(&mut flags) };
    // SAFETY: it takes a number.
    asked.is_success() && unsafe { driver::cuCtxSetFlags(flags | SYNC_ALL) }.is_success()
}

/// `cuMemRetainAllocationHandle`: memory of `cuMemAlloc` has no handle, and a pool's pages are no block's alone.
pub(crate) fn has_handle(at: DeviceAddress) -> bool {
    matches!(gpus::find(at), Place::Elsewhere)
}

/// `cuCtxEnablePeerAccess`: the thread's GPU may use all memory of the other's.
pub(crate) fn enable_peer(peer: Handle, real: impl FnOnce() -> Code) -> Code {
    let code = real();
    if code.is_success()
        && settings().mode == Mode::Pool
        && let Some(here) = driver::current_device()
        && let Some(owner) = gpus::device_of(peer)
    {
        gpus::share(owner as usize, here as usize);
    }
    code
}
