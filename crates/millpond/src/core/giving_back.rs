//! How a pool gives memory back: on demand, when the host has synchronised, when threads end, and at its own end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::pool_core::{Core, PoolState};
use crate::device::{DevicePtr, DeviceResult};
use crate::extents::{self, Pointer};
use crate::lock::MutexGuard;
use crate::order::{AfterSync, Fence};
use crate::physical::GivesBack;
use crate::stats::Stats;
use crate::{Error, Result};

pub(crate) fn trim(core: &Core, keep: u64) -> DeviceResult<u64> {
    core.timelines.check_process()?;
    if core.gate.is_closed() {
        // Nothing is cached then. And the lock may be taken until all is copied.
        return Ok(0);
    }
    collect_held(core);
    let mut state = core.state.lock();
    let released = trim_under_lock(core, &mut state, keep)?;
    if !core.caches.holds_any() {
        let (locked, arena) = state.for_caches();
        core.caches.give_back(locked, arena);
    }
    drop(state);
    core.report_freed_twice();
    Ok(released)
}

fn trim_under_lock(core: &Core, state: &mut PoolState, keep: u64) -> DeviceResult<u64> {
    if state.is_asleep {
        return Ok(0);
    }
    core.collect_ended(state);
    state.arenas.trim_keeping();
    if core.counters.reserved.current() <= keep {
        return Ok(0);
    }
    core.empty_caches(state);
    let began = core.now();
    let released = extents::trim(&mut state.arenas.own, keep);
    core.counters.note_device_time(core.since(began));
    let released = released?;
    core.recording.trim(keep, released);
    Ok(released)
}

/// Frees the blocks that their owners have freed, and nothing holds any more. Returns whether there were any.
pub(crate) fn collect_held(core: &Core) -> bool {
    let any = core.unwrap_blocks(false);
    core.holds.any() && free_behind(core, core.holds.collect(false)) || any
}

/// Frees these live blocks behind their fences. Returns whether there are any.
pub(crate) fn free_behind(core: &Core, freed: Vec<(DevicePtr, Fence)>) -> bool {
    if freed.is_empty() {
        return false;
    }
    let mut state = core.state.lock();
    for (ptr, fence) in freed {
        if let Pointer::Live(id) = state.arenas.look_up(ptr) {
            core.free_in_arena(&mut state, (ptr, id), fence);
        }
    }
    unlock_freed(core, state);
    true
}

/// Ends frees under the lock. The memory of a destroyed pool goes back with its last block.
pub(super) fn unlock_freed(core: &Core, state: MutexGuard<'_, PoolState>) {
    let gives_back = state.destroyed && (core.keeps_nothing || core.counted().blocks.current == 0);
    drop(state);
    if gives_back {
        give_all_back(core);
    }
}

/// Lets go of the memory of captures that nobody claims any more. It does so once the work that was under way when
/// the last claim went is complete. Returns whether there was any. While a capture is under way the device cannot
/// be waited for: the end of the last one calls this again. The wait may also fail: so does whoever has waited for
/// the device, or is short of memory.
pub(crate) fn let_go_of_released(core: &Core) -> bool {
    if core.gate.is_closed() {
        // The wake calls this again.
        return false;
    }
    let Some(newest) = core.state.lock().arenas.newest_released() else { return false };
    // Without the pool's lock.
    let is_done = core.timelines.synchronize_device_unless_capturing().unwrap_or_else(|error| {
        tracing::warn!(%error, pool = core.name, "the memory of a capture is kept: the device cannot be waited for");
        false
    });
    if !is_done {
        return false;
    }
    let mut state = core.state.lock();
    let lets_go = !state.is_asleep;
    if lets_go {
        state.arenas.let_go_until(newest);
    }
    lets_go
}

/// The work that must be complete before everything that is not live can be given back.
pub(crate) fn fence_of_all_free(core: &Core) -> Fence {
    let mut state = core.state.lock();
    core.empty_caches(&mut state);
    state.arenas.fence_of_all_free()
}

/// Gives back what can be given back without waiting. What
/// pending work still uses goes when the host next synchronises, or with the context.
#[cold]
fn give_all_back(core: &Core) {
    end_sleep(core);
    if let Err(error) = trim(core, 0) {
        tracing::warn!(%error, pool = core.name, "a destroyed pool could not give back its memory");
    }
    bury(core);
}

/// Nothing of the pool is live, and it will allocate no more: what sleeps need not wake.
fn end_sleep(core: &Core) {
    let mut state = core.state.lock();
    if std::mem::take(&mut state.is_asleep) {
        state.arenas.forget_gone();
    }
    drop(state);
    core.gate.open();
}

