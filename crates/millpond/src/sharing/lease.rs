//! Leases: whether another process may still use memory that was shared.
//!
//! A pair of sockets. The owner keeps one end. All who may use the memory have copies of the other, and close them when they
//! are done. Beside it lies a number that they share: how many of them use the memory now. It is not 0 when one died in
//! between. Then the owner waits a little longer: kernels of a process that dies run on for an instant.
//!
//! The owner is gone when its end is closed, or its process has ended. Forked children close the owner's end. The process
//! is asked, too, because a raw `clone` and a child that is about to become another program keep it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::device::{DeviceResult, SharedNumber, system};
use crate::error::{Error, Result};
use crate::policy::other_processes::PATIENCE;
use crate::system::close_on_fork::CloseOnFork;
use crate::system::process::Process;
use crate::system::socket_peer::credentials;

/// The owner's end.
#[derive(Debug)]
pub(crate) struct Lent {
    end: CloseOnFork,
    /// How many use the memory, as they say.
    users: SharedNumber,
    /// When the last copy of the other end was found closed.
    ended: Option<Instant>,
}

impl Lent {
    /// A lease, and the two descriptors for others.
    pub(crate) fn new() -> DeviceResult<(Self, [CloseOnFork; 2])> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map(<[_; 2]>::from);
        let [end, other] = CloseOnFork::open(pair).map_err(system("socketpair"))?;
        // Nothing is sent. A peer could send its own end, which nobody could close then.
        shutdown(end.here().expect("made here"), Shutdown::Read).map_err(system("shutdown"))?;
        let (users, file) = SharedNumber::create("millpond lease")?;
        Ok((Self { end, users, ended: None }, [other, CloseOnFork::new(file)]))
    }

    /// Whether nobody can use the memory any more, `now`.
    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        if self.ended.is_none() && self.end.here().is_some_and(|end| is(end, PollFlags::HUP)) {
            self.ended = Some(now);
        }
        let Some(ended) = self.ended else { return false };
        // Acquire: who closed its end counted itself out before.
        self.users.load(Ordering::Acquire) == 0 || now.saturating_duration_since(ended) >= PATIENCE
    }
}

/// A copy of the other end, of one who uses the memory.
#[derive(Debug)]
pub(crate) struct Borrowed {
    end: OwnedFd,
    users: SharedNumber,
    process: Process,
}

impl Borrowed {
    /// Takes the two descriptors that another process sent.
    pub(crate) fn begin(end: OwnedFd, users: &OwnedFd) -> Result<Self> {
        if !is_of(&end, FileType::Socket) {
            let why =
                "its first descriptor is no lease: pass the descriptors in the order of Shared::descriptors";
            return Err(Error::BadToken { why: why.to_owned() });
        }
        let users = SharedNumber::open("open_shared", users)?;
        // Relaxed: the owner reads it once `end` is closed.
        users.fetch_add(1, Ordering::Relaxed);
        Ok(Self { end, users, process: Process::here() })
    }

    /// Whether the owner's process is gone.
    pub(crate) fn owner_is_gone(&self) -> bool {
        is(&self.end, PollFlags::HUP) || peer_has_ended(&self.end)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // A forked child never used it.
        if self.process.is_here() {
            // Release: see `Lent::is_over`. Then the end is closed.
            self.users.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Whether a descriptor that came from another process is of this kind.
pub(super) fn is_of(file: &OwnedFd, kind: FileType) -> bool {
    rustix::fs::fstat(file).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == kind)
}

/// Whether a descriptor is in this state.
fn is(file: impl AsFd, state: PollFlags) -> bool {
    let mut asked = [PollFd::new(&file, state)];
    let answered = retry_on_intr(|| poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })));
    answered.is_ok() && asked[0].revents().contains(state)
}

