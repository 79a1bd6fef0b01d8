//! Events into records, records into chunks.

use std::collections::VecDeque;

use super::chunks::{Chunk, zigzag};
use super::format::{LARGEST_CHUNK, LONGEST_TEXT, Record};

/// One event, as it is told to the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    /// Nanoseconds since the recorder began.
    pub(super) time: u64,
    /// The block's start. Of a trim the bytes to keep, of an out-of-memory the device's free bytes.
    pub(super) address: u64,
    /// Bytes: asked for, held, released, or moved.
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
    Alloc = 0,
    Free,
    Use,
    Live,
    Reserved,
    Trim,
    OutOfMemory,
    PoolEnd,
    Evicted,
    Restored,
}

/// Payload bytes from which on a chunk is sealed. Small enough that little is lost in a crash, large enough
/// that its head costs nothing.
const FULL: usize = 32 << 10;

/// Room for what takes a chunk past [`FULL`], in bytes: no event needs as much.
const ROOM: usize = 256;

/// The variants of [`Record`] that say what the events after them are of. (A test compares all that is written
/// here with what `Record` reads.)
const THREAD: u8 = 5;
const AT: u8 = 6;
const UNDER: u8 = 7;

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

/// A chunk on its way to the file.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) bytes: Vec<u8>,
    /// Whether it begins another file.
    pub(super) begins_file: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Encoder {
    chunk: Chunk,
    cursor: Cursor,
    begins_file: bool,
    sealed: VecDeque<Sealed>,
    sealed_bytes: usize,
    /// Of all chunks, those that were taken too.
    sealed_ever: u64,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self {
            chunk: Chunk::new(FULL + ROOM),
            cursor: Cursor::default(),
            begins_file: false,
            sealed: VecDeque::new(),
            sealed_bytes: 0,
            sealed_ever: 0,
        }
    }

    /// Adds an event of the thread.
    pub(super) fn event(&mut self, thread: u32, event: &Event) {
        let (chunk, cursor) = (&mut self.chunk, &mut self.cursor);
        if cursor.thread != Some(thread) || event.time < cursor.time {
            (cursor.thread, cursor.time, cursor.address) = (Some(thread), event.time, 0);
            chunk.put_event(THREAD, [u64::from(thread), event.time]);
        }
        let at = (event.pool, event.stream);
        if cursor.at != Some(at) {
            cursor.at = Some(at);
            chunk.put_event(AT, [u64::from(at.0), at.1]);
        }
        let under = (event.tag, event.site);
        if cursor.under != under {
            cursor.under = under;
            chunk.put_event(UNDER, [u64::from(under.0), u64::from(under.1)]);
        }
        let after = event.time - cursor.time;
        cursor.time = event.time;
        let (address, size) = (event.address, event.size);
        let mut moved = || zigzag(address.wrapping_sub(std::mem::replace(&mut cursor.address, address)));
        match event.kind {
            Kind::Alloc => chunk.put_event(8, [after, moved(), size]),
            Kind::Free => chunk.put_event(9, [after, moved(), size]),
            Kind::Use => chunk.put_event(10, [after, moved()]),
            Kind::Live => chunk.put_event(11, [after, moved(), size]),
            Kind::Reserved => chunk.put_event(12, [after, size]),
            Kind::Trim => chunk.put_event(13, [after, address, size]),
            Kind::OutOfMemory => chunk.put_event(14, [after, size, address]),
            Kind::PoolEnd => chunk.put_event(15, [after]),
            Kind::Evicted => chunk.put_event(20, [after, size]),
            Kind::Restored => chunk.put_event(21, [after, size]),
        }
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
        let sealed = std::mem::replace(&mut self.chunk, Chunk::new(FULL + ROOM)).seal();
        self.cursor = Cursor::default();
        self.sealed_bytes += sealed.len();
        self.sealed_ever += sealed.len() as u64;
        let begins_file = std::mem::take(&mut self.begins_file);
        self.sealed.push_back(Sealed { bytes: sealed, begins_file });
    }

    /// Lets what is added from now on go to another file.
    pub(super) fn begin_file(&mut self) {
        self.seal();
        self.begins_file = true;
    }

    /// Bytes in sealed chunks that nobody took.
    pub(super) fn waiting(&self) -> usize {
        self.sealed_bytes
    }

    /// Bytes of all chunks that were ever sealed.
    pub(super) fn sealed_ever(&self) -> u64 {
        self.sealed_ever
    }

    /// The oldest sealed chunk.
    pub(super) fn take(&mut self) -> Option<Sealed> {
        let chunk = self.sealed.pop_front()?;
        self.sealed_bytes -= chunk.bytes.len();
        Some(chunk)
    }

    /// Puts a chunk back that could not be written.
    pub(super) fn put_back(&mut self, chunk: Sealed) {
        self.sealed_bytes += chunk.bytes.len();
        self.sealed.push_front(chunk);
    }
}

/// A text as it may stand in a record.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}

#[cfg(test)]
mod tests {
    use super::super::chunks::records;
    use super::*;

    #[test]
    fn every_event_reads_as_the_record_of_its_name() {
        let mut encoder = Encoder::new();
        let event = Event {
            time: 1000,
            address: 1 << 40,
            size: 300,
            stream: 7,
            pool: 1,
            tag: 2,
            site: 3,
            kind: Kind::Alloc,
        };
        let kinds = [
            Kind::Alloc,
            Kind::Free,
            Kind::Use,
            Kind::Live,
            Kind::Reserved,
            Kind::Trim,
            Kind::OutOfMemory,
            Kind::PoolEnd,
            Kind::Evicted,
            Kind::Restored,
        ];
        for (step, kind) in (0..).zip(kinds) {
            encoder.event(4, &Event { time: 1000 + step, address: (1 << 40) - 512 * step, kind, ..event });
        }
        encoder.seal();
        let chunk = encoder.take().unwrap();
        let read: Vec<_> = records(&chunk.bytes[8..]).map(Option::unwrap).collect();
        let (after, address, size) = (1, -512, 300);
        let expected = [
            Record::Thread { thread: 4, time: 1000 },
            Record::At { pool: 1, stream: 7 },
            Record::Under { tag: 2, site: 3 },
            Record::Alloc { after: 0, address: 1 << 40, size },
            Record::Free { after, address, size },
            Record::Use { after, address },
            Record::Live { after, address, size },
            Record::Reserved { after, bytes: 300 },
            Record::Trim { after, keep: (1 << 40) - 512 * 5, released: size },
            Record::OutOfMemory { after, size, device_free: (1 << 40) - 512 * 6 },
            Record::PoolEnd { after },
            Record::Evicted { after, bytes: 300 },
            Record::Restored { after, bytes: 300 },
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn the_longest_events_and_any_addresses_come_back() {
        let mut encoder = Encoder::new();
        let addresses = [u64::MAX, 0, 1 << 63, 5, u64::MAX];
        for address in addresses {
            let (stream, size, pool) = (u64::MAX, u64::MAX, u32::MAX);
            let (time, kind) = (u64::MAX, Kind::Alloc);
            encoder
                .event(u32::MAX, &Event { time, address, size, stream, pool, tag: pool, site: pool, kind });
        }
        encoder.seal();
        let chunk = encoder.take().unwrap();
        let mut at = 0u64;
        let read = records(&chunk.bytes[8..]).filter_map(|record| match record.unwrap() {
            Record::Alloc { address, size: u64::MAX, .. } => {
                at = at.wrapping_add_signed(address);
                Some(at)
            }
            _ => None,
        });
        assert_eq!(read.collect::<Vec<_>>(), addresses);
    }
}
