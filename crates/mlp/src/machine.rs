//! Choosing the device that trains.

use std::sync::Arc;

use millpond::Context;
use millpond::device::host::HostDevice;
use millpond::device::{DeviceChoice, DeviceError, DeviceName, Kind};

use crate::cuda::{self, CudaBackend, Nccl};
use crate::ranks::{Collective, Ranks, Shard, Tcp, Team};
use crate::{Backend, Error, HostBackend, Memory, Precision, Result};

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
        Self::open_on(choice, 0)
    }

    /// As [`open`](Self::open), for a rank with this number among those of its machine: it gets a GPU of its own. Where the
    /// launcher has given it one, that is the only one it sees.
    ///
    /// # Errors
    /// As above, and [`Error::Launcher`] where another GPU than the first is named, and there are several ranks.
    pub fn open_on(choice: DeviceChoice, local_rank: usize) -> Result<(Self, Option<Error>)> {
        let gpu = |name: DeviceName| match (local_rank, name.ordinal()) {
            (0, _) => Ok(name),
            (_, 0) if cuda::gpus() == 1 => Ok(name),
            (_, 0) => Ok(DeviceName::cuda(local_rank)),
            _ => Err(Error::Launcher {
                what: format!("--device {name} is one GPU, but each rank takes its own: say --device cuda"),
            }),
        };
        match choice {
            DeviceChoice::Named(name) if name.kind() == Kind::Cuda => Ok((Self::of(gpu(name)?)?, None)),
            DeviceChoice::Named(name) => Ok((Self::of(name)?, None)),
            DeviceChoice::Auto => {
                let gpu = gpu(DeviceName::cuda(0)).and_then(Self::of);
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

    /// These ranks, with what their devices do together.
    ///
    /// # Errors
    /// [`Error::Library`] where NCCL is missing, or refuses. The device's own.
    pub fn team(&self, ranks: &Arc<Ranks>, shard: Shard) -> Result<Team> {
        let names = ranks.gather(&self.name().to_string())?;
        let is_gpu = |name: &str| name != DeviceName::HOST.to_string();
        if let Some(other) = names.iter().position(|name| is_gpu(name) != is_gpu(&names[0])) {
            let what = format!(
                "rank 0 trains on {}, and rank {other} on {}: name the device by --device",
                names[0], names[other]
            );
            return Err(Error::Launcher { what });
        }
        let collective: Box<dyn Collective> = match &self.host {
            Some(device) => Box::new(Tcp { device: device.clone(), ranks: ranks.clone() }),
            None => Box::new(Nccl::new(self.name().ordinal(), ranks)?),
        };
        Ok(Team::new(ranks.clone(), collective, self.context.create_stream()?, shard))
    }

    /// One rank alone, which trains as many do: to see what that costs.
    ///
    /// # Errors
    /// As above.
    pub fn team_of_one(&self, shard: Shard) -> Result<Team> {
        self.team(&Arc::new(Ranks::alone()), shard)
    }

    /// The operations of this device over this memory. A GPU may round factors to this precision.
    ///
    /// # Errors
    /// [`Error::Library`] where a library that they need is missing.
    pub fn backend(&self, memory: Memory, precision: Precision) -> Result<Box<dyn Backend>> {
        if let Some(device) = &self.host {
            return Ok(Box::new(HostBackend::new(device.clone(), memory)));
        }
        Ok(Box::new(CudaBackend::new(memory, precision)?))
    }
}
