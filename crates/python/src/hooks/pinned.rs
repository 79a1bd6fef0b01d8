//! PyTorch's pinned memory, from the pools of pinned memory near its GPUs. The shim's `pinned.h` calls these functions.
//!
//! The CPU writes to a block as soon as it has it. So each pool has a stream that is never given work, and hands out for it
//! only memory whose work is complete.

use std::ffi::{c_int, c_void};

use millpond::bindings::{Mutex, PerProcess};
use millpond::device::DevicePtr;
use rustc_hash::FxHashMap;

use super::blocks::Stat;
use super::torch::{address, caught, pointer, report};
use crate::devices::{self, Pinned, device};
use crate::failure::{Failure, Result};
use crate::frames;

/// A live block.
#[derive(Debug, Clone, Copy)]
struct Live {
    gpu: usize,
    requested: u64,
    /// Whether a captured copy uses it. A replay uses it again, so it is never freed.
    is_captured: bool,
}

/// What PyTorch has of all pools of pinned memory.
#[derive(Debug, Default)]
struct Ledger {
    live: FxHashMap<u64, Live>,
    requests: Stat,
    requested: Stat,
    /// Device calls before the figures began anew.
    allocs_before: u64,
    frees_before: u64,
}

static LEDGER: PerProcess<Mutex<Ledger>> = PerProcess::new(Default::default);

/// In the order of `pool.h`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct PinnedFigures {
    requests: Stat,
    requested: Stat,
    blocks: i64,
    reserved: i64,
    reserved_peak: i64,
    device_allocs: i64,
    device_frees: i64,
}

/// Allocates `bytes`, more than 0, near a GPU. The CPU may use them at once.
pub(super) fn allocate(gpu: c_int, bytes: u64) -> Result<*mut c_void> {
    let Pinned { pool, stream } = device(gpu.into())?.pinned()?;
    let called = frames::of_thread();
    let ptr = pool.alloc(bytes, stream)?;
    drop(called);
    // Where memory was short, the stream was made to wait.
    if !stream.is_idle()? {
        stream.synchronize()?;
    }
    let ledger = &mut *LEDGER.get().lock();
    ledger.live.insert(ptr.raw(), Live { gpu: gpu as usize, requested: bytes, is_captured: false });
    ledger.requests.raise(1);
    ledger.requested.raise(bytes);
    Ok(pointer(ptr))
}

/// Frees a block after the copies that were noted.
pub(super) extern "C" fn free_pinned(ptr: *mut c_void) {
    if ptr.is_null() || devices::is_forked() {
        return;
    }
    report(caught(|| {
        let mut ledger = LEDGER.get().lock();
        let Some(live) = ledger.live.remove(&(ptr.addr() as u64)) else {
            return Err(Failure::Broken(format!("{ptr:p} is no pinned block that PyTorch has")));
        };
        ledger.requests.lower(1);
        ledger.requested.lower(live.requested);
        drop(ledger);
        if live.is_captured {
            return Ok(());
        }
        let Pinned { pool, stream } = device(live.gpu as i64)?.pinned()?;
        // SAFETY: the block is PyTorch's, which frees it once and has noted its copies.
        Ok(unsafe { pool.free(address(ptr), stream) }?)
    }));
}

/// Notes that work on a stream of a GPU uses the block that PyTorch names by its context, or else by its address. `false`
/// where that is none of ours.
///
/// # Safety
/// `stream` is null or a live stream of the GPU, as `streams` says.
pub(super) unsafe fn record(context: u64, ptr: u64, gpu: c_int, stream: u64) -> Result<bool> {
    let mut ledger = LEDGER.get().lock();
    let found = [context, ptr].into_iter().find_map(|at| Some((at, *ledger.live.get(&at)?)));
    let Some((at, live)) = found else { return Ok(false) };
    // SAFETY: as promised to this function.
    let user = unsafe { device(gpu.into())?.streams.find(stream) }?;
    // SAFETY: as above.
    if unsafe { user.device().capture_of(user.handle_here()?) }?.is_some() {
        ledger.live.insert(at, Live { is_captured: true, ..live });
        return Ok(true);
    }
    drop(ledger);
    let Pinned { pool, stream: own } = device(live.gpu as i64)?.pinned()?;
    if gpu as usize == live.gpu {
        pool.record_use(DevicePtr::new(at), &user)?;
    } else {
        own.wait_for(&user)?;
    }
    Ok(true)
}

/// Gives back what no tensor has, as far as its copies are complete.
pub(super) fn empty() -> Result<()> {
    each(|Pinned { pool, .. }| Ok(pool.trim_to(0).map(drop)?))
}

fn each(mut visit: impl FnMut(&Pinned) -> Result<()>) -> Result<()> {
    devices::present().filter_map(|(_, device)| device.pinned_if_made()).try_for_each(&mut visit)
}

pub(super) fn figures() -> Result<PinnedFigures> {
    let (mut reserved, mut reserved_peak, mut allocs, mut frees) = (0, 0, 0, 0);
    each(|Pinned { pool, .. }| {
        let stats = pool.stats();
        reserved += stats.reserved.current;
        reserved_peak += stats.reserved.high;
        allocs += stats.calls.create + stats.calls.alloc;
        frees += stats.calls.release + stats.calls.free;
        Ok(())
    })?;
    let ledger = LEDGER.get().lock();
    Ok(PinnedFigures {
        requests: ledger.requests,
        requested: ledger.requested,
        blocks: allocs.saturating_sub(frees) as i64,
        reserved: reserved as i64,
        reserved_peak: reserved_peak as i64,
        device_allocs: allocs.saturating_sub(ledger.allocs_before) as i64,
        device_frees: frees.saturating_sub(ledger.frees_before) as i64,
    })
}

/// Lets the peaks begin anew, or else what is counted up.
pub(super) fn reset(peaks: bool) -> Result<()> {
    if peaks {
        each(|Pinned { pool, .. }| {
            pool.reset_high_water();
            Ok(())
        })?;
    }
    let figures = figures()?;
    let ledger = &mut *LEDGER.get().lock();
    if peaks {
        ledger.requests.peak = ledger.requests.current;
        ledger.requested.peak = ledger.requested.current;
    } else {
        ledger.requests.begin_anew();
        ledger.requested.begin_anew();
        ledger.allocs_before += figures.device_allocs as u64;
        ledger.frees_before += figures.device_frees as u64;
    }
    Ok(())
}
