//! What these tests share: recorded jobs, and how they are read.
use std::path::{Path, PathBuf};

use millpond_replay::read::{Limits, read};
use millpond_replay::trace::Trace;

pub(crate) const GNN: &str = "gnn_stacks.pickle.gz";
pub(crate) const PIPELINE: &str = "pipeline_streams_stacks.pickle.gz";

/// A file of `tests/data`.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// The one trace of a file.
pub(crate) fn only(path: &Path) -> Trace {
    let mut traces = read(path, Limits::default()).unwrap();
    assert_eq!(traces.len(), 1, "{}", path.display());
    traces.remove(0)
}
