//! Callbacks: what the program is asked when memory is short, and told when it ran out.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use millpond::{Limit, OutOfMemory};

use crate::arguments::{Out, SizedStruct, fixed_text, write_struct};
use crate::failure::{Failure, boundary, last_out_of_memory};
use crate::gate::Gate;
use crate::kind::PoolHandle;
use crate::pool::POOLS;
use crate::status::Status;

/// Asked when memory is short: it frees what the program can do without, and returns whether to try again (not 0).
/// `bytes` is the size of the request. It runs on the allocating thread without locks held. It may free, trim and
/// allocate, and the pool does not ask its callbacks for that again. It must not throw, nor release the pool or the
/// stream of the allocation.
pub type Reclaim = Option<unsafe extern "C" fn(bytes: usize, data: *mut c_void) -> i32>;

/// A callback with what it is called with.
struct Asked<F> {
    function: F,
    data: *mut c_void,
    gate: Arc<Gate>,
}

// SAFETY: the header asks that callbacks may be called with their data from any thread, also at the same time.
unsafe impl<F> Send for Asked<F> {}
// SAFETY: likewise.
unsafe impl<F> Sync for Asked<F> {}

impl Asked<unsafe extern "C" fn(usize, *mut c_void) -> i32> {
    fn ask(&self, bytes: u64) -> bool {
        // SAFETY: as above; the data is valid until the gate is shut.
        self.gate.pass(|| unsafe { (self.function)(bytes as usize, self.data) != 0 }).unwrap_or(false)
    }
}

/// Registers a callback that is asked when memory is short, after everything the pool can do itself. `id` gets what
/// `millpond_pool_remove_reclaim` takes. The callback and its data must stay valid until it is removed, or the pool
/// is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_on_reclaim(
    pool: *mut PoolHandle,
    reclaim: Reclaim,
    data: *mut c_void,
    id: *mut u64,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::new(id, "id", 0) }?;
        let function = reclaim.ok_or(Failure::Null("reclaim"))?;
        let object = POOLS.get(me, pool)?;
        object.process.check()?;
        let gate = Arc::new(Gate::default());
        let asked = Asked { function, data, gate: gate.clone() };
        let registered = object.pool.on_reclaim(move |bytes| asked.ask(bytes));
        out.set(object.reclaims.add((registered, gate)));
        Ok(())
    })
}

/// Removes a callback that was registered through this handle, and waits for calls of it that other threads are in.
/// Within a callback it does not wait, and the data must stay valid for those calls. `BAD_OPTION` if it was removed
/// before.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_remove_reclaim(pool: *mut PoolHandle, id: u64) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        object.process.check()?;
        let (registered, gate) = object.reclaims.remove(id).ok_or_else(|| no_callback(id))?;
        object.pool.remove_reclaim(registered);
        gate.shut();
        Ok(())
    })
}

fn no_callback(id: u64) -> Failure {
    Failure::option("id", format!("{id}; no callback of this handle has it"))
}

/// Told of each request for which there was no memory, before its caller gets the status. Runs on the allocating
/// thread without locks held; it must not throw, nor release the pool or the stream of the allocation.
pub type Observe = Option<unsafe extern "C" fn(report: *const OutOfMemoryReport, data: *mut c_void)>;

impl Asked<unsafe extern "C" fn(*const OutOfMemoryReport, *mut c_void)> {
    fn tell(&self, report: &OutOfMemory) {
        let report = OutOfMemoryReport::from(report);
        // SAFETY: as above; the report lives until the callback returns.
        self.gate.pass(|| unsafe { (self.function)(&report, self.data) });
    }
}

/// Registers a callback that is told when memory ran out. `id` gets what `millpond_pool_remove_out_of_memory` takes.
/// The callback and its data must stay valid until it is removed, or the pool is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_on_out_of_memory(
    pool: *mut PoolHandle,
    observe: Observe,
    data: *mut c_void,
    id: *mut u64,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::new(id, "id", 0) }?;
        let function = observe.ok_or(Failure::Null("observe"))?;
        let object = POOLS.get(me, pool)?;
        object.process.check()?;
        let gate = Arc::new(Gate::default());
        let asked = Asked { function, data, gate: gate.clone() };
        let registered = object.pool.on_out_of_memory(move |report| asked.tell(report));
        out.set(object.observers.add((registered, gate)));
        Ok(())
    })
}

