//! A device that is probed, section by section.

use std::sync::Arc;

use millpond::device::{Device, DeviceName, Kind};

use crate::cpu::{self, Cores};
use crate::effort::Effort;
use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::gpu::{self, Gpu};
use crate::measured::Measured;
use crate::run::Run;
use crate::section::Section;
use crate::{calls, copies, pool};

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
    Cpu(Cores),
    Gpu(Gpu),
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
            _ => (Side::Cpu(Cores::new()), Facts::of_cpu()),
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
            (Section::Cores, Side::Cpu(cores)) => cpu::bandwidth(cores, run),
            (Section::Reads, Side::Cpu(cores)) => cores.on_one(|| cpu::reads(run)),
            (Section::Reads, Side::Gpu(gpu)) => gpu::reads(gpu, device, run),
            (Section::Latency, Side::Cpu(cores)) => cores.on_one(|| cpu::latency(&self.facts, run)),
            (Section::Latency, Side::Gpu(gpu)) => gpu::latency(gpu, device, &self.facts, run),
            (Section::Managed, Side::Gpu(gpu)) => gpu::managed(gpu, device, run),
            (Section::Pages, _) => calls::pages(device, run),
            (Section::PinnedPages, _) => calls::pages(&device.pinned(None)?, run),
            (Section::Segments, _) => calls::segments(device, run),
            (Section::Calls, _) => calls::others(device, run),
            (Section::Pool, _) => pool::pairs(self.name, run),
            (Section::Cores, Side::Gpu(_)) | (Section::Managed, Side::Cpu(_)) => Ok(()),
        }
    }
}
