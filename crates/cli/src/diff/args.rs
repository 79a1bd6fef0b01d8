//! The arguments of `millpond diff`.

use std::path::PathBuf;

use clap::Args;
use millpond_replay::moment::Moment;

#[derive(Debug, Args)]
#[command(after_help = "\
Two traces are compared at their peaks, one at its start and its end; --from
and --to name other moments of the first and of the second:
  start, end, peak, 1.5s, 300ms, step:30 (its end), in:NAME (the peak in a
  phase or under a tag).
The rows sum to the difference. Call sites are the same if their tags,
functions and files are, though lines moved.

Examples:
  millpond diff yesterday.mprec today.mprec
  millpond diff run.mprec --from step:10 --to step:90
  millpond diff run.mprec --from in:forward --to in:backward --json -")]
pub(crate) struct DiffArgs {
    /// Trace to compare
    #[arg(value_name = "TRACE")]
    pub(super) first: PathBuf,
    /// Trace to compare with [default: the same]
    #[arg(value_name = "OTHER")]
    pub(super) second: Option<PathBuf>,
    /// Moment of the first [default: peak; of one: start]
    #[arg(long, value_name = "MOMENT")]
    pub(super) from: Option<Moment>,
    /// Moment of the second [default: peak; of one: end]
    #[arg(long, value_name = "MOMENT")]
    pub(super) to: Option<Moment>,
    /// Phase or tag that each step begins with [default: found]
    #[arg(long, value_name = "NAME")]
    pub(super) step: Option<String>,
    /// Write the results; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}
