//! A device with the streams of a trace, on which programs are played.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DevicePtr, MemoryKind};
use millpond::{Context, Stream};
use millpond_baselines::{Allocator, memory_of};

use super::error::ReplayError;
use super::played::{Oom, Played};
use super::program::{Program, Step};
use super::watch::{Backing, Watched};

/// Memory of the simulated device where no capacity was asked for: more than any trace needs.
pub const UNLIMITED: u64 = 1 << 44;

/// A device with the streams of a trace.
#[derive(Debug)]
pub struct Stage {
    pub(super) context: Context,
    pub(super) sim: Option<Arc<SimDevice>>,
    pub(super) watched: Option<Arc<Watched>>,
    pub(super) streams: Vec<Stream>,
}

/// A simulated device of `capacity` bytes, at the program's costs.
pub(super) fn options(program: &Program, capacity: u64) -> SimOptions {
    SimOptions::default().capacity(capacity).costs(program.costs.clone())
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
    pub(super) fn backing(&self) -> Vec<Backing> {
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
