//! Pools: making and destroying them, trimming, attributes.

use std::ffi::c_char;
use std::sync::Arc;

use millpond::bindings::Mutex;
use millpond::bindings::Process;
use millpond::device::MemoryInfo;
use millpond::{ObserverId, Pool, ReclaimId};

use crate::arguments::{Out, read_struct, write_text};
use crate::context::{CONTEXTS, ContextObject};
use crate::failure::{Failure, boundary};
use crate::gate::Gate;
use crate::handle::Table;
use crate::holds::Holds;
use crate::kind::{AnyStream, ContextHandle, Kind, PoolHandle};
use crate::options::{self, PoolOptions};
use crate::status::Status;
use crate::stream::find_stream;

/// What a pool's handle stands for.
#[derive(Debug)]
pub(crate) struct PoolObject {
    pub(crate) pool: Pool,
    /// Where streams that are not registered are looked up.
    pub(crate) context: Arc<ContextObject>,
    /// Asked before a lock of this crate's is taken.
    pub(crate) process: Process,
    pub(crate) holds: Holds,
    pub(crate) reclaims: Registered<(ReclaimId, Arc<Gate>)>,
    pub(crate) observers: Registered<(ObserverId, Arc<Gate>)>,
}

/// The callbacks that were registered through a handle, by the numbers that C programs hold.
#[derive(Debug)]
pub(crate) struct Registered<Id> {
    all: Mutex<(u64, Vec<(u64, Id)>)>,
}

impl<Id> Registered<Id> {
    pub(crate) fn add(&self, registered: Id) -> u64 {
        let (last, all) = &mut *self.all.lock();
        *last += 1;
        all.push((*last, registered));
        *last
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Id> {
        let all = &mut self.all.lock().1;
        let at = all.iter().position(|(known, _)| *known == number)?;
        Some(all.swap_remove(at).1)
    }
}

impl<Id> Default for Registered<Id> {
    fn default() -> Self {
        Self { all: Mutex::new((0, Vec::new())) }
    }
}

pub(crate) static POOLS: Table<PoolObject> = Table::new(Kind::Pool);

impl PoolObject {
    pub(crate) fn new(pool: Pool, context: Arc<ContextObject>) -> Self {
        let (holds, reclaims, observers) = Default::default();
        Self { pool, context, process: Process::here(), holds, reclaims, observers }
    }
}

/// Builds a pool of the device with these options (null: the defaults). No memory is taken yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_create(
    context: *mut ContextHandle,
    options: *const PoolOptions,
    out: *mut *mut PoolHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = CONTEXTS.get(me, context)?;
        // SAFETY: likewise, for the struct and the name in it.
        let pool = unsafe {
            let options = read_struct(options, options::defaults(0))?;
            options::builder(me, &object, &options)?.build()?
        };
        out.set(POOLS.insert(PoolObject::new(pool, object.clone()))?);
        Ok(())
    })
}

/// A handle of the device's default pool, which is built with the default options when it is first asked for.
/// Release it as any other; the pool stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_context_default_pool(
    context: *mut ContextHandle,
    out: *mut *mut PoolHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = CONTEXTS.get(me, context)?;
        let pool = object.context.default_pool()?;
        out.set(POOLS.insert(PoolObject::new(pool, object.clone()))?);
        Ok(())
    })
}

/// A handle of the pool that code without a preference should use: the one last set, else the default one.
/// Release it as any other; the pool stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_context_current_pool(
    context: *mut ContextHandle,
    out: *mut *mut PoolHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = CONTEXTS.get(me, context)?;
        let pool = object.context.current_pool()?;
        out.set(POOLS.insert(PoolObject::new(pool, object.clone()))?);
        Ok(())
    })
}

/// Makes `pool` the current one; null goes back to the default pool. The context keeps the pool, also when its
/// handle is released.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_context_set_current_pool(
    context: *mut ContextHandle,
    pool: *mut PoolHandle,
) -> Status {
    boundary(|me| {
        let object = CONTEXTS.get(me, context)?;
        if pool.is_null() {
            object.context.set_current_pool(None)?;
        } else {
            object.context.set_current_pool(Some(&POOLS.get(me, pool)?.pool))?;
        }
        Ok(())
    })
}

