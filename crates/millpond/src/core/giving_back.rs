//! How a pool gives memory back: on demand, when the host has synchronised, when threads end, and at its own end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::pool_core::{Core, HasCore, PoolState};
use crate::budgets::GivesBack;
use crate::device::{DevicePtr, DeviceResult};
use crate::error::{Error, Result};
use crate::extents::{self, Leaving};
use crate::figures::stats::Stats;
use crate::log::log;
use crate::order::{AfterSync, Fence};
use crate::system::lock::MutexGuard;

/// Gives free memory back until so much is held, as far as no pending work uses it. Returns the bytes given back. A destroyed pool
/// keeps nothing.
pub(crate) fn trim(core: &Core, keep: u64) -> DeviceResult<u64> {
    trim_after(core, keep, collect_held)
}

/// As [`trim`], after some way to collect what was held. That may take the pool's lock: it is called where no sleeper has it.
fn trim_after(core: &Core, keep: u64, collect: impl FnOnce(&Core) -> bool) -> DeviceResult<u64> {
    core.timelines.check_process()?;
    if let Some(whole) = whole_with_pages(core).filter(|whole| !whole.gate.is_closed()) {
        _ = whole.state.lock().arenas.own.reap_arriving();
    }
    if core.gate.is_closed() {
        // Nothing is cached then. And the lock may be taken until all is copied.
        return Ok(0);
    }
    collect(core);
    let mut state = core.state.lock();
    let keep = if core.is_destroyed() { 0 } else { keep };
    let before = core.counters.reserved.current();
    let trimmed = if state.is_asleep { Ok(false) } else { trim_under_lock(core, &mut state, keep) };
    let released = before.saturating_sub(core.counters.reserved.current());
    let (freed, given_back) = unlock(core, state);
    let (released, trimmed) = (released + freed, given_back.and(trimmed));
    if trimmed == Ok(true) {
        core.recording.trim(keep, released);
    }
    if trimmed.is_ok() && released > 0 {
        log!(DEBUG, "a pool was trimmed", pool = core.name, bytes = released, keep);
    }
    // Also where it was destroyed meanwhile: what was to be freed was held then.
    if core.is_destroyed() {
        bury(core);
    }
    trimmed.map(|_| released)
}

/// Returns whether more was held than is to be kept.
fn trim_under_lock(core: &Core, state: &mut PoolState, keep: u64) -> DeviceResult<bool> {
    core.collect_ended(state);
    state.arenas.trim();
    state.arenas.trim_parked(keep);
    let left = core.counters.staying();
    if left <= keep {
        if left == 0 {
            // Mappings may be left of pages that tags have now.
            extents::reap(&mut state.arenas.own);
        }
        return Ok(false);
    }
    core.empty_caches(state);
    let began = core.now();
    let trimmed = extents::trim(&mut state.arenas.own, keep);
    core.counters.note_device_time(core.since(began));
    let (locked, arena) = state.for_caches();
    core.caches.revoke(locked, arena, true);
    trimmed.map(|()| true)
}

/// Unlocks. The segments that left under the lock go back to the driver without it: their free waits for the device, which may wait for a
/// function of the host that asks the pool. Returns the bytes that went, and the first error: what the driver refused is free again.
pub(crate) fn unlock(core: &Core, mut state: MutexGuard<'_, PoolState>) -> (u64, DeviceResult<()>) {
    let leaving = state.arenas.take_leaving();
    drop(state);
    // Nearly always.
    if leaving.is_empty() { (0, Ok(())) } else { give_back(core, leaving) }
}

#[cold]
fn give_back(core: &Core, leaving: Vec<Leaving>) -> (u64, DeviceResult<()>) {
    let (mut bytes, mut done) = (0, Ok(()));
    for segment in leaving {
        let began = core.now();
        let gone = segment.go();
        let mut state = core.state.lock();
        core.counters.note_device_time(core.since(began));
        let freed = state.arenas.settle(gone);
        drop(state);
        core.settled.notify_all();
        bytes += freed.as_ref().map_or(0, |freed| *freed);
        done = done.and(freed.map(drop));
    }
    (bytes, done)
}

/// As [`unlock`], where nobody is told of an error.
pub(crate) fn unlock_logging(core: &Core, state: MutexGuard<'_, PoolState>) {
    if let (_, Err(error)) = unlock(core, state) {
        log!(WARN, "a segment could not be given back; it is tried again", error, pool = core.name);
    }
}

/// Waits until no thread gives segments back: who is short of memory needs those. Returns whether one did.
pub(super) fn wait_for_leaving(core: &Core) -> bool {
    let mut state = core.state.lock();
    let any = state.arenas.any_under_way();
    while state.arenas.any_under_way() {
        state = core.settled.wait(state);
    }
    any
}

