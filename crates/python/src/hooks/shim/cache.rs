//! What the pools hold without need, and how much they may hold.

use std::ffi::c_int;

use super::super::blocks::book;
use super::super::captures;
use super::super::outcome::{Outcome, or_default, outcome};
use super::super::sharing;
use super::entries::present;
use crate::devices::{self, device};
use crate::thread_tag;

/// Waits for the GPUs, and gives back what no tensor has. While a graph is captured nothing is waited for.
pub(super) extern "C" fn empty_cache() -> Outcome {
    outcome(|| {
        sharing::close_all()?;
        let waits = !captures::is_any_open();
        for (_, device) in devices::present() {
            if waits {
                device.context.synchronize()?;
            }
            for pool in thread_tag::pools(device) {
                pool.trim_to(0)?;
            }
        }
        Ok(())
    })
}

/// Bytes that the largest allocation could get: what is free on the GPU or cached, within the program's limit.
pub(super) extern "C" fn largest_allocation(gpu: c_int) -> u64 {
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
pub(super) unsafe extern "C" fn memory_info(gpu: c_int, free: *mut u64, total: *mut u64) {
    let info = or_default(|| {
        let info = device(gpu.into())?.pool.memory_info()?;
        Ok((info.free, info.total))
    });
    // SAFETY: as promised to this function.
    unsafe { (free.write(info.0), total.write(info.1)) };
}

/// Limits what the pool of a GPU may hold to a share of the GPU's memory.
pub(super) extern "C" fn set_fraction(gpu: c_int, fraction: f64) -> Outcome {
    outcome(|| {
        device(gpu.into())?.set_fraction(fraction)?;
        book(gpu as usize).lock().fraction = Some(fraction);
        Ok(())
    })
}

pub(super) extern "C" fn fraction(gpu: c_int) -> f64 {
    let set = present(gpu).and_then(|(ordinal, _)| book(ordinal).lock().fraction);
    set.unwrap_or_else(devices::fraction_of_new)
}
