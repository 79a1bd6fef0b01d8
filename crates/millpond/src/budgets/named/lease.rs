//! Which process holds something, said so that any other process of its PID namespace can tell whether it runs.
//!
//! A process of another PID namespace (another container) cannot be looked for. It counts as running. It counts as ending for a
//! while after somebody first asks, which is when the system has said that it is gone: the driver may still have its memory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::policy::other_processes::PATIENCE;
use crate::system::lock::Mutex;
use crate::system::process::PerProcess;

/// Bits of a lease that hold the start time. The rest holds the process id, which Linux keeps below 2^22
/// (`PID_MAX_LIMIT`).
const START_BITS: u32 = 42;

/// Of the flags of a process (include/linux/sched.h): its first thread is ending. It is set before anything is let go of.
const PF_EXITING: u64 = 0x4;

/// A process, by its id and its start time in clock ticks: no two processes between two boots have both in common. But it
/// stays the same when the process becomes another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    /// One word, so that it is written and compared at once. Never 0.
    bits: u64,
    /// Those in which it means this process.
    spaces: u64,
}

impl Lease {
    /// The present process's.
    pub(super) fn mine() -> Result<Self, String> {
        let pid = std::process::id();
        let stat = Stat::read("self").ok_or("/proc/self/stat cannot be read: mount /proc")?;
        if stat.lease.pid() != pid {
            return Err("/proc shows another PID namespace: mount the process's own".to_owned());
        }
        Ok(stat.lease)
    }

    /// From what [`bits`](Self::bits) and [`spaces`](Self::spaces) gave.
    pub(super) fn from_bits(bits: u64, spaces: impl FnOnce() -> u64) -> Option<Self> {
        (bits != 0).then(|| Self { bits, spaces: spaces() })
    }

    pub(super) fn bits(self) -> u64 {
        self.bits
    }

    /// The namespaces in which the process has its number and its start.
    pub(super) fn spaces(self) -> u64 {
        self.spaces
    }

    /// Its number in its own PID namespace.
    pub(super) fn pid(self) -> u32 {
        (self.bits >> START_BITS) as u32
    }

    /// Whether it can be looked for here.
    pub(super) fn is_of_here(self) -> bool {
        self.spaces == namespaces()
    }

    /// `None` once the process has ended, and all its memory was given back.
    ///
    /// A process that was killed counts as long as it is ending: only then the driver has its memory back. The kernel
    /// closes a process's files, and so gives the memory of the GPU back, before it makes the process a zombie.
    fn stat(self) -> Option<Stat> {
        if !self.is_of_here() {
            let (program, is_ending) = (ELSEWHERE.to_owned(), self.was_gone_just_now());
            return Some(Stat { lease: self, program, is_ending, has_ended: false });
        }
        match Stat::read(&self.pid().to_string()) {
            Some(stat) => (stat.lease == self && !stat.has_ended).then_some(stat),
            // Not readable is not gone: `/proc` may hide other users' processes (`hidepid`). It hides none from a signal.
            None => is_there(self.pid()).then_some(Stat {
                lease: self,
                program: String::new(),
                is_ending: true,
                has_ended: false,
            }),
        }
    }

    /// The name of the process's program, as long as it has not ended.
    pub(super) fn program(self) -> Option<String> {
        self.stat().map(|stat| stat.program)
    }

    pub(super) fn is_alive(self) -> bool {
        self.stat().is_some()
    }

    /// Whether the process is ending: it runs nothing any more, but may have files open.
    pub(super) fn is_ending(self) -> bool {
        self.stat().is_some_and(|stat| stat.is_ending)
    }

    /// Of a process that cannot be looked for: whether this process first asked it less than a while ago.
    fn was_gone_just_now(self) -> bool {
        /// More than can be gone at once.
        const MOST: usize = 4096;
        static FIRST_ASKED: PerProcess<Mutex<Vec<(Lease, Instant)>>> = PerProcess::new(Default::default);
        let mut asked = FIRST_ASKED.get().lock();
        if let Some((_, since)) = asked.iter().find(|(lease, _)| *lease == self) {
            return since.elapsed() < PATIENCE;
        }
        asked.truncate(MOST);
        asked.insert(0, (self, Instant::now()));
        true
    }
}

/// What stands for the program of a process that cannot be looked for.
const ELSEWHERE: &str = "in another PID namespace";

