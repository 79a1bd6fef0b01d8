//! The arguments of `millpond run`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use millpond::bindings::Amount;

#[derive(Debug, Args)]
#[command(after_help = "\
The program's CUDA memory comes from a pool for each GPU. With --limit alone, it
is the driver's, up to the limit. What was held is said at the end, on standard
error. The exit status is the program's. docs/run.md says what is reached.

Examples:
  millpond run -- ./program its arguments
  millpond run --watch --report run.html -- ./program
  millpond run --limit 20GiB --count-overhead -- ./program
  millpond run --pool --limit 40GiB --budget gpu0 -- python train.py")]
pub(crate) struct RunArgs {
    /// Serve its memory by a pool; the default without --limit
    #[arg(long)]
    pub(super) pool: bool,
    /// Change nothing, and say what a pool would have held
    #[arg(long, conflicts_with_all = ["pool", "limit", "async_free", "ipc"])]
    pub(super) watch: bool,
    /// The most that a process may have, on all GPUs: 20GiB, 20Gi, 50%
    #[arg(long, value_name = "SIZE")]
    pub(super) limit: Option<Amount>,
    /// Count what CUDA itself takes, too: contexts, libraries
    #[arg(long, requires = "limit", conflicts_with = "budget")]
    pub(super) count_overhead: bool,
    /// Share the limit with all processes that name it
    #[arg(long, value_name = "NAME", requires_all = ["pool", "limit"], value_parser = name)]
    pub(super) budget: Option<String>,
    /// Let cuMemFree not wait for the GPU
    #[arg(long)]
    pub(super) async_free: bool,
    /// Leave cuMemAlloc to the driver, for CUDA's IPC
    #[arg(long)]
    pub(super) ipc: bool,
    /// Give back what nobody used for so long; 1 by default
    #[arg(long, value_name = "SECONDS|off", value_parser = seconds, conflicts_with = "watch")]
    pub(super) decay: Option<String>,
    /// Have PyTorch's optimizers on the GPU around their steps only
    #[arg(long, value_name = "WHAT", value_parser = ["optimizer"], conflicts_with = "watch")]
    pub(super) offload: Option<String>,
    /// Record the allocations, for millpond replay
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// Write a page with charts, from a recording
    #[arg(long, value_name = "FILE.html")]
    pub(super) report: Option<PathBuf>,
    /// Say what its pools hold while it runs
    #[arg(long, conflicts_with = "watch")]
    pub(super) top: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// The program, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    pub(super) program: Vec<OsString>,
}

/// As a budget takes it.
fn name(text: &str) -> std::result::Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !text.is_empty() && text.chars().all(fits) {
        return Ok(text.to_owned());
    }
    Err(format!("'{text}' is not a name of letters, digits, - and _"))
}

/// As the variable takes it.
fn seconds(text: &str) -> std::result::Result<String, String> {
    let is_time = |seconds: f64| Duration::try_from_secs_f64(seconds).is_ok();
    if text == "off" || text.parse().is_ok_and(is_time) {
        return Ok(text.to_owned());
    }
    Err(format!("'{text}' is no time: use seconds, such as 1 or 0.5, or off"))
}

impl RunArgs {
    /// What the preloaded library is told.
    pub(super) fn mode(&self) -> &'static str {
        match self.limit {
            _ if self.watch => "watch",
            Some(_) if !self.pool => "limit",
            _ => "pool",
        }
    }

    /// The file to record to, if any.
    pub(super) fn recording(&self, folder: Option<&Path>) -> Option<PathBuf> {
        self.record.clone().or_else(|| folder.map(|folder| folder.join("run.mprec")))
    }
}
