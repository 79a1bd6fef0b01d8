//! The driver's own pools (`cuMemPoolCreate` and its like): what is allocated from them comes from the GPU's pool, which also
//! answers what is asked about them.

use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond::bindings::{Mutex, PerProcess};
use rustc_hash::FxHashMap;

use crate::code::Code;
use crate::driver::{self, Handle, Location, MemoryProps};
use crate::gpus::{self, Gpu};

/// A pool that the program made.
#[derive(Debug, Clone, Copy)]
struct Made {
    device: usize,
    /// Its memory is for other processes, or not a GPU's: a block of ours cannot be that.
    is_special: bool,
}

#[derive(Debug, Default)]
struct Pools {
    made: Mutex<FxHashMap<u64, Made>>,
}

/// The GPUs whose current pool is special, one bit each. A forked child of who has such pools has no CUDA.
static SPECIAL_CURRENT: AtomicU64 = AtomicU64::new(0);

static POOLS: PerProcess<Pools> = PerProcess::new(Default::default);

/// `cuMemPoolCreate`.
///
/// # Safety
/// `pool` may be written, and `props` is readable.
pub(crate) unsafe fn create(
    pool: *mut Handle,
    props: *const MemoryProps,
    real: impl FnOnce() -> Code,
) -> Code {
    let code = real();
    if code.is_success() {
        // SAFETY: the caller's promise: the driver has read the one and written the other.
        let (pool, props) = unsafe { (pool.read(), &*props) };
        let gpu = props.location.gpu();
        let made =
            Made { device: gpu.unwrap_or_default(), is_special: props.handle_types != 0 || gpu.is_none() };
        POOLS.get().made.lock().insert(pool.addr() as u64, made);
    }
    code
}

/// `cuMemPoolDestroy`.
pub(crate) fn destroy(pool: Handle, real: impl FnOnce() -> Code) -> Code {
    // Before: another thread may be given the handle next.
    if let Entry::Occupied(made) = POOLS.get().made.lock().entry(pool.addr() as u64) {
        set_current(made.get().device, false);
        made.remove();
    }
    real()
}

/// `cuDeviceSetMemPool`, and `cuMemSetMemPool` of memory on a GPU.
pub(crate) fn make_current(device: Option<usize>, pool: Handle, real: impl FnOnce() -> Code) -> Code {
    let code = real();
    if code.is_success()
        && let Some(device) = device
    {
        set_current(device, is_special(pool));
    }
    code
}

fn set_current(device: usize, is_special: bool) {
    let bit = 1_u64.checked_shl(device as u32).unwrap_or(0);
    // Relaxed, here and below: a setting; the program orders it before its allocations.
    if is_special {
        SPECIAL_CURRENT.fetch_or(bit, Ordering::Relaxed)
    } else {
        SPECIAL_CURRENT.fetch_and(!bit, Ordering::Relaxed)
    };
}

/// Whether a pool's memory is the driver's to give.
pub(crate) fn is_special(pool: Handle) -> bool {
    POOLS.get().made.lock().get(&(pool.addr() as u64)).is_some_and(|made| made.is_special)
}

/// Whether the current pool of any GPU is such a one: then `cuMemAllocAsync` is the driver's.
#[inline]
pub(crate) fn is_any_current_special() -> bool {
    SPECIAL_CURRENT.load(Ordering::Relaxed) != 0
}

/// The GPU of one of the driver's pools, where that is not special.
fn gpu_of(pool: Handle) -> Option<Arc<Gpu>> {
    let made = POOLS.get().made.lock().get(&(pool.addr() as u64)).copied();
    let known = gpus::known();
    if let Some(made) = made {
        return known.into_iter().find(|gpu| gpu.ordinal == made.device && !made.is_special);
    }
    let is_default = |gpu: &Arc<Gpu>| {
        let mut default = ptr::null_mut();
        // SAFETY: `default` is writable.
        let asked = unsafe { driver::cuDeviceGetDefaultMemPool(&mut default, gpu.ordinal as c_int) };
        asked.is_success() && default == pool
    };
    // A program may ask before its first allocation.
    known.into_iter().find(is_default).or_else(|| gpus::current().filter(is_default))
}

/// `CUmemPool_attribute`.
const RELEASE_THRESHOLD: c_int = 4;
const RESERVED_NOW: c_int = 5;
const RESERVED_MOST: c_int = 6;
const USED_NOW: c_int = 7;
const USED_MOST: c_int = 8;

/// `cuMemPoolGetAttribute`: what the GPU's pool holds, beside what the driver's holds itself.
///
/// # Safety
/// `value` may be written, as the attribute's type is.
pub(crate) unsafe fn attribute(
    pool: Handle,
    which: c_int,
    value: *mut c_void,
    real: impl FnOnce() -> Code,
) -> Code {
    let code = real();
    if !code.is_success() || !(RESERVED_NOW..=USED_MOST).contains(&which) {
        return code;
    }
    let Some(gpu) = gpu_of(pool) else { return code };
    let stats = gpu.pool.stats();
    let ours = match which {
        RESERVED_NOW => stats.reserved.current,
        RESERVED_MOST => stats.reserved.high,
        USED_NOW => stats.allocated.current,
        _ => stats.allocated.high,
    };
    // SAFETY: the caller's promise; these attributes are numbers of 64 bits, which the driver wrote.
    unsafe { *value.cast::<u64>() += ours };
    code
}

/// `cuMemPoolSetAttribute`.
///
/// # Safety
/// `value` is readable, as the attribute's type is.
pub(crate) unsafe fn set_attribute(
    pool: Handle,
    which: c_int,
    value: *const c_void,
    real: impl FnOnce() -> Code,
) -> Code {
    let code = real();
    if !code.is_success() {
        return code;
    }
    let Some(gpu) = gpu_of(pool) else { return code };
    match which {
        // SAFETY: the caller's promise; the attribute is a number of 64 bits, which the driver read.
        RELEASE_THRESHOLD => gpu.pool.set_release_threshold(unsafe { value.cast::<u64>().read() }),
        RESERVED_MOST | USED_MOST => gpu.pool.reset_high_water(),
        _ => {}
    }
    code
}

/// `cuMemPoolTrimTo`.
pub(crate) fn trim(pool: Handle, keep: usize, real: impl FnOnce() -> Code) -> Code {
    let code = real();
    if code.is_success()
        && let Some(gpu) = gpu_of(pool)
    {
        // What cannot be given back stays, as in the driver's pools.
        gpu.pool.trim_to(keep as u64).ok();
    }
    code
}

/// `cuMemPoolSetAccess`: who may use a pool's memory may use the GPU's.
///
/// # Safety
/// The list has `count` entries.
pub(crate) unsafe fn share(
    pool: Handle,
    access: *const c_void,
    count: usize,
    real: impl FnOnce() -> Code,
) -> Code {
    /// `CUmemAccessDesc`.
    #[repr(C)]
    struct Access {
        location: Location,
        flags: c_int,
    }
    const READ_WRITE: c_int = 3;
    let code = real();
    if code.is_success()
        && let Some(gpu) = gpu_of(pool)
    {
        // SAFETY: the caller's promise.
        let access = unsafe { std::slice::from_raw_parts(access.cast::<Access>(), count) };
        let peers = access.iter().filter(|entry| entry.flags == READ_WRITE);
        let peers = peers.filter_map(|entry| entry.location.gpu()).filter(|peer| *peer != gpu.ordinal);
        peers.for_each(|peer| gpus::share(gpu.ordinal, peer));
    }
    code
}
