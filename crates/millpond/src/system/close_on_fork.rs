//! `close_on_fork`: descriptors that forked children do not keep. POSIX 2024 has a flag for that (`FD_CLOFORK`), Linux does not.
//!
//! Uses `process` and `policy/`; every floor may use it.
//!
//! A copy in a child keeps a socket open and a file locked after the parent was killed. So the numbers of such descriptors
//! are noted here, one bit each, and a child closes them before `fork` returns there. No lock, as in [`process`]: a fork
//! may come at any time. If it comes between the opening of a descriptor and its note, the child has a copy that it does
//! not know. Then [`CloseOnFork::open`] opens another one.
//!
//! A raw `clone` does not tell of itself, and its child keeps all. So does one that becomes another program until then.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::policy::other_processes::STOPPED;
use crate::system::process::{self, OfProcess};

/// Descriptors of a process, of which each can be noted: what Linux allows by default (`fs.nr_open`).
pub(crate) const MOST_DESCRIPTORS: usize = 1 << 20;

/// Which numbers are noted. Sequentially consistent throughout: all of it is rare.
static NOTED: [AtomicU64; MOST_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MOST_DESCRIPTORS / 64];

/// Words of [`NOTED`] that were ever used, from the first on.
static USED: AtomicUsize = AtomicUsize::new(0);

/// In a forked child, on its only thread.
fn close_all() {
    for (at, word) in NOTED[..USED.load(Ordering::SeqCst)].iter().enumerate() {
        let mut bits = word.swap(0, Ordering::SeqCst);
        while bits != 0 {
            let number = at * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: a `CloseOnFork` owns it, which names it in the parent only.
            unsafe { libc::close(number as libc::c_int) };
        }
    }
}

fn note(file: &impl AsFd, is_open: bool) {
    let number = file.as_fd().as_raw_fd() as usize;
    let Some(word) = NOTED.get(number / 64) else { return };
    USED.fetch_max(number / 64 + 1, Ordering::SeqCst);
    let bit = 1 << (number % 64);
    if is_open {
        word.fetch_or(bit, Ordering::SeqCst)
    } else {
        word.fetch_and(!bit, Ordering::SeqCst)
    };
}

/// A descriptor, or what owns one, that each forked child closes.
#[derive(Debug)]
pub(crate) struct CloseOnFork<F: AsFd = OwnedFd>(OfProcess<F>);

impl<F: AsFd> CloseOnFork<F> {
    /// Takes a descriptor that a child may have by now.
    pub(crate) fn new(file: F) -> Self {
        process::on_fork(close_all);
        note(&file, true);
        Self(OfProcess::new(file))
    }

    /// What `open` opens, so that no child has a copy. It is called again where a fork was under way.
    pub(crate) fn open<const N: usize, E>(
        mut open: impl FnMut() -> Result<[F; N], E>,
    ) -> Result<[Self; N], E> {
        let began = Instant::now();
        loop {
            let (opened, no_fork) = process::watch_forks(|| Ok(open()?.map(Self::new)));
            if no_fork || opened.is_err() || began.elapsed() >= STOPPED {
                return opened;
            }
            drop(opened);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The descriptor; `None` in a forked child, where it is closed.
    pub(crate) fn here(&self) -> Option<&F> {
        OfProcess::here(&self.0)
    }
}

impl<F: AsFd> Drop for CloseOnFork<F> {
    fn drop(&mut self) {
        // Before its number can be another descriptor's.
        if let Some(file) = OfProcess::here(&self.0) {
            note(file, false);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::io::{self, Read, pipe};

    use super::*;
    use crate::fixtures::alone;

    fn file() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn is_open(number: i32) -> bool {
        // SAFETY: it only asks.
        unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
    }

    /// Whether a child found what it says to be so.
    fn child_finds(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child makes system calls, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let code = i32::from(!check());
            // SAFETY: it ends the child, and runs nothing of ours.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    fn a_child_has_none_of_them_and_all_others() {
        alone("system::close_on_fork::tests::a_child_has_none_of_them_and_all_others", || {
            let (kept, closed) = (file(), CloseOnFork::new(file()));
            let [kept_at, closed_at] = [kept.as_raw_fd(), closed.here().unwrap().as_raw_fd()];
            assert!(is_open(closed_at));
            assert!(child_finds(|| is_open(kept_at) && !is_open(closed_at) && closed.here().is_none()));
            assert!(is_open(closed_at));
        });
    }

    #[test]
    fn a_number_is_its_next_owners() {
        alone("system::close_on_fork::tests::a_number_is_its_next_owners", || {
            let closed = CloseOnFork::new(file());
            let word = &NOTED[closed.here().unwrap().as_raw_fd() as usize / 64];
            let bit = 1 << (closed.here().unwrap().as_raw_fd() % 64);
            assert!(word.load(Ordering::SeqCst) & bit != 0);
            let number = closed.here().unwrap().as_raw_fd();
            // A child forgets it, and may open another one there, which its own children keep.
            assert!(child_finds(|| {
                let next = file();
                // SAFETY: the number is nobody's here, or the file's own.
                let moved = unsafe { libc::dup2(next.as_raw_fd(), number) } == number;
                drop(closed);
                moved && child_finds(|| is_open(number))
            }));
        });
    }

    #[test]
    fn what_a_fork_came_between_is_opened_anew() {
        alone("system::close_on_fork::tests::what_a_fork_came_between_is_opened_anew", || {
            let mut calls = 0;
            let (mut children_end, parents_end) = pipe().unwrap();
            let [opened] = CloseOnFork::open(|| {
                calls += 1;
                let end = parents_end.try_clone()?;
                if calls == 1 {
                    // A child that has the first one, and does not know it.
                    assert!(child_finds(|| true));
                }
                io::Result::Ok([end])
            })
            .unwrap();
            assert_eq!(calls, 2);
            drop((opened, parents_end));
            assert_eq!(children_end.read(&mut [0]).unwrap(), 0, "all copies are closed");
        });
    }
}