/// Removes a callback that was registered through this handle, and waits for calls of it that other threads are in.
/// Within a callback it does not wait, and the data must stay valid for those calls. `BAD_OPTION` if it was removed
/// before.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_pool_remove_out_of_memory(pool: *mut PoolHandle, id: u64) -> Status {
    boundary(|me| {
        let object = POOLS.get(me, pool)?;
        object.process.check()?;
        let (registered, gate) = object.observers.remove(id).ok_or_else(|| no_callback(id))?;
        object.pool.remove_out_of_memory(registered);
        gate.shut();
        Ok(())
    })
}

/// What stood in the way of more memory.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitCode {
    /// The device has none left.
    Device = 0,
    /// The pool's hard limit.
    HardLimit = 1,
    /// The budget that the pool shares with others.
    Budget = 2,
    /// The bytes that the pool leaves free on the device.
    Headroom = 3,
}

/// Where the memory is when it ran out; sizes in bytes. Set `size` before the call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct OutOfMemoryReport {
    /// sizeof this struct.
    pub size: usize,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes in live blocks of the pool.
    pub live: u64,
    /// Live blocks of the pool.
    pub blocks: u64,
    /// Bytes that the pool holds but that are in no live block.
    pub cached: u64,
    /// Physical bytes that the pool holds.
    pub reserved: u64,
    /// Bytes that other pools of this context hold.
    pub other_pools: u64,
    /// Bytes free on the device, as its driver counts.
    pub device_free: u64,
    /// Bytes that the device has.
    pub device_total: u64,
    /// Bytes of the longest free range.
    pub largest_free: u64,
    /// Bytes of the limit that stood in the way; 0 for the device.
    pub limit_bytes: u64,
    /// Bytes held under that limit, for a budget; else 0.
    pub limit_held: u64,
    /// One of `millpond_limit`.
    pub limit: i32,
    /// Zero.
    pub reserved_field: u32,
    /// The pool's name, cut to the field.
    pub pool: [c_char; 64],
}

// SAFETY: `repr(C)`, integers only, the size first.
unsafe impl SizedStruct for OutOfMemoryReport {
    const NAME: &'static str = "millpond_out_of_memory";
}

impl From<&OutOfMemory> for OutOfMemoryReport {
    fn from(report: &OutOfMemory) -> Self {
        let (limit, limit_bytes, limit_held) = match report.limit {
            Limit::Device => (LimitCode::Device, 0, 0),
            Limit::HardLimit(bytes) => (LimitCode::HardLimit, bytes, 0),
            Limit::Budget { limit, held } => (LimitCode::Budget, limit, held),
            Limit::Headroom(bytes) => (LimitCode::Headroom, bytes, 0),
            // A limit that comes gets a code with it. Until then a program is told what holds of each: there is no more.
            _ => (LimitCode::Device, 0, 0),
        };
        Self {
            size: size_of::<Self>(),
            requested: report.requested,
            live: report.live,
            blocks: report.blocks,
            cached: report.cached,
            reserved: report.reserved,
            other_pools: report.other_pools,
            device_free: report.device_free,
            device_total: report.device_total,
            largest_free: report.largest_free,
            limit_bytes,
            limit_held,
            limit: limit as i32,
            reserved_field: 0,
            pool: fixed_text(&report.pool),
        }
    }
}

/// The account of this thread's last failure, if it was that memory ran out; else BAD_OPTION.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_last_out_of_memory(report: *mut OutOfMemoryReport) -> Status {
    boundary(|_| {
        let last = last_out_of_memory()
            .ok_or_else(|| Failure::option("report", "this thread's last failure was not out of memory"))?;
        // SAFETY: as the header asks of its caller.
        unsafe { write_struct(report, "report", &OutOfMemoryReport::from(&last)) }
    })
}
