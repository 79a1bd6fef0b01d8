//! Who holds the memory of a GPU: pools, what their processes hold beside them, and others. The parts sum to what the GPU says.

use millpond::device::MemoryKind;
use millpond::live::SeenProcess;
use serde::Serialize;

use super::gpus::Gpu;

/// A part of a GPU's used memory, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Share {
    pub(crate) holder: Holder,
    /// The process, where it is one's.
    pub(crate) pid: Option<u32>,
    pub(crate) program: Option<String>,
    /// Less than 0 only where the figures of pools and GPU are not of one moment, or the pools' memory is another process's.
    pub(crate) bytes: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Holder {
    /// The pools of a process.
    Pools,
    /// The same process, beside its pools: its context, kernels, libraries.
    OutsideThePools,
    /// All processes without pools.
    OtherProcesses,
    /// What the GPU tells of no process: the driver's, and that of processes which it does not list.
    NotListed,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Bytes that the process's pools hold of the GPU.
pub(crate) fn in_pools(process: &SeenProcess, gpu: &Gpu) -> u64 {
    let is_here = |identity: &millpond::device::DeviceIdentity| identity.to_string() == gpu.uuid;
    let pools = process.pools.iter().filter(|pool| pool.memory == MemoryKind::Device);
    let here = pools.filter(|pool| pool.identity.as_ref().is_some_and(is_here));
    here.fold(0, |sum, pool| sum.saturating_add(pool.stats.reserved.current))
}

/// The parts of what is used of the GPU.
pub(crate) fn shares(gpu: &Gpu, processes: &[SeenProcess]) -> Vec<Share> {
    let mut shares = Vec::new();
    let mut add = |holder, process: Option<&SeenProcess>, bytes: i64| {
        let (pid, program) = (process.map(|is| is.pid), process.map(|is| is.program.clone()));
        shares.push(Share { holder, pid, program, bytes });
    };
    let mut left = signed(gpu.used);
    let said = |pid| gpu.processes.iter().find(|(of, _)| *of == pid).map(|(_, bytes)| signed(*bytes));
    for process in processes {
        let held = signed(in_pools(process, gpu));
        let outside = said(process.pid).map(|said| said.saturating_sub(held));
        if held == 0 && outside.is_none() {
            continue;
        }
        add(Holder::Pools, Some(process), held);
        if let Some(outside) = outside {
            add(Holder::OutsideThePools, Some(process), outside);
        }
        left = left.saturating_sub(held).saturating_sub(outside.unwrap_or(0));
    }
    let has_pools = |pid: u32| processes.iter().any(|process| process.pid == pid);
    let others = gpu.processes.iter().filter(|(pid, _)| !has_pools(*pid));
    let others = others.fold(0_i64, |sum, (_, bytes)| sum.saturating_add(signed(*bytes)));
    if others != 0 {
        add(Holder::OtherProcesses, None, others);
    }
    add(Holder::NotListed, None, left.saturating_sub(others));
    shares
}

#[cfg(test)]
mod tests {
    use millpond::device::DeviceIdentity;
    use millpond::live::SeenPool;

    use super::*;

    fn process(pid: u32, pools: &[(u8, u64)]) -> SeenProcess {
        let mut process = SeenProcess::default();
        (process.pid, process.program) = (pid, "python".to_owned());
        process.pools.extend(pools.iter().map(|(gpu, bytes)| {
            let mut pool = SeenPool::default();
            pool.identity = Some(DeviceIdentity([*gpu; 16]));
            pool.stats.reserved.current = *bytes;
            pool
        }));
        process
    }

    fn gpu(identity: u8, used: u64, processes: &[(u32, u64)]) -> Gpu {
        let uuid = DeviceIdentity([identity; 16]).to_string();
        Gpu { number: 0, name: "H200".to_owned(), uuid, total: 1000, used, processes: processes.to_vec() }
    }

    fn told(gpu: &Gpu, processes: &[SeenProcess]) -> Vec<(Holder, Option<u32>, i64)> {
        let shares = shares(gpu, processes);
        assert_eq!(shares.iter().map(|share| share.bytes).sum::<i64>(), gpu.used as i64, "{shares:?}");
        shares.into_iter().map(|share| (share.holder, share.pid, share.bytes)).collect()
    }

    #[test]
    fn the_parts_sum_to_what_the_gpu_says() {
        let processes =
            [process(7, &[(1, 300), (1, 200), (2, 50)]), process(8, &[(1, 100)]), process(9, &[])];
        let listed = gpu(1, 900, &[(7, 550), (8, 120), (77, 60)]);
        assert_eq!(
            told(&listed, &processes),
            [
                (Holder::Pools, Some(7), 500),
                (Holder::OutsideThePools, Some(7), 50),
                (Holder::Pools, Some(8), 100),
                (Holder::OutsideThePools, Some(8), 20),
                (Holder::OtherProcesses, None, 60),
                (Holder::NotListed, None, 170),
            ]
        );
    }

    #[test]
    fn a_gpu_that_lists_no_process_has_the_rest_in_one_part() {
        let processes = [process(7, &[(1, 300)]), process(8, &[(2, 100)])];
        assert_eq!(
            told(&gpu(1, 400, &[]), &processes),
            [(Holder::Pools, Some(7), 300), (Holder::NotListed, None, 100)]
        );
        // Figures of two moments.
        assert_eq!(told(&gpu(1, 200, &[(7, 200)]), &processes)[1], (Holder::OutsideThePools, Some(7), -100));
    }

    #[test]
    fn a_process_that_lies_does_not_stop_the_sum() {
        let lying = [process(7, &[(1, u64::MAX), (1, u64::MAX)])];
        let shares = shares(&gpu(1, 400, &[(7, u64::MAX)]), &lying);
        assert_eq!((shares[0].bytes, shares[1].bytes), (i64::MAX, 0));
    }
}
