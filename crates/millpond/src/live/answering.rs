//! Where a process answers questions about its pools: a socket, and a thread that sleeps until somebody connects.

use nix::sys::signal::SigSet;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use std::collections::BTreeMap;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, ThreadId};

use super::figures::{LONGEST_NAME, SeenPool, SeenSizes};
use super::who::own_id;
use crate::core::{Core, HasCore, giving_back};
use crate::log::log;
use crate::policy::other_processes::PATIENCE;
use crate::system::close_on_fork::CloseOnFork;
use crate::system::lock::Mutex;
use crate::system::process::{OfProcess, WhileHeld};
use crate::system::socket_peer::{own_users_process, send_all};

/// The variable that hides all pools of a process.
const VARIABLE: &str = "MILLPOND_LIVE";

/// Whether no pool is shown any more.
static HIDDEN: AtomicBool = AtomicBool::new(false);

/// Hides the pools that this process builds from now on. For programs whose pools are not the user's own, as those of
/// `millpond replay`.
///
/// ```
/// millpond::live::hide_all();
/// ```
pub fn hide_all() {
    // Relaxed: a setting; nothing is concluded from when it is seen.
    HIDDEN.store(true, Ordering::Relaxed);
}

/// Whether pools that are built now are [hidden](hide_all).
pub(crate) fn are_hidden() -> bool {
    // Relaxed: as in `hide_all`.
    HIDDEN.load(Ordering::Relaxed)
}

/// What the names of a user's sockets begin with. No two sockets have one name.
pub(super) fn prefix() -> String {
    format!("millpond/{}/", rustix::process::geteuid().as_raw())
}

/// See the [module](self). Each pool that is shown has it; it closes with the last one.
#[derive(Debug)]
pub(crate) struct LiveSocket {
    inside: Arc<Inside>,
    thread: Option<JoinHandle<()>>,
}

/// Pools by their numbers, which is in the order in which they were built.
type Shown = BTreeMap<u64, Weak<dyn HasCore>>;

/// What the thread has, too.
#[derive(Debug)]
struct Inside {
    listener: CloseOnFork<UnixListener>,
    pools: OfProcess<Mutex<Shown>>,
}

/// The process's socket, for a pool that will be [shown](LiveSocket::show) there. `None` where pools are hidden, or the system refuses; the
/// pool is the same without.
pub(crate) fn open() -> Option<Arc<LiveSocket>> {
    static SOCKET: WhileHeld<(), LiveSocket> = WhileHeld::new();
    if cfg!(miri) || are_hidden() || std::env::var_os(VARIABLE).is_some_and(|is| is == "off") {
        return None;
    }
    let refused = |error: &io::Error| log!(WARN, "`millpond top` will not see this process's pools", error);
    SOCKET.get((), || LiveSocket::new().map(Arc::new)).inspect_err(refused).ok()
}

impl LiveSocket {
    /// Shows a pool to those who ask.
    pub(crate) fn show(&self, number: u64, pool: Weak<dyn HasCore>) {
        let mut pools = self.inside.pools.lock();
        pools.retain(|_, pool| pool.strong_count() > 0);
        pools.insert(number, pool);
    }

    /// Shows a pool no more that nobody uses now, and waits for an answer that has it. So the pool ends in the thread that drops it.
    pub(crate) fn hide(&self, core: &Core) {
        // An answer may drop a pool itself: a trim calls functions of the program.
        if !self.is_thread(std::thread::current().id()) {
            self.inside.pools.lock().remove(&core.number);
        }
    }

    fn new() -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let make = || {
            // Relaxed: only uniqueness matters.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}{}-{number}", prefix(), own_id());
            io::Result::Ok([UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?])
        };
        let [listener] = CloseOnFork::open(make)?;
        let inside = Arc::new(Inside { listener, pools: OfProcess::default() });
        let of_thread = inside.clone();
        let builder = std::thread::Builder::new().name("millpond-live".to_owned());
        let thread = builder.spawn(move || of_thread.answer_all())?;
        Ok(Self { inside, thread: Some(thread) })
    }

    fn is_thread(&self, thread: ThreadId) -> bool {
        self.thread.as_ref().is_some_and(|own| own.thread().id() == thread)
    }
}

