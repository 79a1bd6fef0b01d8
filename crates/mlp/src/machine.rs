//! Choosing the device that trains.

use std::sync::Arc;

use millpond::Context;
use millpond::device::host::HostDevice;
use millpond::device::{DeviceChoice, DeviceError, DeviceName, Kind};

use crate::cuda::{self, CudaBackend, CudaTraining};
use crate::{Backend, Error, HostBackend, Memory, Result};

/// The devices that there are kernels for, as the user names them.
const DEVICES: &str = "auto, host, cuda or cuda:N with the GPU's number";

/// A device that trains, opened.
#[derive(Debug, Clone)]
pub struct Machine {
    context: Context,
    /// The device, where it is the CPU: its kernels are closures.
    host: Option<Arc<HostDevice>>,
}

impl Machine {
    /// Reads which device is to train.
    ///
    /// # Errors
    /// For a text that names no device that trains: what it may be, in words.
    pub fn choice(text: &str) -> std::result::Result<DeviceChoice, String> {
        let trains = |choice: &DeviceChoice| match choice {
            DeviceChoice::Auto => true,
            DeviceChoice::Named(name) => matches!(name.kind(), Kind::Cuda | Kind::Host),
        };
        text.parse().ok().filter(trains).ok_or_else(|| format!("'{text}' is not {DEVICES}"))
    }

    /// Opens the device. With [`DeviceChoice::Auto`] on a machine without a GPU, or without the libraries that
    /// training on it needs, also says why it is the CPU.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where the device is not there, [`DeviceError::Unsupported`] where there are no
    /// kernels for it.
    pub fn open(choice: DeviceChoice) -> Result<(Self, Option<Error>)> {
        match choice {
            DeviceChoice::Named(name) => Ok((Self::of(name)?, None)),
            DeviceChoice::Auto => {
                let gpu = Self::of(DeviceName::cuda(0));
                match gpu.and_then(|machine| cuda::libraries().map(|()| machine)) {
                    Ok(machine) => Ok((machine, None)),
                    Err(why) => Ok((Self::of(DeviceName::HOST)?, Some(why))),
                }
            }
        }
    }

    fn of(name: DeviceName) -> Result<Self> {
        match name.kind() {
            Kind::Host => {
                let device = HostDevice::new()?;
                Ok(Self { context: Context::new(device.clone()), host: Some(device) })
            }
            Kind::Cuda => Ok(Self { context: Context::new(name.open()?), host: None }),
            _ => Err(DeviceError::Unsupported { device: name.to_string(), what: "training" }.into()),
        }
    }

    /// The device with its streams and pools.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device by the name that `--device` takes: `host`, `cuda:0`.
    pub fn name(&self) -> DeviceName {
        DeviceName::of(self.context.device().properties())
    }

    /// The device's own name and size, for people.
    pub fn describe(&self) -> String {
        let name = &self.context.device().properties().name;
        match &self.host {
            None => name.clone(),
            Some(_) => format!("{name}, {} threads", rayon::current_num_threads()),
        }
    }

    /// The operations of this device over this memory. `tf32` lets a GPU round factors to TF32.
    ///
    /// # Errors
    /// [`Error::Library`] where a library that they need is missing.
    pub fn backend(&self, memory: Memory, tf32: bool) -> Result<Box<dyn Backend>> {
        if let Some(device) = &self.host {
            return Ok(Box::new(HostBackend::new(device.clone(), memory)));
        }
        // The gradients of the weights beside those of the activations: 3 to 8 % faster on an H200
        // (`cuda_training`, the test that is timed).
        let second_stream = Some(self.context.create_stream()?);
        let training = CudaTraining { tf32, second_stream };
        Ok(Box::new(CudaBackend::new(memory, training)?))
    }
}
