//! The other side: who asks the processes of a user for their figures.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Uid;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_thread_res_uid};

use super::answering::prefix;
use super::figures::{SeenPool, SeenSizes, is_unshown, read, read_pools, read_sizes, tamed};
use super::side_by_side;
use super::who::{Who, file_of};
use crate::system::socket_peer::{credentials, own_users_process, send_all};

/// Bytes of an answer that are read: enough for a thousand pools, of which none takes 2 KiB.
const LONGEST_ANSWER: usize = 2 << 20;

/// The list of sockets of a process's network namespace.
const SOCKETS: &str = "net/unix";

/// Of a socket's flags there: it takes connections (`__SO_ACCEPTCON`, include/uapi/linux/net.h).
const ACCEPTS: &str = "00010000";

/// Why a process told nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookError {
    /// The list of the system's sockets cannot be read.
    #[error("/proc/{SOCKETS} cannot be read: {0}: mount /proc")]
    NoList(#[source] io::Error),
    /// The process has ended, or its last pool has.
    #[error("the process is gone")]
    Gone,
    /// It does not answer in time.
    #[error("the process does not answer: it may be stopped, or very busy")]
    Silent,
    /// It could not do what it was asked to.
    #[error("the process says: {0}")]
    Refused(String),
}

/// A process that has pools. The module [`live`](crate::live) has an example.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SeenProcess {
    /// The process. One in another PID namespace has the number that it has there.
    pub pid: u32,
    /// The name of its program, as the system has it; empty where it cannot be told.
    pub program: String,
    /// Whether it answered. If not, it may be stopped, and nothing is known of its pools.
    pub answers: bool,
    /// Its pools, in the order in which they were built.
    pub pools: Vec<SeenPool>,
    /// Whose it is.
    pub who: Who,
    socket: String,
    from: Standpoint,
}

/// All processes that were seen. The module [`live`](crate::live) has an example.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SeenProcesses {
    /// By their number.
    pub all: Vec<SeenProcess>,
    /// How many processes with pools this user may not look at: those of other users in this network namespace, and for root
    /// those in namespaces that it may not enter. Of others, this user cannot know.
    pub hidden: usize,
}

/// Standpoint where a process can be asked: the network namespace of a process, and a user. The default is where this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Standpoint {
    space_of: Option<u32>,
    user: Option<u32>,
}

impl Standpoint {
    /// Does this from there, in a thread of its own.
    fn ask<T: Send>(self, ask: impl FnOnce() -> T + Send) -> rustix::io::Result<T> {
        if self == Self::default() {
            return Ok(ask());
        }
        let inside = || {
            if let Some(pid) = self.space_of {
                let space = File::open(format!("/proc/{pid}/ns/net"));
                let space = space.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::PERM))?;
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
            }
            // Of this thread only, which ends with it.
            let user = self.user.map(Uid::from_raw);
            set_thread_res_uid(None, user, None)?;
            Ok(ask())
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, inside);
            thread.map_err(|_| Errno::AGAIN)?.join().unwrap_or(Err(Errno::IO))
        })
    }
}

impl SeenProcess {
    /// What names the process among all of this machine, also when it has ended.
    #[must_use]
    pub fn id(&self) -> String {
        let name = self.socket.rsplit('/').next().unwrap_or_default();
        tamed(name.rsplit_once('-').map_or(name, |(id, _)| id))
    }

    /// What the live blocks of its pool with this number are. The pool's lock is held while they are counted.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use millpond::{Buffer, Context, HumanBytes, Pool, live};
    ///
    /// let device = Context::host()?;
    /// let (pool, stream) = (Pool::builder(&device).name("inside").build()?, device.create_stream()?);
    /// let block = Buffer::<u8>::new(&pool, 5000, &stream)?;
    /// let patience = Duration::from_secs(10);
    /// let all = live::processes(patience)?;
    /// let own = all.iter().find(|process| process.pid == std::process::id()).expect("this process has a pool");
    /// let seen = own.pools.iter().find(|pool| pool.name == "inside").expect("it is shown");
    /// for row in own.sizes(seen.number, patience)?.rows {
    ///     println!("{} blocks of {} or more", row.blocks, HumanBytes(row.from)); // 1 blocks of 4.00 KiB or more
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`LookError`].
    pub fn sizes(&self, pool: u64, patience: Duration) -> Result<SeenSizes, LookError> {
        Ok(read_sizes(&self.ask(&format!("sizes {pool}\n"), patience)?))
    }

    /// Has a thread of the process call [`Pool::trim_to`](crate::Pool::trim_to) for its pool with this number. Returns the bytes
    /// that were given back.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use millpond::{Context, Pool, live};
    ///
    /// let device = Context::host()?;
    /// let (pool, stream) = (Pool::builder(&device).name("cache").build()?, device.create_stream()?);
    /// pool.reserve(64 << 20, &stream)?;
    /// let patience = Duration::from_secs(10);
    /// let all = live::processes(patience)?;
    /// let own = all.iter().find(|process| process.pid == std::process::id()).expect("this process has a pool");
    /// let seen = own.pools.iter().find(|pool| pool.name == "cache").expect("it is shown");
    /// assert!(own.trim(seen.number, 0, patience)? >= 64 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`LookError`].
    pub fn trim(&self, pool: u64, bytes_to_keep: u64, patience: Duration) -> Result<u64, LookError> {
        let answer = self.ask(&format!("trim {pool} {bytes_to_keep}\n"), patience)?;
        read::<Option<u64>>(&answer).ok_or(LookError::Silent)
    }

    fn ask(&self, question: &str, patience: Duration) -> Result<String, LookError> {
        let until = until(patience);
        let answer = match self.from.ask(|| Asked::new(&self.socket, question)).flatten() {
            Ok(asked) => asked.answer(until).ok_or(LookError::Silent)?,
            Err(Errno::AGAIN) => return Err(LookError::Silent),
            Err(_) => return Err(LookError::Gone),
        };
        match answer.strip_prefix("error ") {
            Some(what) => {
                let what = what.trim_end().chars().filter(|c| !is_unshown(*c)).take(400);
                Err(LookError::Refused(what.collect()))
            }
            None => Ok(answer),
        }
    }
}

