//! What a file is, by its first bytes, and its traces.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::error::{FormatError, ReadError};
use super::{gzip, millpond, pytorch, rmm, zstd};
use crate::pickle::Limits;
use crate::trace::Trace;

/// Reads the traces of a file, one for each device on which anything happened.
///
/// # Errors
/// [`ReadError`], which names the file and the place in it.
pub fn read(path: &Path, limits: Limits) -> Result<Vec<Trace>, ReadError> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let traces = File::open(path).map_err(FormatError::from).and_then(|file| {
        let there = file.metadata()?;
        // A pipe does not say how much will come.
        let limits = if there.is_file() { limits.for_file_of(there.len()) } else { limits };
        let mut source = decompressed(file)?;
        let traces = read_from(&mut *source, &name, limits)?;
        // A pickle ends before its file does: the check sum that follows says whether it was read as it was written.
        io::copy(&mut source.take(MOST_AFTER), &mut io::sink())?;
        Ok(traces)
    });
    traces.map_err(|what| ReadError { path: path.to_owned(), what })
}

/// Reads the traces that standard input brings, named `-`.
///
/// # Errors
/// [`ReadError`], as for [`read`].
pub fn read_stdin(limits: Limits) -> Result<Vec<Trace>, ReadError> {
    let traces = decompressed(io::stdin())
        .map_err(FormatError::from)
        .and_then(|mut source| read_from(&mut *source, STDIN, limits));
    traces.map_err(|what| ReadError { path: STDIN.into(), what })
}

/// What standard input is called.
const STDIN: &str = "-";

/// Bytes behind the end of a pickle that are looked at.
const MOST_AFTER: u64 = 1 << 20;

/// Reads the traces of what is decompressed already, and names them.
///
/// # Errors
/// [`FormatError`], which names the place.
pub fn read_from(source: &mut dyn BufRead, name: &str, limits: Limits) -> Result<Vec<Trace>, FormatError> {
    // What spreadsheets write before a table.
    if source.fill_buf()?.starts_with(b"\xef\xbb\xbfThread,") {
        source.consume(3);
    }
    let start = source.fill_buf()?;
    let (builder, advice) = match start {
        // Protocol 2 and later; `_dump_snapshot` writes 4.
        [0x80, 2..=5, ..] => (
            pytorch::read(source, limits)?,
            "call torch.cuda.memory._record_memory_history() before the work to be recorded",
        ),
        _ if start.starts_with(&::millpond::record::format::MAGIC) => {
            (millpond::read(source, limits)?, "record for longer")
        }
        [] => return Err(FormatError::NoBytes),
        _ if start.starts_with(b"PK\x03\x04") => return Err(FormatError::Zip),
        _ if start.starts_with(b"Thread,") => (rmm::read(source, limits)?, "log for longer"),
        _ => return Err(FormatError::Unknown),
    };
    // What was left out may be all there was.
    let said: Vec<_> = builder.lacks.iter().chain(&builder.remarks).map(String::as_str).collect();
    let why = if said.is_empty() { advice.to_owned() } else { said.join("; ") };
    let traces = builder.finish(name);
    if traces.is_empty() { Err(FormatError::Empty(why)) } else { Ok(traces) }
}

/// Undoes gzip or zstd compression, if the file has any.
fn decompressed(file: impl Read + 'static) -> io::Result<Box<dyn BufRead>> {
    let mut source = BufReader::with_capacity(1 << 16, file);
    let start = source.fill_buf()?;
    Ok(if gzip::is_gzip(start) {
        buffered(gzip::Members::new(source))
    } else if zstd::is_zstd(start) {
        buffered(zstd::Frames::new(source))
    } else {
        Box::new(source)
    })
}

fn buffered(source: impl Read + 'static) -> Box<dyn BufRead> {
    Box::new(BufReader::with_capacity(1 << 16, source))
}
