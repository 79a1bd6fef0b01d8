//! What a recording holds, record by record. The page `docs/recording.md` has it byte by byte.
//!
//! Records are written in [postcard's wire format](https://postcard.jamesmunns.com/wire-format): the variant's number,
//! then the fields. Integers are LEB128 varints, signed ones zigzagged first. Texts and lists stand behind their
//! length. So **the order of the variants and of their fields is the format**: it only ever grows at the end, and
//! anything else raises [`VERSION`].

use serde::{Deserialize, Serialize};

/// The first bytes of a recording. As in PNG, the first byte is not text. The last two show whether a transfer changed
/// line ends.
pub const MAGIC: [u8; 8] = *b"\x89MPREC\r\n";

/// The newest version of the format, which follows the [magic](MAGIC) as 4 bytes, little-endian.
pub const VERSION: u32 = 4;

/// The longest payload of a chunk in bytes: what claims to be longer is damaged.
pub const LARGEST_CHUNK: usize = 1 << 20;

/// The longest text written, in bytes; longer ones are cut.
pub(super) const LONGEST_TEXT: usize = 1 << 12;

/// One record. Numbers of threads, tags, frames and sites start at 1, and 0 stands for none; so do those of
/// pools. Definitions come before what names them.
///
/// Times are nanoseconds since [`Start`](Self::Start). An event's `after` counts from the event before it in its chunk,
/// or from the [`Thread`](Self::Thread) record between. Its `address` is the wrapping difference to that of the event
/// before it, or to 0 after a `Thread` record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Record<'a> {
    /// 0. The recording begins. The first record of a file.
    Start {
        /// Nanoseconds from 1970 to time 0 of the recording, by the system's clock.
        unix_ns: u64,
        /// The process.
        process: u32,
        /// The program's name.
        program: &'a str,
    },
    /// 1. A pool is recorded from here on.
    Pool {
        /// Its number in the file.
        pool: u32,
        /// Its name.
        name: &'a str,
        /// The device's name.
        device: &'a str,
        /// The device's number, as its driver counts.
        ordinal: u32,
        /// A number that the pools of one device share, and no others of the process.
        device_key: u64,
    },
    /// 2. A tag, inside another.
    Tag {
        /// Its number in the file.
        tag: u32,
        /// The tag that it stands in, or 0.
        inside: u32,
        /// What it says.
        text: &'a str,
    },
    /// 3. A line of source code in a call stack.
    Frame {
        /// Its number in the file.
        frame: u32,
        /// The function.
        name: &'a str,
        /// The source file, empty where unknown.
        file: &'a str,
        /// The line in it from 1, 0 where unknown.
        line: u32,
    },
    /// 4. A call stack.
    Site {
        /// Its number in the file.
        site: u32,
        /// Its frames, the innermost first.
        frames: Vec<u32>,
    },
    /// 5. The events that follow are this thread's, in its order.
    Thread {
        /// Its number in the file; 0 is the recorder itself.
        thread: u32,
        /// The time from which the next event counts.
        time: u64,
    },
    /// 6. The events that follow are of this pool and stream.
    At {
        /// The pool.
        pool: u32,
        /// The stream's identity, which the device never gives to another; 0 where there is none.
        stream: u64,
    },
    /// 7. The events that follow happened under this tag and at this call site.
    Under {
        /// The tag, or 0.
        tag: u32,
        /// The call site, or 0.
        site: u32,
    },
    /// 8. A block was allocated. The time is taken after the pool has the block.
    Alloc {
        /// Nanoseconds since the event before.
        after: u64,
        /// The block's start.
        address: i64,
        /// Bytes asked for.
        size: u64,
    },
    /// 9. A block was freed. The time is taken before anyone else can have the block.
    Free {
        /// Nanoseconds since the event before.
        after: u64,
        /// The block's start.
        address: i64,
        /// Bytes that were asked for.
        size: u64,
    },
    /// 10. The use of a block by the present stream was recorded.
    Use {
        /// Nanoseconds since the event before.
        after: u64,
        /// The block's start.
        address: i64,
    },
    /// 11. A block that was live when the pool's recording began.
    Live {
        /// Nanoseconds since the event before.
        after: u64,
        /// The block's start.
        address: i64,
        /// Bytes that were asked for.
        size: u64,
    },
    /// 12. The physical bytes that the pool holds have changed, or are told for the first time.
    Reserved {
        /// Nanoseconds since the event before.
        after: u64,
        /// Bytes held now.
        bytes: u64,
    },
    /// 13. The pool was asked to give memory back.
    Trim {
        /// Nanoseconds since the event before.
        after: u64,
        /// Bytes that it was to keep.
        keep: u64,
        /// Bytes that it gave back.
        released: u64,
    },
    /// 14. The pool had no memory for a request, after everything that could make room was tried.
    OutOfMemory {
        /// Nanoseconds since the event before.
        after: u64,
        /// Bytes asked for.
        size: u64,
        /// Bytes that the device had free.
        device_free: u64,
    },
    /// 15. The pool's recording ended: it was stopped, or the pool was destroyed.
    PoolEnd {
        /// Nanoseconds since the event before.
        after: u64,
    },
    /// 16. Events were lost before this record: more waited for the disk than may.
    Dropped {
        /// How many.
        events: u64,
    },
    /// 17. The last record of a file that ended as it should.
    End,
    /// 18. What the program was told, of an out-of-memory error. From version 2 on.
    Message {
        /// The text.
        text: &'a str,
    },
    /// 19. This file goes on where another ended. Up to this time, it says what was live and held. From version 3 on.
    Part {
        /// Which part this is; the second is the first that says so.
        part: u32,
        /// How many events are in the parts before.
        events: u64,
        /// The time of the last of them.
        time: u64,
    },
    /// 20. The pool, which is a tag's, was evicted: its live blocks stay, and have no memory. From version 4 on.
    Evicted {
        /// Nanoseconds since the event before.
        after: u64,
        /// Bytes that another pool got.
        bytes: u64,
    },
    /// 21. The pool is back from that, at the same addresses. From version 4 on.
    Restored {
        /// Nanoseconds since the event before.
        after: u64,
        /// Bytes that came back.
        bytes: u64,
    },
}
