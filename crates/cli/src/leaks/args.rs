//! The arguments of `millpond leaks`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
A trace is what `millpond replay` reads. A row is a call site under its tags;
a tag where no call stacks were recorded; else blocks of like sizes.
R² is 1 where each step adds as much, and near 0 where chance does.

Examples:
  millpond leaks run.mprec
  millpond leaks snapshot.pickle --step ProfilerStep --json leaks.json")]
pub(crate) struct LeaksArgs {
    /// Trace to look at; - is standard input
    #[arg(value_name = "TRACE")]
    pub(super) trace: PathBuf,
    /// Phase or tag that each step begins with [default: found]
    #[arg(long, value_name = "NAME")]
    pub(super) step: Option<String>,
    /// Write the results; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}
