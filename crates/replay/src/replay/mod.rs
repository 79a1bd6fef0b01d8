//! `replay/`: puts a trace through an allocator on a device, and says what came of it.
//!
//! Uses `trace`, and the allocators of `millpond-baselines`.
//!
//! **How one replay runs.** [`Program`] keeps of the trace what the allocator will be asked. A [`Stage`] is a
//! device with the trace's streams. [`Stage::play`] makes the calls one after another, as fast as they go:
//! the trace's times are not waited for, and on the simulated device all work is complete at once. What the
//! device's calls cost there is counted in virtual time. The time that an allocator can ask the device for
//! ([`Device::now`]) is the trace's.

mod managed;
mod outcome;
mod program;
mod rising;
#[cfg(test)]
mod tests;
mod verify;
mod waste;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DevicePtr, MemoryKind};
use millpond::{Context, Stream};
use millpond_baselines::{Allocator, ChoiceError, memory_of};

pub use managed::{Moves, in_managed_memory};
pub use outcome::{Calls, DriverMemory, Oom, Outcome};
pub use program::{FreeWhen, Program, Step, WITHOUT_TIMES_US};
pub(crate) use rising::{Order, Ran, about_needed, run_with};
pub(crate) use waste::maps_at;
pub use waste::{Map, Waste, map_at_peak, map_at_step};
pub use watch::{Backing, Watched};

use crate::trace::Trace;

/// Why a replay could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// There is no such allocator, or none on this device.
    #[error(transparent)]
    Allocator(#[from] ChoiceError),
    /// The device refused something other than memory.
    #[error("{0}")]
    Device(#[from] millpond::device::DeviceError),
    /// The allocator failed, other than for want of memory.
    #[error("{allocator} failed at event {event}: {error}")]
    Failed {
        /// The allocator's name.
        allocator: String,
        /// The step, from 0.
        event: usize,
        /// What it said.
        error: millpond::Error,
    },
    /// A block did not keep what was written into it: two blocks shared memory, or a page was lost.
    #[error(
        "block {block}: at offset {offset} it held {found} when it was freed, not its mark; its memory was given to another"
    )]
    Corrupt {
        /// The block's number in the trace.
        block: u32,
        /// The offset in the block, in bytes.
        offset: u64,
        /// The bytes found there.
        found: String,
    },
}

/// Memory of the simulated device where no capacity was asked for: more than any trace needs.
pub const UNLIMITED: u64 = 1 << 44;

/// A device with the streams of a trace.
#[derive(Debug)]
pub struct Stage {
    context: Context,
    sim: Option<Arc<SimDevice>>,
    watched: Option<Arc<Watched>>,
    streams: Vec<Stream>,
}

/// A simulated device of `capacity` bytes, at the program's costs.
fn options(program: &Program, capacity: u64) -> SimOptions {
    SimOptions::default().capacity(capacity).costs(program.costs.clone())
}

/// What [`Stage::play`] did.
#[derive(Debug, Clone, Copy)]
pub struct Played {
    /// Steps done, a failed one not counted.
    pub events: usize,
    /// How long that took, by the clock on the wall.
    pub took: Duration,
    /// The request that found no memory.
    pub oom: Option<Oom>,
}

impl Stage {
    /// A simulated device of `capacity` bytes.
    ///
    /// # Errors
    /// The device's own.
    pub fn sim(program: &Program, capacity: u64) -> Result<Self, ReplayError> {
        let sim = SimDevice::new(options(program, capacity))?;
        let context = Context::new(sim.clone());
        Ok(Self { sim: Some(sim), ..Self::new(program, context)? })
    }

    /// This memory of a simulated device, which has `capacity` bytes of it.
    ///
    /// # Errors
    /// The device's own.
    pub fn sim_memory(program: &Program, memory: MemoryKind, capacity: u64) -> Result<Self, ReplayError> {
        let options = SimOptions::default()
            .capacity(capacity)
            .pinned_capacity(capacity)
            .managed_capacity(capacity)
            .costs(program.costs.clone());
        let sim = SimDevice::new(options)?;
        let context = Context::new(memory_of(sim.clone(), memory)?);
        Ok(Self { sim: Some(sim), ..Self::new(program, context)? })
    }

