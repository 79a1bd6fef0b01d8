//! What can go wrong with a pool, said so that the reader knows what to do next.

use crate::device::{DeviceError, DevicePtr};
use crate::figures::stats::HumanBytes;
use crate::out_of_memory::OutOfMemory;

/// Why a request to a pool, a buffer or a budget was refused. Nothing changed then, unless the variant says
/// otherwise. The text says what happened, the figures, and what to do next.
///
/// ```
/// use millpond::{Context, Error, Pool};
///
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).hard_limit(64 << 20).build()?;
/// let stream = device.create_stream()?;
/// match pool.alloc(1 << 30, &stream) {
///     Err(Error::OutOfMemory(report)) => assert_eq!(report.advice(), "raise hard_limit, or request less"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Error>(())
/// ```
///
/// A program whose `main` returns it prints the text, since `{:?}` writes what `{}` does:
/// ```
/// # let error = millpond::Error::Asleep { pool: "weights".to_owned() };
/// assert_eq!(format!("Error: {error:?}"), "Error: pool 'weights' sleeps: wake it first");
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no memory for the request, after everything that could be given back was given back.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The host refused memory or addresses for the pool's own records. The limit is this process's, not the device's.
    /// The page `docs/out-of-memory.md` says which calls may end the process instead.
    #[error("pool '{pool}': {}", DeviceError::HostMemory { what, bytes: *.bytes })]
    HostMemory {
        /// What it is needed for, or the call that failed.
        what: &'static str,
        /// Bytes that were asked of the host.
        bytes: u64,
        /// The pool's name.
        pool: String,
    },
    /// The size is more than any device can address, or overflows when it is rounded up.
    #[error("{bytes} bytes are more than an address can hold: check how the size is computed")]
    SizeOverflow {
        /// Bytes asked for, saturated.
        bytes: u64,
        /// Elements asked for, or 1.
        count: u64,
    },
    /// The alignment is no power of two, or larger than a page.
    #[error("the alignment is {align} bytes: use a power of two, at most {}", HumanBytes(*.largest))]
    BadAlignment {
        /// The alignment asked for.
        align: u64,
        /// The largest that the pool can give.
        largest: u64,
    },
    /// The pointer is of this pool, but its block was freed already.
    #[error("{ptr} was freed already: pool '{pool}' has no live block there")]
    DoubleFree {
        /// The pointer.
        ptr: DevicePtr,
        /// The pool's name.
        pool: String,
    },
    /// The pointer lies inside a live block. Free takes the pointer that `alloc` returned.
    #[error(
        "{ptr} lies {offset} bytes inside a block of pool '{pool}' that starts at {start}; pass the pointer that alloc returned"
    )]
    InteriorPointer {
        /// The pointer.
        ptr: DevicePtr,
        /// The start of the block it lies in.
        start: DevicePtr,
        /// How far inside it lies, in bytes.
        offset: u64,
        /// The pool's name.
        pool: String,
    },
    /// The pointer belongs to another pool of the same device.
    #[error("{ptr} belongs to pool '{owner}', not to pool '{pool}'; free it there, or with Context::free")]
    WrongPool {
        /// The pointer.
        ptr: DevicePtr,
        /// The pool that was asked.
        pool: String,
        /// The pool that the pointer belongs to.
        owner: String,
    },
    /// The pointer belongs to no pool of the device.
    #[error("{ptr} was not allocated by {}: pass an address that alloc returned", pools(.pool))]
    ForeignPointer {
        /// The pointer.
        ptr: DevicePtr,
        /// The pool that was asked; empty if all of a context were.
        pool: String,
    },
    /// The stream, event or buffer belongs to another device than the pool, or to another context of the same device.
    #[error(
        "the {what} belongs to another device than pool '{pool}', or to another context of the same device: use one of \
         Pool::context"
    )]
    WrongDevice {
        /// What was passed: "stream", "buffer", ….
        what: &'static str,
        /// The pool's name.
        pool: String,
    },
    /// [`Pool::check`](crate::Pool::check) found that the pool's records do not agree: a mistake of this crate, or memory of the
    /// process that was overwritten.
    #[error("pool '{pool}' does not agree with itself: {why}. Please report this as a bug")]
    Broken {
        /// The pool's name.
        pool: String,
        /// What does not agree.
        why: String,
    },
    /// The pool was destroyed; it frees what is live but allocates nothing.
    #[error("pool '{pool}' was destroyed: build another pool to allocate")]
    PoolDestroyed {
        /// The pool's name.
        pool: String,
    },
    /// The pool sleeps ([`Pool::sleep`](crate::Pool::sleep)), and its memory is the device's.
    #[error("pool '{pool}' sleeps: wake it first")]
    Asleep {
        /// The pool's name.
        pool: String,
    },
    /// The pool is evicted ([`Pool::evict`](crate::Pool::evict)), and others use its memory.
    #[error("pool '{pool}' is evicted: restore it first")]
    Evicted {
        /// The pool's name.
        pool: String,
    },
    /// The pool cannot be evicted; it is as before.
    #[error("pool '{pool}' cannot be evicted: {why}")]
    CannotEvict {
        /// The pool's name.
        pool: String,
        /// What stands in the way, and what to do about it.
        why: &'static str,
    },
    /// The pool cannot sleep; it is awake.
    #[error("pool '{pool}' cannot sleep: {why}")]
    CannotSleep {
        /// The pool's name.
        pool: String,
        /// What stands in the way, and what to do about it.
        why: &'static str,
    },
    /// The pool was destroyed while blocks were live. The pool **is** destroyed. Their memory goes back when the last
    /// of them is freed.
    #[error(
        "pool '{pool}' was destroyed with live blocks ({blocks}, {} in all): free them, and their memory goes back",
        HumanBytes(*.bytes)
    )]
    LiveBlocks {
        /// The pool's name.
        pool: String,
        /// Live blocks.
        blocks: u64,
        /// Bytes in them.
        bytes: u64,
    },
    /// The pool was destroyed, and some of its memory could not be given back yet. A stream that is being captured may
    /// use it, and cannot be waited for. The pool **is** destroyed. The memory goes back when the host next
    /// synchronises after the capture.
    #[error(
        "pool '{pool}' was destroyed, but work may still use {} of it: a stream is being captured, or an event failed. End the capture and synchronise: the memory then goes back",
        HumanBytes(*.bytes)
    )]
    MemoryInUse {
        /// The pool's name.
        pool: String,
        /// Bytes that the pool still holds.
        bytes: u64,
    },
    /// Allocations go to this memory of a capture already.
    #[error(
        "this CapturePool of pool '{pool}' is already in a capture: end that one first, or make a second CapturePool"
    )]
    CaptureUnderWay {
        /// The pool's name.
        pool: String,
    },
    /// A range of elements that a buffer does not have.
    #[error("{what}: elements {start} to {end} were asked for, of {len}: use a range within the length")]
    OutOfRange {
        /// What was asked for.
        what: &'static str,
        /// The first element.
        start: usize,
        /// The first element behind the range.
        end: usize,
        /// Elements that there are.
        len: usize,
    },
    /// A length of elements that does not match.
    #[error("{what}: {found} elements given, but {expected} expected")]
    LengthMismatch {
        /// What was asked for.
        what: &'static str,
        /// Elements found.
        found: usize,
        /// Elements expected.
        expected: usize,
    },
    /// The CPU cannot read the pool's memory.
    #[error(
        "the CPU cannot read the memory of pool '{pool}' in place: copy it to the host, or to a pool of pinned memory"
    )]
    NoHostAccess {
        /// The pool's name.
        pool: String,
    },
    /// A copy that is for pinned memory was given other memory.
    #[error(
        "{what}: pool '{pool}' is not of pinned memory: build one with Context::pinned, or use Buffer::copy_from"
    )]
    NotPinned {
        /// What was asked for.
        what: &'static str,
        /// The pool's name.
        pool: String,
    },
    /// What is for managed memory was asked of other memory.
    #[error(
        "{what}: pool '{pool}' is not of managed memory: build one with Context::managed. Other memory stays where it is"
    )]
    NotManaged {
        /// What was asked for.
        what: &'static str,
        /// The pool's name.
        pool: String,
    },
    /// The memory cannot be shared with other processes.
    #[error("memory of pool '{pool}' cannot be shared with other processes: {why}")]
    NotShareable {
        /// The pool's name.
        pool: String,
        /// Why, and what can be.
        why: &'static str,
    },
    /// What another process sent is no memory that can be opened.
    #[error("shared memory cannot be opened: {why}")]
    BadToken {
        /// What is wrong with it.
        why: String,
    },
    /// A socket to another process failed.
    #[error("cannot {what} shared memory over the socket: {why}")]
    Socket {
        /// Which way: "send" or "receive".
        what: &'static str,
        /// What the operating system said.
        why: String,
    },
    /// The process that shared memory is gone. The memory stays as long as it is open here.
    #[error(
        "the process that shared this memory is gone, and its event with it: the memory stays valid, and is no longer shared"
    )]
    OwnerGone,
    /// The workspace has less left than was asked for.
    #[error(
        "{requested} bytes requested, but the workspace has {left} of its {capacity} bytes left: reset it, or make it larger"
    )]
    WorkspaceFull {
        /// Bytes asked for.
        requested: u64,
        /// Bytes left.
        left: u64,
        /// Bytes that the workspace has.
        capacity: u64,
    },
    /// An option has a value that it cannot have. The text says which values it can.
    #[error("{option}: {why}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// What is wrong with it and what would be right.
        why: String,
    },
    /// A recording cannot be written.
    #[error("cannot record to {path}: {what}")]
    Recording {
        /// The file.
        path: String,
        /// What the operating system said.
        what: String,
    },
    /// The file by which processes share a [named budget](crate::Budget::named) cannot be used.
    #[error("cannot share a budget by {path}: {what}")]
    SharedBudget {
        /// The file.
        path: String,
        /// What is wrong with it, and what would help.
        what: String,
    },
    /// The pool, stream or buffer was made in the process that this one was forked from.
    #[error("{}", DeviceError::Forked)]
    Forked,
    /// The device refused a call.
    #[error(transparent)]
    Device(DeviceError),
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Forked => Self::Forked,
            error => Self::Device(error),
        }
    }
}

/// As [`Display`](std::fmt::Display), which says what to do next.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The result of asking a pool.
pub type Result<T> = std::result::Result<T, Error>;

/// The pools that do not know a pointer.
fn pools(asked: &str) -> String {
    match asked {
        "" => "any pool of this device".to_owned(),
        _ => format!("pool '{asked}', nor by another pool of its device"),
    }
}
