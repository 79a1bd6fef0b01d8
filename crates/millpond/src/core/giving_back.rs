//! How a pool gives memory back: on demand, when the host has synchronised, when threads end, and at its own end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::pool_core::{Core, PoolState};
use super::registry::Registered;
use crate::counters::Counted;
use crate::device::{DevicePtr, DeviceResult};
use crate::extents::{self, Pointer};
use crate::order::{AfterSync, Fence};
use crate::physical::GivesBack;
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
        let PoolState { arenas, locked, .. } = &mut *state;
        core.caches.give_back(locked, &mut arenas.own);
    }
    drop(state);
    core.report_freed_twice();
    Ok(released)
}

fn trim_under_lock(core: &Core, state: &mut PoolState, keep: u64) -> DeviceResult<u64> {
    if state.is_asleep {
        return Ok(0);
    }
    if core.caches.any_ended() {
        core.collect_ended(state);
    }
    state.arenas.trim_keeping();
    if core.counters.reserved.current() <= keep {
        return Ok(0);
    }
    core.empty_caches(state);
    let device = core.timelines.device();
    let began = device.now();
    let released = extents::trim(&mut state.arenas.own, keep);
    core.counters.note_device_time(device.now().saturating_sub(began));
    let released = released?;
    core.recording.trim(keep, released);
    Ok(released)
}

/// Frees the blocks that their owners have freed, and nothing holds any more. Returns whether there were any.
pub(crate) fn collect_held(core: &Core) -> bool {
    let any = core.unwrap_blocks(false);
    core.holds.any() && free_behind(core, core.holds.collect()) || any
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
    let is_last_of_destroyed = state.destroyed && core.counted().blocks.current == 0;
    drop(state);
    if is_last_of_destroyed {
        give_all_back_slow(core);
    }
    true
}

/// Lets go of the memory of captures that nobody claims any more. It does so once the work that was under way when
/// the last claim went is complete. Returns whether there was any. While a capture is under way the device cannot
/// be waited for: the end of the last one calls this again. The wait may also fail: so does whoever has waited for
/// the device, or is short of memory.
pub(crate) fn let_go_of_released(core: &Core) -> bool {
    let mut waiting = Vec::new();
    if core.gate.is_closed() {
        // The wake calls this again.
        return false;
    }
    {
        let state = core.state.lock();
        for (id, _) in state.arenas.released().filter(|(_, arena)| arena.keeps()) {
            // Without memory for the list, the others go another time.
            if waiting.try_reserve(1).is_err() {
                break;
            }
            waiting.push(id);
        }
    }
    if waiting.is_empty() {
        return false;
    }
    // Without the pool's lock.
    match core.timelines.synchronize_device_unless_capturing() {
        Ok(true) => {}
        Ok(false) => return false,
        Err(error) => {
            tracing::warn!(%error, pool = core.name, "the memory of a capture is kept: the device cannot be waited for");
            return false;
        }
    }
    let mut state = core.state.lock();
    if state.is_asleep {
        return false;
    }
    waiting.into_iter().for_each(|id| state.arenas.let_go(id));
    true
}

/// The work that must be complete before everything that is not live can be given back.
pub(crate) fn fence_of_all_free(core: &Core) -> Fence {
    let mut state = core.state.lock();
    core.empty_caches(&mut state);
    state.arenas.fence_of_all_free()
}

/// The last block of a destroyed pool is gone: gives back what can be given back without waiting. What
/// pending work still uses goes when the host next synchronises, or with the context.
#[cold]
pub(crate) fn give_all_back_slow(core: &Core) {
    end_sleep(core);
    if let Err(error) = trim(core, 0) {
        tracing::warn!(%error, pool = core.name, "a destroyed pool could not give back its memory");
    }
    bury(core);
}

/// Nothing of the pool is live, and it will allocate no more: what sleeps need not wake.
fn end_sleep(core: &Core) {
    {
        let mut state = core.state.lock();
        if std::mem::take(&mut state.is_asleep) {
            state.arenas.forget_gone();
        }
    }
    core.gate.open();
}

/// Lets go of the pools of the context that hold nothing any more.
pub(crate) fn bury(core: &Core) {
    if let Some(registry) = core.registry.upgrade() {
        registry.bury();
    }
}

/// Keeps the pool as long as it holds memory, also without a handle: it goes back later.
pub(crate) fn outlive_if_needed(core: &Arc<Core>) {
    if let Some(registry) = core.registry.upgrade() {
        if !core.holds_nothing() {
            registry.outlive(core.clone());
        }
        // What it held may have gone before the registry knew of the pool.
        registry.bury();
    }
}

/// The last handle of the pool is gone, or it was destroyed.
pub(crate) fn close(core: &Arc<Core>) -> Result<()> {
    core.check_process()?;
    core.unwrap_blocks(true);
    core.recording.end();
    let ended = match shut(core) {
        None => return Ok(()),
        Some(Counted { blocks, .. }) if blocks.current == 0 => end(core),
        Some(Counted { blocks, requested, .. }) => {
            let (blocks, bytes) = (blocks.current, requested.current);
            Err(Error::LiveBlocks { pool: core.name_of(), blocks, bytes })
        }
    };
    outlive_if_needed(core);
    ended
}

/// Allocates no more from now on; returns what is live, or `None` where that was so already.
fn shut(core: &Core) -> Option<Counted> {
    let mut state = core.state.lock();
    if std::mem::replace(&mut state.destroyed, true) {
        return None;
    }
    core.pause_caches(&mut state);
    Some(core.counted())
}

/// Gives everything back, without live blocks. Waits for work on it without the lock: the device may be waiting for a
/// function of the host that uses the pool.
fn end(core: &Core) -> Result<()> {
    end_sleep(core);
    let_go_of_released(core);
    let fence = fence_of_all_free(core);
    core.timelines.wait_on_host(&fence)?;
    let left = {
        let mut state = core.state.lock();
        state.arenas.trim_keeping();
        extents::tear_down(&mut state.arenas.own)?;
        state.arenas.own.held()
    };
    if left > 0 {
        return Err(Error::MemoryInUse { pool: core.name_of(), bytes: left });
    }
    Ok(())
}

/// Gives back what is free until so much is held; waits for work on it if that is not enough.
fn trim_for_others(core: &Core, keep: u64) -> Result<u64> {
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
        trim_for_others(self, held - give).unwrap_or_else(|error| {
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
        let destroyed = {
            let mut state = self.state.lock();
            let keep = if state.destroyed { 0 } else { threshold };
            if let Err(error) = trim_under_lock(self, &mut state, keep) {
                tracing::warn!(%error, pool = self.name, "the release threshold could not be applied");
            }
            state.destroyed
        };
        if destroyed {
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
            wrapping.end(self);
        }
        free_behind(self, self.holds.end());
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
