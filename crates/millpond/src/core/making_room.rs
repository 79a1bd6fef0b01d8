//! What happens when memory runs out: a conversation before an error.
//!
//! The pool's lock is never held while the host waits or a callback runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::callbacks::Reclaimer;
use super::giving_back::{trim, trim_waiting, wait_for_free, wait_for_leaving};
use super::pool_core::Core;
use crate::budgets::{Limits, Shortage, Tenancy};
use crate::error::{Error, Result};
use crate::log::log;
use crate::order::Stream;
use crate::out_of_memory::{Limit, OutOfMemory};
use crate::physical::Refusal;
use crate::policy::budgets::ROUNDS;
use crate::system::host_memory::try_box;

/// A step that may make room.
pub(crate) enum Step {
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
    /// Ask the program.
    Reclaim(Arc<Reclaimer>),
}

/// What others are asked for, first those of this process. Other processes more than once: a third one may be faster to take
/// what one gave back.
pub(crate) fn steps_of_others() -> impl Iterator<Item = Step> {
    let ask = std::iter::repeat_with(|| Step::AskProcesses).take(ROUNDS);
    [Step::TrimOthers].into_iter().chain(ask)
}

/// All steps, from the cheapest to the dearest.
fn steps(core: &Core) -> impl Iterator<Item = Step> {
    let own = [Step::WaitForFences, Step::ReleaseSome, Step::ReleaseAll];
    own.into_iter().chain(steps_of_others()).chain(core.reclaimers.each().map(Step::Reclaim))
}

/// Takes the steps, and attempts after each that may have made room what was refused at `first`. The shortage where none helps.
pub(crate) fn make_room<T>(
    core: &Core,
    bytes: u64,
    steps: impl Iterator<Item = Step>,
    first: Refusal,
    mut attempt: impl FnMut() -> Result<std::result::Result<T, Refusal>>,
) -> Result<std::result::Result<T, Shortage>> {
    let mut patience = core.limits.tenancy().map(Tenancy::patience);
    let mut short = shortage_of(core, first)?;
    for step in steps {
        let has_made_room = match step {
            Step::WaitForFences => wait_for_free(core)?,
            Step::ReleaseSome => release(core, core.counters.reserved.current().saturating_sub(bytes))?,
            // Worth a try also where nothing is left: a request that failed has given back its own pages, of
            // whatever size.
            Step::ReleaseAll => release(core, 0).map(|_| true)?,
            Step::TrimOthers => trim_others(core)?,
            Step::AskProcesses => ask_processes(core, bytes, short, &mut patience),
            Step::Reclaim(reclaimer) => core.reclaimers.enter().is_some_and(|_entered| reclaimer(bytes)),
        };
        // A callback may have forked: the child is as new, and the lock may be another thread's that is gone.
        core.check_process()?;
        if !has_made_room {
            continue;
        }
        core.counters.retries.add(1);
        match attempt()? {
            Ok(done) => return Ok(Ok(done)),
            Err(refusal) => short = shortage_of(core, refusal)?,
        }
    }
    Ok(Err(short.0))
}

/// Gives free memory back until so much is held, with what other threads give back now. Returns whether there was any.
fn release(core: &Core, keep: u64) -> Result<bool> {
    let released = trim(core, keep)? > 0;
    Ok(wait_for_leaving(core) | released)
}

/// Makes room for a request of the program's, by all steps.
#[cold]
pub(super) fn under_pressure<T>(
    core: &Core,
    (bytes, align): (u64, u64),
    stream: &Stream,
    first: Refusal,
    attempt: impl FnMut() -> Result<std::result::Result<T, Refusal>>,
) -> Result<T> {
    let made = make_room(core, bytes.next_multiple_of(align), steps(core), first, attempt)?;
    made.map_err(|what| out_of_memory(core, bytes, what, stream))
}

/// What memory was short of, and for how many bytes at once; another refusal is the caller's error.
pub(crate) fn shortage_of(core: &Core, refusal: Refusal) -> Result<(Shortage, u64)> {
    match refusal {
        Refusal::Short { what, bytes } => Ok((what, bytes)),
        Refusal::Device(error) => Err(core.error_of(error)),
    }
}

/// The error for a request of the program's, of which the recording and the observers are told.
#[cold]
pub(super) fn out_of_memory(core: &Core, bytes: u64, what: Shortage, stream: &Stream) -> Error {
    let report = report(core, bytes, what);
    core.recording.out_of_memory(bytes, report.device_free, stream);
    tell_of(core, report)
}

/// The error for a pool that cannot wake.
pub(crate) fn out_of_memory_awaking(core: &Core, what: Shortage) -> Error {
    let report = report(core, core.counters.asleep.current(), what);
    // Live blocks hold no memory now.
    tell_of(core, OutOfMemory { live: 0, blocks: 0, ..report })
}

/// Tells the observers, and makes the error.
fn tell_of(core: &Core, report: OutOfMemory) -> Error {
    log!(WARN, "out of memory", report, pool = report.pool, bytes = report.requested);
    core.recording.account(&report, || core.live());
    if let Some(_entered) = core.observers.enter() {
        core.observers.each().for_each(|observer| observer(&report));
    }
    match try_box(report) {
        // SAFETY: made as a box has it, and nobody else knows it.
        Some(report) => Error::OutOfMemory(unsafe { Box::from_raw(report.as_ptr()) }),
        None => core.no_host_memory("the account of an out-of-memory error", size_of::<OutOfMemory>() as u64),
    }
}

/// Lets the other pools of the same memory or budget give back what they cache, once the work on it is complete.
fn trim_others(core: &Core) -> Result<bool> {
    let mut released = 0;
    // A pool of the same hard limit has the same memory.
    let shares = |others: &Limits| core.limits.have_memory_of(others) || core.limits.have_budget_of(others);
    for other in core.others().filter(|other| shares(&other.limits)) {
        released += trim_waiting(&other, 0)?;
    }
    Ok(released > 0)
}

/// Waits until other processes have left so much of the budget, for as long as the patience lasts, which gets shorter.
/// There is none any more where they have not. What was short says in which lengths memory is taken.
fn ask_processes(
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

fn report(core: &Core, requested: u64, what: Shortage) -> OutOfMemory {
    let limits = &core.limits;
    let (device, properties) = (core.device.memory_info().unwrap_or_default(), core.device.properties());
    // Relaxed: a figure to read.
    let all = limits.together.load(Ordering::Relaxed);
    let room = limits.room(device.free);
    core.counters.out_of_memory.add(1);
    let stats = core.stats();
    OutOfMemory {
        pool: core.name_of(),
        memory: properties.memory,
        requested,
        limit: match (what, limits.budget_met(requested)) {
            (Shortage::HardLimit, _) => Limit::HardLimit(limits.hard_limit.limit()),
            (Shortage::Headroom, _) => Limit::Headroom(limits.headroom()),
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
        room: room - room % properties.granularity,
        device_free: device.free,
        device_total: device.total,
        largest_free: core.state.lock().arenas.own.largest_free(),
        tenants: limits.tenancy().map_or(Vec::new(), |tenancy| tenancy.tenants(false)),
    }
}
