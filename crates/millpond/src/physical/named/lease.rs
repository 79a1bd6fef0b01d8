//! Which process holds something, said so that any other process can tell whether it runs.

use std::fs;
use std::os::unix::fs::MetadataExt;

use procfs::process::{Process, Stat};
use procfs::{ProcError, ProcResult};

/// Bits of a lease that hold the start time. The rest holds the process id, which Linux keeps below 2^22
/// (`PID_MAX_LIMIT`).
const START_BITS: u32 = 42;

/// Of the flags of a process (include/linux/sched.h): its first thread is ending. It is set before anything is let go of.
const PF_EXITING: u32 = 0x4;

/// A process, by its id and its start time in clock ticks: no two processes between two boots have both in common. But it
/// stays the same when the process becomes another program. One word, so that it is written and compared at once. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease(u64);

impl Lease {
    /// The present process's.
    pub(super) fn mine() -> Result<Self, String> {
        let stat = Process::myself().and_then(|process| process.stat());
        let stat = stat.map_err(|_| "/proc/self/stat cannot be read: mount /proc")?;
        if stat.pid.cast_unsigned() != std::process::id() {
            return Err("/proc shows another PID namespace: mount the process's own".to_owned());
        }
        Ok(Self::of(&stat))
    }

    fn of(stat: &Stat) -> Self {
        Self(u64::from(stat.pid.cast_unsigned()) << START_BITS | stat.starttime & ((1 << START_BITS) - 1))
    }

    /// What the system says of the process (proc_pid_stat(5)), or of another one with its id.
    fn stat(self) -> ProcResult<Stat> {
        Process::new(self.pid().cast_signed())?.stat()
    }

    /// From what [`bits`](Self::bits) gave.
    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    pub(super) fn pid(self) -> u32 {
        (self.0 >> START_BITS) as u32
    }

    /// The name of the process's program; `None` once the process has ended, and all its memory was given back.
    ///
    /// A process that was killed counts as long as it is ending: only then the driver has its memory back. The kernel
    /// closes a process's files, and so gives the memory of the GPU back, before it makes the process a zombie.
    pub(super) fn program(self) -> Option<String> {
        match self.stat() {
            Ok(stat) => (Self::of(&stat) == self && !has_ended(&stat)).then_some(stat.comm),
            Err(ProcError::NotFound(_)) => None,
            // Not readable is not gone.
            Err(_) => Some(String::new()),
        }
    }

    pub(super) fn is_alive(self) -> bool {
        self.program().is_some()
    }

    /// Whether the process is ending: it runs nothing any more, but may have files open.
    pub(super) fn is_ending(self) -> bool {
        match self.stat() {
            Ok(stat) => Self::of(&stat) == self && stat.flags & PF_EXITING != 0 && !has_ended(&stat),
            Err(error) => !matches!(error, ProcError::NotFound(_)),
        }
    }
}

/// What a lease means depends on these: the inodes of the PID namespace and of the time namespace.
pub(super) fn namespaces() -> [u64; 2] {
    ["pid", "time"].map(|kind| fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |file| file.ino()))
}

/// A first thread that has ended is a zombie, too, as long as others live.
fn has_ended(stat: &Stat) -> bool {
    matches!(stat.state, 'X' | 'x') || stat.state == 'Z' && stat.num_threads <= 1
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::fixtures::begin;

    impl Lease {
        pub(in super::super) fn of_process(pid: u32) -> Option<Self> {
            Some(Self::of(&Process::new(pid.cast_signed()).ok()?.stat().ok()?))
        }
    }

    #[test]
    fn the_present_process_is_alive() {
        let lease = Lease::mine().unwrap();
        assert_eq!(lease.pid(), std::process::id());
        assert!(lease.is_alive() && !lease.is_ending() && Lease::from_bits(lease.bits()) == Some(lease));
    }

    #[test]
    fn a_process_that_was_killed_is_gone_even_before_it_is_waited_for() {
        let mut child = begin(Command::new("sleep").arg("1000").stdin(Stdio::null()));
        let lease = Lease::of_process(child.id()).unwrap();
        assert!(lease.is_alive());
        child.kill().unwrap();
        while lease.is_alive() {
            std::thread::yield_now();
        }
        assert!(!lease.is_ending());
        child.wait().unwrap();
        assert!(!lease.is_alive() && !lease.is_ending());
    }

    #[test]
    fn a_process_with_the_same_id_that_began_later_is_another_one() {
        let mine = Lease::mine().unwrap();
        assert!(!Lease(mine.0 - 1).is_alive());
    }

    #[test]
    fn a_first_thread_that_ended_before_others_is_no_end() {
        let mut stat = Process::myself().unwrap().stat().unwrap();
        for (state, threads, ended) in [('S', 1, false), ('Z', 2, false), ('Z', 1, true), ('X', 1, true)] {
            (stat.state, stat.num_threads) = (state, threads);
            assert_eq!(has_ended(&stat), ended, "{state} {threads}");
        }
    }
}