/// When patience ends. Nobody waits longer than a year.
fn until(patience: Duration) -> Instant {
    Instant::now() + patience.min(Duration::from_secs(365 * 24 * 60 * 60))
}

/// The processes of this user that have pools, by their number; for root those of all users, in all network namespaces. Waits for
/// their answers at most so long, for all together.
///
/// # Errors
/// [`LookError::NoList`] only.
pub fn processes(patience: Duration) -> Result<Vec<SeenProcess>, LookError> {
    Ok(look(patience)?.all)
}

/// As [`processes`], with how many this user may not look at.
///
/// # Errors
/// As for [`processes`].
pub fn look(patience: Duration) -> Result<SeenProcesses, LookError> {
    let until = until(patience);
    let is_root = rustix::process::geteuid().is_root();
    let (own, others): (Vec<_>, Vec<_>) =
        sockets("self").map_err(LookError::NoList)?.into_iter().partition(Socket::is_named_as_own);
    let mut hidden = 0;
    // All are asked before the first answer is read.
    let mut asked = ask_own(own, Standpoint::default());
    if is_root {
        let mut spaces = vec![(Standpoint::default(), others)];
        spaces.extend(other_spaces().into_iter().map(|pid| {
            let from = Standpoint { space_of: Some(pid), user: None };
            (from, sockets(&pid.to_string()).unwrap_or_default())
        }));
        for (from, sockets) in spaces {
            let (more, refused) = ask_as_root(sockets, from);
            asked.extend(more);
            hidden += refused;
        }
    } else {
        hidden += others.len();
    }
    let mut all = side_by_side::each(asked, |asked| asked.seen(until));
    all.sort_by(|one, other| (one.pid, &one.socket).cmp(&(other.pid, &other.socket)));
    Ok(SeenProcesses { all, hidden })
}

/// A socket with the name of one of ours. Anybody may give a socket such a name.
#[derive(Debug)]
struct Socket {
    name: String,
    node: u64,
}

impl Socket {
    fn is_named_as_own(&self) -> bool {
        self.name.starts_with(&prefix())
    }
}

/// The sockets in the network namespace of a process.
fn sockets(process: &str) -> io::Result<Vec<Socket>> {
    // Other sockets' names may be any bytes.
    let list = String::from_utf8_lossy(&fs::read(format!("/proc/{process}/{SOCKETS}"))?).into_owned();
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (flags, node, name) = (words.nth(3)?, words.nth(2)?, words.next()?);
        let mut parts = name.strip_prefix("@millpond/")?.split('/');
        let is_of_a_user = parts.next()?.bytes().all(|byte| byte.is_ascii_digit()) && parts.next().is_some();
        (flags == ACCEPTS && is_of_a_user).then_some(())?;
        Some(Socket { name: name[1..].to_owned(), node: node.parse().ok()? })
    };
    Ok(list.lines().filter_map(of_line).collect())
}

/// A process in each network namespace but this one.
fn other_spaces() -> Vec<u32> {
    let space = |process: &str| Some(fs::metadata(format!("/proc/{process}/ns/net")).ok()?.ino());
    let own = space("self");
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_each: BTreeMap<u64, u32> =
        numbers.filter_map(|pid| Some((space(&pid.to_string())?, pid))).collect();
    of_each.into_iter().filter(|(space, _)| Some(*space) != own).map(|(_, pid)| pid).collect()
}

