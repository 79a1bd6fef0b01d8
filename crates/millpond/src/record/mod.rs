//! What pools do, written to a file while they do it. `millpond replay` reads it.
//!
//! A recording has every allocation and free with its time, stream and thread. [`tag`] files what a thread does under a
//! name. The environment variable `MILLPOND_RECORD=run.mprec` records every pool of a process.
//!
//! ```
//! use millpond::{Context, Pool, record};
//!
//! # let folder = tempfile::tempdir().expect("a folder");
//! # let path = folder.path().join("run.mprec");
//! let device = Context::host()?;
//! let pool = Pool::builder(&device).build()?;
//! pool.start_recording(path.as_path())?; // "run.mprec"
//! {
//!     let _forward = record::tag("forward");
//!     // … work that allocates …
//! }
//! let status = pool.stop_recording()?.expect("it was recording");
//! println!("{} events in {}", status.events, status.path.display());
//! # Ok::<(), millpond::Error>(())
//! ```
//!
//! [`Tracking`] says who holds memory at present: by call stack, tag and age ([`Pool::live_blocks`](crate::Pool::live_blocks)).
//!
//! Nothing is lost while the disk keeps up. A process that is killed loses its last 50 milliseconds or so. The file can be
//! read up to its last whole chunk ([`Chunks`]). A forked child writes nothing to its parent's file.

// docs/recording.md is the page for users. Uses `device/` and `order/` for their words only, and `nvtx/`. The pool calls it,
// in one line at each place.
//
// **How one event passes through.** While recording is off, the fast path does not test for it. Slow paths pay one
// relaxed load and a branch (`Recording::is_on`). While it is on, the event is stamped and put into a ring of the
// calling thread (`thread`, `note`), without a lock. The `recorder`'s own thread empties all rings twenty times a
// second, and when one is a quarter full. A thread that finds its ring full empties them itself, unless another thread
// is at it. The `collector` turns events into records and chunks (`encoder`, `format`), which the writer appends to the
// file (`file`; `names` has what it is called). Call sites (`labels`) are addresses until then (`stacks`), and the writer looks up their lines
// (`frames`); or lines that a binding gave (`called_from`).
//
// **Order.** The file has each thread's events in the thread's order, and the threads one after another; a reader sorts
// by time. An allocation's time is taken after the pool has the block. A free's time is taken before anyone else can
// have it. So of two lives of one address, the earlier's free has the earlier time. The clock (`clock`) does not go
// back between processors.
//
// **Tools.** What a pool does is also told to a tool that watches the process (`watched`, `nvtx/`). Where that tool checks
// each block, the fast path is closed, as for a recording.
//
// **Rotating.** Where it is asked for, `parts` keeps what is live and held. The next file begins with that, in the queue of
// chunks, so that a disk that is full meanwhile changes nothing of the order.
//
// **What is lost.** A write that fails is tried again; when more than 64 MiB wait, events are dropped, and the file says how
// many.

pub(crate) mod called_from;
mod caller;
mod chunks;
mod clock;
mod collector;
mod encoder;
pub(crate) mod file;
pub mod format;
mod frames;
mod labels;
pub(crate) mod names;
mod note;
mod options;
mod parts;
mod recorder;
mod recording;
mod stacks;
mod thread;
mod tracking;
mod watched;

pub(crate) use called_from::WantedOfFrees;
pub(crate) use caller::Caller;
pub use chunks::{ChunkError, Chunks, records};
pub(crate) use clock::Moment;
pub use labels::{Tagged, tag};
pub(crate) use options::environment;
pub use options::{Options, ignore_environment};
pub use recorder::Status;
pub(crate) use recording::{Introduction, Recording};
pub use tracking::{Holder, LiveBlock, StackFrame, Tracked, Tracking, holders};
