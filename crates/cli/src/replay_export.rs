//! The files that `millpond replay` writes besides its results: the report of all traces; exports of the first
//! trace, and of its replay by the first allocator.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use millpond_replay::export::{ExportError, chrome, snapshot};
use millpond_replay::report::Section;
use millpond_replay::trace::Trace;

use crate::error::{Error, Result};
use crate::replay_args::ReplayArgs;
use crate::screen::say;

/// Writes the files that were asked for.
pub(crate) fn write(args: &ReplayArgs, trace: &Trace) -> Result<()> {
    if let Some(path) = &args.export_snapshot {
        to_file(path, |out| snapshot(trace, out))?;
    }
    if let (Some(path), Some(name)) = (&args.export_counters, args.allocators().first()) {
        let choice = args.choice();
        let choose = |context: &millpond::Context| choice.build(name, context);
        to_file(path, |out| chrome(trace, args.free(), &choose, out))?;
    }
    Ok(())
}

/// Writes the report.
pub(crate) fn report(path: &Path, sections: &[Section]) -> Result<()> {
    to_file(path, |out| Ok(millpond_replay::report::write(sections, out)?))
}

fn to_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::result::Result<(), ExportError>,
) -> Result<()> {
    let written = File::create(path).map_err(ExportError::from).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        Ok(out.flush()?)
    });
    written.map_err(|error| Error::Export { path: path.to_owned(), error: Box::new(error) })?;
    say(&format!("wrote {}", path.display()));
    Ok(())
}
