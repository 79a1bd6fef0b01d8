//! How a pool gives memory back: on demand, when the host has synchronised, when threads end, and at its own end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::emptying_caches::take_back;
use super::inner::{PoolInner, PoolState};
use super::registry::Registered;
use crate::counters::Counted;
use crate::device::DeviceResult;
use crate::order::{AfterSync, Fence};
use crate::{Error, Result};

impl PoolInner {
    pub(super) fn trim(&self, keep: u64) -> DeviceResult<u64> {
        self.timelines.check_process()?;
        if self.sleep_gate.is_closed() {
            // Nothing is cached then. And the lock may be taken until all is copied.
            return Ok(0);
        }
        self.collect_shares();
        let mut state = self.state.lock();
        let released = self.trim_under_lock(&mut state, keep)?;
        if !self.caches.holds_any() {
            let PoolState { arena, locked, .. } = &mut *state;
            let is_gone = |id| self.timelines.is_gone(id);
            self.caches.give_back(locked, is_gone, |cached| take_back(arena, cached));
        }
        drop(state);
        self.report_freed_twice();
        Ok(released)
    }

    fn trim_under_lock(&self, state: &mut PoolState, keep: u64) -> DeviceResult<u64> {
        if state.asleep.is_some() {
            return Ok(0);
        }
        if self.caches.any_ended() {
            self.collect_ended(state);
        }
        state.captured.trim_all();
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
        for (_, arena) in state.captured.released().filter(|(_, arena)| !arena.keeps()) {
            _ = fence.try_join(&arena.fence_of_all_free());
        }
        fence
    }

    /// The last block of a destroyed pool is gone: gives back what can be given back without waiting. What
    /// pending work still uses goes when the host next synchronises, or with the context.
    #[cold]
    pub(super) fn give_all_back_slow(&self) {
        self.end_sleep();
        if let Err(error) = self.trim(0) {
            tracing::warn!(%error, pool = self.name, "a destroyed pool could not give back its memory");
        }
        self.bury();
    }

    /// Nothing of the pool is live, and it will allocate no more.
    fn end_sleep(&self) {
        self.state.lock().end_sleep();
        self.sleep_gate.open();
    }

    /// Lets go of the pools of the context that hold nothing any more.
    pub(super) fn bury(&self) {
        if let Some(registry) = self.registry.upgrade() {
            registry.bury();
        }
    }

    /// Keeps the pool as long as it holds memory, also without a handle: it goes back later.
    pub(super) fn outlive_if_needed(self: &Arc<Self>) {
        if let Some(registry) = self.registry.upgrade() {
            if !self.holds_nothing() {
                registry.outlive(self.clone());
            }
            // What it held may have gone before the registry knew of the pool.
            registry.bury();
        }
    }

    /// The last handle of the pool is gone, or it was destroyed.
    pub(super) fn close(self: &Arc<Self>) -> Result<()> {
        self.check_process()?;
        self.recording.flush();
        let ended = match self.shut() {
            None => return Ok(()),
            Some(Counted { blocks, .. }) if blocks.current == 0 => self.end(),
            Some(Counted { blocks, requested, .. }) => {
                let (blocks, bytes) = (blocks.current, requested.current);
                Err(Error::LiveBlocks { pool: self.name_of(), blocks, bytes })
            }
        };
        self.outlive_if_needed();
        ended
    }

    /// Allocates no more from now on; returns what is live, or `None` where that was so already.
    fn shut(&self) -> Option<Counted> {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.destroyed, true) {
            return None;
        }
        let PoolState { arena, locked, .. } = &mut *state;
        self.caches.shut(locked, |cached| take_back(arena, cached));
        Some(self.counted())
    }

    /// Gives everything back, without live blocks. Waits for work on it without the lock: the device may be waiting for a
    /// function of the host that uses the pool.
    fn end(&self) -> Result<()> {
        self.end_sleep();
        self.let_go_of_released();
        let fence = self.fence_of_all_free();
        self.timelines.wait_on_host(&fence)?;
        let left = {
            let mut state = self.state.lock();
            state.captured.trim_all();
            state.arena.tear_down()?;
            state.arena.held()
        };
        if left > 0 {
            return Err(Error::MemoryInUse { pool: self.name_of(), bytes: left });
        }
        Ok(())
    }
}

impl AfterSync for PoolInner {
    fn after_sync(&self) {
        if self.sleep_gate.is_closed() {
            return;
        }
        self.let_go_of_released();
        self.collect_shares();
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
        if destroyed {
            self.bury();
        }
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        if !self.is_here() {
            // The memory is the parent's.
            return;
        }
        self.end_sleep();
        // Nobody holds a claim on the memory of captures, nor the pool.
        self.let_go_of_released();
        let fence = self.fence_of_all_free();
        if let Err(error) = self.timelines.wait_on_host(&fence) {
            tracing::error!(%error, pool = self.name, "the end of a pool could not wait for work on its memory");
        }
        let PoolState { arena, captured, .. } = self.state.get_mut();
        captured.tear_down();
        if let Err(error) = arena.tear_down() {
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
