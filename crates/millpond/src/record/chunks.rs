//! Chunks: the checksummed pieces that a recording is appended in, and read back by.
//!
//! A chunk is the payload's length and its checksum, 4 bytes each, little-endian, then the payload: whole
//! [`Record`]s. The checksum is CRC-32 (IEEE) of the length's bytes and the payload. What a record means
//! depends on definitions in earlier chunks, but on no event outside its own.

use std::io::{self, Read};

use integer_encoding::VarInt;

use super::format::{LARGEST_CHUNK, MAGIC, Record, VERSION};

/// Bytes of a chunk before its payload.
const HEAD: usize = 8;

/// What a file starts with.
pub(super) fn file_head() -> [u8; 12] {
    let mut head = [0; 12];
    head[..8].copy_from_slice(&MAGIC);
    head[8..].copy_from_slice(&VERSION.to_le_bytes());
    head
}

/// A chunk that grows.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Room for the head, then the payload, then room for more.
    bytes: Vec<u8>,
    filled: usize,
}

/// Bytes of an event at most: its variant, and ten for each of three integers.
const LONGEST_EVENT: usize = 31;

impl Chunk {
    /// Grows beyond the capacity, in bytes, if it must.
    pub(super) fn new(capacity: usize) -> Self {
        Self { bytes: vec![0; HEAD + capacity], filled: HEAD }
    }

    /// Bytes of payload so far.
    pub(super) fn len(&self) -> usize {
        self.filled - HEAD
    }

    /// Appends a record that is made of integers only, as [`put`](Self::put) would, in a third of the time.
    /// Signed integers come [zigzagged](zigzag).
    #[inline]
    pub(super) fn put_event<const N: usize>(&mut self, variant: u8, fields: [u64; N]) {
        const { assert!(N <= 3) };
        if self.bytes.len() - self.filled < LONGEST_EVENT {
            self.grow();
        }
        let room = &mut self.bytes[self.filled..][..LONGEST_EVENT];
        room[0] = variant;
        let mut at = 1;
        for field in fields {
            at += field.encode_var(&mut room[at..]);
        }
        self.filled += at;
    }

    /// Appends a record.
    pub(super) fn put(&mut self, record: &Record<'_>) {
        loop {
            // No record has a part that postcard refuses: where it fails, the room is too small.
            match postcard::to_slice(record, &mut self.bytes[self.filled..]) {
                Ok(written) => break self.filled += written.len(),
                Err(_) => self.grow(),
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        self.bytes.resize(2 * self.bytes.len() + LONGEST_EVENT, 0);
    }

    /// The chunk with its length and checksum, ready to be written.
    pub(super) fn seal(mut self) -> Vec<u8> {
        self.bytes.truncate(self.filled);
        let length = u32::try_from(self.len()).expect("chunks are sealed long before 4 GiB");
        let (head, payload) = self.bytes.split_at_mut(HEAD);
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&checksum(length, payload).to_le_bytes());
        self.bytes
    }
}

/// Small numbers for small differences in either direction.
pub(super) fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64 >> 63) as u64)
}

fn checksum(length: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// Why no more chunks can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It does not begin with the [magic](MAGIC).
    #[error("not a recording: it does not begin as one")]
    NoRecording,
    /// It is of a version that this reader does not know.
    #[error(
        "a recording of version {found}, but this millpond reads up to version {VERSION}: use a newer one"
    )]
    Version {
        /// The file's version.
        found: u32,
    },
    /// It ends inside a chunk: the process died while writing, or still writes.
    #[error("byte {at}: the file ends inside a chunk")]
    Torn {
        /// Where the chunk begins.
        at: u64,
    },
    /// A chunk is not what was written.
    #[error("byte {at}: a damaged chunk ({what})")]
    Damaged {
        /// Where the chunk begins.
        at: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Reads the chunks of a recording, one after another, each into the same buffer of at most
/// [`LARGEST_CHUNK`] bytes.
///
/// ```
/// use millpond::record::format::Record;
/// use millpond::record::{Chunks, records};
///
/// # fn count(file: std::fs::File) -> Result<usize, millpond::record::ChunkError> {
/// let mut chunks = Chunks::new(std::io::BufReader::new(file))?;
/// let mut allocations = 0;
/// while let Some(payload) = chunks.next_chunk()? {
///     allocations += records(payload).filter(|record| matches!(record, Some(Record::Alloc { .. }))).count();
/// }
/// # Ok(allocations)
/// # }
/// ```
#[derive(Debug)]
pub struct Chunks<R> {
    source: R,
    at: u64,
    payload: Vec<u8>,
}

impl<R: Read> Chunks<R> {
    /// Reads the file's head.
    ///
    /// # Errors
    /// [`ChunkError`] for what is no recording, or one of another version.
    pub fn new(mut source: R) -> Result<Self, ChunkError> {
        let mut head = [0; 12];
        if read_fully(&mut source, &mut head)? < head.len() || head[..8] != MAGIC {
            return Err(ChunkError::NoRecording);
        }
        let found = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if !(1..=VERSION).contains(&found) {
            return Err(ChunkError::Version { found });
        }
        Ok(Self { source, at: head.len() as u64, payload: Vec::new() })
    }

    /// Where in the file the next chunk begins.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The payload of the next whole chunk, `None` at the file's end.
    ///
    /// # Errors
    /// [`ChunkError`] where the file ends inside a chunk, or the chunk is damaged. What came before it is
    /// good; what follows it cannot be found.
    pub fn next_chunk(&mut self) -> Result<Option<&[u8]>, ChunkError> {
        let at = self.at;
        let mut head = [0; HEAD];
        match read_fully(&mut self.source, &mut head)? {
            0 => return Ok(None),
            HEAD => {}
            _ => return Err(ChunkError::Torn { at }),
        }
        let [length, sum] =
            [0, 4].map(|i| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]));
        let bytes = length as usize;
        if bytes == 0 || bytes > LARGEST_CHUNK {
            return Err(ChunkError::Damaged { at, what: "impossible length" });
        }
        self.payload.resize(bytes, 0);
        if read_fully(&mut self.source, &mut self.payload)? < bytes {
            return Err(ChunkError::Torn { at });
        }
        if checksum(length, &self.payload) != sum {
            return Err(ChunkError::Damaged { at, what: "wrong checksum" });
        }
        self.at += (HEAD + bytes) as u64;
        Ok(Some(&self.payload))
    }
}

