//! Leases: whether another process may still use memory that was shared.
//!
//! A pair of sockets. The owner keeps one end. All who may use the memory have copies of the other, and close them when they
//! are done. Each says when it begins to use the memory, and when it ends. So the owner knows whether one died in between:
//! kernels of a process that dies run on for an instant.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use crate::device::{DeviceResult, system};
use crate::{Error, Result};

/// How long kernels of a process may run on after it died.
const AFTER_DEATH: Duration = Duration::from_millis(200);

const BEGINS: u8 = b'+';
const ENDS: u8 = b'-';

/// The owner's end.
#[derive(Debug)]
pub(crate) struct Lent {
    end: OwnedFd,
    /// Those that began to use the memory, less those that said that they ended.
    users: i64,
    /// When the last copy of the other end was found closed.
    ended: Option<Instant>,
}

impl Lent {
    /// A lease, and the end for others.
    pub(crate) fn new() -> DeviceResult<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (end, other) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(system("socketpair"))?;
        Ok((Self { end, users: 0, ended: None }, other))
    }

    /// Whether nobody can use the memory any more, `now`.
    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        if self.ended.is_none() && has_hung_up(&self.end) {
            self.ended = Some(now);
        }
        // Each time, so that there is room for more.
        self.count_users();
        let Some(ended) = self.ended else { return false };
        self.users == 0 || now.saturating_duration_since(ended) >= AFTER_DEATH
    }

    fn count_users(&mut self) {
        let mut said = [0_u8; 256];
        while let Ok((_, count @ 1..)) = recv(&self.end, &mut said, RecvFlags::DONTWAIT) {
            let count = |of| said[..count].iter().filter(|byte| **byte == of).count() as i64;
            self.users += count(BEGINS) - count(ENDS);
        }
    }
}

/// A copy of the other end, of one who uses the memory.
#[derive(Debug)]
pub(crate) struct Borrowed(OwnedFd);

impl Borrowed {
    /// Takes an end that another process sent.
    pub(crate) fn begin(end: OwnedFd) -> Result<Self> {
        let kind = rustix::fs::fstat(&end).map(|found| FileType::from_raw_mode(found.st_mode));
        if kind != Ok(FileType::Socket) {
            let why =
                "its first descriptor is no lease: pass the descriptors in the order of Shared::descriptors";
            return Err(Error::BadToken { why: why.to_owned() });
        }
        tell(&end, BEGINS);
        Ok(Self(end))
    }

    /// Whether the owner's process is gone.
    pub(crate) fn owner_is_gone(&self) -> bool {
        has_hung_up(&self.0)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        tell(&self.0, ENDS);
    }
}

/// Says something to the owner, if there is room and the owner lives: who is not heard is waited for a little longer.
fn tell(end: &OwnedFd, what: u8) {
    let _ = send(end, &[what], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Whether the other side of a pair is closed.
fn has_hung_up(end: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(end, PollFlags::empty())];
    loop {
        match poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Err(Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return asked[0].revents().contains(PollFlags::HUP),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_over_when_its_last_copy_is_closed() {
        let (mut lent, end) = Lent::new().unwrap();
        let first = Borrowed::begin(end.try_clone().unwrap()).unwrap();
        let second = Borrowed::begin(end).unwrap();
        assert!(!lent.is_over(Instant::now()));
        drop(first);
        assert!(!lent.is_over(Instant::now()) && !second.owner_is_gone());
        drop(second);
        assert!(lent.is_over(Instant::now()));
    }

    #[test]
    fn one_that_died_is_waited_for_a_little_longer() {
        let (mut lent, end) = Lent::new().unwrap();
        tell(&end, BEGINS);
        drop(end);
        assert!(!lent.is_over(Instant::now()));
        assert!(lent.is_over(Instant::now() + AFTER_DEATH));
    }

    #[test]
    fn the_owners_end_is_seen() {
        let (lent, end) = Lent::new().unwrap();
        let borrowed = Borrowed::begin(end).unwrap();
        drop(lent);
        assert!(borrowed.owner_is_gone());
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(matches!(Borrowed::begin(file), Err(Error::BadToken { .. })));
    }
}