impl Drop for LiveSocket {
    fn drop(&mut self) {
        let Some(socket) = self.inside.listener.here() else {
            // The thread is the parent's. Its handle would detach one that may be another's by now.
            std::mem::forget(self.thread.take());
            return;
        };
        // The last pool may end on the thread itself, where an answer had it. So that a program which ends its pools has no
        // thread of ours left, it is waited for: an answer takes some microseconds, unless its reader stops.
        if shutdown(socket, Shutdown::Both).is_ok()
            && !self.is_thread(std::thread::current().id())
            && let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log!(ERROR, "the thread that answers `millpond top` panicked");
        }
    }
}

impl Inside {
    fn answer_all(&self) {
        // Signals of the program go to its own threads: one that waits for a signal must not find it taken by this one.
        SigSet::all().thread_block().ok();
        let Some(listener) = self.listener.here() else { return };
        loop {
            match listener.accept() {
                Ok((socket, _)) => {
                    if let Err(error) = self.answer(&socket) {
                        log!(DEBUG, "a question about this process's pools was not answered", error);
                    }
                }
                // It was shut down.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                // Too many open files, say.
                Err(_) => std::thread::sleep(PATIENCE),
            }
        }
    }

    fn answer(&self, socket: &UnixStream) -> io::Result<()> {
        own_users_process(socket)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut question = [0; LONGEST_NAME];
        // It comes in one piece: it was sent so.
        let (length, _) = recv(socket, &mut question[..], RecvFlags::empty())?;
        let question = str::from_utf8(&question[..length]).unwrap_or_default();
        let answer = self.answer_to(question.trim_end()).unwrap_or_else(|why| format!("error {why}\n"));
        send_all(socket, answer.as_bytes())
    }

    fn answer_to(&self, question: &str) -> Result<String, String> {
        let mut words = question.split(' ');
        let word = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        // As long as an answer has a pool: see `LiveSocket::hide`.
        let shown = self.pools.lock();
        // Those of this process's own memory.
        let pools: Vec<_> = shown.values().filter_map(Weak::upgrade).collect();
        let with = |number| pools.iter().find(|pool| pool.number == number).ok_or("the pool is gone");
        let answer = match (word, &numbers[..]) {
            ("figures", _) => {
                serde_json::to_string(&pools.iter().map(|pool| SeenPool::of(pool)).collect::<Vec<_>>())
            }
            ("sizes", [number]) => serde_json::to_string(&SeenSizes::of(with(*number)?)),
            ("trim", [number, keep]) => {
                let bytes = giving_back::trim(with(*number)?, *keep).map_err(|error| error.to_string())?;
                serde_json::to_string(&bytes)
            }
            _ => return Err("this program's millpond is of another version: use the same in both".to_owned()),
        };
        answer.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::pool::{Context, Pool};

    #[test]
    fn a_pool_that_is_being_asked_ends_in_the_thread_that_drops_it() {
        let context = Context::host().unwrap();
        let pool = Pool::builder(&context).name("asked").build().unwrap();
        let socket = open().unwrap();
        let shown = socket.inside.pools.lock();
        let asked = shown.values().filter_map(Weak::upgrade).find(|pool| pool.name == "asked").unwrap();
        let weak = Arc::downgrade(&asked);
        let (dropped, is_dropped) = channel();
        let dropping = std::thread::spawn(move || {
            drop(pool);
            dropped.send(weak.strong_count()).unwrap();
        });
        assert!(is_dropped.recv_timeout(PATIENCE).is_err());
        drop(asked);
        drop(shown);
        assert_eq!(is_dropped.recv(), Ok(0));
        dropping.join().unwrap();
    }
}