/// Gives up the handle. With a pool's last handle the pool goes: the host waits for pending work on its memory. If
/// blocks are still live then, their memory goes back when the last of them is freed (`millpond_context_free`).
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_release(pool: *mut PoolHandle) -> Status {
    boundary(|me| POOLS.release(me, pool))
}

/// Destroys the pool for all its handles: it allocates no more. Waits for pending work on its memory. Answers
/// LIVE_BLOCKS where blocks are live; the pool is destroyed all the same. The handle must still be released.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_destroy(pool: *mut PoolHandle) -> Status {
    boundary(|me| Ok(POOLS.get(me, pool)?.pool.destroy()?))
}

/// Takes memory from the device in advance, so that blocks of `bytes` in all can be allocated on `stream` without a
/// device call. What is free in the pool counts. Several threads prepare pinned memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_reserve(
    pool: *mut PoolHandle,
    bytes: usize,
    stream: AnyStream,
) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        // SAFETY: as the header asks of its caller.
        let stream = unsafe { find_stream(me, &object.context, stream) }?;
        Ok(object.pool.reserve(bytes as u64, &stream)?)
    })
}

/// Free and total bytes of the memory that the pool is of, as its driver counts. Either output may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_memory_info(
    pool: *mut PoolHandle,
    free: *mut usize,
    total: *mut usize,
) -> Status {
    boundary(|me| {
        let MemoryInfo { free: left, total: all } = POOLS.get(me, pool)?.pool.memory_info()?;
        for (at, bytes) in [(free, left), (total, all)] {
            if !at.is_null() {
                // SAFETY: not null, and as the header asks of its caller.
                unsafe { at.write(bytes as usize) };
            }
        }
        Ok(())
    })
}

/// Gives free memory back to the device until at most `bytes_to_keep` are reserved, as far as no pending work uses
/// it. Does not wait. `released` gets the bytes given back; it may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_trim(
    pool: *mut PoolHandle,
    bytes_to_keep: usize,
    released: *mut usize,
) -> Status {
    boundary(|me| {
        let bytes = POOLS.get(me, pool)?.pool.trim_to(bytes_to_keep as u64)?;
        if !released.is_null() {
            // SAFETY: not null, and as the header asks of its caller.
            unsafe { released.write(bytes as usize) };
        }
        Ok(())
    })
}

/// Lets the high-water marks start again from where the figures are now.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_reset_high_water(pool: *mut PoolHandle) -> Status {
    boundary(|me| {
        POOLS.get(me, pool)?.pool.reset_high_water();
        Ok(())
    })
}

/// Recounts every invariant of the pool, for tests. INTERNAL where one is broken; the message says which.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_check(pool: *mut PoolHandle) -> Status {
    boundary(|me| Ok(POOLS.get(me, pool)?.pool.check()?))
}

/// The pool's name, ended with a zero byte and cut to `capacity` bytes. `length` gets the whole name's length
/// without the zero. `name` may be null where `capacity` is 0, and `length` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_name(
    pool: *mut PoolHandle,
    name: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        // SAFETY: as the header asks of its caller.
        unsafe { write_text(object.pool.name(), "name", name, capacity, length) }
    })
}

/// What a guard found, as a text: the finding with this number, from 0 on. It is cut, and `length` set, as for
/// `millpond_pool_name`. BAD_OPTION where there are not so many (`MILLPOND_ATTRIBUTE_GUARD_FINDINGS`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_guard_finding(
    pool: *mut PoolHandle,
    number: usize,
    finding: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    boundary(|me| {
        let findings = POOLS.get(me, pool)?.pool.guard_findings();
        let found = findings.get(number).ok_or_else(|| {
            Failure::option("number", format!("{number}; the guard has {} findings", findings.len()))
        })?;
        // SAFETY: as the header asks of its caller.
        unsafe { write_text(&found.to_string(), "finding", finding, capacity, length) }
    })
}

