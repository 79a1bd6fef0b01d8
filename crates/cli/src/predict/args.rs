//! The arguments of `millpond predict`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use millpond_replay::offload::OPTIMIZER;

use super::batch::Batch;
use super::cards::CardFacts;
use super::scaled::{Recording, Size};
use crate::flags::size_or_none;
use crate::traces::Bandwidth;

#[derive(Debug, Args)]
#[command(after_help = "\
A program's first steps run on a card that is not there: its allocations are
PyTorch's own, and nothing is computed. docs/predict.md says what is counted.

Examples:
  millpond predict -- python train.py --batch-size 16
  millpond predict --card 'RTX 4090,H100' --batch auto -- python train.py
  millpond predict --recording a.mprec:n=1 b.mprec:n=2 --scale n=9")]
pub(crate) struct PredictArgs {
    /// Cards; it runs on the first [default: H100]
    #[arg(long, value_name = "CARDS", value_delimiter = ',', conflicts_with = "recording")]
    pub(super) card: Vec<CardFacts>,
    /// The batch, or the largest that fits
    #[arg(long, value_name = "N|auto", conflicts_with = "recording")]
    pub(super) batch: Option<Batch>,
    /// Its option
    #[arg(long, value_name = "OPTION", default_value = "--batch-size", allow_hyphen_values = true)]
    pub(super) batch_arg: String,
    /// Predict each of so many ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), conflicts_with = "recording")]
    pub(super) ranks: Option<u32>,
    /// Steps of the optimizer
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) steps: u32,
    /// Answer what asks for a value of the card
    #[arg(long, value_name = "VALUE", allow_negative_numbers = true)]
    pub(super) item: Option<f64>,
    /// What part of its elements a mask selects
    #[arg(long, value_name = "PART", value_parser = part)]
    pub(super) selected: Option<f64>,
    /// Let it write its own files
    #[arg(long, conflicts_with = "recording")]
    pub(super) write_through: bool,
    /// With this offloaded: optimizer
    #[arg(long, value_name = "WHAT", value_parser = [OPTIMIZER], hide_possible_values = true, conflicts_with = "recording")]
    pub(super) offload: Option<String>,
    /// The speed of its copies [default: 55]
    #[arg(long, value_name = "GB/s", value_parser = Bandwidth::parse, requires = "offload")]
    pub(super) bandwidth: Option<Bandwidth>,
    /// Left to the driver [default: 770MiB]
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    pub(super) context: Option<u64>,
    /// Keep the recording, for millpond replay
    #[arg(long, value_name = "FILE", conflicts_with = "recording")]
    pub(super) record: Option<PathBuf>,
    /// Write the results; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Recordings, such as a.mprec:batch=8
    #[arg(long, value_name = "FILE:SIZE", num_args = 1.., requires = "scale")]
    pub(super) recording: Vec<Recording>,
    /// The size to predict, such as batch=64
    #[arg(long, value_name = "SIZE", requires = "recording")]
    pub(super) scale: Option<Size>,
    /// The program, and its arguments
    #[arg(
        value_name = "PROGRAM",
        last = true,
        required_unless_present = "recording",
        conflicts_with = "recording"
    )]
    pub(super) program: Vec<OsString>,
}

fn part(text: &str) -> std::result::Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| format!("'{text}' should be a part from 0 to 1, such as 0.5"))
}
