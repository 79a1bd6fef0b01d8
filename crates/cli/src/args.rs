//! The command line: its subcommands, whose arguments lie with them.

use clap::{Parser, Subcommand};
use millpond::device::MemoryKind;
use millpond_baselines::name_of;

use crate::amounts::bytes;
use crate::bench::BenchArgs;
use crate::diff::DiffArgs;
use crate::fetch::FetchArgs;
use crate::flags::{about_allocators, listed_memories, memories};
use crate::leaks::LeaksArgs;
use crate::manual::{CompletionsArgs, ManArgs};
use crate::metrics::MetricsArgs;
use crate::plan::PlanArgs;
use crate::predict::PredictArgs;
use crate::probe::ProbeArgs;
use crate::replay::ReplayArgs;
use crate::run::RunArgs;
use crate::soak::SoakArgs;
use crate::top::TopArgs;
use crate::train::TrainArgs;

/// See what a GPU memory pool does for a program: train, replay, measure
#[derive(Debug, Parser)]
#[command(name = "millpond", version = VERSION)]
#[command(max_term_width = 80)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", about_allocators()))]
pub(crate) struct Args {
    /// Print nothing but errors
    #[arg(long, short, global = true, display_order = 100)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  millpond train                      train on the bundled digits
  millpond replay snapshot.pickle     what a PyTorch job's memory did";

/// The version. A release is built with `MILLPOND_VERSION`, which has the commit too: `0.1.0 (1234abcd)`.
pub(crate) const VERSION: &str = match option_env!("MILLPOND_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a neural network, with all of its memory from the pool
    Train(Box<TrainArgs>),
    /// Run a program over the pool, watched, or under a limit
    Run(RunArgs),
    /// Show what a recorded job needs, by allocator, and who held it
    Replay(Box<ReplayArgs>),
    /// Show what a recorded job holds more and more of, step by step
    Leaks(LeaksArgs),
    /// Compare who holds memory, in two recorded jobs or at two moments
    Diff(DiffArgs),
    /// Show which recorded jobs can share which card
    Plan(PlanArgs),
    /// Show what a job will need, without a GPU
    Predict(PredictArgs),
    /// Measure what an allocation costs, beside other allocators
    Bench(BenchArgs),
    /// Measure what the memory of this machine does
    Probe(ProbeArgs),
    /// Run random programs over the pools, and check each step
    Soak(SoakArgs),
    /// Show what the pools of running programs hold and do
    Top(TopArgs),
    /// Give the same figures to Prometheus
    Metrics(MetricsArgs),
    /// Show devices, memory and driver
    Info(InfoArgs),
    /// Show budgets and the processes that share them, or set a limit
    Budget(BudgetArgs),
    /// Download a data set to train on
    Fetch(FetchArgs),
    /// Print the tab completions of a shell
    Completions(CompletionsArgs),
    /// Write the man pages, one for each command
    Man(ManArgs),
}

impl Command {
    /// Whether its pools are nobody's to be recorded: those of a replay would overwrite the very recording that
    /// `MILLPOND_RECORD` names, and those of a bench or a probe would be slower.
    pub(crate) fn builds_pools_of_its_own(&self) -> bool {
        matches!(
            self,
            Self::Replay(_)
                | Self::Leaks(_)
                | Self::Diff(_)
                | Self::Plan(_)
                | Self::Predict(_)
                | Self::Bench(_)
                | Self::Probe(_)
                | Self::Soak(_)
        )
    }
}

#[derive(Debug, Clone, Copy, clap::Args)]
#[command(after_help = "\
Examples:
  millpond info
  millpond info --memory pinned
  millpond info --json | jq .devices")]
pub(crate) struct InfoArgs {
    #[arg(long, value_name = "KIND", default_value = name_of(MemoryKind::Device), value_parser = memories(), hide_possible_values = true, help = format!("Memory to show: {}", listed_memories()))]
    pub(crate) memory: MemoryKind,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A limit that is set here stays, whoever comes and goes. Root sees the budgets of
all users. MILLPOND_BUDGET_DIR names a folder that containers share.

Examples:
  millpond budget
  millpond budget gpu0
  millpond budget gpu0 --limit 40GiB
  millpond budget gpu0 --remove
  millpond budget gpu0 --json | jq .processes")]
pub(crate) struct BudgetArgs {
    /// The budget's name; without one, all are shown
    #[arg(required_if_eq("remove", "true"))]
    pub(crate) name: Option<String>,
    /// Set the limit for all processes, also before the first
    #[arg(long, value_name = "SIZE", value_parser = bytes, requires = "name")]
    pub(crate) limit: Option<u64>,
    /// Remove the budget, if no process has it
    #[arg(long, conflicts_with = "limit")]
    pub(crate) remove: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_help_fits_a_screen() {
        let mut command = Args::command();
        command.build();
        let fits = |command: &mut clap::Command| {
            let [short, long] =
                [command.render_help(), command.render_long_help()].map(|help| help.to_string());
            let widest = long.lines().map(|line| line.chars().count()).max();
            assert!(short.lines().count() <= 42 && widest <= Some(80), "{widest:?}: {short}{long}");
            let examples: Vec<_> = short.lines().filter(|line| line.starts_with("  millpond ")).collect();
            assert!(!examples.is_empty() || command.get_name() == "help", "{short}");
        };
        fits(&mut command);
        command.get_subcommands_mut().for_each(fits);
    }

    #[test]
    fn the_help_says_what_each_allocator_is() {
        let help = Args::command().render_help().to_string();
        for millpond_baselines::Listed { name, about } in millpond_baselines::ALLOCATORS {
            let says = |line: &str| line.trim_start().starts_with(name) && line.ends_with(about);
            assert!(help.lines().any(says), "{name}: {help}");
        }
    }
}
