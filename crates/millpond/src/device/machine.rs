//! The memory of this machine, as far as the process may use it.

use std::fs;
#[cfg(any(feature = "cuda", test))]
use std::path::Path;

use super::types::MemoryInfo;

/// Free and total memory of the machine, or of the control group where that has less.
pub(super) fn memory() -> MemoryInfo {
    let system = rustix::system::sysinfo();
    // As wide as a machine word, which differs between systems.
    #[allow(clippy::useless_conversion)]
    let (total, free) = (u64::from(system.totalram), u64::from(system.freeram));
    let unit = u64::from(system.mem_unit);
    let machine = MemoryInfo { free: available().unwrap_or(free * unit), total: total * unit };
    // Absent outside a control group, and "max" where there is no limit.
    let Some(limit) = number_in("/sys/fs/cgroup/memory.max").filter(|limit| *limit < machine.total) else {
        return machine;
    };
    let used = number_in("/sys/fs/cgroup/memory.current").unwrap_or(0);
    // The group's caches of files, which the system takes back.
    let cached = value_in("/sys/fs/cgroup/memory.stat", "inactive_file").unwrap_or(0);
    let free = limit.saturating_sub(used.saturating_sub(cached));
    MemoryInfo { free: machine.free.min(free), total: limit }
}

/// Whether the machine has a NUMA node of this number, as far as the system tells. Drivers do not check it at once.
#[cfg(any(feature = "cuda", test))]
pub(super) fn has_node(node: u32) -> bool {
    let nodes = Path::new("/sys/devices/system/node");
    !nodes.exists() || nodes.join(format!("node{node}")).exists()
}

fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number behind a name, in a file with one name a line.
fn value_in(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let mut words =
        text.lines().map(str::split_whitespace).find(|words| words.clone().next() == Some(name))?;
    words.nth(1)?.parse().ok()
}

/// What could be had without swapping, which is more than what is free: the system takes back caches of files.
fn available() -> Option<u64> {
    value_in("/proc/meminfo", "MemAvailable:").map(|kibibytes| kibibytes << 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_node_that_is_not_there_is_known() {
        assert!(super::has_node(0));
        assert!(!super::Path::new("/sys/devices/system/node").exists() || !super::has_node(4711));
    }

    #[test]
    fn the_machine_has_memory_and_some_is_free() {
        let info = super::memory();
        assert!(0 < info.free && info.free <= info.total, "{info:?}");
        assert!(!cfg!(target_os = "linux") || super::available().is_some_and(|free| free > 1 << 20));
    }
}
