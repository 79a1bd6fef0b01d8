//! The order of a prediction.

use millpond::HumanBytes;
use serde::Serialize;

use super::apart::Kept;
use super::args::PredictArgs;
use super::batch::{Batch, Largest};
use super::cards::CardFacts;
use super::job::{Job, Options, nothing_predicted};
use super::rank::{Rank, Wanted};
use super::{batch, rank, scaled};
use crate::error::{Error, Result};
use crate::outputs::write_json;
use crate::outputs::{Output, files_among, refuse_clashes, refuse_stdout, say_written};
use crate::terminal::{WIDTH, say, wrapped};

/// What is told of a program, in the shape that `--json` writes. Sizes in bytes.
#[derive(Debug, Serialize)]
struct PredictionJson<'a> {
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
    refuse_clashes(&files_among(&args.program), &[args.record.as_deref(), args.json.as_deref()])?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let recording = args.record.as_deref().map(Output::open).transpose()?;
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
    let offload = args.offload.clone().map(|what| (what, args.bandwidth));
    let wanted = Wanted { cards: args.card.clone(), context, nccl, offload };
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
                let (run, ranks) = predict(Some(batch), false)?;
                run.stopped().map_or(Ok(ranks), |signal| Err(nothing_predicted(signal)))
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
    if let Some(file) = &recording {
        run.keep(file)?;
        say_written(file.path());
    }
    let told = PredictionJson {
        program: job.name(),
        card: &card,
        context: wanted.beside(),
        ranks: &ranks,
        not_kept: run.kept(),
        largest_batch: largest,
    };
    json.map_or(Ok(()), |file| write_json(file, &told))?;
    run.stopped().map_or(Ok(()), |signal| {
        Err(Error::Stopped { signal, kept: "what came before is predicted".to_owned() })
    })
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
    let (what, numbers) = Rank::numbers(ranks);
    let title = |number: u32| format!("{} {number}", if what == "rank" { "Rank" } else { "Process" });
    for (rank, number) in ranks.iter().zip(numbers) {
        rank.show((ranks.len() > 1).then(|| title(number)));
    }
    if ranks.len() > 1 {
        say(&rank::compared(ranks));
    }
    for Largest { allocator, batch, is_exact } in largest.unwrap_or_default() {
        let at_least = if *is_exact { "" } else { "at least " };
        let batch = batch.map_or("none".to_owned(), |batch| format!("{at_least}{batch}"));
        say(&format!("the largest batch that fits with {allocator}: {batch}"));
    }
}
