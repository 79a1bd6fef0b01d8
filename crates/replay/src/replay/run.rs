//! A trace through an allocator on a device, from one call.

use std::sync::Arc;
use std::time::Duration;

use millpond::Context;
use millpond::device::{Device, DevicePtr, MemoryKind};
use millpond_baselines::{Allocator, ChoiceError};

use super::error::ReplayError;
use super::outcome::{DriverMemory, Outcome};
use super::program::Program;
use super::stage::Stage;
use crate::trace::Trace;

/// Builds the allocator to be replayed.
pub type Choose<'a> = dyn Fn(&Context) -> Result<Box<dyn Allocator>, ChoiceError> + 'a;

/// Replays a trace through an allocator on a simulated device of `capacity` bytes.
///
/// # Errors
/// [`ReplayError`]; an allocator without memory is no error but an [`Outcome::oom`].
pub fn on_sim(
    trace: &Trace,
    program: &Program,
    choose: &Choose<'_>,
    capacity: u64,
) -> Result<Outcome, ReplayError> {
    let stage = Stage::sim(program, capacity)?;
    Ok(run(&stage, trace, program, choose, false)?.0)
}

/// What [`on_sim`] does, in this memory of the simulated device and at its costs.
///
/// # Errors
/// Those of [`on_sim`], and where the device has no such memory.
pub fn on_sim_memory(
    trace: &Trace,
    program: &Program,
    choose: &Choose<'_>,
    memory: MemoryKind,
    capacity: u64,
) -> Result<Outcome, ReplayError> {
    let stage = Stage::sim_memory(program, memory, capacity)?;
    Ok(run(&stage, trace, program, choose, false)?.0)
}

/// A replay that is over sooner is mostly a process's first touch of code and tables.
const SOON: Duration = Duration::from_millis(20);

/// How often such a replay is played for its time.
pub(super) const PLAYS: usize = 9;

/// What [`on_sim`] does, for those who want to know how long the replay takes: one of less than 20 ms is played nine times,
/// each on a device and through an allocator of its own, and the fastest counts.
///
/// # Errors
/// Those of [`on_sim`].
pub fn on_sim_timed(
    trace: &Trace,
    program: &Program,
    choose: &Choose<'_>,
    capacity: u64,
) -> Result<Outcome, ReplayError> {
    let mut outcome = on_sim(trace, program, choose, capacity)?;
    for _ in 1..PLAYS {
        if outcome.replay_s >= SOON.as_secs_f64() {
            break;
        }
        let again = on_sim(trace, program, choose, capacity)?;
        outcome.replay_s = outcome.replay_s.min(again.replay_s);
    }
    Ok(outcome)
}

/// Replays a trace through an allocator on any device, for real. With `verify`, every block is marked and its
/// marks are looked for when it is freed; returns how many were found.
///
/// # Errors
/// [`ReplayError`]; an allocator without memory is no error but an [`Outcome::oom`].
pub fn on_device(
    trace: &Trace,
    program: &Program,
    choose: &Choose<'_>,
    device: Arc<dyn Device>,
    verify: bool,
) -> Result<(Outcome, u64), ReplayError> {
    run(&Stage::watched(program, device)?, trace, program, choose, verify)
}

fn run(
    stage: &Stage,
    trace: &Trace,
    program: &Program,
    choose: &Choose<'_>,
    verify: bool,
) -> Result<(Outcome, u64), ReplayError> {
    let free_before = stage.watched.as_ref().map(|watched| watched.free_now()).transpose()?;
    let allocator = choose(stage.context())?;
    let before = stage.device_time();
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let (mut played, marks) = match verify {
        true => stage.play_verified(&*allocator, program, &mut blocks)?,
        false => (stage.play(&*allocator, &program.steps, &mut blocks)?, 0),
    };
    let device_time = stage.device_time().zip(before).map(|(after, before)| after - before);
    let kind = stage.context().device().properties().kind.to_string();
    if let Some(watched) = &stage.watched {
        played.took = played.took.saturating_sub(watched.time_aside());
    }
    let mut outcome = Outcome::new(trace, &*allocator, &kind, &played, device_time);
    stage.clear(&*allocator, program, &mut blocks)?;
    stage.context().synchronize()?;
    drop(allocator);
    outcome.driver = driver_memory(stage, free_before)?;
    Ok((outcome, marks))
}

/// What the driver itself says of its memory, once the allocator is gone.
fn driver_memory(stage: &Stage, free_before: Option<u64>) -> Result<Option<DriverMemory>, ReplayError> {
    let (Some(watched), Some(before)) = (&stage.watched, free_before) else { return Ok(None) };
    let lowest = watched.lowest_free().unwrap_or(before);
    let after = watched.free_now()?;
    Ok(Some(DriverMemory {
        free_before: before,
        used_peak: before.saturating_sub(lowest),
        used_after: before.saturating_sub(after),
    }))
}
