//! Events into records, records into chunks.

use std::collections::VecDeque;

use super::chunks::Chunk;
use super::format::{LARGEST_CHUNK, LONGEST_TEXT, Record};

/// What a thread notes of one event: 48 bytes, written and read as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    /// Nanoseconds since the recorder began.
    pub(super) time: u64,
    /// The block's start. Of a trim the bytes to keep, of an out-of-memory the device's free bytes.
    pub(super) address: u64,
    /// Bytes: asked for, held, or released.
    pub(super) size: u64,
    /// The stream's identity, 0 for none.
    pub(super) stream: u64,
    pub(super) pool: u32,
    pub(super) tag: u32,
    pub(super) site: u32,
    pub(super) kind: Kind,
}

/// What happened. See the [`Record`] of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Alloc,
    Free,
    Use,
    Live,
    Reserved,
    Trim,
    OutOfMemory,
    PoolEnd,
}

/// Payload bytes from which on a chunk is sealed. Small enough that little is lost in a crash, large enough
/// that its head costs nothing.
const FULL: usize = 32 << 10;

// What one record adds must not take a chunk past what readers accept.
const _: () = assert!(FULL + 2 * LONGEST_TEXT + 64 < LARGEST_CHUNK);

/// What the next event is told relative to. Each chunk starts anew, so that it can be read without the one
/// before.
#[derive(Debug, Default)]
struct Cursor {
    thread: Option<u32>,
    time: u64,
    address: u64,
    at: Option<(u32, u64)>,
    under: (u32, u32),
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Encoder {
    chunk: Chunk,
    cursor: Cursor,
    sealed: VecDeque<Vec<u8>>,
    sealed_bytes: usize,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self {
            chunk: Chunk::new(FULL + 1024),
            cursor: Cursor::default(),
            sealed: VecDeque::new(),
            sealed_bytes: 0,
        }
    }

    /// Adds an event of the thread.
    pub(super) fn event(&mut self, thread: u32, event: &Event) {
        let cursor = &mut self.cursor;
        if cursor.thread != Some(thread) || event.time < cursor.time {
            (cursor.thread, cursor.time, cursor.address) = (Some(thread), event.time, 0);
            self.chunk.put(&Record::Thread { thread, time: event.time });
        }
        let at = (event.pool, event.stream);
        if cursor.at != Some(at) {
            cursor.at = Some(at);
            self.chunk.put(&Record::At { pool: at.0, stream: at.1 });
        }
        let under = (event.tag, event.site);
        if cursor.under != under {
            cursor.under = under;
            self.chunk.put(&Record::Under { tag: under.0, site: under.1 });
        }
        let after = event.time - cursor.time;
        cursor.time = event.time;
        let size = event.size;
        let mut address =
            || event.address.wrapping_sub(std::mem::replace(&mut cursor.address, event.address)) as i64;
        let record = match event.kind {
            Kind::Alloc => Record::Alloc { after, address: address(), size },
            Kind::Free => Record::Free { after, address: address(), size },
            Kind::Use => Record::Use { after, address: address() },
            Kind::Live => Record::Live { after, address: address(), size },
            Kind::Reserved => Record::Reserved { after, bytes: size },
            Kind::Trim => Record::Trim { after, keep: event.address, released: size },
            Kind::OutOfMemory => Record::OutOfMemory { after, size, device_free: event.address },
            Kind::PoolEnd => Record::PoolEnd { after },
        };
        self.chunk.put(&record);
        self.seal_if(FULL);
    }

    /// Adds what is no event.
    pub(super) fn define(&mut self, record: &Record<'_>) {
        self.chunk.put(record);
        self.seal_if(FULL);
    }

    /// Ends the present chunk, so that all that was added can be written.
    pub(super) fn seal(&mut self) {
        self.seal_if(1);
    }

    fn seal_if(&mut self, at_least: usize) {
        if self.chunk.len() < at_least {
            return;
        }
        let sealed = std::mem::replace(&mut self.chunk, Chunk::new(FULL + 1024)).seal();
        self.cursor = Cursor::default();
        self.sealed_bytes += sealed.len();
        self.sealed.push_back(sealed);
    }

    /// Bytes in sealed chunks that nobody took.
    pub(super) fn waiting(&self) -> usize {
        self.sealed_bytes
    }

    /// The oldest sealed chunk.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        let chunk = self.sealed.pop_front()?;
        self.sealed_bytes -= chunk.len();
        Some(chunk)
    }

    /// Puts a chunk back that could not be written.
    pub(super) fn put_back(&mut self, chunk: Vec<u8>) {
        self.sealed_bytes += chunk.len();
        self.sealed.push_front(chunk);
    }
}

/// A text as it may stand in a record.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}
