//! The memory of this machine, as far as the process may use it.

use std::fs;

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
    MemoryInfo { free: machine.free.min(limit.saturating_sub(used)), total: limit }
}

fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// What could be had without swapping, which is more than what is free: the system takes back caches of files.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_machine_has_memory_and_some_is_free() {
        let info = super::memory();
        assert!(0 < info.free && info.free <= info.total, "{info:?}");
    }
}
