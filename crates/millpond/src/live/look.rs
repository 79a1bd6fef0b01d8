//! The other side: who asks the processes of a user for their figures.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use std::{fs, str};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
};

use super::answering::prefix;
use super::figures::{SeenPool, SeenSizes, is_unshown, read, read_pools, read_sizes, tamed};
use crate::peer::{own_users_process, send_all};

/// Bytes of an answer that are read: enough for a thousand pools, of which none takes 2 KiB.
const LONGEST_ANSWER: usize = 2 << 20;

/// The system's list of sockets.
const SOCKETS: &str = "/proc/net/unix";

/// Of a socket's flags there: it takes connections (`__SO_ACCEPTCON`, include/uapi/linux/net.h).
const ACCEPTS: &str = "00010000";

/// Why a process told nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookError {
    /// The list of the system's sockets cannot be read.
    #[error("{SOCKETS} cannot be read: {0}: mount /proc")]
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

/// A process of this user that has pools. The module [`live`](crate::live) has an example.
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
    socket: String,
}

impl SeenProcess {
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
        let until = Instant::now() + patience;
        let answer = match Asked::new(&self.socket, question) {
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

/// The processes of this user that have pools, by their number. Waits for their answers at most so long, for all together. Those
/// in another network namespace (a container of its own) are not found.
///
/// # Errors
/// [`LookError::NoList`] only.
pub fn processes(patience: Duration) -> Result<Vec<SeenProcess>, LookError> {
    let until = Instant::now() + patience;
    let sockets = sockets().map_err(LookError::NoList)?;
    // All are asked before the first answer is read.
    let asked: Vec<_> =
        sockets.into_iter().map(|(socket, node)| (Asked::new(&socket, "figures\n"), socket, node)).collect();
    let mut seen: Vec<_> = asked
        .into_iter()
        .filter_map(|(asked, socket, node)| {
            let (pid, answer) = match asked {
                Ok(asked) => (asked.pid, asked.answer(until)),
                // Too many wait for an answer, so that it cannot be asked whose it is.
                Err(Errno::AGAIN) => (number_in(&socket).filter(|pid| has_socket(*pid, node))?, None),
                // It ended meanwhile, or is another user's.
                Err(_) => return None,
            };
            let (program, answers) = (program(pid), answer.is_some());
            let pools = read_pools(&answer.unwrap_or_default());
            Some(SeenProcess { pid, program, answers, pools, socket })
        })
        .collect();
    seen.sort_by_key(|process| process.pid);
    Ok(seen)
}

/// The names and the numbers of all sockets that have the name of one of this user. Anybody may give a socket such a name.
fn sockets() -> io::Result<Vec<(String, u64)>> {
    // Other sockets' names may be any bytes.
    let list = String::from_utf8_lossy(&fs::read(SOCKETS)?).into_owned();
    let own = format!("@{}", prefix());
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (flags, node, name) = (words.nth(3)?, words.nth(2)?, words.next()?);
        let is_named_so = flags == ACCEPTS && name.starts_with(&own);
        is_named_so.then_some((name[1..].to_owned(), node.parse().ok()?))
    };
    Ok(list.lines().filter_map(of_line).collect())
}

/// The process's number, as the name of its socket has it.
fn number_in(socket: &str) -> Option<u32> {
    socket.strip_prefix(&prefix())?.split('-').next()?.parse().ok()
}

/// Whether the process has this socket. Only this user's can be looked at.
fn has_socket(pid: u32, node: u64) -> bool {
    let own = format!("socket:[{node}]");
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.any(|link| link.as_os_str() == own.as_str())
}

fn program(pid: u32) -> String {
    tamed(&fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default())
}

/// A question that was sent.
struct Asked {
    socket: UnixStream,
    pid: u32,
}

impl Asked {
    /// Does not wait. `EAGAIN` where the process is there, but takes no more questions.
    fn new(name: &str, question: &str) -> rustix::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::PERM);
        // In another PID namespace, it has the number that it has there.
        let pid = own_users_process(&socket).map_err(failed)?.or_else(|| number_in(name)).unwrap_or(0);
        send_all(&socket, question.as_bytes()).map_err(failed)?;
        Ok(Self { socket: socket.into(), pid })
    }

    /// All of the answer; `None` where it does not come in time, or is no text. What is there already, comes in time.
    fn answer(self, until: Instant) -> Option<String> {
        let mut answer = vec![0; LONGEST_ANSWER];
        let mut length = 0;
        loop {
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
