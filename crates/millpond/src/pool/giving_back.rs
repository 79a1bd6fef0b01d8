//! How a pool gives memory back: on demand, when the host has synchronised, when threads end, and at its own end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::beyond_caches::take_back;
use super::inner::{PoolInner, State};
use crate::cache::ThreadEnd;
use crate::device::DeviceResult;
use crate::order::{AfterSync, Fence};
use crate::{Error, Result};

impl PoolInner {
    pub(super) fn trim(&self, keep: u64) -> DeviceResult<u64> {
        let released = self.trim_under_lock(&mut self.state.lock(), keep);
        self.report_freed_twice();
        released
    }

    fn trim_under_lock(&self, state: &mut State, keep: u64) -> DeviceResult<u64> {
        state.trim_released();
        if self.counters.reserved.current() <= keep {
            return Ok(0);
        }
        self.empty_caches(state);
        let released = state.arena.trim(keep)?;
        self.recording.trim(keep, released);
        Ok(released)
    }

    /// The work that must be complete before everything that is not live can be given back.
    pub(super) fn fence_of_all_free(&self) -> Fence {
        let mut state = self.state.lock();
        self.empty_caches(&mut state);
        let mut fence = state.arena.fence_of_all_free();
        state.released().for_each(|captured| fence.join(&captured.arena.fence_of_all_free()));
        fence
    }

    /// The last block of a destroyed pool is gone: gives back what can be given back without waiting. What
    /// pending work still uses goes when the host next synchronises, or with the context.
    #[cold]
    pub(super) fn give_all_back_slow(&self) {
        if let Err(error) = self.trim(0) {
            tracing::warn!(%error, pool = self.name, "a destroyed pool could not give back its memory");
        }
        if let Some(registry) = self.registry.upgrade() {
            registry.bury();
        }
    }

    /// The last handle of the pool is gone, or it was destroyed.
    pub(super) fn close(self: &Arc<Self>) -> Result<()> {
        self.recording.flush();
        let (blocks, bytes) = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.destroyed, true) {
                return Ok(());
            }
            let State { arena, locked, .. } = &mut *state;
            self.caches.shut(locked, &self.counters.high, |cached| take_back(arena, cached));
            let counted = self.counted();
            let (blocks, bytes) = (counted.blocks.current, counted.requested.current);
            if blocks == 0 {
                return Ok(state.arena.tear_down()?);
            }
            (blocks, bytes)
        };
        if let Some(registry) = self.registry.upgrade() {
            registry.outlive(self.clone());
            // The last block may have been freed before the registry knew of the pool.
            registry.bury();
        }
        Err(Error::LiveBlocks { pool: self.name.clone(), blocks, bytes })
    }
}

impl AfterSync for PoolInner {
    fn after_sync(&self) {
        // Relaxed: a setting; it takes effect at the next synchronise.
        let threshold = self.release_threshold.load(Ordering::Relaxed);
        let destroyed = {
            let mut state = self.state.lock();
            let keep = if state.destroyed { 0 } else { threshold };
            if let Err(error) = self.trim_under_lock(&mut state, keep) {
                tracing::warn!(%error, pool = self.name, "the release threshold could not be applied");
            }
            state.destroyed
        };
        if destroyed && let Some(registry) = self.registry.upgrade() {
            registry.bury();
        }
    }
}

impl ThreadEnd for PoolInner {
    fn thread_ended(&self, index: usize) {
        let mut state = self.state.lock();
        let State { arena, locked, .. } = &mut *state;
        self.caches.end_thread(locked, index, &self.counters.high, |cached| take_back(arena, cached));
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        let State { arena, locked, captured, .. } = self.state.get_mut();
        self.caches.revoke(locked, &self.counters.high, |cached| take_back(arena, cached));
        // Nobody holds a claim on it, nor the pool.
        captured.iter_mut().for_each(|captured| captured.tear_down(&self.name));
        if let Err(error) = self.state.get_mut().arena.tear_down() {
            tracing::error!(%error, pool = self.name, "a pool could not give back all its memory");
        }
        self.report_freed_twice();
        if let Err(error) = self.recording.stop() {
            tracing::warn!(%error, pool = self.name, "the end of a recording is missing");
        }
    }
}
