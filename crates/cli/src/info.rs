//! `millpond info`: devices, memory, driver, and what they support.

use std::path::PathBuf;

use millpond::HumanBytes;
use millpond::device::cuda::{self, CudaDevice, CudaFacts};
use millpond::device::{Device, DeviceError, DeviceName, Kind, Properties};
use serde::Serialize;

use crate::args::VERSION;
use crate::error::{Error, Result};
use crate::screen::{answer, table, wrapped};

#[derive(Debug, Serialize)]
struct Info {
    version: &'static str,
    /// The CUDA driver, where there is one that works.
    cuda: Option<Driver>,
    /// Why there is no CUDA.
    no_cuda: Option<String>,
    devices: Vec<Described>,
}

#[derive(Debug, Serialize)]
struct Driver {
    /// The newest CUDA version that it supports.
    cuda_version: String,
    /// The library that was loaded.
    library: Option<PathBuf>,
}

/// A device. Sizes in bytes.
#[derive(Debug, Serialize)]
struct Described {
    /// The name that `--device` takes.
    device: String,
    name: String,
    memory_total: u64,
    memory_free: u64,
    granularity: u64,
    virtual_memory: bool,
    memory_pools: bool,
    gpu: Option<Gpu>,
}

#[derive(Debug, Serialize)]
struct Gpu {
    compute_capability: String,
    multiprocessors: u32,
    pci_bus_id: String,
    /// GPUs whose memory it reaches directly, by the names that `--device` takes.
    peer_access: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(json: bool) -> Result<()> {
    let info = gather()?;
    if json {
        let text = serde_json::to_string_pretty(&info).map_err(|error| Error::Io {
            path: "standard output".into(),
            action: "write JSON",
            source: error.into(),
        })?;
        answer(&text);
    } else {
        show(&info);
    }
    Ok(())
}

fn gather() -> Result<Info> {
    let mut devices = Vec::new();
    let (cuda, no_cuda) = match gpus(&mut devices) {
        Ok(driver) => (Some(driver), None),
        Err(why) => (None, Some(why.to_string())),
    };
    for name in DeviceName::present().filter(|name| name.kind() != Kind::Cuda) {
        devices.push(described(&*name.open()?, None)?);
    }
    Ok(Info { version: VERSION, cuda, no_cuda, devices })
}

fn gpus(devices: &mut Vec<Described>) -> std::result::Result<Driver, DeviceError> {
    let driver = cuda::driver()?;
    for ordinal in 0..driver.devices {
        let device = CudaDevice::new(ordinal)?;
        let facts = device.facts()?;
        devices.push(described(&*device, Some(facts))?);
    }
    Ok(Driver { cuda_version: driver.cuda.to_string(), library: driver.library })
}

fn described(of: &dyn Device, facts: Option<CudaFacts>) -> std::result::Result<Described, DeviceError> {
    let memory = of.memory_info()?;
    let device = DeviceName::of(of.properties()).to_string();
    let Properties { name, granularity, virtual_memory, memory_pools, .. } = of.properties().clone();
    let (memory_total, memory_free) = (memory.total, memory.free);
    let gpu = facts.map(|facts| Gpu {
        compute_capability: format!("{}.{}", facts.compute_capability.0, facts.compute_capability.1),
        multiprocessors: facts.multiprocessors,
        pci_bus_id: facts.pci_bus_id,
        peer_access: facts.peers.iter().map(|ordinal| DeviceName::cuda(*ordinal).to_string()).collect(),
    });
    Ok(Described { device, name, memory_total, memory_free, granularity, virtual_memory, memory_pools, gpu })
}

fn show(info: &Info) {
    answer(&format!("millpond {}", info.version));
    match (&info.cuda, &info.no_cuda) {
        (Some(driver), _) => {
            let from = driver.library.as_ref().map_or("unknown".into(), |path| path.display().to_string());
            answer(&format!("CUDA: {}, driver {from}", driver.cuda_version));
        }
        (None, why) => {
            let why = why.as_deref().unwrap_or("unknown");
            answer(&wrapped(&format!("CUDA: {why}"), 80));
        }
    }
    for device in &info.devices {
        answer(&format!("\n{}: {}\n{}", device.device, device.name, table(&rows(device))));
    }
}

/// What there is, by its name, with what it is good for.
fn rows(device: &Described) -> Vec<Vec<String>> {
    let row = |name: &str, value: String| vec![format!("  {name}"), value];
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let mut rows = vec![
        row("memory", HumanBytes(device.memory_total).to_string()),
        row("free now", HumanBytes(device.memory_free).to_string()),
        row("smallest page", HumanBytes(device.granularity).to_string()),
        row("pages can be remapped", yes(device.virtual_memory)),
        row("driver has a pool of its own", yes(device.memory_pools)),
    ];
    if let Some(gpu) = &device.gpu {
        let peers = if gpu.peer_access.is_empty() { "none".to_owned() } else { gpu.peer_access.join(", ") };
        rows.extend([
            row("reaches the memory of", peers),
            row("compute capability", gpu.compute_capability.clone()),
            row("multiprocessors", gpu.multiprocessors.to_string()),
            row("bus", gpu.pci_bus_id.clone()),
        ]);
    }
    rows
}
