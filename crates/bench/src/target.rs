//! The device to measure on.

use std::fmt;
use std::sync::Arc;

use millpond::Context;
use millpond::device::cuda::CudaDevice;
use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DeviceError};

use crate::Result;

/// Memory that the host device says it has. Little of what is allocated here is ever touched.
const HOST_CAPACITY: u64 = 1 << 40;

/// Which device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// The first GPU where there is one, else the CPU.
    Auto,
    /// The GPU with this number.
    Cuda(usize),
    /// The CPU.
    Host,
    /// The simulated device.
    Sim,
}

/// The device to measure on, of which each allocator gets an object of its own.
#[derive(Debug)]
pub struct Target {
    on: Chosen,
    name: String,
    /// A GPU's driver starts anew when nobody holds it; so somebody does, from the first allocator to the last.
    first: Arc<dyn Device>,
}

#[derive(Debug, Clone, Copy)]
enum Chosen {
    Cuda(usize),
    Host,
    Sim,
}

/// A device for one allocator.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) context: Context,
    /// The device itself, where it is simulated: work on it is what it is told.
    pub(crate) sim: Option<Arc<SimDevice>>,
}

impl Target {
    /// Finds the device. For [`On::Auto`] without a GPU, also why it is the CPU.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where the device is not there.
    pub fn find(on: On) -> Result<(Self, Option<DeviceError>)> {
        let chosen = match on {
            On::Cuda(ordinal) => Chosen::Cuda(ordinal),
            On::Host => Chosen::Host,
            On::Sim => Chosen::Sim,
            On::Auto => match CudaDevice::new(0) {
                Ok(_) => Chosen::Cuda(0),
                Err(why) => return Ok((Self::of(Chosen::Host)?, Some(why))),
            },
        };
        Ok((Self::of(chosen)?, None))
    }

    fn of(on: Chosen) -> Result<Self> {
        let first = on.open()?.context.device().clone();
        Ok(Self { on, name: on.to_string(), first })
    }

    /// The name that `--device` takes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the device calls itself.
    pub fn model(&self) -> &str {
        &self.first.properties().name
    }

    /// Whether time that the device's calls take is counted apart, and costs nothing here.
    pub fn is_simulated(&self) -> bool {
        matches!(self.on, Chosen::Sim)
    }

    pub(crate) fn open(&self) -> Result<Opened> {
        self.on.open()
    }
}

impl Chosen {
    fn open(self) -> Result<Opened> {
        let mut sim = None;
        let device: Arc<dyn Device> = match self {
            Self::Cuda(ordinal) => CudaDevice::new(ordinal)?,
            Self::Host => {
                let options = HostOptions { capacity: Some(HOST_CAPACITY), ..HostOptions::default() };
                HostDevice::with_options(options)?
            }
            Self::Sim => sim.insert(SimDevice::new(SimOptions::default())?).clone(),
        };
        Ok(Opened { context: Context::new(device), sim })
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Host => f.write_str("host"),
            Self::Sim => f.write_str("sim"),
        }
    }
}