/// As [`trim`]. If that is not enough, waits for the work on what is free.
pub(super) fn trim_waiting(core: &Core, keep: u64) -> Result<u64> {
    let before = core.counters.reserved.current();
    trim(core, keep)?;
    if core.counters.reserved.current() > keep && !core.gate.is_closed() {
        wait_for_free(core)?;
        trim(core, keep)?;
    }
    Ok(before.saturating_sub(core.counters.reserved.current()))
}

/// Waits until no work uses what is free, memory of captures that nobody claims is free, and segments that leave have gone. Without
/// the pool's lock: the device may be waiting for a function of the host that uses the pool. Returns whether there was anything to
/// wait for.
pub(super) fn wait_for_free(core: &Core) -> Result<bool> {
    let any =
        let_go_of_released(core) | core.unwrap_blocks(true) | collect_held(core) | wait_for_leaving(core);
    let mut state = core.state.lock();
    core.empty_caches(&mut state);
    let fence = state.arenas.fence_of_all_free();
    drop(state);
    core.timelines.wait_on_host(&fence)?;
    Ok(any || !fence.is_empty())
}

/// The pool that this one is a part of, if pages passed there: their mappings here go once the work on them is complete.
fn whole_with_pages(core: &Core) -> Option<Arc<dyn HasCore>> {
    if core.counters.asleep.current() > 0 { core.whole() } else { None }
}

/// Frees the blocks that their owners have freed, and nothing holds any more. Returns whether there were any.
pub(crate) fn collect_held(core: &Core) -> bool {
    core.unwrap_blocks(false) | free_behind(core, core.holds.collect(false))
}

/// As [`collect_held`], for who does this often: it asks about some of the blocks.
pub(crate) fn collect_some_held(core: &Core) -> bool {
    core.unwrap_blocks(false) | free_behind(core, core.holds.collect_some())
}

/// Frees these live blocks behind their fences. Returns whether there are any.
pub(crate) fn free_behind(core: &Core, freed: Vec<(DevicePtr, Fence)>) -> bool {
    if freed.is_empty() {
        return false;
    }
    let mut state = core.state.lock();
    for (ptr, fence) in freed {
        _ = core.free_in_arena(&mut state, ptr, fence);
    }
    unlock_freed(core, state);
    true
}

