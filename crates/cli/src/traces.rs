//! Traces in and JSON out, for the commands that look at recordings.

use std::path::Path;

use millpond_replay::read::{self, Limits, ReadError};
use millpond_replay::trace::Trace;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::outputs::Output;
use crate::replay_progress::Progress;

/// Reads the traces of a file, or of standard input.
pub(crate) fn read_traces(path: &Path) -> std::result::Result<Vec<Trace>, ReadError> {
    let _progress = Progress::new(&path.to_string_lossy(), "reading");
    read_file(path)
}

/// The same without saying so.
pub(crate) fn read_file(path: &Path) -> std::result::Result<Vec<Trace>, ReadError> {
    if is_stdin(path) { read::read_stdin(Limits::default()) } else { read::read(path, Limits::default()) }
}

/// `-`, as other tools have it; a file of that name is `./-`.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Writes what `--json` asks for.
pub(crate) fn write_json(file: Output, told: &impl Serialize) -> Result<()> {
    let path = file.path().to_owned();
    let text = serde_json::to_string_pretty(told).map_err(|error| Error::Io {
        path,
        action: "write the results to it",
        source: error.into(),
    })?;
    file.write(&(text + "\n"))
}
