//! The driver's own pools (`cuMemPoolCreate` and its like): what is allocated from them comes from the GPU's pool, which also
//! answers what is asked about them.

use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use millpond::bindings::{Mutex, PerProcess};
use rustc_hash::FxHashMap;

use crate::code::Code;
use crate::driver::{self, Handle, Location, PoolProps};
use crate::gpus::{self, Gpu};
use crate::pooled::Source;

#[derive(Debug, Default)]
struct Pools {
    /// Those that the program made: the GPU of one whose memory ours can be.
    made: Mutex<FxHashMap<u64, Option<usize>>>,
    /// The default pool of each GPU, by its handle.
    defaults: OnceLock<FxHashMap<u64, usize>>,
    /// The special pool that is a GPU's current one.
    current: Mutex<FxHashMap<usize, u64>>,
}

/// The GPUs whose current pool is special, one bit each. A forked child of who has such pools has no CUDA.
static SPECIAL_CURRENT: AtomicU64 = AtomicU64::new(0);

static POOLS: PerProcess<Pools> = PerProcess::new(Default::default);

/// `cuMemPoolCreate`.
///
/// # Safety
/// `pool` may be written, and `props` is readable.
pub(crate) unsafe fn create(pool: *mut Handle, props: *const PoolProps, real: impl FnOnce() -> Code) -> Code {
    let code = real();
    if code.is_success() {
        // SAFETY: the caller's promise: the driver has read the one and written the other.
        let (pool, gpu) = unsafe { (pool.read(), (*props).plain_on()) };
        POOLS.get().made.lock().insert(pool.addr() as u64, gpu);
    }
    code
}

/// `cuMemPoolDestroy`.
pub(crate) fn destroy(pool: Handle, real: impl FnOnce() -> Code) -> Code {
    // Before: another thread may be given the handle next.
    if let Entry::Occupied(made) = POOLS.get().made.lock().entry(pool.addr() as u64) {
        made.remove();
    }
    // Its GPU has the default pool again.
    let mut current = POOLS.get().current.lock();
    current.retain(|device, of| {
        let stays = *of != pool.addr() as u64;
        if !stays {
            set_current(*device, false);
        }
        stays
    });
    drop(current);
    real()
}

/// `cuDeviceSetMemPool`, and `cuMemSetMemPool` of memory on a GPU.
pub(crate) fn make_current(device: Option<usize>, pool: Handle, real: impl FnOnce() -> Code) -> Code {
    let code = real();
    if code.is_success()
        && let Some(device) = device
    {
        let is_special = !matches!(of(pool), Source::Pool(Some(of)) if of == device);
        let mut current = POOLS.get().current.lock();
        current.remove(&device);
        if is_special {
            current.insert(device, pool.addr() as u64);
        }
        set_current(device, is_special);
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

/// Of a pool whose memory is given out: the GPU whose pool stands for it. Any other is the driver's own, such as one for managed memory
/// or for the host's, one that another process made, or one with a limit.
pub(crate) fn of(pool: Handle) -> Source {
    let handle = pool.addr() as u64;
    let made = POOLS.get().made.lock().get(&handle).copied();
    match made.unwrap_or_else(|| defaults().get(&handle).copied()) {
        Some(gpu) => Source::Pool(Some(gpu)),
        None => Source::Driver,
    }
}

/// Of the current pool of the stream's GPU.
#[inline]
pub(crate) fn of_current() -> Source {
    if SPECIAL_CURRENT.load(Ordering::Relaxed) == 0 { Source::Pool(None) } else { Source::Driver }
}

fn defaults() -> &'static FxHashMap<u64, usize> {
    POOLS.get().defaults.get_or_init(|| {
        let default_of = |device: usize| {
            let mut pool = ptr::null_mut();
            // SAFETY: `pool` is writable.
            let asked = unsafe { driver::cuDeviceGetDefaultMemPool(&mut pool, device as c_int) };
            asked.is_success().then_some((pool.addr() as u64, device))
        };
        (0..driver::device_count()).filter_map(default_of).collect()
    })
}

/// The GPU of one of the driver's pools, if ours stands for it and is there. A program may ask before its first allocation.
fn gpu_of(pool: Handle) -> Option<Arc<Gpu>> {
    let Source::Pool(Some(device)) = of(pool) else { return None };
    let known = gpus::known().into_iter().find(|gpu| gpu.ordinal == device);
    known.or_else(|| gpus::current().filter(|gpu| gpu.ordinal == device))
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
    let figure = |stats: millpond::Stats| match which {
        RESERVED_NOW => stats.reserved.current,
        RESERVED_MOST => stats.reserved.high,
        USED_NOW => stats.allocated.current,
        _ => stats.allocated.high,
    };
    let ours: u64 = gpu.pools().iter().map(|pool| figure(pool.stats())).sum();
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
    let Source::Pool(Some(device)) = of(pool) else { return code };
    match which {
        // SAFETY: the caller's promise; the attribute is a number of 64 bits, which the driver read.
        RELEASE_THRESHOLD => gpus::set_release_threshold(device, unsafe { value.cast::<u64>().read() }),
        RESERVED_MOST | USED_MOST => {
            let pools = gpu_of(pool).map(|gpu| gpu.pools()).unwrap_or_default();
            pools.iter().for_each(millpond::Pool::reset_high_water);
        }
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
/// The list has `count` entries, or is null.
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
        && !access.is_null()
        && let Source::Pool(Some(owner)) = of(pool)
    {
        // SAFETY: the caller's promise.
        let access = unsafe { std::slice::from_raw_parts(access.cast::<Access>(), count) };
        let peers = access.iter().filter(|entry| entry.flags == READ_WRITE);
        let peers = peers.filter_map(|entry| entry.location.gpu()).filter(|peer| *peer != owner);
        peers.for_each(|peer| gpus::share(owner, peer));
    }
    code
}
