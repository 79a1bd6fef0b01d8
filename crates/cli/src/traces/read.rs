//! Reads traces of a file or of standard input.

use std::path::Path;

use millpond_replay::read::{self, Limits, ReadError};
use millpond_replay::trace::Trace;

use super::progress::TraceProgress;

/// Reads the traces of a file, or of standard input.
pub(crate) fn read_traces(path: &Path) -> std::result::Result<Vec<Trace>, ReadError> {
    let _progress = TraceProgress::new(&path.to_string_lossy(), "reading");
    read_file(path)
}

/// The same without saying so.
pub(crate) fn read_file(path: &Path) -> std::result::Result<Vec<Trace>, ReadError> {
    if is_stdin(path) { read::read_stdin(Limits::default()) } else { read::read(path, Limits::default()) }
}

/// `-`, as other tools have it; a file of that name is `./-`.
fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}