fn ask_own(sockets: Vec<Socket>, from: Standpoint) -> Vec<Question> {
    let ask = |socket: Socket| Question { asked: Asked::new(&socket.name, "figures\n"), socket, from };
    sockets.into_iter().map(ask).collect()
}

/// Asks as the user whose process has the socket. With the number of those that could not be asked so.
fn ask_as_root(sockets: Vec<Socket>, from: Standpoint) -> (Vec<Question>, usize) {
    if sockets.is_empty() {
        return (Vec::new(), 0);
    }
    let count = sockets.len();
    let whose = |socket: &Socket| user_of(&socket.name).ok();
    let Ok(users) = from.ask(|| sockets.iter().map(whose).collect::<Vec<_>>()) else {
        return (Vec::new(), count);
    };
    let mut by_user: BTreeMap<u32, Vec<Socket>> = BTreeMap::new();
    for (socket, user) in sockets.into_iter().zip(users) {
        // Without a user it has ended meanwhile.
        if let Some(user) = user {
            by_user.entry(user).or_default().push(socket);
        }
    }
    let (mut asked, mut refused) = (Vec::new(), 0);
    for (user, sockets) in by_user {
        let (from, count) = (Standpoint { user: Some(user), ..from }, sockets.len());
        match from.ask(|| ask_own(sockets, from)) {
            Ok(more) => asked.extend(more),
            Err(_) => refused += count,
        }
    }
    (asked, refused)
}

/// Whose process listens at the socket.
fn user_of(name: &str) -> rustix::io::Result<u32> {
    let socket = connected(name)?;
    Ok(credentials(&socket).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::PERM))?.uid())
}

/// A process that was asked for its figures, or why it was not.
struct Question {
    asked: rustix::io::Result<Asked>,
    socket: Socket,
    from: Standpoint,
}

impl Question {
    fn seen(self, until: Instant) -> Option<SeenProcess> {
        let Self { asked, socket, from } = self;
        let (pid, answer) = match asked {
            Ok(asked) => (asked.pid, asked.answer(until)),
            // Too many wait for an answer, so that it cannot be asked whose it is.
            Err(Errno::AGAIN) => (number_in(&socket.name).filter(|pid| has_socket(*pid, socket.node))?, None),
            // It ended meanwhile, or is another user's.
            Err(_) => return None,
        };
        let (program, answers) = (program(pid), answer.is_some());
        let (pools, who) = (read_pools(&answer.unwrap_or_default()), Who::of(&pid.to_string()));
        Some(SeenProcess { pid, program, answers, pools, who, socket: socket.name, from })
    }
}

/// The process's number, as the name of its socket has it.
fn number_in(socket: &str) -> Option<u32> {
    socket.rsplit('/').next()?.split('-').next()?.parse().ok()
}

/// Whether the process has this socket. Only this user's can be looked at.
fn has_socket(pid: u32, node: u64) -> bool {
    let own = format!("socket:[{node}]");
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.any(|link| link.as_os_str() == own.as_str())
}

fn program(pid: u32) -> String {
    tamed(&file_of(&pid.to_string(), "comm"))
}

/// Does not wait.
fn connected(name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// A question that was sent.
struct Asked {
    socket: UnixStream,
    pid: u32,
}

impl Asked {
    /// Does not wait. `EAGAIN` where the process is there, but takes no more questions.
    fn new(name: &str, question: &str) -> rustix::io::Result<Self> {
        let socket = connected(name)?;
        let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::PERM);
        // In another PID namespace, it has the number that it has there.
        let pid = own_users_process(&socket).map_err(failed)?.or_else(|| number_in(name)).unwrap_or(0);
        send_all(&socket, question.as_bytes()).map_err(failed)?;
        Ok(Self { socket: socket.into(), pid })
    }

    /// All of the answer; `None` where it does not come in time, or is no text. What is there already, comes in time.
    fn answer(self, until: Instant) -> Option<String> {
        /// Nearly all answers are shorter.
        const AT_FIRST: usize = 16 << 10;
        let mut answer = vec![0; AT_FIRST];
        let mut length = 0;
        loop {
            if length == answer.len() {
                answer.resize((8 * length).min(LONGEST_ANSWER), 0);
            }
            let left = until.saturating_duration_since(Instant::now());
            match retry_on_intr(|| recv(&self.socket, &mut answer[length..], RecvFlags::empty())) {
                // Also of one that is too long.
                Ok((_, 0)) => break,
                Ok((_, more)) => length += more,
                Err(Errno::AGAIN) if !left.is_zero() => {
                    let left = left.try_into().ok()?;
                    poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)).ok();
                }
                Err(_) => return None,
            }
        }
        answer.truncate(length);
        String::from_utf8(answer).ok().filter(|answer| !answer.is_empty() && length < LONGEST_ANSWER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_patience_ends_too() {
        assert!(until(Duration::MAX) > Instant::now());
    }
}
