//! A socket to another process of this machine: who is at the other end, and what never ends the program.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::UnixCredentials;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::retry_on_intr;
use rustix::net::{SendFlags, send};

/// Who made or opened the other end, by the system's word: numbers of a process and its user. The former is 0 for one in another
/// PID namespace.
pub(crate) fn credentials(socket: &impl AsFd) -> io::Result<UnixCredentials> {
    // Not rustix's: its type has no place for a process without a number.
    Ok(getsockopt(socket, PeerCredentials)?)
}

/// The number of the process at the other end, which must be of this user. `None` where this process cannot know the number.
pub(crate) fn own_users_process(socket: &impl AsFd) -> io::Result<Option<u32>> {
    let peer = credentials(socket)?;
    if peer.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0))
}

/// Without a signal where the other end is closed.
pub(crate) fn send_all(socket: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = retry_on_intr(|| send(&socket, bytes, SendFlags::NOSIGNAL))?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(own_users_process(&one).unwrap(), Some(std::process::id()));
        assert!(own_users_process(&std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
