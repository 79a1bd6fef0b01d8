//! Finds what grows, and shows it.

use millpond::HumanBytes;
use millpond_replay::growth::Growth;
use millpond_replay::out_of_memory::OutOfMemory;
use millpond_replay::replay::{FreeWhen, Program};
use millpond_replay::sites::Live;
use millpond_replay::steps::{StepBy, Steps};
use millpond_replay::trace::Trace;
use serde::Serialize;

use super::args::LeaksArgs;
use crate::error::Result;
use crate::outputs::write_json;
use crate::outputs::{Output, refuse_clashes};
use crate::terminal::{count, say, thousands};
use crate::traces::{grew_by, held, read_traces, say_summary, wrapped};

/// What is told of one trace, in the shape that `--json` writes.
#[derive(Serialize)]
struct LeaksJson {
    trace: String,
    remarks: Vec<String>,
    #[serde(flatten)]
    growth: Growth,
    live_at_end: Live,
}

/// Runs the command.
pub(crate) fn run(args: &LeaksArgs) -> Result<()> {
    refuse_clashes(&[&args.trace], &[args.json.as_deref()])?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let told = read_traces(&args.trace)?.iter().map(|trace| look(args, trace)).collect::<Result<Vec<_>>>()?;
    json.map_or(Ok(()), |file| write_json(file, &told))
}

fn look(args: &LeaksArgs, trace: &Trace) -> Result<LeaksJson> {
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
    let remarks = say_summary(trace, &program);
    let growth = Growth::of(trace, &holds, steps);
    let live_at_end = Live::at_end(trace, &program);
    say(&format!("{}\n", grew(&growth)));
    say(&held("Live at the end", &live_at_end));
    say("");
    Ok(LeaksJson { trace: trace.name.clone(), remarks, growth, live_at_end })
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
