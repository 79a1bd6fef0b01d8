//! What happens when memory runs out: a conversation before an error.
//!
//! The pool's lock is never held while the host waits or a callback runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::callbacks::Reclaimer;
use super::giving_back::{collect_held, fence_of_all_free, let_go_of_released, trim, trim_waiting};
use super::limits::{has_budget_of, has_memory_of, others};
use super::pool_core::Core;
use crate::extents;
use crate::host::try_box;
use crate::out_of_memory::{Limit, OutOfMemory};
use crate::physical::Shortage;
use crate::policy::budgets::ROUNDS;
use crate::{Error, Result};

/// The steps from the cheapest to the dearest, for a request that is nested so deep in callbacks.
pub(super) fn steps(core: &Core, depth: u32) -> impl Iterator<Item = Step> {
    let steps = [Step::WaitForFences, Step::ReleaseSome, Step::ReleaseAll, Step::TrimOthers];
    // More than once: another process may be faster to take what one gave back.
    let ask = std::iter::repeat_with(|| Step::AskProcesses).take(ROUNDS);
    let reclaim = core.reclaimers.each().map(move |reclaimer| Step::Reclaim(reclaimer, depth));
    steps.into_iter().chain(ask).chain(reclaim)
}

/// The error for a pool that cannot wake.
pub(crate) fn out_of_memory_awaking(core: &Core, what: Shortage) -> Error {
    let report = out_of_memory(core, core.counters.asleep.current(), what, true);
    // Live blocks hold no memory now.
    tell_of(core, OutOfMemory { live: 0, blocks: 0, ..report }, core.observers.depth())
}

/// Tells the observers, for a request that is nested so deep, and makes the error.
pub(super) fn tell_of(core: &Core, report: OutOfMemory, depth: u32) -> Error {
    tracing::warn!(%report, "out of memory");
    core.recording.account(&report, || core.live());
    if let Some(_entered) = core.observers.enter(depth) {
        core.observers.each().for_each(|observer| observer(&report));
    }
    match try_box(report) {
        // SAFETY: made as a box has it, and nobody else knows it.
        Some(report) => Error::OutOfMemory(unsafe { Box::from_raw(report.as_ptr()) }),
        None => core.no_host_memory("the account of an out-of-memory error", size_of::<OutOfMemory>() as u64),
    }
}

/// Takes one step; `false` where it cannot have made room.
pub(super) fn take_step(
    core: &Core,
    step: &Step,
    request: u64,
    short: (Shortage, u64),
    patience: &mut Option<Duration>,
) -> Result<bool> {
    match step {
        Step::WaitForFences => {
            let let_go = let_go_of_released(core) | collect_held(core);
            let fence = fence_of_all_free(core);
            if fence.is_empty() {
                return Ok(let_go);
            }
            core.timelines.wait_on_host(&fence)?;
            extents::reap(&mut core.state.lock().arenas.own);
            Ok(true)
        }
        Step::ReleaseSome => {
            let keep = core.counters.reserved.current().saturating_sub(request);
            Ok(trim(core, keep)? > 0)
        }
        // Worth a try also where nothing is left: a request that failed has given back its own pages, of
        // whatever size.
        Step::ReleaseAll => trim(core, 0).map(|_| true).map_err(Error::from),
        Step::TrimOthers => trim_others(core),
        Step::AskProcesses => Ok(ask_processes(core, request, short, patience)),
        Step::Reclaim(reclaimer, depth) => {
            Ok(core.reclaimers.enter(*depth).is_some_and(|_entered| reclaimer(request)))
        }
    }
}

/// Lets the other pools of the same memory or budget give back what they cache, once the work on it is complete.
pub(crate) fn trim_others(core: &Core) -> Result<bool> {
    let mut released = false;
    let may_help = |other: &Arc<Core>| {
        // A pool of the same hard limit has the same memory.
        !other.gate.is_closed() && (has_memory_of(core, other) || has_budget_of(core, other))
    };
    for other in others(core).filter(may_help) {
        released |= let_go_of_released(&other) | (trim_waiting(&other, 0)? > 0);
    }
    Ok(released)
}

/// Waits until other processes have left so much of the budget, for as long as the patience lasts, which gets shorter.
/// There is none any more where they have not. What was short says in which lengths memory is taken.
pub(crate) fn ask_processes(
    core: &Core,
    bytes: u64,
    (what, at_once): (Shortage, u64),
    patience: &mut Option<Duration>,
) -> bool {
    let tenancy = core.limits.tenancy().filter(|_| what == Shortage::Budget);
    let Some((tenancy, left)) = tenancy.zip(*patience) else { return false };
    let began = Instant::now();
    let has_room = tenancy.ask(bytes.next_multiple_of(at_once.max(1)), left);
    *patience = has_room.then(|| left.saturating_sub(began.elapsed()));
    has_room
}

pub(super) fn out_of_memory(core: &Core, requested: u64, what: Shortage, is_impossible: bool) -> OutOfMemory {
    let limits = &core.limits;
    let device = core.device.memory_info().unwrap_or_default();
    // Relaxed: a figure to read.
    let all = core.limits.together.load(Ordering::Relaxed);
    let room = limits.room(device.free);
    let tenants = limits.tenancy().map_or(Vec::new(), |tenancy| tenancy.tenants(false));
    let mut state = core.state.lock();
    if !is_impossible {
        // For the longest free range. What was not tried leaves everything as it was.
        core.empty_caches(&mut state);
    }
    core.counters.out_of_memory.add(1);
    let stats = core.stats();
    OutOfMemory {
        pool: core.name_of(),
        memory: core.device.properties().memory,
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
        room: room - room % core.device.properties().granularity,
        device_free: device.free,
        device_total: device.total,
        largest_free: state.arenas.own.largest_free(),
        tenants,
    }
}

/// A step that may make room.
pub(super) enum Step {
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
