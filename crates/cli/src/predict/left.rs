//! What a predicted program leaves running: it is ended in the middle, so nothing of it ends its children.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::run::PREDICTED;

/// Ends the processes that a run left. Those that cleared their environment are not known.
pub(super) fn end(folder: &Path) {
    /// Some may begin others meanwhile.
    const LOOKS: usize = 100;
    let mark = [PREDICTED.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    for _ in 0..LOOKS {
        let left = marked(&mark);
        if left.is_empty() {
            return;
        }
        // A process that has ended since is no error.
        left.iter().for_each(|process| {
            pidfd_send_signal(process, Signal::KILL).ok();
        });
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The processes with this in their environment.
fn marked(mark: &[u8]) -> Vec<OwnedFd> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_marked = |number: i32| {
        // Opened before it is read, it stays this process, though numbers are given again.
        let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        let environment = std::fs::read(format!("/proc/{number}/environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|variable| variable == mark).then_some(process)
    };
    numbers.filter_map(is_marked).collect()
}