    /// A device that is watched: what its calls take, and what lies where.
    ///
    /// # Errors
    /// The device's own.
    pub fn watched(program: &Program, device: Arc<dyn Device>) -> Result<Self, ReplayError> {
        let watched = Watched::new(device);
        let context = Context::new(watched.clone());
        Ok(Self { watched: Some(watched), ..Self::new(program, context)? })
    }

    /// A simulated device of `capacity` bytes that is watched: what lies where. Its clock is that of [`sim`](Self::sim).
    ///
    /// # Errors
    /// The device's own.
    pub fn watched_sim(program: &Program, capacity: u64) -> Result<Self, ReplayError> {
        let sim = SimDevice::new(options(program, capacity))?;
        Ok(Self { sim: Some(sim.clone()), ..Self::watched(program, sim)? })
    }

    /// Any device.
    ///
    /// # Errors
    /// The device's own.
    pub fn new(program: &Program, context: Context) -> Result<Self, ReplayError> {
        let streams = (0..program.streams).map(|_| context.create_stream());
        Ok(Self { streams: streams.collect::<Result<_, _>>()?, sim: None, watched: None, context })
    }

    /// The device with its pools.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The stream with this number in the program.
    pub fn stream(&self, number: u16) -> &Stream {
        &self.streams[usize::from(number)]
    }

    /// Pages and segments; none where the device is not watched.
    fn backing(&self) -> Vec<Backing> {
        self.watched.as_ref().map(|watched| watched.backing()).unwrap_or_default()
    }

    /// Time spent in the device's calls so far: virtual on the simulated device, measured on a watched one,
    /// else `None`.
    pub fn device_time(&self) -> Option<Duration> {
        let virtual_time = self.sim.as_ref().map(|sim| sim.time_spent().total());
        virtual_time.or_else(|| self.watched.as_ref().map(|watched| watched.time()))
    }

    /// Runs the program's first `steps` steps. Blocks that are live then have their addresses in `blocks`,
    /// the others null.
    ///
    /// # Errors
    /// [`ReplayError::Failed`]; an allocator without memory is no error.
    pub fn play(
        &self,
        allocator: &dyn Allocator,
        steps: &[Step],
        blocks: &mut [DevicePtr],
    ) -> Result<Played, ReplayError> {
        self.play_watched(allocator, steps, blocks, |_, _, _| {})
    }

    /// As [`play`](Self::play). After each step `look` gets its number, the step, and the address that it allocated or
    /// freed.
    ///
    /// # Errors
    /// As for [`play`](Self::play).
    pub fn play_watched(
        &self,
        allocator: &dyn Allocator,
        steps: &[Step],
        blocks: &mut [DevicePtr],
        mut look: impl FnMut(usize, &Step, DevicePtr),
    ) -> Result<Played, ReplayError> {
        self.play_until(allocator, steps, blocks, |at, step, ptr| {
            look(at, step, ptr);
            false
        })
    }

    /// As [`play_watched`](Self::play_watched), and ends with the first step that is the `last`.
    ///
    /// # Errors
    /// As for [`play`](Self::play).
    pub fn play_until(
        &self,
        allocator: &dyn Allocator,
        steps: &[Step],
        blocks: &mut [DevicePtr],
        last: impl FnMut(usize, &Step, DevicePtr) -> bool,
    ) -> Result<Played, ReplayError> {
        let start = Instant::now();
        let (events, refused) = self.play_until_refused(allocator, steps, blocks, last);
        let took = start.elapsed();
        let oom = match refused {
            None => None,
            Some(
                millpond::Error::OutOfMemory(_)
                | millpond::Error::Device(millpond::device::DeviceError::OutOfMemory { .. }),
            ) => Some(Oom { event: events, bytes: steps[events].size }),
            Some(error) => {
                return Err(ReplayError::Failed {
                    allocator: allocator.name().to_owned(),
                    event: events,
                    error,
                });
            }
        };
        Ok(Played { events, took, oom })
    }

