//! `millpond diff`: who holds more and who holds less, in two recordings or at two moments of one.

use std::path::{Path, PathBuf};

use clap::Args;
use millpond::HumanBytes;
use millpond_replay::difference::{At, Became, Change, Difference, Side};
use millpond_replay::moment::Moment;
use millpond_replay::replay::{FreeWhen, Program};
use millpond_replay::steps::Steps;
use millpond_replay::trace::Trace;

use crate::error::{Error, Result};
use crate::outputs::{Output, refuse_clashes};
use crate::replay_tables::{whole, wrapped};
use crate::screen::{count, remark, say};
use crate::traces::{is_stdin, read_traces, write_json};

#[derive(Debug, Args)]
#[command(after_help = "\
Two traces are compared at their peaks, one at its start and its end; --from
and --to name other moments of the first and of the second:
  start, end, peak, 1.5s, 300ms, step:30 (its end), in:NAME (the peak in a
  phase or under a tag).
The rows sum to the difference. Call sites are the same if their tags,
functions and files are, though lines moved.

Examples:
  millpond diff yesterday.mprec today.mprec
  millpond diff run.mprec --from step:10 --to step:90
  millpond diff run.mprec --from in:forward --to in:backward --json -")]
pub(crate) struct DiffArgs {
    /// Trace to compare
    #[arg(value_name = "TRACE")]
    first: PathBuf,
    /// Trace to compare with [default: the same]
    #[arg(value_name = "OTHER")]
    second: Option<PathBuf>,
    /// Moment of the first [default: peak; of one: start]
    #[arg(long, value_name = "MOMENT")]
    from: Option<Moment>,
    /// Moment of the second [default: peak; of one: end]
    #[arg(long, value_name = "MOMENT")]
    to: Option<Moment>,
    /// Phase or tag that each step begins with [default: found]
    #[arg(long, value_name = "NAME")]
    step: Option<String>,
    /// Write the results; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &DiffArgs) -> Result<()> {
    let read = [Some(&args.first), args.second.as_ref()].into_iter().flatten();
    let read: Vec<&Path> = read.map(PathBuf::as_path).collect();
    if read.iter().filter(|path| is_stdin(path)).count() > 1 {
        return Err(Error::Usage("-: standard input is one trace; name a file for the other".to_owned()));
    }
    let files: Vec<&Path> = read.into_iter().filter(|path| !is_stdin(path)).collect();
    refuse_clashes(&files, &[args.json.as_deref()])?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let first = read_traces(&args.first)?;
    let second = args.second.as_deref().map(read_traces).transpose()?;
    let (one, two) =
        if second.is_some() { (Moment::Peak, Moment::Peak) } else { (Moment::Start, Moment::End) };
    let (from, to) = (args.from.clone().unwrap_or(one), args.to.clone().unwrap_or(two));
    let mut told = Vec::new();
    for (first, second) in pairs(&first, second.as_deref())? {
        let step = args.step.as_deref();
        let difference = Difference::of(&at(first, &from, step)?, &at(second, &to, step)?);
        show(&difference);
        told.push(difference);
    }
    json.map_or(Ok(()), |file| write_json(file, &told))
}

/// The traces that are compared: those of one device each, or of devices of one number.
fn pairs<'a>(first: &'a [Trace], second: Option<&'a [Trace]>) -> Result<Vec<(&'a Trace, &'a Trace)>> {
    let Some(second) = second else { return Ok(first.iter().map(|trace| (trace, trace)).collect()) };
    if let ([one], [other]) = (first, second) {
        return Ok(vec![(one, other)]);
    }
    let on = |traces: &'a [Trace], number| traces.iter().find(move |trace| trace.device == number);
    let both: Vec<_> = first.iter().filter_map(|one| Some((one, on(second, one.device)?))).collect();
    if both.is_empty() {
        let devices = |traces: &[Trace]| {
            let numbers = traces.iter().map(|trace| trace.device.to_string());
            numbers.collect::<Vec<_>>().join(", ")
        };
        let (one, other) = (devices(first), devices(second));
        return Err(Error::Usage(format!(
            "the first file is about devices {one}, the second about {other}: record the same devices in both"
        )));
    }
    for left_out in first.iter().filter(|one| on(second, one.device).is_none()) {
        remark(&format!(
            "{}: left out, since the other file has no device {}",
            left_out.name, left_out.device
        ));
    }
    for left_out in second.iter().filter(|other| on(first, other.device).is_none()) {
        remark(&format!(
            "{}: left out, since the other file has no device {}",
            left_out.name, left_out.device
        ));
    }
    Ok(both)
}

