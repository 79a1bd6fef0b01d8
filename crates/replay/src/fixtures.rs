//! What the tests of this crate share: recorded jobs, and allocators by name.

use std::path::Path;

use millpond::Context;
use millpond_baselines::{Allocator, ChoiceError, by_name};

use crate::read::{Limits, read};
use crate::trace::Trace;

pub(crate) const GNN: &str = "gnn_stacks.pickle.gz";
pub(crate) const PIPELINE: &str = "pipeline_streams_stacks.pickle.gz";

/// A job of `tests/data`.
pub(crate) fn recorded(name: &str) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    read(&path, Limits::default()).unwrap().remove(0)
}

/// Builds the allocator of this name.
pub(crate) fn named(name: &str) -> impl Fn(&Context) -> Result<Box<dyn Allocator>, ChoiceError> {
    move |context| by_name(name, context)
}
