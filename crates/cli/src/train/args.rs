//! The arguments of `millpond train`.

use std::path::PathBuf;

use millpond::bindings::Amount;
use millpond::device::DeviceChoice;
use millpond_baselines::NAMES;
use millpond_mlp::{Config, Machine, Precision, Steps};

use crate::flags::{listed, names_or_all};

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
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    pub(crate) limit: Option<String>,
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

/// As the budget takes it, which reads it again.
fn limit(text: &str) -> Result<String, String> {
    text.parse::<Amount>().map(|_| text.to_owned())
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{text}' is not a whole number from 0 on"))
}
