//! What the command line may say.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use millpond::device::DeviceChoice;
use millpond_baselines::NAMES;
use millpond_mlp::{Config, Machine};

use crate::bench_args::BenchArgs;
use crate::choices::{about_allocators, listed, names_or_all};
use crate::replay_args::ReplayArgs;

/// A GPU memory pool, and a neural network trained through it.
#[derive(Debug, Parser)]
#[command(name = "millpond", version, propagate_version = true)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", about_allocators()))]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  millpond train                            train on the bundled digits, every byte from the pool
  millpond train --allocator all            compare the pool with other allocators
  millpond replay snapshot.pickle           what a PyTorch job's memory did, and where it would fit
  millpond bench --suite latency            what allocating costs, in nanoseconds
  millpond info                             devices, memory, driver";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a neural network whose every weight, activation and gradient is from the pool
    Train(Box<TrainArgs>),
    /// Replay a recorded job: what each allocator would reserve, and where it would fit
    Replay(Box<ReplayArgs>),
    /// Measure what a pair of allocate and free costs, beside other allocators
    Bench(BenchArgs),
    /// Show devices, memory, driver, and what they support
    Info(InfoArgs),
    /// Download a data set to train on
    Fetch(FetchArgs),
}

impl Command {
    /// Whether its pools are nobody's to be recorded: those of a replay would overwrite the very recording that
    /// `MILLPOND_RECORD` names, and those of a bench would be slower.
    pub(crate) fn builds_pools_of_its_own(&self) -> bool {
        matches!(self, Self::Replay(_) | Self::Bench(_))
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Flags override the file. A file has any of these keys: num_layers, feat_dim, learning_rate, batch_size, \
epochs, seed, device, allocator, data, log_dir, tf32.

Examples:
  millpond train                                     10 epochs of the bundled digits
  millpond train run.toml --device cuda:1            settings from a file, on the second GPU
  millpond train --allocator all --epochs 3          each allocator in turn, and a table
  millpond train --data /usr/share/datasets/fashion-mnist --log-dir curves")]
pub(crate) struct TrainArgs {
    /// Settings as TOML
    #[arg(value_name = "CONFIG.toml")]
    pub(crate) config: Option<PathBuf>,
    /// auto, host, cuda or cuda:N [default: auto]
    #[arg(long, value_parser = device)]
    device: Option<DeviceChoice>,
    #[arg(long, value_name = "NAME", value_parser = names_or_all(NAMES), hide_possible_values = true, help = listed(NAMES) + " [default: millpond]")]
    allocator: Option<String>,
    /// Folder with the four IDX files of MNIST or Fashion-MNIST [default: bundled digits]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Passes over the training set [default: 10]
    #[arg(long, value_name = "N")]
    epochs: Option<usize>,
    /// Images in a step [default: 64]
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Hidden layers [default: 4]
    #[arg(long, value_name = "N")]
    num_layers: Option<usize>,
    /// Outputs of a hidden layer [default: 784]
    #[arg(long, value_name = "N")]
    feat_dim: Option<usize>,
    /// Step of SGD [default: 0.1]
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f32>,
    /// Where weights and order come from [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Let a GPU round factors to TF32: faster, less exact
    #[arg(long)]
    tf32: bool,
    /// Write curves.csv and curves.svg to this folder
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Write the results to this file; to stdout for -
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Record what the pool does to this file, for `millpond replay`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
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

impl TrainArgs {
    /// Lays the flags that were given over the settings.
    pub(crate) fn lay_over(&self, config: &mut Config) {
        fn set<T: Clone>(setting: &mut T, flag: &Option<T>) {
            if let Some(flag) = flag {
                setting.clone_from(flag);
            }
        }
        set(&mut config.device, &self.device.map(|device| device.to_string()));
        set(&mut config.allocator, &self.allocator);
        set(&mut config.epochs, &self.epochs);
        set(&mut config.batch_size, &self.batch_size);
        set(&mut config.num_layers, &self.num_layers);
        set(&mut config.feat_dim, &self.feat_dim);
        set(&mut config.learning_rate, &self.learning_rate);
        set(&mut config.seed, &self.seed);
        config.tf32 |= self.tf32;
        config.data = self.data.clone().or(config.data.take());
        config.log_dir = self.log_dir.clone().or(config.log_dir.take());
    }
}

fn device(text: &str) -> Result<DeviceChoice, String> {
    Machine::choice(text).map_err(|expected| format!("expected {expected}"))
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
        for sub in command.get_subcommands_mut() {
            let help = sub.render_help().to_string();
            assert!(help.lines().count() <= 40, "{help}");
        }
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