    /// The loop that the events a second are counted in. Returns how many steps were done, and why the next was refused.
    fn play_until_refused(
        &self,
        allocator: &dyn Allocator,
        steps: &[Step],
        blocks: &mut [DevicePtr],
        mut last: impl FnMut(usize, &Step, DevicePtr) -> bool,
    ) -> (usize, Option<millpond::Error>) {
        let mut time_us = None;
        for (at, step) in steps.iter().enumerate() {
            if time_us != Some(step.time_us) {
                time_us = Some(step.time_us);
                self.set_time(step.time_us);
            }
            let stream = &self.streams[usize::from(step.stream)];
            let block = &mut blocks[step.block as usize];
            let done = if step.alloc {
                allocator.allocate(step.size, stream).inspect(|&ptr| *block = ptr)
            } else {
                let ptr = std::mem::take(block);
                // SAFETY: the replay alone has the block, and its work is the trace's, ordered as there.
                unsafe { allocator.free(ptr, stream) }.map(|()| ptr)
            };
            match done {
                Ok(ptr) if last(at, step, ptr) => return (at + 1, None),
                Ok(_) => {}
                Err(error) => return (at, Some(error)),
            }
        }
        (steps.len(), None)
    }

    /// What the allocator sees of time is the trace's own, to which the device's calls add what they take.
    #[inline]
    fn set_time(&self, time_us: u64) {
        if let Some(sim) = &self.sim {
            sim.advance_to_nanoseconds(time_us.saturating_mul(1000));
        }
        if let Some(watched) = &self.watched {
            watched.set_now(Duration::from_micros(time_us));
        }
    }

    /// Frees what is live, so that the allocator can be dropped.
    ///
    /// # Errors
    /// [`ReplayError::Failed`].
    pub fn clear(
        &self,
        allocator: &dyn Allocator,
        program: &Program,
        blocks: &mut [DevicePtr],
    ) -> Result<(), ReplayError> {
        let mut live = blocks.iter().filter(|block| !block.is_null()).count();
        for (at, step) in program.steps.iter().enumerate().filter(|(_, step)| step.alloc) {
            if live == 0 {
                break;
            }
            let ptr = std::mem::take(&mut blocks[step.block as usize]);
            live -= usize::from(!ptr.is_null());
            // SAFETY: as in `run`.
            unsafe { allocator.free(ptr, self.stream(step.stream)) }.map_err(|error| {
                let allocator = allocator.name().to_owned();
                ReplayError::Failed { allocator, event: at, error }
            })?;
        }
        Ok(())
    }
}

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
    Ok(stage.run(trace, program, choose, false)?.0)
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
    Ok(stage.run(trace, program, choose, false)?.0)
}

/// A replay that is over sooner is mostly a process's first touch of code and tables.
const SOON: Duration = Duration::from_millis(20);

/// How often such a replay is played for its time.
const PLAYS: usize = 9;

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
    Stage::watched(program, device)?.run(trace, program, choose, verify)
}

impl Stage {
    fn run(
        &self,
        trace: &Trace,
        program: &Program,
        choose: &Choose<'_>,
        verify: bool,
    ) -> Result<(Outcome, u64), ReplayError> {
        let free_before = self.watched.as_ref().map(|watched| watched.free_now()).transpose()?;
        let allocator = choose(self.context())?;
        let before = self.device_time();
        let mut blocks = vec![DevicePtr::NULL; program.blocks];
        let (mut played, marks) = match verify {
            true => self.play_verified(&*allocator, program, &mut blocks)?,
            false => (self.play(&*allocator, &program.steps, &mut blocks)?, 0),
        };
        let device_time = self.device_time().zip(before).map(|(after, before)| after - before);
        let kind = self.context().device().properties().kind.to_string();
        if let Some(watched) = &self.watched {
            played.took = played.took.saturating_sub(watched.time_aside());
        }
        let mut outcome = Outcome::new(trace, &*allocator, &kind, &played, device_time);
        self.clear(&*allocator, program, &mut blocks)?;
        self.context().synchronize()?;
        drop(allocator);
        outcome.driver = self.driver_memory(free_before)?;
        Ok((outcome, marks))
    }

    /// What the driver itself says of its memory, once the allocator is gone.
    fn driver_memory(&self, free_before: Option<u64>) -> Result<Option<DriverMemory>, ReplayError> {
        let (Some(watched), Some(before)) = (&self.watched, free_before) else { return Ok(None) };
        let lowest = watched.lowest_free().unwrap_or(before);
        let after = watched.free_now()?;
        Ok(Some(DriverMemory {
            free_before: before,
            used_peak: before.saturating_sub(lowest),
            used_after: before.saturating_sub(after),
        }))
    }
}
