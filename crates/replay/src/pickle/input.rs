//! The bytes of a pickle, counted and bounded, and what can be wrong with them.

use std::io::{self, BufRead, BufReader, Read};

/// The result of one step.
pub(super) type InputResult<T> = Result<T, InputError>;

/// Why a pickle cannot be read. `at` is the byte, counted from 0, after decompression.
#[derive(Debug, thiserror::Error)]
#[error("byte {at}: {what}")]
pub struct PickleError {
    /// The byte at which reading stopped.
    pub at: u64,
    /// What was wrong there.
    #[source]
    pub what: InputError,
}

/// What was wrong with a pickle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file ends within the pickle.
    #[error("the file ends before the pickle does; it was cut off, copy or record it again")]
    Truncated,
    /// The file could not be read or decompressed.
    #[error("{0}")]
    Io(io::Error),
    /// The file is larger than the reader takes.
    #[error("more than {limit} bytes after decompression; record a shorter stretch")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// The pickle has more values than the reader takes.
    #[error("more than {limit} values; record a shorter stretch")]
    TooManyValues {
        /// The limit.
        limit: usize,
    },
    /// The pickle's values take more memory than the reader does.
    #[error(
        "the values take more than {limit} bytes of memory, more than a file of this size should; it is damaged, or made to fill memory. If you trust it, decompress it first"
    )]
    TooMuchMemory {
        /// The limit in bytes.
        limit: u64,
    },
    /// The pickle names or calls Python code.
    #[error(
        "the pickle calls Python code (opcode {opcode:#04x}); a memory snapshot is plain data, so this is none, and loading it in Python may be dangerous"
    )]
    Code {
        /// The opcode.
        opcode: u8,
    },
    /// An opcode that no snapshot has.
    #[error(
        "opcode {opcode:#04x} is none of a memory snapshot's; the file is damaged, or not a pickle of protocol 2 to 5"
    )]
    Opcode {
        /// The opcode.
        opcode: u8,
    },
    /// Something is wrong with the order of opcodes.
    #[error("{0}; the file is damaged")]
    Malformed(&'static str),
}

impl InputError {
    pub(super) fn at(self, at: u64) -> PickleError {
        PickleError { at, what: self }
    }
}

impl From<io::Error> for InputError {
    fn from(error: io::Error) -> Self {
        // A cut gzip or zstd file ends so, too.
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Truncated } else { Self::Io(error) }
    }
}

/// The longest string: a path, a function's name.
const LONGEST_TEXT: u64 = 1 << 20;

pub(super) struct Input<'a> {
    /// With a buffer of its own, since most reads are of one byte: calls of a `dyn` reader were a third of the time.
    source: BufReader<&'a mut dyn BufRead>,
    position: u64,
    limit: u64,
    text: Vec<u8>,
}

impl<'a> Input<'a> {
    pub(super) fn new(source: &'a mut dyn BufRead, limit: u64) -> Self {
        Self { source: BufReader::with_capacity(1 << 16, source), position: 0, limit, text: Vec::new() }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    fn advance(&mut self, bytes: u64) -> InputResult<()> {
        self.position += bytes;
        if self.position > self.limit {
            return Err(InputError::TooLarge { limit: self.limit });
        }
        Ok(())
    }

    pub(super) fn byte(&mut self) -> InputResult<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn array<const N: usize>(&mut self) -> InputResult<[u8; N]> {
        let mut bytes = [0; N];
        let buffered = self.source.fill_buf()?;
        if buffered.len() >= N {
            bytes.copy_from_slice(&buffered[..N]);
            self.source.consume(N);
        } else {
            self.source.read_exact(&mut bytes)?;
        }
        self.advance(N as u64)?;
        Ok(bytes)
    }

    /// A little-endian integer of `bytes` bytes, in two's complement.
    pub(super) fn long(&mut self, bytes: u8) -> InputResult<i64> {
        let mut wide = [0; 9];
        let bytes = usize::from(bytes);
        if bytes > wide.len() {
            return Err(InputError::Malformed("an integer of more than 64 bits"));
        }
        for byte in &mut wide[..bytes] {
            *byte = self.byte()?;
        }
        match bytes {
            0 => Ok(0),
            // Nine bytes: an unsigned integer with its top bit set.
            9 if wide[8] != 0 => Err(InputError::Malformed("an integer of more than 64 bits")),
            9 => Ok(i64::from_le_bytes([
                wide[0], wide[1], wide[2], wide[3], wide[4], wide[5], wide[6], wide[7],
            ])),
            _ => {
                let mut sign = if wide[bytes - 1] & 0x80 == 0 { [0; 8] } else { [0xff; 8] };
                sign[..bytes].copy_from_slice(&wide[..bytes]);
                Ok(i64::from_le_bytes(sign))
            }
        }
    }

    pub(super) fn text(&mut self, bytes: u64) -> InputResult<&str> {
        if bytes > LONGEST_TEXT {
            return Err(InputError::Malformed("a string longer than 1 MiB"));
        }
        self.text.clear();
        let read = (&mut self.source).take(bytes).read_to_end(&mut self.text)? as u64;
        self.advance(read)?;
        if read < bytes {
            return Err(InputError::Truncated);
        }
        std::str::from_utf8(&self.text).map_err(|_| InputError::Malformed("a string that is not UTF-8"))
    }

    pub(super) fn skip(&mut self, bytes: u64) -> InputResult<()> {
        let room = self.limit.saturating_sub(self.position).saturating_add(1);
        let read = io::copy(&mut (&mut self.source).take(bytes.min(room)), &mut io::sink())?;
        self.advance(read)?;
        if read < bytes { Err(InputError::Truncated) } else { Ok(()) }
    }
}
