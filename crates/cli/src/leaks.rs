//! `millpond leaks`: what a recorded job holds more and more of from step to step, and what is live at its end.

use std::path::{Path, PathBuf};

use clap::Args;
use millpond::HumanBytes;
use millpond_replay::growth::Growth;
use millpond_replay::out_of_memory::OutOfMemory;
use millpond_replay::replay::{FreeWhen, Program};
use millpond_replay::sites::Live;
use millpond_replay::steps::{StepBy, Steps};
use millpond_replay::trace::Trace;
use serde::Serialize;

use crate::error::Result;
use crate::introduction::introduce;
use crate::outputs::{Output, refuse_clashes};
use crate::replay_tables::{grew_by, held, wrapped};
use crate::screen::{count, say, thousands};
use crate::traces::{is_stdin, read_traces, write_json};

#[derive(Debug, Args)]
#[command(after_help = "\
A trace is what `millpond replay` reads. A row is a call site under its tags;
a tag where no call stacks were recorded; else blocks of like sizes.
R² is 1 where each step adds as much, and near 0 where chance does.

Examples:
  millpond leaks run.mprec
  millpond leaks snapshot.pickle --step ProfilerStep --json leaks.json")]
pub(crate) struct LeaksArgs {
    /// Trace to look at; - is standard input
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Phase or tag that each step begins with [default: found]
    #[arg(long, value_name = "NAME")]
    step: Option<String>,
    /// Write the results; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is told of one trace, in the shape that `--json` writes.
#[derive(Serialize)]
struct Told {
    trace: String,
    remarks: Vec<String>,
    #[serde(flatten)]
    growth: Growth,
    live_at_end: Live,
}

/// Runs the command.
pub(crate) fn run(args: &LeaksArgs) -> Result<()> {
    let read: Vec<&Path> = [args.trace.as_path()].into_iter().filter(|path| !is_stdin(path)).collect();
    refuse_clashes(&read, &[args.json.as_deref()])?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let told = read_traces(&args.trace)?.iter().map(|trace| look(args, trace)).collect::<Result<Vec<_>>>()?;
    json.map_or(Ok(()), |file| write_json(file, &told))
}

fn look(args: &LeaksArgs, trace: &Trace) -> Result<Told> {
    // What the program has freed is no leak, though it waits for a stream.
    let holds = Program::new(trace, FreeWhen::Requested);
    let program = Program::new(trace, FreeWhen::Completed);
    let steps = match &args.step {
        Some(name) => Steps::named(trace, &holds, name)?,
        None => Steps::found(trace, &holds),
    };
    if let Some(died) = OutOfMemory::of(trace) {
        died.lines().first().into_iter().for_each(|line| say(&wrapped(line)));
    }
    let remarks = introduce(trace, &program);
    let growth = Growth::of(trace, &holds, steps);
    let live_at_end = Live::at_end(trace, &program);
    say(&format!("{}\n", grew(&growth)));
    say(&held("Live at the end", &live_at_end));
    say("");
    Ok(Told { trace: trace.name.clone(), remarks, growth, live_at_end })
}

fn grew(growth: &Growth) -> String {
    let another =
        if growth.step_by == StepBy::Phase { "" } else { "; --step names a phase or a tag instead" };
    let each = if growth.step_by == StepBy::Part { "part" } else { "step" };
    let count_of = count(growth.steps as u64, each);
    let steps = wrapped(&format!("{count_of}: {}{another}", growth.steps_are()));
    let looked_at = format!("{} looked at", thousands(growth.looked_at as u64));
    if growth.grown.is_empty() {
        return format!("{steps}\n\nGrows from step to step: nothing, of {looked_at}");
    }
    let all: f64 = growth.grown.iter().map(|grown| grown.bytes_a_step).sum();
    let mut text = format!(
        "{steps}\n\nGrows from step to step: {} of {looked_at}, {} a {each}\n{}",
        growth.grew,
        HumanBytes(all.round() as u64),
        grew_by(growth, &growth.grown)
    );
    if growth.grew > growth.grown.len() {
        text += &format!("\nand {} more", growth.grew - growth.grown.len());
    }
    text
}
