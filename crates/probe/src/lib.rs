//! What the memory of a machine does: copies, bandwidth, latency, and what the driver's calls cost.
//!
//! A user of the pool's public interface only. `millpond probe` prints what this crate measures.
//!
//! **How one figure comes about.** [`Probe::measure`] takes one [`Section`]. The section's file makes ready what it needs,
//! and hands closures to a `Run` (`run.rs`). A closure does the work once and returns its nanoseconds. The run repeats it
//! until its time is over, and keeps median, least and most as a [`Row`].
//!
//! **Whose clock.** Copies and calls are timed by the host: from the call until the stream is done, or the call returned.
//! Kernels are timed by two events around them.
//!
//! | file | measures |
//! | --- | --- |
//! | `copies` | copies between host and device, between devices, on the device |
//! | `calls` | what the device's calls cost |
//! | `pool` | what a pair of the pool costs |
//! | `cpu/` | bandwidth and latency of the CPU's memory |
//! | `gpu/` | the same of a GPU's, by kernels |

mod calls;
mod chain;
mod copies;
pub mod cost_table;
mod cpu;
mod error;
mod facts;
mod gpu;
mod pool;
pub mod report;
mod row;
mod run;
mod section;
mod segment;

use std::sync::Arc;
use std::time::Duration;

use millpond::device::{Device, DeviceName, Kind};

pub use error::{Error, Result};
pub use facts::{Fact, Facts};
pub use row::{Row, Unit};
pub use section::Section;

use cpu::Cpu;
use gpu::Gpu;
use run::Run;

/// How much effort goes into a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// How long a figure is measured, about.
    pub time: Duration,
    /// Bytes of the largest copy, page and working set.
    pub most_bytes: u64,
}

impl Effort {
    /// Sizes up to 1 GiB.
    pub const FULL: Self = Self { time: Duration::from_millis(60), most_bytes: 1 << 30 };
    /// Sizes up to 32 MiB, a tenth of the time.
    pub const QUICK: Self = Self { time: Duration::from_millis(6), most_bytes: 32 << 20 };
}

/// The largest size is at most this part of what is free.
const SHARE: u64 = 6;
/// The largest size at least.
const LEAST_BYTES: u64 = 1 << 20;

/// A device that is probed.
#[derive(Debug)]
pub struct Probe {
    name: DeviceName,
    device: Arc<dyn Device>,
    effort: Effort,
    facts: Facts,
    side: Side,
}

/// Who reads the memory.
#[derive(Debug)]
enum Side {
    Cpu(Cpu),
    Gpu(Gpu),
}

/// What came of a section.
#[derive(Debug, Default)]
pub struct Measured {
    /// The figures.
    pub rows: Vec<Row>,
    /// What could not be measured, and why.
    pub left_out: Vec<String>,
}

impl Probe {
    /// Opens the device. A GPU runs for a tenth of a second, until its clocks are those of work.
    ///
    /// # Errors
    /// [`Error::Device`] where the device is not there, and [`Error::Simulated`] for a simulated one.
    pub fn open(name: DeviceName, effort: Effort) -> Result<Self> {
        if name == DeviceName::SIM {
            return Err(Error::Simulated);
        }
        let device = name.open()?;
        // What is copied lies on both sides, and the working sets on one.
        let free = device.memory_info()?.free.min(DeviceName::HOST.open()?.memory_info()?.free);
        let most_bytes = effort.most_bytes.min(free / SHARE).max(LEAST_BYTES);
        let effort = Effort { most_bytes, ..effort };
        let (side, facts) = match name.kind() {
            Kind::Cuda => {
                let gpu = Gpu::open(name.ordinal())?;
                gpu.warm_up(&device)?;
                let facts = Facts::of_gpu(name.ordinal(), |what| gpu.attribute(what))?;
                (Side::Gpu(gpu), facts)
            }
            _ => (Side::Cpu(Cpu::new()), Facts::of_cpu()),
        };
        Ok(Self { name, device, effort, facts, side })
    }

    /// What the device says of itself.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The device's name for `--device`.
    pub fn name(&self) -> DeviceName {
        self.name
    }

    /// The sections that this device has, in their order.
    pub fn sections(&self) -> Vec<Section> {
        let has = |section: &Section| match section {
            Section::Cores => matches!(self.side, Side::Cpu(_)),
            Section::Copies | Section::Peers | Section::Device | Section::Managed => {
                matches!(self.side, Side::Gpu(_))
            }
            _ => true,
        };
        Section::ALL.into_iter().filter(has).collect()
    }

    /// Measures a section. `go_on` hears of each figure before it is measured, and says whether to measure it.
    pub fn measure(&mut self, section: Section, go_on: &mut (dyn FnMut(&str) -> bool + Send)) -> Measured {
        let mut run = Run::new(section, self.effort, go_on);
        if let Err(why) = self.fill(section, &mut run) {
            run.leave_out(section.name(), &why);
        }
        let Measured { mut rows, left_out } = run.end();
        for row in &mut rows {
            row.peak = self.facts.peak_of(section);
        }
        Measured { rows, left_out }
    }

    fn fill(&mut self, section: Section, run: &mut Run<'_>) -> Result<()> {
        let device = &self.device;
        match (section, &mut self.side) {
            (Section::Copies, _) => copies::with_host(device, run),
            (Section::Peers, _) => copies::with_peers(device, run),
            (Section::Device, _) => copies::within(device, run),
            (Section::Cores, Side::Cpu(cpu)) => cpu.bandwidth(run),
            (Section::Reads, Side::Cpu(cpu)) => cpu.reads(run),
            (Section::Reads, Side::Gpu(gpu)) => gpu.reads(device, run),
            (Section::Latency, Side::Cpu(cpu)) => cpu.latency(&self.facts, run),
            (Section::Latency, Side::Gpu(gpu)) => gpu.latency(device, &self.facts, run),
            (Section::Managed, Side::Gpu(gpu)) => gpu.managed(device, run),
            (Section::Pages, _) => calls::pages(device, run),
            (Section::PinnedPages, _) => calls::pages(&device.pinned(None)?, run),
            (Section::Segments, _) => calls::segments(device, run),
            (Section::Calls, _) => calls::others(device, run),
            (Section::Pool, _) => pool::pairs(self.name, run),
            (Section::Cores, Side::Gpu(_)) | (Section::Managed, Side::Cpu(_)) => Ok(()),
        }
    }
}
