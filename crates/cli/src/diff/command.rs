//! Which traces and which of their moments are compared.

use std::path::{Path, PathBuf};

use millpond_replay::difference::{At, Difference};
use millpond_replay::moment::Moment;
use millpond_replay::replay::{FreeWhen, Program};
use millpond_replay::steps::Steps;
use millpond_replay::trace::Trace;

use super::args::DiffArgs;
use super::table::show;
use crate::error::{Error, Result};
use crate::outputs::write_json;
use crate::outputs::{Output, refuse_clashes};
use crate::terminal::remark;
use crate::traces::read_traces;

/// Runs the command.
pub(crate) fn run(args: &DiffArgs) -> Result<()> {
    let read = [Some(&args.first), args.second.as_ref()].into_iter().flatten();
    let read: Vec<&Path> = read.map(PathBuf::as_path).collect();
    refuse_clashes(&read, &[args.json.as_deref()])?;
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
