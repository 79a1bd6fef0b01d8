//! What a pool counts.

use millpond::{Level, Stats};

use crate::arguments::{SizedStruct, write_struct};
use crate::failure::boundary;
use crate::kind::PoolHandle;
use crate::pool::POOLS;
use crate::status::Status;

/// A figure that moves: where it is, and the highest it has been since the last reset.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LevelFigures {
    /// Now.
    pub current: u64,
    /// At most.
    pub high: u64,
}

impl From<Level> for LevelFigures {
    fn from(Level { current, high }: Level) -> Self {
        Self { current, high }
    }
}

/// Device calls by kind, counted since the pool was built.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CallFigures {
    /// Address ranges reserved (cuMemAddressReserve).
    pub reserve: u64,
    /// Address ranges given back (cuMemAddressFree).
    pub unreserve: u64,
    /// Pages created (cuMemCreate).
    pub create: u64,
    /// Mappings made (cuMemMap).
    pub map: u64,
    /// Access rights set (cuMemSetAccess).
    pub set_access: u64,
    /// Mappings removed (cuMemUnmap).
    pub unmap: u64,
    /// Pages released (cuMemRelease).
    pub release: u64,
    /// Plain allocations (cuMemAlloc).
    pub alloc: u64,
    /// Plain frees (cuMemFree).
    pub free: u64,
}

/// What a pool did and holds; sizes in bytes. Set `size` before the call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PoolStats {
    /// sizeof this struct.
    pub size: usize,
    /// Bytes asked for, in live blocks.
    pub requested: LevelFigures,
    /// Bytes in live blocks, rounded to the pool's minimum alignment.
    pub allocated: LevelFigures,
    /// Physical bytes held from the device.
    pub reserved: LevelFigures,
    /// Live blocks.
    pub blocks: LevelFigures,
    /// Allocations since the pool was built.
    pub allocations: u64,
    /// Frees since the pool was built.
    pub frees: u64,
    /// Allocations that found memory ready, without a device call that moves memory.
    pub hits: u64,
    /// Allocations that had to map, steal or create.
    pub misses: u64,
    /// Allocations for which the pool made the stream wait for another.
    pub stream_waits: u64,
    /// Pages taken from a free range to back another address.
    pub pages_stolen: u64,
    /// Times that memory ran out, something was given back or waited for, and the request tried again.
    pub retries: u64,
    /// Requests that ended in an out-of-memory error.
    pub out_of_memory: u64,
    /// Device calls by kind.
    pub calls: CallFigures,
    /// Bytes held but in no live block.
    pub cached: u64,
    /// 1 - requested / reserved, now: the share of the memory held that nobody asked for.
    pub fragmentation: f64,
}

// SAFETY: `repr(C)`, numbers only, the size first.
unsafe impl SizedStruct for PoolStats {
    const NAME: &'static str = "millpond_stats";
}

impl From<Stats> for PoolStats {
    fn from(stats: Stats) -> Self {
        let calls = stats.calls;
        Self {
            size: size_of::<Self>(),
            requested: stats.requested.into(),
            allocated: stats.allocated.into(),
            reserved: stats.reserved.into(),
            blocks: stats.blocks.into(),
            allocations: stats.allocations,
            frees: stats.frees,
            hits: stats.hits,
            misses: stats.misses,
            stream_waits: stats.stream_waits,
            pages_stolen: stats.pages_stolen,
            retries: stats.retries,
            out_of_memory: stats.out_of_memory,
            calls: CallFigures {
                reserve: calls.reserve,
                unreserve: calls.unreserve,
                create: calls.create,
                map: calls.map,
                set_access: calls.set_access,
                unmap: calls.unmap,
                release: calls.release,
                alloc: calls.alloc,
                free: calls.free,
            },
            cached: stats.cached(),
            fragmentation: stats.fragmentation(),
        }
    }
}

/// What the pool did and holds. Takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_stats(pool: *mut PoolHandle, stats: *mut PoolStats) -> Status {
    boundary(|me| {
        let value = POOLS.get(me, pool)?.pool.stats().into();
        // SAFETY: as the header asks of its caller.
        unsafe { write_struct(stats, "stats", &value) }
    })
}
