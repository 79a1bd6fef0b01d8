//! A socket to another process of this machine: who is at the other end, and what never ends the program.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::UnixCredentials;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::retry_on_intr;
use rustix::net::{SendFlags, send};

use crate::system::process::PerProcess;

/// Who made or opened the other end, by the system's word: numbers of a process and its user. The former is 0 for one in another
/// PID namespace.
pub(crate) fn credentials(socket: &impl AsFd) -> io::Result<UnixCredentials> {
    // Not rustix's: its type has no place for a process without a number.
    Ok(getsockopt(socket, PeerCredentials)?)
}

/// The number of the process at the other end, which must be of this user. `None` where this process cannot know the number.
pub(crate) fn own_users_process(socket: &impl AsFd) -> io::Result<Option<u32>> {
    let peer = credentials(socket)?;
    let own = rustix::process::geteuid().as_raw();
    fn read(path: &str) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }
    // The system's, read once: who looks at a thousand processes would spend much of its time there.
    static OVERFLOW_IS: PerProcess<String> = PerProcess::new(|| read(OVERFLOW));
    if peer.uid() != own || stands_for_many(own, OVERFLOW_IS.get(), || read(USERS)) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0))
}

/// What a user is called that a user namespace has no number for.
const OVERFLOW: &str = "/proc/sys/kernel/overflowuid";

/// The users that this process's user namespace has numbers for: their first number inside, outside, and how many.
const USERS: &str = "/proc/self/uid_map";

/// Whether a user's number may be that of any user: the one for all that the namespace does not know.
fn stands_for_many(user: u32, overflow: &str, users: impl FnOnce() -> String) -> bool {
    /// As systems have it that do not say.
    const USUAL: u32 = 65_534;
    let knows_all = |users: String| users.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    user == overflow.trim().parse().unwrap_or(USUAL) && !knows_all(users())
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
    fn a_user_without_a_number_is_not_told_from_others() {
        let all = "         0          0 4294967295\n";
        let one = "     65534       1000          1\n";
        let stands_for_many =
            |user, overflow, users: &str| stands_for_many(user, overflow, || users.to_owned());
        assert!(!stands_for_many(65534, "65534\n", all));
        assert!(stands_for_many(65534, "65534\n", one) && stands_for_many(65534, "", ""));
        assert!(!stands_for_many(1000, "65534\n", one));
    }

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(own_users_process(&one).unwrap(), Some(std::process::id()));
        assert!(own_users_process(&std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
