//! A trace in managed memory, on a simulated card that may have less than the job needs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond::Context;
use millpond::device::sim::{ManagedStats, SimDevice, SimOptions};
use millpond::device::{Device, DevicePtr};
use serde::Serialize;

use super::{Choose, Outcome, Played, Program, ReplayError, Stage, UNLIMITED};
use crate::trace::Trace;

/// What it costs a job that its memory moves. Bytes, and microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Moves {
    /// Bytes that the card has.
    pub card: u64,
    /// Pages of 2 MiB that a kernel met where they were not on the card.
    pub page_faults: u64,
    /// Bytes that moved from the host to the card.
    pub bytes_to_card: u64,
    /// Bytes that moved from the card to the host, to make room.
    pub bytes_to_host: u64,
    /// The most that was on the card at once.
    pub resident_peak: u64,
    /// What kernels waited for all of it.
    pub waited_us: f64,
}

impl Moves {
    fn of(card: u64, stats: &ManagedStats) -> Self {
        Self {
            card,
            page_faults: stats.faults,
            bytes_to_card: stats.bytes_to_device,
            bytes_to_host: stats.bytes_to_host,
            resident_peak: stats.resident_high,
            waited_us: stats.time.as_nanos() as f64 / 1000.0,
        }
    }
}

/// Replays a trace through an allocator of managed memory, on a simulated card of `card` bytes. A kernel uses each block once,
/// as a whole, when it is allocated: a trace does not say how often a job uses a block, so a real job moves more. The card's
/// other calls cost what they cost in a replay on it.
///
/// # Errors
/// [`ReplayError`]; an allocator without memory is no error but an [`Outcome::oom`].
pub fn in_managed_memory(
    trace: &Trace,
    program: &Program,
    choose: &Choose<'_>,
    card: u64,
) -> Result<(Outcome, Moves), ReplayError> {
    let sim = SimDevice::new(
        SimOptions::default().capacity(card).managed_capacity(UNLIMITED).costs(program.costs.clone()),
    )?;
    let context = Context::new(sim.managed()?);
    let stage = Stage { sim: Some(Arc::clone(&sim)), ..Stage::new(program, context)? };
    let allocator = choose(stage.context())?;
    let mut blocks = vec![DevicePtr::NULL; program.blocks];
    let (before, start) = (sim.time_spent().total(), Instant::now());
    let mut played = Played { events: 0, took: Duration::ZERO, oom: None };
    for step in &program.steps {
        let one = stage.play(&*allocator, std::slice::from_ref(step), &mut blocks)?;
        if let Some(oom) = one.oom {
            played.oom = Some(super::Oom { event: played.events, ..oom });
            break;
        }
        played.events += 1;
        if step.alloc {
            sim.touch(blocks[step.block as usize], step.size, stage.stream(step.stream).handle())?;
        }
    }
    played.took = start.elapsed();
    let (time, moves) = (sim.time_spent().total() - before, Moves::of(card, &sim.managed_stats()));
    let outcome = Outcome::new(trace, &*allocator, "sim", &played, Some(time));
    stage.clear(&*allocator, program, &mut blocks)?;
    Ok((outcome, moves))
}
