//! What happens when memory runs out: a conversation before an error.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::callbacks::{Observer, ObserverId, ReclaimId, Reclaimer};
use super::inner::PoolInner;
use super::other_processes::MOST_ASKED;
use crate::device::DevicePtr;
use crate::extents::Refusal;
use crate::host::try_box;
use crate::order::Stream;
use crate::out_of_memory::{Limit, OutOfMemory};
use crate::physical::{Budget, Shortage};
use crate::{Error, Result};

impl PoolInner {
    pub(super) fn add_reclaimer(&self, reclaimer: Arc<Reclaimer>) -> ReclaimId {
        ReclaimId(self.reclaimers.add(reclaimer, self.is_here()))
    }

    pub(super) fn remove_reclaimer(&self, ReclaimId(number): ReclaimId) -> bool {
        self.is_here() && self.reclaimers.remove(number)
    }

    pub(super) fn add_observer(&self, observer: Arc<Observer>) -> ObserverId {
        ObserverId(self.observers.add(observer, self.is_here()))
    }

    pub(super) fn remove_observer(&self, ObserverId(number): ObserverId) -> bool {
        self.is_here() && self.observers.remove(number)
    }

    /// Lets go of all callbacks: nobody can allocate any more, and what they hold may be memory of this pool, which
    /// would hold the pool.
    pub(super) fn forget_callbacks(&self) {
        self.reclaimers.clear();
        self.observers.clear();
    }
}

impl PoolInner {
    /// Tries again after each step that may have made room, from the cheapest to the dearest. The pool's
    /// lock is never held while the host waits or a callback runs.
    #[cold]
    pub(super) fn alloc_under_pressure(
        &self,
        (bytes, align): (u64, u64),
        stream: &Stream,
        first: Refusal,
    ) -> Result<DevicePtr> {
        let depths = (self.reclaimers.depth(), self.observers.depth());
        let mut short = self.shortage_of(first)?;
        let request = bytes.next_multiple_of(align);
        let reclaim = self.reclaimers.each().map(|reclaimer| PressureStep::Reclaim(reclaimer, depths.0));
        let steps = [
            PressureStep::WaitForFences,
            PressureStep::ReleaseSome,
            PressureStep::ReleaseAll,
            PressureStep::TrimOthers,
        ];
        // More than once: another process may be faster to take what one gave back.
        let ask = std::iter::repeat_with(|| PressureStep::AskProcesses).take(MOST_ASKED);
        let mut patience = self.limits.budget.as_ref().and_then(Budget::patience);
        let mut is_impossible = false;
        for step in steps.into_iter().chain(ask).chain(reclaim) {
            if let Some(limit) = self.what_forbids_now(bytes) {
                (short.0, is_impossible) = (limit, true);
                break;
            }
            let may_have_made_room = self.take_step(&step, request, short, &mut patience)?;
            // A callback may have forked: the child is as new, and the lock may be another thread's that is gone.
            self.check_process()?;
            if !may_have_made_room {
                continue;
            }
            self.count_retry();
            match self.try_alloc((bytes, align), stream)? {
                Ok(ptr) => return Ok(ptr),
                Err(refusal) => short = self.shortage_of(refusal)?,
            }
        }
        let report = self.out_of_memory(bytes, short.0, is_impossible);
        self.recording.out_of_memory(bytes, report.device_free, stream);
        Err(self.tell_of(report, depths.1))
    }

    /// The error for a pool that cannot wake.
    pub(super) fn out_of_memory_awaking(&self, what: Shortage) -> Error {
        let report = self.out_of_memory(self.counters.asleep.current(), what, true);
        // Live blocks hold no memory now.
        self.tell_of(OutOfMemory { live: 0, blocks: 0, ..report }, self.observers.depth())
    }

    /// Tells the observers, for a request that is nested so deep, and makes the error.
    fn tell_of(&self, report: OutOfMemory, depth: u32) -> Error {
        tracing::warn!(%report, "out of memory");
        if let Some(_entered) = self.observers.enter(depth) {
            self.observers.each().for_each(|observer| observer(&report));
        }
        match try_box(report) {
            // SAFETY: made as a box has it, and nobody else knows it.
            Some(report) => Error::OutOfMemory(unsafe { Box::from_raw(report.as_ptr()) }),
            None => {
                self.no_host_memory("the account of an out-of-memory error", size_of::<OutOfMemory>() as u64)
            }
        }
    }

    /// The limit that makes a request of so many bytes impossible.
    fn what_forbids_now(&self, bytes: u64) -> Option<Shortage> {
        self.what_forbids_with(self.caches.sizes().units(bytes), self.others_live(bytes)?)
    }

