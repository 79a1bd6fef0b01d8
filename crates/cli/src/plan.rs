//! `millpond plan`: which recorded jobs share which card.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use millpond::{Context, HumanBytes};
use millpond_baselines::MILLPOND;
use millpond_replay::choice::Choice;
use millpond_replay::cores::in_order;
use millpond_replay::fit::{CONTEXT_BYTES, Card, Need};
use millpond_replay::packing::{Curve, Job, LIKELY, Packing, Shared};
use millpond_replay::replay::{FreeWhen, Program, UNLIMITED, on_sim};
use millpond_replay::trace::Trace;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::outputs::{Output, refuse_clashes};
use crate::replay_args::size_or_none;
use crate::replay_progress::Progress;
use crate::screen::{count, say, wrapped};
use crate::traces::{is_stdin, read_file, write_json};

#[derive(Debug, Args)]
#[command(after_help = "\
A trace is what millpond replay reads. A job takes what it needs with the pool,
and its process a context besides. The cards are filled in the order in which
they have least room left.

Examples:
  millpond plan --cards 24GiB --jobs a.mprec b.mprec
  millpond plan --cards 2xA100-40,H100 --jobs ranks/*.mprec --json plan.json")]
pub(crate) struct PlanArgs {
    /// Recordings of the jobs; - is standard input
    #[arg(long, value_name = "TRACE", required = true, num_args = 1..)]
    jobs: Vec<PathBuf>,
    /// The cards that there are, such as '24GiB,2xA100-40'
    #[arg(long, value_name = "CARDS", required = true, value_delimiter = ',')]
    cards: Vec<Cards>,
    /// Left to the driver for each job [default: 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    context: Option<u64>,
    /// Write the results; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Some cards of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cards {
    card: Card,
    count: usize,
}

/// More than a machine has.
const MOST_CARDS: usize = 64;

impl FromStr for Cards {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (count, card) = match text.split_once('x') {
            Some((count, card)) if count.trim().parse::<usize>().is_ok() => (count.trim(), card),
            _ => ("1", text),
        };
        match count.parse() {
            Ok(count) if (1..=MOST_CARDS).contains(&count) => Ok(Self { card: card.parse()?, count }),
            _ => Err(format!("'{text}' should be 1 to {MOST_CARDS} cards, such as 2x24GiB")),
        }
    }
}

/// What is told, in the shape that `--json` writes. Sizes in bytes.
#[derive(Debug, Serialize)]
struct Told {
    cards: Vec<ToldCard>,
    /// Jobs for which there is no room.
    left: Vec<ToldJob>,
    /// What each job's process takes of its card besides.
    context: u64,
}

#[derive(Debug, Serialize)]
struct ToldCard {
    /// The name of its budget.
    name: String,
    card: Card,
    jobs: Vec<ToldJob>,
    /// Whether no job can fail there for another's sake.
    guaranteed: bool,
    #[serde(flatten)]
    shared: SharedFigures,
}

#[derive(Debug, Serialize)]
struct SharedFigures {
    budget: u64,
    needs: u64,
    likely: Option<millpond_replay::packing::Together>,
}

#[derive(Debug, Clone, Serialize)]
struct ToldJob {
    job: String,
    needs: u64,
    peak_requested: u64,
    /// What of its history is not in its recording.
    lacks: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let read: Vec<&Path> = args.jobs.iter().map(PathBuf::as_path).filter(|path| !is_stdin(path)).collect();
    refuse_clashes(&read, &[args.json.as_deref()])?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let context = args.context.unwrap_or(CONTEXT_BYTES);
    let (told, jobs) = look(args)?;
    let cards: Vec<Card> =
        args.cards.iter().flat_map(|cards| std::iter::repeat_n(cards.card.clone(), cards.count)).collect();
    let packing = Packing::of(&jobs, &cards, context);
    let card = |(number, (shared, card)): (usize, (Shared, Card))| ToldCard {
        name: format!("gpu{number}"),
        card,
        jobs: shared.jobs.iter().map(|job| told[*job].clone()).collect(),
        guaranteed: shared.likely.is_none() && shared.jobs.iter().all(|job| told[*job].lacks.is_none()),
        shared: SharedFigures { budget: shared.budget, needs: shared.needs, likely: shared.likely },
    };
    let told = Told {
        cards: packing.cards.into_iter().zip(cards).enumerate().map(card).collect(),
        left: packing.left.iter().map(|job| told[*job].clone()).collect(),
        context,
    };
    let jobs = told.cards.iter().flat_map(|card| &card.jobs).chain(&told.left);
    for ToldJob { job, lacks, .. } in jobs {
        lacks.iter().for_each(|lacks| say(&wrapped(&format!("{job}: {lacks}.\n"), WIDTH)));
    }
    told.cards.iter().for_each(show);
    json.map_or(Ok(()), |file| write_json(file, &told))?;
    refuse_left(&told)
}

/// Reads the jobs, and finds what each needs.
fn look(args: &PlanArgs) -> Result<(Vec<ToldJob>, Vec<Job>)> {
    let progress = Progress::new(&count(args.jobs.len() as u64, "job"), "reading and replaying");
    progress.expect(args.jobs.len());
    let (mut told, mut jobs, mut failed) = (Vec::new(), Vec::new(), None);
    let each = |path: &PathBuf| {
        let traces = read_file(path).map_err(Error::from);
        let jobs = traces.and_then(|traces| traces.iter().map(job).collect::<Result<Vec<_>>>());
        progress.done();
        jobs
    };
    in_order(&args.jobs, each, |found| match found {
        Ok(found) => found.into_iter().for_each(|(told_job, job)| {
            told.push(told_job);
            jobs.push(job);
        }),
        Err(error) => drop(failed.get_or_insert(error)),
    });
    match failed {
        Some(error) => Err(error),
        None => Ok((told, jobs)),
    }
}

/// What one job needs with the pool, and holds over time.
fn job(trace: &Trace) -> Result<(ToldJob, Job)> {
    let program = Program::new(trace, FreeWhen::Completed);
    let choose = |context: &Context| Choice::default().build(MILLPOND, context);
    let unlimited = on_sim(trace, &program, &choose, UNLIMITED)?;
    let need = Need::of(&program, &choose, &unlimited)?.map_or(u64::MAX, |need| need.bytes);
    let told = ToldJob {
        job: trace.name.clone(),
        needs: need,
        peak_requested: program.peak_requested().0,
        lacks: trace.lacks.clone(),
    };
    Ok((told, Job { need, curve: Curve::of(&program, need) }))
}

fn show(card: &ToldCard) {
    let ToldCard { name, card, jobs, shared, guaranteed } = card;
    if jobs.is_empty() {
        say(&format!("{name}, {}: free\n", card.name));
        return;
    }
    let [budget, needs] = [shared.budget, shared.needs].map(HumanBytes);
    say(&format!("{name}, {}: {} in a budget of {budget}", card.name, count(jobs.len() as u64, "job")));
    for job in jobs {
        say(&format!("{:>12}  {}", HumanBytes(job.needs).to_string(), job.job));
    }
    let said = match &shared.likely {
        None if !guaranteed => format!(
            "Together they need {needs} at least. That is no guarantee: a recording does not have all of its job's history."
        ),
        None => format!("Guaranteed: together they need {needs}, so none fails for another's sake."),
        Some(together) => format!(
            "Likely: together they need {needs}, but rarely at once. At {:.1} % of 400 ways to begin, they stay \
             within the budget. The most is {} in the median, and {} in the worst case.",
            together.fits * 100.0,
            HumanBytes(together.median),
            HumanBytes(together.worst),
        ),
    };
    say(&wrapped(&said, WIDTH));
    let mib = shared.budget >> 20;
    say(&format!("  millpond run --pool --limit {mib}MiB --budget {name} -- PROGRAM\n"));
}

/// Columns of a terminal.
const WIDTH: usize = 80;

/// Jobs without a card are an error: a script that starts jobs must not go on.
fn refuse_left(told: &Told) -> Result<()> {
    if told.left.is_empty() {
        return Ok(());
    }
    let named = |job: &ToldJob| format!("{} (needs {})", job.job, HumanBytes(job.needs));
    let left = told.left.iter().map(named).collect::<Vec<_>>().join(", ");
    Err(Error::NoRoom { left, likely: LIKELY * 100.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_counted_or_one() {
        let cards =
            |text: &str| text.parse::<Cards>().map(|cards| (cards.count, cards.card.bytes.div_ceil(1 << 30)));
        assert_eq!(cards("24GiB"), Ok((1, 24)));
        assert_eq!(cards("2xA100-40"), Ok((2, 39)));
        assert_eq!(cards("8x RTX 4090"), Ok((8, 24)));
        assert!(cards("0x24GiB").unwrap_err().contains("1 to 64 cards"));
        assert!(cards("65x24GiB").is_err());
        assert!(cards("2xVoodoo").unwrap_err().contains("no card"));
    }
}
