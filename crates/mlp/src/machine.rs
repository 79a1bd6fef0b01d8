//! Choosing the device that trains.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use millpond::Context;
use millpond::device::cuda::CudaDevice;
use millpond::device::host::HostDevice;

use crate::cuda::{self, CudaBackend, CudaTraining};
use crate::{Backend, Error, HostBackend, Memory, Result};

/// The device that the user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first GPU where there is one, else the CPU.
    #[default]
    Auto,
    /// The GPU with this ordinal.
    Cuda(usize),
    /// The CPU.
    Host,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let cuda = |ordinal: &str| ordinal.parse().ok().map(Self::Cuda);
        let choice = match text {
            "auto" => Some(Self::Auto),
            "host" => Some(Self::Host),
            "cuda" => Some(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(cuda),
        };
        choice.ok_or_else(|| "auto, host, cuda or cuda:N with the GPU's number".to_owned())
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Host => f.write_str("host"),
        }
    }
}

/// A device that trains, opened.
#[derive(Debug, Clone)]
pub struct Machine {
    context: Context,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Cuda(usize),
    Host(Arc<HostDevice>),
}

impl Machine {
    /// Opens the device. With [`DeviceChoice::Auto`] on a machine without a GPU, or without the libraries that
    /// training on it needs, also says why it is the CPU.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`](millpond::device::DeviceError::Unavailable) where the device is not there.
    pub fn open(choice: DeviceChoice) -> Result<(Self, Option<Error>)> {
        match choice {
            DeviceChoice::Host => Ok((Self::host()?, None)),
            DeviceChoice::Cuda(ordinal) => Ok((Self::cuda(ordinal)?, None)),
            DeviceChoice::Auto => match Self::cuda(0).and_then(|machine| cuda::libraries().map(|()| machine))
            {
                Ok(machine) => Ok((machine, None)),
                Err(why) => Ok((Self::host()?, Some(why))),
            },
        }
    }

    fn host() -> Result<Self> {
        let device = HostDevice::new()?;
        Ok(Self { context: Context::new(device.clone()), kind: Kind::Host(device) })
    }

    fn cuda(ordinal: usize) -> Result<Self> {
        let device = CudaDevice::new(ordinal)?;
        Ok(Self { context: Context::new(device), kind: Kind::Cuda(ordinal) })
    }

    /// The device with its streams and pools.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device by the name that `--device` takes: `host`, `cuda:0`.
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Cuda(ordinal) => DeviceChoice::Cuda(ordinal).to_string(),
            Kind::Host(_) => DeviceChoice::Host.to_string(),
        }
    }

    /// The device's own name and size, for people.
    pub fn describe(&self) -> String {
        let properties = self.context.device().properties();
        match &self.kind {
            Kind::Cuda(_) => properties.name.clone(),
            Kind::Host(_) => format!("{}, {} threads", properties.name, rayon::current_num_threads()),
        }
    }

    /// The operations of this device over this memory. `tf32` lets a GPU round factors to TF32.
    ///
    /// # Errors
    /// [`Error::Library`] where a library that they need is missing.
    pub fn backend(&self, memory: Memory, tf32: bool) -> Result<Box<dyn Backend>> {
        match &self.kind {
            Kind::Host(device) => Ok(Box::new(HostBackend::new(device.clone(), memory))),
            Kind::Cuda(_) => {
                // The gradients of the weights beside those of the activations: 3 to 8 % faster on an H200
                // (`cuda_training`, the test that is timed).
                let second_stream = Some(self.context.create_stream()?);
                let training = CudaTraining { tf32, second_stream };
                Ok(Box::new(CudaBackend::new(memory, training)?))
            }
        }
    }
}
