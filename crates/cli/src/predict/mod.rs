//! `millpond predict`: what a job will need, before there is a GPU; or what a recorded one would need at another size.
//!
//! | file | concern |
//! | --- | --- |
//! | `apart` | what a program writes, apart from its real files |
//! | `cards` | what programs find out about a card, by its name |
//! | `job` | a program's first steps on a card that is not there |
//! | `needs` | what is needed with each allocator, and which cards have that |
//! | `rank` | what one process of it requests and needs |
//! | `batch` | the largest batch that fits |
//! | `scaled` | recordings of two sizes, and a third |
//! | `python/` | what watches PyTorch; it is written beside the program's own modules for a run |
//!
//! **One prediction.** `job` starts the program with the library of `crates/card` preloaded and the Python files first on its path.
//! Each process writes PyTorch's own history of its allocations, and what was noted beside it. `rank` replays it.

mod apart;
mod batch;
mod cards;
mod job;
mod needs;
mod rank;
mod scaled;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use millpond::HumanBytes;
use serde::Serialize;

use self::apart::Kept;
use self::batch::{Batch, Largest};
use self::cards::CardFacts;
use self::job::{Job, Options};
use self::rank::{Rank, Wanted};
use self::scaled::{Recording, Size};
use crate::error::{Error, Result};
use crate::outputs::{Output, refuse_clashes, refuse_stdout, say_written};
use crate::replay_args::size_or_none;
use crate::screen::{say, wrapped};
use crate::traces::write_json;

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
    card: Vec<CardFacts>,
    /// The batch, or the largest that fits
    #[arg(long, value_name = "N|auto", conflicts_with = "recording")]
    batch: Option<Batch>,
    /// Its option
    #[arg(long, value_name = "OPTION", default_value = "--batch-size", allow_hyphen_values = true)]
    batch_arg: String,
    /// Predict each of so many ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), conflicts_with = "recording")]
    ranks: Option<u32>,
    /// Steps of the optimizer
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Answer what asks for a value of the card
    #[arg(long, value_name = "VALUE", allow_negative_numbers = true)]
    item: Option<f64>,
    /// What part of its elements a mask selects
    #[arg(long, value_name = "PART", value_parser = part)]
    selected: Option<f64>,
    /// Let it write its own files
    #[arg(long, conflicts_with = "recording")]
    write_through: bool,
    /// Left to the driver [default: 770MiB]
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    context: Option<u64>,
    /// Keep the recording, for millpond replay
    #[arg(long, value_name = "FILE", conflicts_with = "recording")]
    record: Option<PathBuf>,
    /// Write the results; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Recordings, such as a.mprec:batch=8
    #[arg(long, value_name = "FILE:SIZE", num_args = 1.., requires = "scale")]
    recording: Vec<Recording>,
    /// The size to predict, such as batch=64
    #[arg(long, value_name = "SIZE", requires = "recording")]
    scale: Option<Size>,
    /// The program, and its arguments
    #[arg(
        value_name = "PROGRAM",
        last = true,
        required_unless_present = "recording",
        conflicts_with = "recording"
    )]
    program: Vec<OsString>,
}

fn part(text: &str) -> std::result::Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| format!("'{text}' should be a part from 0 to 1, such as 0.5"))
}

/// What is told of a program, in the shape that `--json` writes. Sizes in bytes.
#[derive(Debug, Serialize)]
struct Told<'a> {
    program: String,
    card: &'a CardFacts,
    context: u64,
    ranks: &'a [Rank],
    /// The program's files that are as they were.
    not_kept: &'a Kept,
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_batch: Option<Vec<Largest>>,
}

/// Runs the command.
pub(crate) fn run(args: &PredictArgs) -> Result<()> {
    if let Some(scale) = &args.scale {
        return scaled::run(&args.recording, scale, args.json.as_deref());
    }
    refuse_stdout("--record", args.record.as_deref(), "a recording needs a file")?;
    refuse_clashes(&[], &[args.record.as_deref(), args.json.as_deref()])?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let card = args.card.first().cloned().unwrap_or_default();
    let context = args.context.unwrap_or(rank::CONTEXT_BYTES);
    let job = Job::new(
        &args.program,
        Options {
            card: card.clone(),
            ranks: args.ranks,
            steps: args.steps,
            item: args.item,
            selected: args.selected,
            writes_through: args.write_through,
        },
    )?;
    let nccl = if args.ranks > Some(1) && args.context.is_none() { rank::NCCL_BYTES } else { 0 };
    let wanted = Wanted { cards: args.card.clone(), context, nccl };
    let predict = |batch: Option<u64>, is_shown: bool| {
        let more = batch.map(|batch| [args.batch_arg.clone().into(), batch.to_string().into()]);
        let run = job.run(more.as_ref().map_or(&[][..], |more| more), is_shown)?;
        run.processes()
            .iter()
            .map(|process| Rank::of(process, &wanted))
            .collect::<Result<Vec<_>>>()
            .map(|ranks| (run, ranks))
    };
    let (largest, batch) = match args.batch {
        Some(Batch::Auto) => {
            let largest = batch::search(card.bytes.saturating_sub(wanted.beside()), |batch| {
                Ok(predict(Some(batch), false)?.1)
            })?;
            let most = largest.iter().filter_map(|largest| largest.batch).min();
            let most = most.ok_or_else(|| no_batch_fits(&card))?;
            (Some(largest), Some(most))
        }
        Some(Batch::Of(batch)) => (None, Some(batch)),
        None => (None, None),
    };
    let (run, ranks) = predict(batch, largest.is_none())?;
    show(args, &job, &ranks, (batch, largest.as_deref()));
    if let Some(line) = run.kept().said(&job.name()) {
        say(&wrapped(&format!("\n{line}"), WIDTH));
    }
    if let Some(path) = &args.record {
        run.keep(path)?;
        say_written(path);
    }
    let told = Told {
        program: job.name(),
        card: &card,
        context: wanted.beside(),
        ranks: &ranks,
        not_kept: run.kept(),
        largest_batch: largest,
    };
    json.map_or(Ok(()), |file| write_json(file, &told))
}

fn no_batch_fits(card: &CardFacts) -> Error {
    Error::NotPredicted(format!("a batch of 1 does not fit {}: name a larger one with --card", card.name))
}

fn show(args: &PredictArgs, job: &Job, ranks: &[Rank], (batch, largest): (Option<u64>, Option<&[Largest]>)) {
    let card = &job.options().card;
    let with = batch.map_or_else(String::new, |batch| format!(" with {} {batch}", args.batch_arg));
    let size = format!(" ({})", HumanBytes(card.bytes));
    let size = if card.is_named() { size.as_str() } else { "" };
    say(&wrapped(&format!("{}{with}, predicted on {}{size}", job.name(), card.name), WIDTH));
    for rank in ranks {
        rank.show(ranks.len() > 1);
    }
    if ranks.len() > 1 {
        say(&rank::compared(ranks));
    }
    for Largest { allocator, batch, .. } in largest.unwrap_or_default() {
        let batch = batch.map_or("none".to_owned(), |batch| batch.to_string());
        say(&format!("the largest batch that fits with {allocator}: {batch}"));
    }
}

/// Columns of a terminal.
const WIDTH: usize = 80;
