//! What the pools of running programs hold and do: the figures that `millpond top` and `millpond metrics` show.
//!
//! Every process with a pool answers questions of its own user, and root's. [`processes`] asks them all.
//!
//! ```
//! use std::time::Duration;
//!
//! use millpond::{Context, HumanBytes, Pool, live};
//!
//! let device = Context::host()?;
//! let pool = Pool::builder(&device).name("weights").build()?;
//! // As any other process of this user would:
//! let all = live::processes(Duration::from_secs(10))?;
//! let own = all.iter().find(|process| process.pid == std::process::id()).expect("this process has a pool");
//! for pool in &own.pools {
//!     println!("{}: {}", pool.name, HumanBytes(pool.stats.reserved.current));
//! }
//! # assert!(own.pools.iter().any(|pool| pool.name == "weights"));
//! // Those that ran out of memory in the last day, also when they have ended:
//! for process in live::errors() {
//!     println!("{} {}: {} errors, the last: {}", process.pid, process.who.script, process.errors, process.last);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`PoolBuilder::live`](crate::PoolBuilder::live) hides a pool, and `MILLPOND_LIVE=off` in the environment all pools of a
//! process.

// Uses `core/` and what is below it. `pool/` calls it once for each pool that is built.
//
// **How one question passes through.** The first pool of a process opens a `LiveSocket` (`answering`): a Unix socket in the
// abstract namespace, and a thread that sleeps in `accept`. Nothing is written anywhere until somebody asks. A reader finds the
// names of all such sockets in `/proc/net/unix` (`look`). It connects and sends one line. The thread answers in JSON
// (`figures`), and closes. `Pool::stats` waits for no lock, so that a look at the figures never stops the program. Only to count
// live blocks and to trim takes the pool's lock. The socket closes with the process's last pool.
//
// **Why a socket.** The alternatives were a page of figures in shared memory, filled in when a reader asks, and the same page
// written on slow paths. Both need a file for each process, its removal after a crash, its place where `/dev/shm` is full, a
// sequence lock, and `unsafe` code. The latter is also out of date in a program that hits always. A socket costs an unwatched
// process the same: one sleeping thread. The kernel removes its name with the process, whatever ends it. And it can be asked for
// more than fits a page, or to trim.
//
// **Errors** stay when a process has ended: it writes them into a file (`errors`).
//
// **Root** sees all users' processes, in all network namespaces. A thread enters the namespace, and takes the process's user on,
// before it connects (`look`). So the other side needs no rule for root, who has another number in a user namespace.
//
// **Who may ask.** The kernel says which user is at the other end (`SO_PEERCRED`), to both sides. Another user's question is not
// answered, and another user's answer is not read. A process's own answer may still be wrong: what is read is bounded in bytes,
// figures and time, and has no control characters.
//
// **Forks.** A forked child closes its copy of the socket, and has none until it builds a pool of its own.

mod answering;
mod error_folder;
mod errors;
pub(crate) mod figures;
mod look;
mod side_by_side;
mod who;

pub use answering::hide_all;
pub(crate) use answering::{LiveSocket, are_hidden, open};
pub(crate) use errors::watch as watch_errors;
pub use errors::{SeenErrors, errors};
pub use figures::{SeenHolder, SeenPool, SeenSizes, SizeRow};
pub use look::{LookError, SeenProcess, SeenProcesses, look, processes};
pub use who::Who;
