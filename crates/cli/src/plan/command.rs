//! Finds what each job needs, and packs the jobs onto the cards.

use std::path::{Path, PathBuf};

use millpond::{Context, HumanBytes};
use millpond_baselines::MILLPOND;
use millpond_replay::choice::Choice;
use millpond_replay::cores::in_order;
use millpond_replay::fit::{CONTEXT_BYTES, Card, Need};
use millpond_replay::packing::{Curve, Job, LIKELY, Packing, Shared};
use millpond_replay::replay::{FreeWhen, Program, UNLIMITED, on_sim};
use millpond_replay::trace::Trace;
use serde::Serialize;

use super::args::PlanArgs;
use crate::error::{Error, Result};
use crate::outputs::write_json;
use crate::outputs::{Output, refuse_clashes};
use crate::terminal::{WIDTH, count, say, wrapped};
use crate::traces::{TraceProgress, read_file};

/// What is told, in the shape that `--json` writes. Sizes in bytes.
#[derive(Debug, Serialize)]
struct PlanJson {
    cards: Vec<CardJson>,
    /// Jobs for which there is no room.
    left: Vec<JobJson>,
    /// What each job's process takes of its card besides.
    context: u64,
}

#[derive(Debug, Serialize)]
struct CardJson {
    /// The name of its budget.
    name: String,
    card: Card,
    jobs: Vec<JobJson>,
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
struct JobJson {
    job: String,
    needs: u64,
    peak_requested: u64,
    /// What of its history is not in its recording.
    lacks: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let read: Vec<&Path> = args.jobs.iter().map(PathBuf::as_path).collect();
    refuse_clashes(&read, &[args.json.as_deref()])?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let context = args.context.unwrap_or(CONTEXT_BYTES);
    let (told, jobs) = look(args)?;
    let cards: Vec<Card> =
        args.cards.iter().flat_map(|cards| std::iter::repeat_n(cards.card.clone(), cards.count)).collect();
    let packing = Packing::of(&jobs, &cards, context);
    let card = |(number, (shared, card)): (usize, (Shared, Card))| CardJson {
        name: format!("gpu{number}"),
        card,
        jobs: shared.jobs.iter().map(|job| told[*job].clone()).collect(),
        guaranteed: shared.likely.is_none() && shared.jobs.iter().all(|job| told[*job].lacks.is_none()),
        shared: SharedFigures { budget: shared.budget, needs: shared.needs, likely: shared.likely },
    };
    let told = PlanJson {
        cards: packing.cards.into_iter().zip(cards).enumerate().map(card).collect(),
        left: packing.left.iter().map(|job| told[*job].clone()).collect(),
        context,
    };
    let jobs = told.cards.iter().flat_map(|card| &card.jobs).chain(&told.left);
    for JobJson { job, lacks, .. } in jobs {
        lacks.iter().for_each(|lacks| say(&wrapped(&format!("{job}: {lacks}.\n"), WIDTH)));
    }
    told.cards.iter().for_each(show);
    json.map_or(Ok(()), |file| write_json(file, &told))?;
    refuse_left(&told)
}

/// Reads the jobs, and finds what each needs.
fn look(args: &PlanArgs) -> Result<(Vec<JobJson>, Vec<Job>)> {
    let progress = TraceProgress::new(&count(args.jobs.len() as u64, "job"), "reading and replaying");
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
fn job(trace: &Trace) -> Result<(JobJson, Job)> {
    let program = Program::new(trace, FreeWhen::Completed);
    let choose = |context: &Context| Choice::default().build(MILLPOND, context);
    let unlimited = on_sim(trace, &program, &choose, UNLIMITED)?;
    let peak_requested = program.peak_requested().0;
    // Beyond what any device has, no need is found; it is no less than what is requested.
    let need = Need::of(&program, &choose, &unlimited)?.map_or(peak_requested, |need| need.bytes);
    let told = JobJson { job: trace.name.clone(), needs: need, peak_requested, lacks: trace.lacks.clone() };
    Ok((told, Job { need, curve: Curve::of(&program, need) }))
}

fn show(card: &CardJson) {
    let CardJson { name, card, jobs, shared, guaranteed } = card;
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

/// Jobs without a card are an error: a script that starts jobs must not go on.
fn refuse_left(told: &PlanJson) -> Result<()> {
    if told.left.is_empty() {
        return Ok(());
    }
    let named = |job: &JobJson| format!("{} (needs {})", job.job, HumanBytes(job.needs));
    let left = told.left.iter().map(named).collect::<Vec<_>>().join(", ");
    Err(Error::NoRoom { left, likely: LIKELY * 100.0 })
}