/// Ends frees under the lock. The memory of a destroyed pool goes back with its last block: what pending work still uses goes when
/// the host next synchronises, or with the context.
pub(super) fn unlock_freed(core: &Core, state: MutexGuard<'_, PoolState>) {
    let gives_back = core.is_destroyed() && (core.keeps_nothing || core.counted().blocks.current == 0);
    unlock_logging(core, state);
    if gives_back {
        end_sleep(core);
        if let Err(error) = trim(core, 0) {
            log!(WARN, "a destroyed pool could not give back its memory", error, pool = core.name);
        }
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
    let waited = core.timelines.synchronize_device_unless_capturing();
    if let Err(error) = &waited {
        log!(
            WARN,
            "the memory of a capture is kept: the device cannot be waited for",
            error,
            pool = core.name
        );
    }
    let mut state = core.state.lock();
    let lets_go = waited == Ok(true) && !state.is_asleep;
    if lets_go {
        state.arenas.let_go_until(newest);
    }
    unlock_logging(core, state);
    lets_go
}

/// While a capture is under way, no pool waits for the device. The end of the last one makes up for that.
pub(crate) fn end_capture(core: &Core) {
    if core.timelines.end_capture() {
        // This one also where the context is gone.
        let_go_of_released(core);
        core.others().for_each(|pool| _ = let_go_of_released(&pool));
        bury(core);
    }
}

/// Nothing of the pool is live, and it will allocate no more: what sleeps need not wake, and goes as what is free.
fn end_sleep(core: &Core) {
    core.state.lock().is_asleep = false;
    core.gate.open();
}

/// Lets go of the pools of the context that hold nothing any more.
fn bury(core: &Core) {
    if let Some(registry) = core.registry.upgrade() {
        registry.bury(|pool| pool.holds_nothing());
    }
}

/// Keeps the pool as long as it holds memory, also without a handle: it goes back later.
pub(crate) fn outlive_if_needed(core: &Core) {
    if let Some(registry) = core.registry.upgrade() {
        registry.outlive(core.number);
    }
    bury(core);
}

/// The last handle of the pool is gone, or it was destroyed.
pub(crate) fn close(core: &Core) -> Result<()> {
    core.check_process()?;
    core.unwrap_blocks(true);
    core.recording.end();
    let mut state = core.state.lock();
    // It allocates no more from now on.
    // Relaxed: see `is_destroyed`.
    if core.destroyed.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    core.pause_caches(&mut state);
    let Stats { blocks, requested, .. } = core.counted();
    drop(state);
    let ended = match blocks.current {
        0 => end(core),
        blocks => Err(Error::LiveBlocks { pool: core.name_of(), blocks, bytes: requested.current }),
    };
    log!(DEBUG, "a pool was destroyed", pool = core.name, bytes = core.counters.reserved.current());
    outlive_if_needed(core);
    ended
}

/// Gives everything back, without live blocks, but what a replay may still use.
fn end(core: &Core) -> Result<()> {
    end_sleep(core);
    let waited = wait_for_free(core);
    if let Some(whole) = whole_with_pages(core) {
        _ = whole.state.lock().arenas.own.reap_arriving();
    }
    let mut state = core.state.lock();
    let torn_down = state.arenas.tear_down();
    let (_, given_back) = unlock(core, state);
    wait_for_leaving(core);
    torn_down.and(given_back)?;
    waited?;
    match core.state.lock().arenas.own.held() {
        0 => Ok(()),
        bytes => Err(Error::MemoryInUse { pool: core.name_of(), bytes }),
    }
}

impl<P: HasCore> GivesBack for P {
    /// At least half of what is free, so that a program whose requests grow does not have to ask for each.
    fn give_back_free(&self, wanted: u64, at_most: u64) -> u64 {
        let core = self.core();
        let held = core.counters.reserved.current();
        let free = held.saturating_sub(core.counted().allocated.current);
        let give = wanted.max(free / 2).min(free).min(at_most);
        trim_waiting(core, held - give).unwrap_or_else(|error| {
            log!(DEBUG, "a pool could not give memory to another process", error, pool = core.name);
            0
        })
    }
}

impl<P: HasCore> AfterSync for P {
    fn after_sync(&self) {
        let core = self.core();
        let_go_of_released(core);
        // Relaxed: a setting; it takes effect at the next synchronise.
        let keep = core.release_threshold.load(Ordering::Relaxed);
        // Programs synchronise often; a pool that was destroyed has nothing else to do.
        let collect = |core: &Core| match core.is_destroyed() {
            true => collect_held(core),
            false => collect_some_held(core),
        };
        if let Err(error) = trim_after(core, keep, collect) {
            log!(WARN, "the release threshold could not be applied", error, pool = core.name);
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
        free_behind(self, self.holds.collect(true));
        // Nobody holds a claim on the memory of captures, nor the pool.
        let (ended, lost) = (end(self), self.counters.reserved.current());
        if ended.is_err() || lost > 0 {
            log!(
                ERROR,
                "a pool could not give back all its memory",
                ended = format_args!("{ended:?}"),
                lost,
                pool = self.name
            );
        }
        let double_frees = self.caches.freed_twice();
        if double_frees > 0 {
            log!(ERROR, "two threads freed a block at once", pool = self.name, double_frees);
        }
        if let Err(error) = self.recording.stop() {
            log!(WARN, "the end of a recording is missing", error, pool = self.name);
        }
        if let Some(registry) = self.registry.upgrade() {
            registry.leave(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Bench, Freeing, MIB};

    #[test]
    fn what_was_freed_is_something_to_wait_for() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool);
        assert_eq!(wait_for_free(pool.inner()), Ok(false));
        let block = pool.alloc(MIB, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
        assert_eq!(wait_for_free(pool.inner()), Ok(true));
    }

    #[test]
    fn another_process_gets_half_of_what_is_free() {
        let Bench { pool, stream, .. } = Bench::new(|pool| pool.page_sizes(2 * MIB, 2 * MIB));
        let block = pool.alloc(64 * MIB, &stream).unwrap();
        pool.free_block(block, &stream).unwrap();
        assert_eq!(pool.inner().give_back_free(2 * MIB, 64 * MIB), 32 * MIB);
        assert_eq!(pool.reserved().current, 32 * MIB);
        assert_eq!(pool.inner().give_back_free(30 * MIB, 64 * MIB), 30 * MIB, "or as much as it wants");
    }

    #[cfg(not(miri))]
    #[test]
    fn the_end_of_a_right_program_is_no_error() {
        let name = "core::giving_back::tests::the_end_of_a_right_program_is_no_error";
        crate::fixtures::alone(name, end_of_a_right_program);
    }

    #[cfg(not(miri))]
    fn end_of_a_right_program() {
        let said = crate::log::heard(|| {
            let Bench { pool, stream, .. } = Bench::new(|pool| pool);
            let block = pool.alloc(MIB, &stream).unwrap();
            pool.free_block(block, &stream).unwrap();
        });
        // The miss was told, so that somebody listened.
        assert!(said.iter().any(|text| text == "a miss"), "{said:?}");
        assert!(!said.iter().any(|text| text.contains("freed a block at once")), "{said:?}");
    }
}