/// Lets go of the pools of the context that hold nothing any more.
pub(crate) fn bury(core: &Core) {
    if let Some(registry) = core.registry.upgrade() {
        registry.bury(Core::holds_nothing);
    }
}

/// Keeps the pool as long as it holds memory, also without a handle: it goes back later.
pub(crate) fn outlive_if_needed(core: &Arc<Core>) {
    if !core.holds_nothing()
        && let Some(registry) = core.registry.upgrade()
    {
        registry.outlive(core.number, core.clone());
    }
    // What it held may have gone before the registry kept the pool.
    bury(core);
}

/// The last handle of the pool is gone, or it was destroyed.
pub(crate) fn close(core: &Arc<Core>) -> Result<()> {
    core.check_process()?;
    core.unwrap_blocks(true);
    core.recording.end();
    let mut state = core.state.lock();
    // It allocates no more from now on.
    if std::mem::replace(&mut state.destroyed, true) {
        return Ok(());
    }
    core.pause_caches(&mut state);
    let Stats { blocks, requested, .. } = core.counted();
    drop(state);
    let ended = match blocks.current {
        0 => end(core),
        blocks => Err(Error::LiveBlocks { pool: core.name_of(), blocks, bytes: requested.current }),
    };
    outlive_if_needed(core);
    ended
}

/// Gives everything back, without live blocks. Waits for work on it without the lock: the device may be waiting for a
/// function of the host that uses the pool.
fn end(core: &Core) -> Result<()> {
    end_sleep(core);
    let_go_of_released(core);
    core.timelines.wait_on_host(&fence_of_all_free(core))?;
    let mut state = core.state.lock();
    state.arenas.trim_keeping();
    extents::tear_down(&mut state.arenas.own)?;
    match state.arenas.own.held() {
        0 => Ok(()),
        bytes => Err(Error::MemoryInUse { pool: core.name_of(), bytes }),
    }
}

/// Gives back what is free until so much is held; waits for work on it if that is not enough.
pub(super) fn trim_waiting(core: &Core, keep: u64) -> Result<u64> {
    let released = trim(core, keep)?;
    if core.counters.reserved.current() <= keep || core.gate.is_closed() {
        return Ok(released);
    }
    let_go_of_released(core);
    core.timelines.wait_on_host(&fence_of_all_free(core))?;
    Ok(released + trim(core, keep)?)
}

impl GivesBack for Core {
    /// At least half of what is free, so that a program whose requests grow does not have to ask for each.
    fn give_back_free(&self, wanted: u64, at_most: u64) -> u64 {
        let held = self.counters.reserved.current();
        let free = held.saturating_sub(self.counted().allocated.current);
        let give = wanted.max(free / 2).min(free).min(at_most);
        trim_waiting(self, held - give).unwrap_or_else(|error| {
            tracing::debug!(%error, pool = self.name, "a pool could not give memory to another process");
            0
        })
    }
}

impl AfterSync for Core {
    fn after_sync(&self) {
        if self.gate.is_closed() {
            return;
        }
        let_go_of_released(self);
        collect_held(self);
        // Relaxed: a setting; it takes effect at the next synchronise.
        let threshold = self.release_threshold.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        let keep = if state.destroyed { 0 } else { threshold };
        if let Err(error) = trim_under_lock(self, &mut state, keep) {
            tracing::warn!(%error, pool = self.name, "the release threshold could not be applied");
        }
        let is_destroyed = state.destroyed;
        drop(state);
        if is_destroyed {
            bury(self);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.is_here() {
            // The memory is the parent's.
            return;
        }
        self.unwrap_blocks(true);
        if let Some(wrapping) = &self.wrapping {
            wrapping.end();
        }
        free_behind(self, self.holds.collect(true));
        end_sleep(self);
        // Nobody holds a claim on the memory of captures, nor the pool.
        let_go_of_released(self);
        let fence = fence_of_all_free(self);
        if let Err(error) = self.timelines.wait_on_host(&fence) {
            tracing::error!(%error, pool = self.name, "the end of a pool could not wait for work on its memory");
        }
        if let Err(error) = self.state.get_mut().arenas.tear_down() {
            tracing::error!(%error, pool = self.name, "a pool could not give back all its memory");
        }
        let lost = self.counters.reserved.current();
        if lost > 0 {
            tracing::error!(
                bytes = lost,
                pool = self.name,
                "memory of a pool is lost: its end could not wait until it was free"
            );
        }
        self.report_freed_twice();
        if let Err(error) = self.recording.stop() {
            tracing::warn!(%error, pool = self.name, "the end of a recording is missing");
        }
        if let Some(registry) = self.registry.upgrade() {
            registry.leave(self.number);
        }
    }
}
