//! The files that `millpond replay` writes besides its results: the report of all traces; exports of the first
//! trace, and of its replay by the first allocator.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use millpond_replay::export::{ExportError, chrome, snapshot};
use millpond_replay::report::Section;
use millpond_replay::trace::Trace;

use crate::error::{Error, Result};
use crate::outputs::Output;
use crate::replay_args::ReplayArgs;
use crate::screen::{remark, say};

/// Writes the exports that were asked for. Where there are other traces, says whose they are.
pub(crate) fn write(args: &ReplayArgs, trace: &Trace, others: bool) -> Result<()> {
    if let Some(path) = &args.export_snapshot {
        to_file(path, |out| snapshot(trace, out))?;
    }
    if let (Some(path), Some(name)) = (&args.export_counters, args.allocators().first()) {
        let choice = args.choice();
        let choose = |context: &millpond::Context| choice.build(name, context);
        to_file(path, |out| chrome(trace, args.free(), &choose, out))?;
    }
    if others && (args.export_snapshot.is_some() || args.export_counters.is_some()) {
        remark(&format!("exports have the first trace only: {}", trace.name));
    }
    Ok(())
}

/// Writes the report to its file, which was opened before the replays.
pub(crate) fn report(file: Output, sections: &[Section]) -> Result<()> {
    let path = file.path().to_owned();
    let mut page = Vec::new();
    millpond_replay::report::write(sections, &mut page)
        .map_err(|error| Error::Export { path: path.clone(), error: Box::new(error.into()) })?;
    file.write(&String::from_utf8_lossy(&page))?;
    say(&format!("wrote {}", path.display()));
    Ok(())
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
