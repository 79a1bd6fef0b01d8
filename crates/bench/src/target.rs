//! The device to measure on.

use std::sync::Arc;

use millpond::Context;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DeviceChoice, DeviceError, DeviceName};

use crate::Result;

/// Memory that the host device says it has. Little of what is allocated here is ever touched.
const HOST_CAPACITY: u64 = 1 << 40;

/// The device to measure on, of which each allocator gets an object of its own.
#[derive(Debug)]
pub struct Target {
    name: DeviceName,
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
        let first = open(name)?.context.device().clone();
        Ok((Self { name, first }, why_not_a_gpu))
    }

    /// The name that `--device` takes.
    pub fn name(&self) -> DeviceName {
        self.name
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
        open(self.name)
    }
}

fn open(name: DeviceName) -> Result<Opened> {
    if name == DeviceName::SIM {
        let sim = SimDevice::new(SimOptions::default())?;
        return Ok(Opened { context: Context::new(sim.clone()), sim: Some(sim) });
    }
    let capacity = (name == DeviceName::HOST).then_some(HOST_CAPACITY);
    Ok(Opened { context: Context::new(name.open_with_capacity(capacity)?), sim: None })
}
