//! What a live pool holds or did, as a PyTorch snapshot, which pytorch.org/memory_viz opens.
//!
//! A snapshot is made of a recording: of the one that runs, with everything since it began, or of one that is started
//! and stopped for it, in which the blocks that are live now stand.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use millpond::Pool;
use millpond_replay::export;
use millpond_replay::read::{self, FormatError, Limits};
use millpond_replay::trace::Trace;

use crate::failure::{Failure, Result};

/// Writes the snapshot; `false` where the pool holds and did nothing, and nothing is written then.
pub(crate) fn write(pool: &Pool, path: &Path) -> Result<bool> {
    let Some(trace) = trace(pool)? else { return Ok(false) };
    let written = File::create(path).map_err(export::ExportError::from).and_then(|file| {
        let mut out = BufWriter::new(file);
        export::snapshot(&trace, &mut out)?;
        Ok(out.flush()?)
    });
    written
        .map_err(|error| Failure::Snapshot { path: path.display().to_string(), error: Box::new(error) })?;
    Ok(true)
}

fn trace(pool: &Pool) -> Result<Option<Trace>> {
    if let Some(running) = pool.recording() {
        pool.flush_recording();
        return read_one(&running.path, pool);
    }
    let folder = tempfile::tempdir().map_err(Failure::Temporary)?;
    let path = folder.path().join("snapshot.mprec");
    pool.start_recording(path.as_path())?;
    pool.stop_recording()?;
    read_one(&path, pool)
}

/// The trace of the pool's device in a file that other devices may be in too.
fn read_one(path: &Path, pool: &Pool) -> Result<Option<Trace>> {
    let ordinal = pool.device().properties().ordinal;
    match read::read(path, Limits::default()) {
        Ok(traces) if traces.len() == 1 => Ok(traces.into_iter().next()),
        Ok(traces) => Ok(traces.into_iter().find(|trace| trace.device as usize == ordinal)),
        Err(error) if matches!(error.what, FormatError::Empty(_)) => Ok(None),
        Err(error) => Err(Failure::Trace(Box::new(error))),
    }
}