/// What a lease means depends on these: the inodes of the PID namespace and of the time namespace. The kernel's are of 32 bits.
fn namespaces() -> u64 {
    // A forked child may be in another one.
    static OWN: PerProcess<u64> = PerProcess::new(|| {
        let inode = |kind| fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |file| file.ino());
        inode("pid") << 32 | inode("time") & u64::from(u32::MAX)
    });
    *OWN.get()
}

/// Whether there is a process with this number, be it another user's.
fn is_there(pid: u32) -> bool {
    let number = Pid::from_raw(pid.cast_signed());
    number.is_some_and(|number| test_kill_process(number) != Err(Errno::SRCH))
}

/// Of `/proc/PID/stat` (proc_pid_stat(5)).
struct Stat {
    lease: Lease,
    program: String,
    is_ending: bool,
    has_ended: bool,
}

impl Stat {
    fn read(process: &str) -> Option<Self> {
        // Lossy: a program's name may be any bytes.
        Self::parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{process}/stat")).ok()?))
    }

    /// The program's name stands in parentheses, and may have some itself.
    fn parse(text: &str) -> Option<Self> {
        let (before, after) = (text.find('(')?, text.rfind(')')?);
        let fields: Vec<_> = text.get(after + 1..)?.split_ascii_whitespace().collect();
        // Field 3 is the first here. A first thread that has ended is a zombie, too, as long as others live.
        let (state, threads) = (*fields.first()?, fields.get(17)?.parse::<u64>().ok()?);
        let flags: u64 = fields.get(6)?.parse().ok()?;
        let (pid, start): (u64, u64) = (text[..before].trim().parse().ok()?, fields.get(19)?.parse().ok()?);
        Some(Self {
            lease: Lease { bits: pid << START_BITS | start & ((1 << START_BITS) - 1), spaces: namespaces() },
            program: text.get(before + 1..after)?.to_owned(),
            is_ending: flags & PF_EXITING != 0,
            has_ended: matches!(state, "X" | "x") || state == "Z" && threads <= 1,
        })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::fixtures::begin;

    impl Lease {
        pub(in super::super) fn of(pid: u32) -> Option<Self> {
            Stat::read(&pid.to_string()).map(|stat| stat.lease)
        }
    }

    #[test]
    fn the_present_process_is_alive() {
        let lease = Lease::mine().unwrap();
        assert_eq!(lease.pid(), std::process::id());
        assert!(lease.is_alive() && !lease.is_ending());
        assert_eq!(Lease::from_bits(lease.bits(), || lease.spaces()), Some(lease));
    }

    #[test]
    fn a_process_that_was_killed_is_gone_even_before_it_is_waited_for() {
        let mut child = begin(Command::new("sleep").arg("1000").stdin(Stdio::null()));
        let lease = Lease::of(child.id()).unwrap();
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
        assert!(!Lease { bits: mine.bits - 1, ..mine }.is_alive());
    }

    #[test]
    fn a_process_of_another_namespace_runs_and_ends_a_while_after_it_is_gone() {
        let mine = Lease::mine().unwrap();
        let other = Lease { spaces: mine.spaces + 1, ..mine };
        assert!(other.is_alive() && !other.is_of_here());
        assert!(other.program().unwrap().contains("namespace"));
        assert!(other.is_ending(), "the driver may have its memory yet");
        std::thread::sleep(PATIENCE);
        assert!(!other.is_ending() && other.is_alive());
    }

    #[test]
    fn a_program_whose_name_is_no_text_is_alive() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(std::ffi::OsStr::from_bytes(b"a\xff"));
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = begin(Command::new(program).arg("1000").stdin(Stdio::null()));
        assert_eq!(Lease::of(child.id()).unwrap().program().as_deref(), Some("a\u{fffd}"));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn names_with_parentheses_and_first_threads_that_ended_are_understood() {
        let text = |state, threads| {
            format!("42 (a) b (c) {state} 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 777 1 1 1")
        };
        let stat = Stat::parse(&text("Z", 2)).unwrap();
        assert_eq!(stat.program, "a) b (c");
        assert!(stat.is_ending && !stat.has_ended);
        assert_eq!((stat.lease.pid(), stat.lease.bits() % (1 << START_BITS)), (42, 777));
        assert!(
            Stat::parse(&text("Z", 1)).unwrap().has_ended && !Stat::parse(&text("S", 1)).unwrap().has_ended
        );
        assert!(Stat::parse("42 (a) S").is_none() && Stat::parse("").is_none());
    }
}