/// What can be asked of a pool one by one, as of CUDA's own pools. Sizes are in bytes.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// The release threshold. Can be set.
    ReleaseThreshold = 1,
    /// Physical bytes held.
    ReservedCurrent = 2,
    /// Physical bytes held at most. Can be set to 0: all high-water marks start again.
    ReservedHigh = 3,
    /// Bytes in live blocks.
    UsedCurrent = 4,
    /// Bytes in live blocks at most. Can be set to 0: all high-water marks start again.
    UsedHigh = 5,
    /// How memory that one stream freed may pass to another: a sum of `MILLPOND_REUSE_…`. Can be set; captures that
    /// have begun keep theirs.
    Reuse = 6,
    /// What memory the pool is of: one of `millpond_memory`.
    Memory = 7,
    /// Whether the CPU can read and write the memory in place: 1 or 0. `millpond_wait_for_host_access` says when it may.
    HostAccess = 8,
    /// Whether the pool sleeps: 1 or 0.
    IsAsleep = 9,
    /// Bytes that the pool gave away to sleep or when it was evicted, and takes again to wake or to be restored.
    BytesAsleep = 10,
    /// How many mistakes the pool's guard found: see `millpond_pool_options.guard`.
    GuardFindings = 11,
    /// Whether the pool is evicted: 1 or 0.
    IsEvicted = 12,
}

impl Attribute {
    fn from_c(number: i32) -> Result<Self, Failure> {
        let all = [
            Self::ReleaseThreshold,
            Self::ReservedCurrent,
            Self::ReservedHigh,
            Self::UsedCurrent,
            Self::UsedHigh,
            Self::Reuse,
            Self::Memory,
            Self::HostAccess,
            Self::IsAsleep,
            Self::BytesAsleep,
            Self::GuardFindings,
            Self::IsEvicted,
        ];
        let unknown =
            || Failure::option("attribute", format!("{number}; it must be one of millpond_attribute"));
        all.into_iter().find(|attribute| *attribute as i32 == number).ok_or_else(unknown)
    }
}

/// Reads an attribute (one of `millpond_attribute`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_get(pool: *mut PoolHandle, attribute: i32, out: *mut u64) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::new(out, "out", 0) }?;
        let pool = &POOLS.get(me, pool)?.pool;
        out.set(match Attribute::from_c(attribute)? {
            Attribute::ReleaseThreshold => pool.release_threshold(),
            Attribute::ReservedCurrent => pool.reserved().current,
            Attribute::ReservedHigh => pool.reserved().high,
            Attribute::UsedCurrent => pool.allocated().current,
            Attribute::UsedHigh => pool.allocated().high,
            Attribute::Reuse => options::bits_of(pool.reuse()).into(),
            Attribute::Memory => options::Memory::number_of(pool.device().properties().memory) as u64,
            Attribute::HostAccess => pool.device().properties().host_access.into(),
            Attribute::IsAsleep => pool.is_asleep().into(),
            Attribute::BytesAsleep => pool.stats().asleep,
            Attribute::GuardFindings => pool.guard_findings().len() as u64,
            Attribute::IsEvicted => pool.is_evicted().into(),
        });
        Ok(())
    })
}

/// Sets an attribute (one of `millpond_attribute` that can be set).
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_set(pool: *mut PoolHandle, attribute: i32, value: u64) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        match (Attribute::from_c(attribute)?, value) {
            (Attribute::ReleaseThreshold, bytes) => object.pool.set_release_threshold(bytes),
            (Attribute::Reuse, bits) => object.pool.set_reuse(options::policies(bits)?),
            (Attribute::ReservedHigh | Attribute::UsedHigh, 0) => object.pool.reset_high_water(),
            (Attribute::ReservedHigh | Attribute::UsedHigh, _) => {
                return Err(Failure::option("value", "a high-water mark can be set to 0 only"));
            }
            (
                Attribute::ReservedCurrent
                | Attribute::UsedCurrent
                | Attribute::Memory
                | Attribute::HostAccess
                | Attribute::IsAsleep
                | Attribute::BytesAsleep
                | Attribute::GuardFindings
                | Attribute::IsEvicted,
                _,
            ) => {
                return Err(Failure::option("attribute", "it can only be read"));
            }
        }
        Ok(())
    })
}