/// The records of a chunk's payload. Ends after the first that cannot be read, which is `None`.
pub fn records(payload: &[u8]) -> impl Iterator<Item = Option<Record<'_>>> {
    let mut rest = Some(payload);
    std::iter::from_fn(move || {
        let left = rest.filter(|left| !left.is_empty())?;
        match postcard::take_from_bytes(left) {
            Ok((record, after)) => {
                rest = Some(after);
                Some(Some(record))
            }
            Err(_) => {
                rest = None;
                Some(None)
            }
        }
    })
}

/// Reads until the buffer is full or the source ends; returns the bytes read.
fn read_fully(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(chunks: &[&[Record<'_>]]) -> Vec<u8> {
        let mut file = file_head().to_vec();
        for records in chunks {
            let mut chunk = Chunk::new(64);
            records.iter().for_each(|record| chunk.put(record));
            file.extend(chunk.seal());
        }
        file
    }

    /// The records before the first error, and the error.
    fn read(file: &[u8]) -> (usize, Option<ChunkError>) {
        let mut chunks = match Chunks::new(file) {
            Ok(chunks) => chunks,
            Err(error) => return (0, Some(error)),
        };
        let mut count = 0;
        loop {
            match chunks.next_chunk() {
                Ok(Some(payload)) => count += records(payload).flatten().count(),
                Ok(None) => return (count, None),
                Err(error) => return (count, Some(error)),
            }
        }
    }

    const TWO: [&[Record<'static>]; 2] = [
        &[
            Record::Start { unix_ns: 1 << 60, process: 7, program: "a" },
            Record::Alloc { after: 5, address: -512, size: 1 << 20 },
        ],
        &[Record::Dropped { events: 3 }, Record::End],
    ];

    #[test]
    fn the_wire_format_is_what_the_documents_say() {
        let mut chunk = Chunk::new(0);
        chunk.put(&Record::Alloc { after: 300, address: -2, size: 1 });
        chunk.put(&Record::Tag { tag: 2, inside: 1, text: "ab" });
        let bytes = chunk.seal();
        assert_eq!(&bytes[HEAD..], [8, 0xac, 0x02, 3, 1, /* */ 2, 2, 1, 2, b'a', b'b']);
        // The length of what follows: five bytes and six.
        assert_eq!(&bytes[..4], [11, 0, 0, 0]);
    }

    #[test]
    fn a_cut_file_gives_whole_chunks_and_where_it_ends() {
        let whole = file(&TWO);
        let first = file(&TWO[..1]).len();
        for cut in 0..whole.len() {
            match read(&whole[..cut]) {
                (0, Some(ChunkError::NoRecording)) => assert!(cut < 12),
                (0, None) => assert_eq!(cut, 12),
                (0, Some(ChunkError::Torn { at: 12 })) => assert!(cut < first),
                (2, None) => assert_eq!(cut, first),
                (2, Some(ChunkError::Torn { at })) => assert_eq!(at, first as u64),
                other => panic!("cut at {cut}: {other:?}"),
            }
        }
        assert!(matches!(read(&whole), (4, None)));
    }

    #[test]
    fn any_changed_bit_is_noticed() {
        let whole = file(&TWO);
        // The version's lowest bits make it an older one, which reads alike.
        let older = 64..64 + VERSION.trailing_ones() as usize;
        for bit in (0..whole.len() * 8).filter(|bit| !older.contains(bit)) {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&damaged).1.is_some(), "bit {bit}");
        }
    }

    #[test]
    fn a_tail_of_zeros_is_damage_not_endless_chunks() {
        let mut whole = file(&TWO);
        whole.extend([0; 64]);
        assert!(matches!(read(&whole), (4, Some(ChunkError::Damaged { .. }))));
    }
}
