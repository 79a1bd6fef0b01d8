//! What the command line may say.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use millpond::device::{DeviceChoice, MemoryKind};
use millpond_baselines::{NAMES, name_of};
use millpond_mlp::{Config, Machine, Precision, Steps};

use crate::amounts::bytes;
use crate::bench_args::BenchArgs;
use crate::choices::{about_allocators, listed, listed_memories, memories, names_or_all};
use crate::diff::DiffArgs;
use crate::leaks::LeaksArgs;
use crate::metrics::MetricsArgs;
use crate::plan::PlanArgs;
use crate::predict::PredictArgs;
use crate::probe_args::ProbeArgs;
use crate::replay_args::ReplayArgs;
use crate::run::RunArgs;
use crate::soak::SoakArgs;
use crate::top::TopArgs;

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

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys of the file: num_layers, feat_dim, learning_rate, momentum, batch_size,
micro_batches, epochs, seed, device, allocator, data, log_dir, precision, steps.

Examples:
  millpond train --allocator all --epochs 3  each allocator in turn, and a table
  millpond train run.toml --device cuda:1    settings of a file, the second GPU
  torchrun --nproc-per-node 4 --no-python millpond train           four GPUs")]
pub(crate) struct TrainArgs {
    /// File of settings, which flags override
    #[arg(value_name = "CONFIG.toml")]
    pub(crate) config: Option<PathBuf>,
    /// auto, host, cuda or cuda:N [default: auto]
    #[arg(long, value_parser = Machine::choice)]
    device: Option<DeviceChoice>,
    #[arg(long, value_name = "NAME", value_parser = names_or_all(NAMES), hide_possible_values = true, help = listed(NAMES) + " [default: millpond]")]
    allocator: Option<String>,
    /// Folder with files like MNIST's [default: bundled]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Passes over the training set [default: 10]
    #[arg(long, value_name = "N", value_parser = whole::<{ Config::MOST_EPOCHS }>, allow_negative_numbers = true)]
    epochs: Option<usize>,
    /// Images in a step [default: 64]
    #[arg(long, value_name = "N", value_parser = whole::<{ Config::MOST_IN_A_BATCH }>, allow_negative_numbers = true)]
    batch_size: Option<usize>,
    /// Parts to compute a batch in [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<{ Config::MOST_IN_A_BATCH }>, allow_negative_numbers = true)]
    micro_batches: Option<usize>,
    /// Hidden layers [default: 4]
    #[arg(long, value_name = "N", value_parser = whole::<{ Config::MOST_LAYERS }>, allow_negative_numbers = true)]
    num_layers: Option<usize>,
    /// Outputs of a hidden layer [default: 784]
    #[arg(long, value_name = "N", value_parser = whole::<{ Config::MOST_FEATURES }>, allow_negative_numbers = true)]
    feat_dim: Option<usize>,
    /// Learning rate of SGD [default: 0.1]
    #[arg(long, value_name = "RATE", value_parser = Config::rate, allow_negative_numbers = true)]
    learning_rate: Option<f32>,
    /// Momentum of SGD, 0 to below 1 [default: 0]
    #[arg(long, value_name = "M", value_parser = Config::momentum, allow_negative_numbers = true)]
    momentum: Option<f32>,
    /// Seed of the random numbers [default: 1]
    #[arg(long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    seed: Option<u64>,
    /// float32, tf32 or bfloat16 [default: float32]
    #[arg(long, value_name = "TYPE", value_parser = Config::precision)]
    precision: Option<Precision>,
    /// eager, or captured as CUDA graphs [default: auto]
    #[arg(long, value_name = "HOW", value_parser = Config::steps)]
    steps: Option<Steps>,
    /// Write curves and the memory of a step here
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Write the results here; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Keep a checkpoint in this folder, after each epoch
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
    /// Write it after every so many steps, too
    #[arg(long, value_name = "STEPS", requires = "save", value_parser = whole::<{ Config::MOST_STEPS }>, allow_negative_numbers = true)]
    pub(crate) save_every: Option<usize>,
    /// Go on from the checkpoint, if there is one
    #[arg(long, requires = "save")]
    pub(crate) resume: bool,
    /// Split over many GPUs: optimizer or gradients
    #[arg(long, value_name = "WHAT", value_enum, hide_possible_values = true)]
    pub(crate) shard: Option<Sharded>,
    /// Train with this, too, and compare: pytorch
    #[arg(long, value_name = "WHAT", value_enum, hide_possible_values = true)]
    pub(crate) compare: Option<Other>,
    /// Record what the pool does, for millpond replay
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// The most that the pool holds, as 20GiB or 50%
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit: Option<String>,
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

#[derive(Debug, clap::Args)]
#[command(after_help = "\
MNIST has 60,000 images to train on and 10,000 to validate with: 12 MB.

Example:
  millpond fetch mnist data/mnist && millpond train --data data/mnist")]
pub(crate) struct FetchArgs {
    /// The data set
    #[arg(value_parser = PossibleValuesParser::new(["mnist"]))]
    pub(crate) dataset: String,
    /// Where to put its files
    pub(crate) dir: PathBuf,
    /// Fetch from this address instead of the public mirrors
    #[arg(long, value_name = "URL")]
    pub(crate) mirror: Option<String>,
}

#[derive(Debug, Clone, Copy, clap::Args)]
#[command(after_help = "\
Examples:
  . <(millpond completions bash)                   in ~/.bashrc
  millpond completions zsh > ~/.zfunc/_millpond    with ~/.zfunc in fpath
  millpond completions fish > ~/.config/fish/completions/millpond.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  millpond man ~/.local/share/man/man1 && man millpond-train")]
pub(crate) struct ManArgs {
    /// Folder for the pages
    pub(crate) dir: PathBuf,
}

/// What is split over ranks.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Sharded {
    /// The optimizer's state.
    Optimizer,
    /// The gradients, too.
    Gradients,
}

/// What trains the same beside the command.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Other {
    /// PyTorch, in each way that there is.
    #[value(name = "pytorch")]
    PyTorch,
}

impl TrainArgs {
    /// Lays the flags that were given over the settings.
    pub(crate) fn lay_over(&self, config: &mut Config) {
        fn set<T: Clone>(setting: &mut T, flag: &Option<T>) {
            if let Some(flag) = flag {
                setting.clone_from(flag);
            }
        }
        set(&mut config.device, &self.device);
        set(&mut config.allocator, &self.allocator);
        set(&mut config.epochs, &self.epochs);
        set(&mut config.batch_size, &self.batch_size);
        set(&mut config.micro_batches, &self.micro_batches);
        set(&mut config.num_layers, &self.num_layers);
        set(&mut config.feat_dim, &self.feat_dim);
        set(&mut config.learning_rate, &self.learning_rate);
        set(&mut config.momentum, &self.momentum);
        set(&mut config.seed, &self.seed);
        set(&mut config.steps, &self.steps);
        set(&mut config.precision, &self.precision);
        config.data = self.data.clone().or(config.data.take());
        config.log_dir = self.log_dir.clone().or(config.log_dir.take());
    }
}

fn whole<const MOST: usize>(text: &str) -> Result<usize, String> {
    Config::whole(text, MOST)
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{text}' is not a whole number from 0 on"))
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
