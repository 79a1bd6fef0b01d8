//! The arguments of `millpond probe`.

use std::path::{Path, PathBuf};

use clap::Args;
use millpond::device::DeviceChoice;
use millpond_probe::Effort;

#[derive(Debug, Args)]
#[command(after_help = "\
It measures copies, bandwidth, latency and calls. With --device host it measures
the CPU's own memory.

Examples:
  millpond probe                               all of it, in up to half a minute
  millpond probe --device host --quick         the CPU's memory, in some seconds
  millpond probe --json out.json --report out.html
  millpond probe --cost-table this.toml        for millpond replay --cost-table")]
pub(crate) struct ProbeArgs {
    /// auto, cuda, cuda:N or host
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    pub(crate) device: DeviceChoice,
    /// Sizes up to 32 MiB only, and a tenth of the time
    #[arg(long)]
    quick: bool,
    /// Write the figures to this file, or to standard output for -
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Write what calls cost here to this file, for millpond replay
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) cost_table: Option<PathBuf>,
}

impl ProbeArgs {
    /// Whether a rough answer will do.
    pub(crate) fn is_quick(&self) -> bool {
        self.quick
    }

    /// How much effort the figures are worth.
    pub(crate) fn effort(&self) -> Effort {
        if self.is_quick() { Effort::QUICK } else { Effort::FULL }
    }

    /// The files that are to be written.
    pub(crate) fn written(&self) -> [Option<&Path>; 3] {
        [&self.json, &self.report, &self.cost_table].map(Option::as_deref)
    }
}
