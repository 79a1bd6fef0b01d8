//! The device to measure on.

use std::sync::Arc;

use millpond::Context;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DeviceChoice, DeviceError, DeviceName, MemoryKind};
use millpond_baselines::memory_of;

use crate::Result;

/// Memory that the host device says it has. Little of what is allocated here is ever touched.
const HOST_CAPACITY: u64 = 1 << 40;

/// The device to measure on, of which each allocator gets an object of its own.
#[derive(Debug)]
pub struct Target {
    name: DeviceName,
    memory: MemoryKind,
    /// A GPU's driver starts anew when nobody holds it; so somebody does, from the first allocator to the last.
    first: Arc<dyn Device>,
}

/// A device for one allocator.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) context: Context,
    /// The device itself, where it is simulated: work on it is what it is told.
    pub(crate) sim: Option<Arc<SimDevice>>,
}

impl Target {
    /// Finds the device. For [`DeviceChoice::Auto`] without a GPU, also why it is the CPU.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where the device is not there.
    pub fn find(choice: DeviceChoice) -> Result<(Self, Option<DeviceError>)> {
        let (name, why_not_a_gpu) = choice.find();
        let memory = MemoryKind::Device;
        let first = open(name, memory)?.context.device().clone();
        Ok((Self { name, memory, first }, why_not_a_gpu))
    }

    /// The same device, for pools of this memory of it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device has no such memory.
    pub fn with_memory(self, memory: MemoryKind) -> Result<Self> {
        let first = open(self.name, memory)?.context.device().clone();
        Ok(Self { name: self.name, memory, first })
    }

    /// The name that `--device` takes.
    pub fn name(&self) -> DeviceName {
        self.name
    }

    /// Which memory pools take.
    pub fn memory(&self) -> MemoryKind {
        self.memory
    }

    /// What the device calls itself.
    pub fn model(&self) -> &str {
        &self.first.properties().name
    }

    /// Whether time that the device's calls take is counted apart, and costs nothing here.
    pub fn is_simulated(&self) -> bool {
        self.name == DeviceName::SIM
    }

    pub(crate) fn open(&self) -> Result<Opened> {
        open(self.name, self.memory)
    }
}

fn open(name: DeviceName, memory: MemoryKind) -> Result<Opened> {
    if name == DeviceName::SIM {
        let sim = SimDevice::new(SimOptions::default())?;
        return Ok(Opened { context: Context::new(memory_of(sim.clone(), memory)?), sim: Some(sim) });
    }
    let capacity = (name == DeviceName::HOST).then_some(HOST_CAPACITY);
    let device = memory_of(name.open_with_capacity(capacity)?, memory)?;
    Ok(Opened { context: Context::new(device), sim: None })
}
