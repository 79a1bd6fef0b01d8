//! What the GPUs say of their memory themselves, by NVIDIA's management library, which is loaded where it is there.

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use serde::Serialize;

/// GPUs that are asked about: no machine has more.
const MOST_GPUS: u32 = 64;

/// A GPU's memory, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Gpu {
    pub(crate) number: u32,
    pub(crate) name: String,
    /// Without the `GPU-` in front.
    pub(crate) uuid: String,
    pub(crate) total: u64,
    /// By all programs, and by the driver for them.
    pub(crate) used: u64,
    /// What each process uses, as far as the library may tell: by its number in the machine, which need not be that in a container.
    #[serde(skip)]
    pub(crate) processes: Vec<(u32, u64)>,
}

/// The library, if it is there.
#[derive(Debug)]
pub(crate) struct Gpus(Result<Nvml, String>);

impl Gpus {
    pub(crate) fn open() -> Self {
        Self(Nvml::init().map_err(|error| match error {
            NvmlError::LibloadingError(_) => "there is no libnvidia-ml.so.1".to_owned(),
            error => error.to_string(),
        }))
    }

    /// What each GPU says now; or why nothing is known.
    pub(crate) fn look(&self) -> Result<Vec<Gpu>, String> {
        let nvml = self.0.as_ref().map_err(Clone::clone)?;
        let all = || -> Result<Vec<Gpu>, NvmlError> {
            let count = nvml.device_count()?.min(MOST_GPUS);
            (0..count).map(|number| look_at(number, &nvml.device_by_index(number)?)).collect()
        };
        all().map_err(|error| error.to_string())
    }
}

fn look_at(number: u32, device: &Device<'_>) -> Result<Gpu, NvmlError> {
    let (memory, uuid) = (device.memory_info()?, device.uuid()?);
    let uuid = uuid.strip_prefix("GPU-").unwrap_or(&uuid).to_owned();
    // A library that may not tell of processes tells of none.
    let compute = device.running_compute_processes().unwrap_or_default();
    let graphics = device.running_graphics_processes().unwrap_or_default();
    let processes = by_process(compute.into_iter().chain(graphics));
    Ok(Gpu { number, name: device.name()?, uuid, total: memory.total, used: memory.used, processes })
}

/// One that computes and draws is listed twice, each time with all that it uses.
fn by_process(all: impl Iterator<Item = ProcessInfo>) -> Vec<(u32, u64)> {
    let mut processes: Vec<(u32, u64)> = Vec::new();
    for ProcessInfo { pid, used_gpu_memory, .. } in all {
        let UsedGpuMemory::Used(bytes) = used_gpu_memory else { continue };
        match processes.iter_mut().find(|(known, _)| *known == pid) {
            Some((_, most)) => *most = bytes.max(*most),
            None => processes.push((pid, bytes)),
        }
    }
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_computes_and_draws_counts_once() {
        let process = |pid, used_gpu_memory| ProcessInfo {
            pid,
            used_gpu_memory,
            gpu_instance_id: None,
            compute_instance_id: None,
        };
        let all = [
            process(1, UsedGpuMemory::Used(10)),
            process(2, UsedGpuMemory::Unavailable),
            process(3, UsedGpuMemory::Used(7)),
            process(1, UsedGpuMemory::Used(12)),
        ];
        assert_eq!(by_process(all.into_iter()), [(1, 12), (3, 7)]);
    }
}