    /// What memory was short of, and for how many bytes at once; another refusal is the caller's error.
    pub(super) fn shortage_of(&self, refusal: Refusal) -> Result<(Shortage, u64)> {
        match refusal {
            Refusal::Short { what, bytes } => {
                tracing::debug!(pool = self.name, ?what, bytes, "short of memory");
                Ok((what, bytes))
            }
            Refusal::Host { what, bytes } => Err(Error::HostMemory { what, bytes, pool: self.name_of() }),
            Refusal::Device(error) => Err(self.error_of(error)),
        }
    }

    /// Takes one step; `false` where it cannot have made room.
    fn take_step(
        &self,
        step: &PressureStep,
        request: u64,
        short: (Shortage, u64),
        patience: &mut Option<Duration>,
    ) -> Result<bool> {
        match step {
            PressureStep::WaitForFences => {
                let let_go = self.let_go_of_released() | self.collect_shares();
                let fence = self.fence_of_all_free();
                if fence.is_empty() {
                    return Ok(let_go);
                }
                self.timelines.wait_on_host(&fence)?;
                self.state.lock().arena.reap();
                Ok(true)
            }
            PressureStep::ReleaseSome => {
                let keep = self.counters.reserved.current().saturating_sub(request);
                Ok(self.trim(keep)? > 0)
            }
            // Worth a try also where nothing is left: a request that failed has given back its own pages, of
            // whatever size.
            PressureStep::ReleaseAll => self.trim(0).map(|_| true).map_err(Error::from),
            PressureStep::TrimOthers => self.trim_others(),
            PressureStep::AskProcesses => Ok(self.ask_processes(request, short, patience)),
            PressureStep::Reclaim(reclaimer, depth) => {
                Ok(self.reclaimers.enter(*depth).is_some_and(|_entered| reclaimer(request)))
            }
        }
    }

    /// Lets the other pools of the same memory or budget give back what they cache, once the work on it is complete.
    pub(super) fn trim_others(&self) -> Result<bool> {
        let mut released = false;
        let may_help = |other: &Arc<Self>| {
            // A pool of the same hard limit has the same memory.
            !other.sleep_gate.is_closed() && (self.has_memory_of(other) || self.has_budget_of(other))
        };
        for other in self.others().filter(may_help) {
            released |= other.let_go_of_released();
            let fence = other.fence_of_all_free();
            self.timelines.wait_on_host(&fence)?;
            released |= other.trim(0)? > 0;
        }
        Ok(released)
    }

    fn count_retry(&self) {
        // Counts are written under the lock.
        let _state = self.state.lock();
        self.counters.retries.add(1);
    }

    fn out_of_memory(&self, requested: u64, what: Shortage, is_impossible: bool) -> OutOfMemory {
        let limits = &self.limits;
        let device = self.device.memory_info().unwrap_or_default();
        // Relaxed: a figure to read.
        let all = self.limits.together.load(Ordering::Relaxed);
        let tenants = limits.budget.as_ref().map_or(Vec::new(), Budget::other_tenants);
        let mut state = self.state.lock();
        if !is_impossible {
            // For the longest free range. What was not tried leaves everything as it was.
            self.empty_caches(&mut state);
        }
        self.counters.out_of_memory.add(1);
        let stats = self.stats();
        OutOfMemory {
            pool: self.name_of(),
            memory: self.device.properties().memory,
            requested,
            limit: match (what, &limits.budget) {
                (Shortage::HardLimit, _) => Limit::HardLimit(limits.hard_limit.limit()),
                (Shortage::Headroom, _) => Limit::Headroom(limits.headroom),
                (Shortage::Budget, Some(budget)) => {
                    let (limit, held) = budget.limit_met(requested);
                    Limit::Budget { limit, held }
                }
                (Shortage::Budget, None) | (Shortage::Device, _) => Limit::Device,
            },
            live: stats.allocated.current,
            blocks: stats.blocks.current,
            cached: stats.cached(),
            reserved: stats.reserved.current,
            other_pools: all.saturating_sub(stats.reserved.current),
            room: self.room(device.free),
            device_free: device.free,
            device_total: device.total,
            largest_free: state.arena.largest_free(),
            tenants,
        }
    }
}

/// A step that may make room.
enum PressureStep {
    /// Wait on the host until everything free is complete, so that every stream may use it and remap its pages.
    WaitForFences,
    /// Give back about as much as was asked for: pages of other sizes may be had for it.
    ReleaseSome,
    /// Give back everything that is free.
    ReleaseAll,
    /// Let the other pools of the device give back what they cache.
    TrimOthers,
    /// Let the other processes of a named budget give back what they cache.
    AskProcesses,
    /// Ask the program, for a request that is nested so deep.
    Reclaim(Arc<Reclaimer>, u32),
}