/// Whether the process that made a pair of sockets has ended. Where the system cannot tell, it has not: it is in another PID
/// namespace, or its number is another one's by now.
fn peer_has_ended(end: &OwnedFd) -> bool {
    let number = credentials(end).ok().and_then(|peer| Pid::from_raw(peer.pid()));
    number.is_some_and(|number| match pidfd_open(number, PidfdFlags::empty()) {
        Ok(process) => is(process, PollFlags::IN),
        // Nobody has the number, or it is that of a thread by now.
        Err(error) => matches!(error, Errno::SRCH | Errno::INVAL),
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::mem::ManuallyDrop;
    use std::os::unix::net::UnixStream;
    use std::ptr;

    use bytemuck::Zeroable;

    use super::*;
    use crate::fixtures::{alone, nobody_begins};
    use crate::sharing::socket::send;
    use crate::sharing::token::Header;
    use crate::sharing::{Received, SharedToken};

    /// A lease, and what a process gets that it was sent to.
    fn lease() -> (Lent, [OwnedFd; 2]) {
        let (lent, [end, users]) = Lent::new().unwrap();
        let copy = |file: &CloseOnFork| file.here().unwrap().try_clone().unwrap();
        (lent, [copy(&end), copy(&users)])
    }

    /// What is left of a user that died.
    fn die(user: Borrowed) {
        let user = ManuallyDrop::new(user);
        // SAFETY: nobody has the end after this.
        drop(unsafe { ptr::read(&user.end) });
    }

    /// Has a child do this, whose end is waited for.
    fn in_child(act: impl FnOnce()) {
        // SAFETY: the child makes system calls, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            act();
            // SAFETY: it ends the child, and runs nothing of ours.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
    }

    #[test]
    fn a_lease_is_over_when_its_last_copy_is_closed() {
        let _still = nobody_begins();
        let (mut lent, [end, users]) = lease();
        let first = Borrowed::begin(end.try_clone().unwrap(), &users).unwrap();
        let second = Borrowed::begin(end, &users).unwrap();
        assert!(!lent.is_over(Instant::now()));
        drop(first);
        assert!(!lent.is_over(Instant::now()) && !second.owner_is_gone());
        drop(second);
        assert!(lent.is_over(Instant::now()));
    }

    #[test]
    fn one_that_died_is_waited_for_a_little_longer() {
        let _still = nobody_begins();
        let (mut lent, [end, users]) = lease();
        die(Borrowed::begin(end, &users).unwrap());
        assert!(!lent.is_over(Instant::now()));
        assert!(lent.is_over(Instant::now() + PATIENCE));
    }

    #[test]
    fn one_that_died_is_known_after_a_thousand_others() {
        let _still = nobody_begins();
        let (mut lent, [end, users]) = lease();
        let begin = || Borrowed::begin(end.try_clone().unwrap(), &users).unwrap();
        (0..1000).for_each(|_| drop(begin()));
        die(begin());
        drop(end);
        assert!(!lent.is_over(Instant::now()));
    }

    #[test]
    fn what_a_child_drops_does_not_end_its_parents_use() {
        alone("sharing::lease::tests::what_a_child_drops_does_not_end_its_parents_use", || {
            let (mut lent, [end, users]) = lease();
            let user = Borrowed::begin(end, &users).unwrap();
            // SAFETY: the child's copy is dropped there, and this process's below.
            let copy = unsafe { ptr::read(&user) };
            let copy = ManuallyDrop::new(copy);
            in_child(|| drop(ManuallyDrop::into_inner(copy)));
            die(user);
            assert!(!lent.is_over(Instant::now()));
        });
    }

    #[test]
    fn the_owners_end_is_seen() {
        let _still = nobody_begins();
        let (lent, [end, users]) = lease();
        let borrowed = Borrowed::begin(end, &users).unwrap();
        assert!(!borrowed.owner_is_gone());
        drop(lent);
        assert!(borrowed.owner_is_gone());
    }

    #[test]
    fn the_end_of_the_owners_process_is_seen_whoever_has_its_descriptors() {
        alone(
            "sharing::lease::tests::the_end_of_the_owners_process_is_seen_whoever_has_its_descriptors",
            || {
                let (from, to) = UnixStream::pair().unwrap();
                // Of three descriptors, since there is one page.
                let header = Header { magic: Header::MAGIC, element: 1, bytes: 1, ..Header::zeroed() };
                let token = SharedToken { header, pages: vec![[0, 1]] };
                in_child(|| {
                    let (lent, [end, users]) = Lent::new().unwrap();
                    let all = [&end, &users, &lent.end].map(|file| file.here().unwrap().as_fd());
                    send(&from, &token, &all).unwrap();
                });
                let received = Received::receive(&to).unwrap().into_descriptors();
                let [end, users, _the_owners] = received.try_into().unwrap();
                assert!(!is(&end, PollFlags::HUP) && peer_has_ended(&end));
                assert!(Borrowed::begin(end, &users).unwrap().owner_is_gone());
                let (_lent, [end, _]) = lease();
                assert!(!peer_has_ended(&end));
            },
        );
    }

    #[test]
    fn what_is_no_lease_is_refused() {
        let (_lent, [end, users]) = lease();
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(matches!(Borrowed::begin(file(), &users), Err(Error::BadToken { .. })));
        assert!(Borrowed::begin(end, &file()).is_err());
    }
}
