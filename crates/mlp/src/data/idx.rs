//! IDX, MNIST's file format: a magic number, sizes, then bytes, all big-endian.
//!
//! Format: <http://yann.lecun.com/exdb/mnist/>. A header is believed only as far as the bytes behind it go:
//! nothing is reserved by what it claims, and a stream is read no further than it says.

use std::io::{BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use crate::model::CLASSES;
use crate::{Error, Result};

/// Rows and columns of an image.
pub const SIDE: usize = 28;

/// Unsigned bytes in three dimensions.
const IMAGES: u32 = 0x0803;
/// Unsigned bytes in one dimension.
const LABELS: u32 = 0x0801;
/// More images than any file of this shape has; what claims more is damaged.
const MOST: usize = 1_000_000;

/// The pixels of all images of a file, gzipped or not.
pub(super) fn images(file: &str, from: impl Read) -> Result<Vec<u8>> {
    let mut reader = Reader::new(file, from)?;
    reader.magic(IMAGES, "images")?;
    let count = reader.count("number of images")?;
    let (rows, cols) = (reader.number("header")?, reader.number("header")?);
    if (rows as usize, cols as usize) != (SIDE, SIDE) {
        return Err(reader.error("image size", format!("{rows} x {cols}"), format!("{SIDE} x {SIDE}")));
    }
    reader.bytes(count * SIDE * SIDE)
}

/// The labels of a file, gzipped or not, each below [`CLASSES`].
pub(super) fn labels(file: &str, from: impl Read) -> Result<Vec<u8>> {
    let mut reader = Reader::new(file, from)?;
    reader.magic(LABELS, "labels")?;
    let count = reader.count("number of labels")?;
    let labels = reader.bytes(count)?;
    if let Some(at) = labels.iter().position(|&label| label as usize >= CLASSES) {
        let found = format!("{} (label {at})", labels[at]);
        return Err(reader.error("label", found, format!("0 to {}", CLASSES - 1)));
    }
    Ok(labels)
}

/// A file that names itself in its errors.
struct Reader<'a> {
    file: &'a str,
    from: Box<dyn Read + 'a>,
}

impl<'a> Reader<'a> {
    /// Recognises gzip by its first two bytes, whatever the file is called.
    fn new(file: &'a str, from: impl Read + 'a) -> Result<Self> {
        let mut from = BufReader::new(from);
        let start = from.fill_buf().map_err(|error| read_error(file, &error))?;
        let gzipped = start.starts_with(&[0x1f, 0x8b]);
        let from: Box<dyn Read + 'a> =
            if gzipped { Box::new(BufReader::new(MultiGzDecoder::new(from))) } else { Box::new(from) };
        Ok(Self { file, from })
    }

    fn error(&self, what: &'static str, found: String, expected: String) -> Error {
        Error::Data { file: self.file.to_owned(), what, found, expected }
    }

    fn number(&mut self, what: &'static str) -> Result<u32> {
        let mut bytes = [0; 4];
        match self.from.read_exact(&mut bytes) {
            Ok(()) => Ok(u32::from_be_bytes(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.error(what, "the end of the file".to_owned(), "four bytes more".to_owned()))
            }
            Err(error) => Err(read_error(self.file, &error)),
        }
    }

    fn magic(&mut self, expected: u32, of: &str) -> Result<()> {
        let found = self.number("magic number")?;
        if found == expected {
            return Ok(());
        }
        let named = match found {
            IMAGES => " (images)",
            LABELS => " (labels)",
            _ => " (no IDX file of bytes)",
        };
        Err(self.error("magic number", format!("{found:#010x}{named}"), format!("{expected:#010x} ({of})")))
    }

    fn count(&mut self, what: &'static str) -> Result<usize> {
        let count = self.number(what)? as usize;
        if count == 0 || count > MOST {
            return Err(self.error(what, count.to_string(), format!("1 to {MOST}")));
        }
        Ok(count)
    }

    /// Exactly the `expected` bytes that the rest of the file should have.
    fn bytes(&mut self, expected: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut self.from)
            .take(expected as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| read_error(self.file, &error))?;
        if bytes.len() == expected {
            return Ok(bytes);
        }
        let found = if bytes.len() > expected {
            "more (trailing bytes, or a header that says too little)".to_owned()
        } else {
            format!("{} (truncated?)", bytes.len())
        };
        Err(self.error("bytes after the header", found, format!("{expected}, as the header says")))
    }
}

/// A gzip stream that is damaged or cut short is a damaged file; the rest is the operating system's.
fn read_error(file: &str, error: &std::io::Error) -> Error {
    Error::Data {
        file: file.to_owned(),
        what: "contents",
        found: error.to_string(),
        expected: "a readable IDX file, gzipped or not".to_owned(),
    }
}
