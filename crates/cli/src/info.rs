//! `millpond info`: devices, memory, driver, and what they support.

use std::path::PathBuf;
use std::sync::Arc;

use millpond::HumanBytes;
use millpond::device::cuda::{self, CudaDevice, CudaFacts};
use millpond::device::{Device, DeviceError, DeviceName, Kind, MemoryKind, Properties};
use millpond_baselines::{memory_of, name_of};
use serde::Serialize;

use crate::args::{InfoArgs, VERSION};
use crate::error::{Error, Result};
use crate::numa::{self, Node};
use crate::terminal::{answer, table, wrapped};

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
    /// Which memory of it: `device`, `pinned` or `managed`.
    memory: &'static str,
    /// Why there is none of it. The figures are those of the device then.
    no_memory: Option<String>,
    memory_total: u64,
    memory_free: u64,
    granularity: u64,
    virtual_memory: bool,
    memory_pools: bool,
    host_access: bool,
    /// Where the memory may lie, if it is the host's.
    numa_nodes: Vec<Node>,
    node_can_be_chosen: bool,
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
pub(crate) fn run(args: InfoArgs) -> Result<()> {
    let info = gather(args.memory)?;
    if args.json {
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

fn gather(memory: MemoryKind) -> Result<Info> {
    let mut devices = Vec::new();
    let (cuda, no_cuda) = match gpus(&mut devices, memory) {
        Ok(driver) => (Some(driver), None),
        Err(why) => (None, Some(why.to_string())),
    };
    for name in DeviceName::present().filter(|name| name.kind() != Kind::Cuda) {
        devices.push(described(name.open()?, memory, None)?);
    }
    Ok(Info { version: VERSION, cuda, no_cuda, devices })
}

fn gpus(devices: &mut Vec<Described>, memory: MemoryKind) -> std::result::Result<Driver, DeviceError> {
    let driver = cuda::driver()?;
    for ordinal in 0..driver.devices {
        let device = CudaDevice::new(ordinal)?;
        let facts = device.facts()?;
        devices.push(described(device, memory, Some(facts))?);
    }
    Ok(Driver { cuda_version: driver.cuda.to_string(), library: driver.library })
}

fn described(
    device: Arc<dyn Device>,
    kind: MemoryKind,
    facts: Option<CudaFacts>,
) -> std::result::Result<Described, DeviceError> {
    let (of, no_memory) = match memory_of(device.clone(), kind) {
        Ok(memory) => (memory, None),
        Err(why) => (device.clone(), Some(why.to_string())),
    };
    let numa_nodes = if kind == MemoryKind::Device { Vec::new() } else { numa::nodes() };
    let node_can_be_chosen =
        kind == MemoryKind::Pinned && numa_nodes.iter().all(|node| device.pinned(Some(node.node)).is_ok());
    let memory = of.memory_info()?;
    let device = DeviceName::of(of.properties()).to_string();
    let Properties { name, granularity, virtual_memory, memory_pools, host_access, .. } =
        of.properties().clone();
    let (memory_total, memory_free) = (memory.total, memory.free);
    let gpu = facts.map(|facts| Gpu {
        compute_capability: format!("{}.{}", facts.compute_capability.0, facts.compute_capability.1),
        multiprocessors: facts.multiprocessors,
        pci_bus_id: facts.pci_bus_id,
        peer_access: facts.peers.iter().map(|ordinal| DeviceName::cuda(*ordinal).to_string()).collect(),
    });
    Ok(Described {
        device,
        name,
        memory: name_of(kind),
        no_memory,
        memory_total,
        memory_free,
        granularity,
        virtual_memory,
        memory_pools,
        host_access,
        numa_nodes,
        node_can_be_chosen,
        gpu,
    })
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
        let Described { device: name, name: model, memory, .. } = device;
        let of = if *memory == "device" { String::new() } else { format!(", {memory} memory") };
        answer(&format!("\n{name}: {model}{of}"));
        match &device.no_memory {
            Some(why) => answer(&wrapped(&format!("  none: {why}"), 80)),
            None => answer(&table(&rows(device))),
        }
    }
}

/// The host device takes no more than that of the machine, so that programs leave some to others.
fn part_of_it(device: &Described) -> &'static str {
    if device.device == DeviceName::HOST.to_string() { ", half of this machine's" } else { "" }
}

/// What there is, by its name, with what it is good for.
fn rows(device: &Described) -> Vec<Vec<String>> {
    let row = |name: &str, value: String| vec![format!("  {name}"), value];
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let mut rows = vec![
        row("memory", format!("{}{}", HumanBytes(device.memory_total), part_of_it(device))),
        row("free now", HumanBytes(device.memory_free).to_string()),
        row("smallest page", HumanBytes(device.granularity).to_string()),
        row("pages can be remapped", yes(device.virtual_memory)),
        row("driver has a pool of its own", yes(device.memory_pools)),
    ];
    if device.memory != "device" {
        rows.push(row("the CPU uses it in place", yes(device.host_access)));
        rows.push(row("a NUMA node can be chosen", yes(device.node_can_be_chosen)));
        for Node { node, total, free } in &device.numa_nodes {
            rows.push(row(&format!("NUMA node {node}"), HumanBytes(*total).to_string()));
            rows.push(row("  free now", HumanBytes(*free).to_string()));
        }
    }
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