/// The trace at this moment.
fn at<'a>(trace: &'a Trace, moment: &Moment, step: Option<&str>) -> Result<At<'a>> {
    let program = Program::new(trace, FreeWhen::Completed);
    let steps = match step {
        Some(name) => Steps::named(trace, &program, name)?,
        None => Steps::found(trace, &program),
    };
    let found = moment.steps(trace, &program, &steps)?;
    Ok(At::new(trace, &program, moment, found))
}

/// Rows that are shown.
const MOST_ROWS: usize = 16;

/// Says what differs.
pub(crate) fn show(difference: &Difference) {
    let Difference { from, to, requested, not_requested, held, changes, tags } = difference;
    say(&wrapped(&format!("from  {}", side(from))));
    say(&wrapped(&format!("to    {}", side(to))));
    say(&format!("\n{}", line(["", "change", "before", "after"], "who")));
    if !tags.is_empty() {
        rows(tags);
        say("by call site");
    }
    rows(changes);
    let sum = |change: i64, before: u64, after: u64, who: &str| {
        say(&line(["", &signed(change), &human(before), &human(after)], who));
    };
    sum(*requested, from.requested, to.requested, "requested, in all");
    if let (Some(not_requested), Some(held), Some(before), Some(after)) =
        (not_requested, held, from.held, to.held)
    {
        let rest = |held: u64, requested: u64| held.saturating_sub(requested);
        sum(
            *not_requested,
            rest(before, from.requested),
            rest(after, to.requested),
            "cached, rounded up or pending",
        );
        sum(*held, before, after, "held, in all");
    }
    say("");
}

fn side(side: &Side) -> String {
    let Side { trace, moment, time_us, requested, blocks, held } = side;
    let held = held.map_or_else(String::new, |held| format!(", {} held", HumanBytes(held)));
    format!(
        "{trace} {moment} ({:.3} s): {} requested in {}{held}",
        *time_us as f64 / 1e6,
        HumanBytes(*requested),
        count(*blocks, "block")
    )
}

/// The largest changes, and the others as one.
fn rows(changes: &[Change]) {
    let (shown, others) = changes.split_at(changes.len().min(MOST_ROWS));
    for change in shown {
        let became = match change.became {
            Became::Came => "came",
            Became::Went => "went",
            Became::Grew => "grew",
            Became::Shrank => "shrank",
        };
        say(&line(
            [became, &signed(change.change), &human(change.before), &human(change.after)],
            &change.name(),
        ));
    }
    if !others.is_empty() {
        let sum = |of: fn(&Change) -> u64| human(others.iter().map(of).sum());
        let change = signed(others.iter().map(|other| other.change).sum());
        let (before, after) = (sum(|other| other.before), sum(|other| other.after));
        say(&line(["", &change, &before, &after], &format!("{} more", others.len())));
    }
    if changes.is_empty() {
        say("nothing changed");
    }
}

fn line([became, change, before, after]: [&str; 4], who: &str) -> String {
    whole(&format!("{became:<6} {change:>12} {before:>11} {after:>11}  "), who)
}

fn human(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

fn signed(bytes: i64) -> String {
    let sign = match bytes {
        ..0 => "-",
        0 => "",
        1.. => "+",
    };
    format!("{sign}{}", HumanBytes(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_its_sign() {
        assert_eq!([-2048, 0, 3 << 20].map(signed), ["-2.00 KiB", "0 B", "+3.00 MiB"]);
    }
}
