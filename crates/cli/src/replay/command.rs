//! The order of a replay: the files are opened, the traces are worked on at once, and are told in their order.

use std::path::PathBuf;

use millpond_probe::cost_table;
use millpond_replay::cores::in_order;
use millpond_replay::read::ReadError;
use millpond_replay::report::Section;

use super::args::{ReplayArgs, is_real};
use super::check::refuse_what_does_not_go_together;
use super::compute::{Work, WorkedOn};
use super::export::{self, Exports};
use super::json::{self, AllocatorJson, TraceJson};
use super::side_by_side::SideBySide;
use super::text;
use crate::error::{Error, Result};
use crate::outputs::{Output, refuse_clashes, write_json};
use crate::terminal::complain;

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> Result<()> {
    refuse_what_does_not_go_together(args)?;
    let read: Vec<_> = args.traces.iter().chain(&args.cost_table).map(PathBuf::as_path).collect();
    refuse_clashes(&read, &args.written())?;
    let costs = args.cost_table.as_deref().map(cost_table::read).transpose()?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let page = args.report.as_deref().map(Output::open).transpose()?;
    let mut answer = Answers { exports: Some(Exports::open(args)?), ..Answers::default() };
    let work = Work::new(args, costs);
    let replayed = |path: &PathBuf| work.file(path);
    if is_real(args.device) {
        // One after another: a device has room for one, and is measured.
        args.traces.iter().map(replayed).try_for_each(|file| answer.take(args, &work, file))?;
    } else {
        let mut taken = Ok(());
        in_order(&args.traces, replayed, |file| {
            if taken.is_ok() {
                taken = answer.take(args, &work, file);
            }
        });
        taken?;
    }
    drop(work);
    let Answers { all, sections, side_by_side, mut unread, .. } = answer;
    side_by_side.show();
    // Of several traces one that cannot be read does not cost the others.
    let last = unread.pop();
    unread.iter().for_each(|error| complain(&error.to_string()));
    if !all.is_empty() {
        if let Some(page) = page {
            export::report(page, &sections)?;
        }
        json.map_or(Ok(()), |file| write_json(file, &all))?;
    }
    if let Some(error) = last {
        return Err(error.into());
    }
    if args.fail_if_oom { refuse_oom(args, &all) } else { Ok(()) }
}

/// What came of the traces so far.
#[derive(Default)]
struct Answers {
    all: Vec<TraceJson>,
    sections: Vec<Section>,
    side_by_side: SideBySide,
    unread: Vec<ReadError>,
    /// Until the first trace, which they are of.
    exports: Option<Exports>,
}

impl Answers {
    /// Tells what came of the traces of one file.
    fn take(&mut self, args: &ReplayArgs, work: &Work<'_>, file: WorkedOn) -> Result<()> {
        let traces = match file {
            Ok(traces) => traces,
            Err(error) => {
                self.unread.push(error);
                return Ok(());
            }
        };
        let others = args.traces.len() > 1 || traces.len() > 1;
        for (trace, replayed) in traces {
            let mut replayed = replayed?;
            if let Some(exports) = self.exports.take() {
                exports.write(args, &trace, others)?;
            }
            self.sections.extend(replayed.section.take());
            let remarks = work.progress.aside(|| text::show(args, &trace, &replayed));
            let (json, program) = json::of_trace(args, &trace, replayed, remarks);
            self.all.push(json);
            if others {
                self.side_by_side.add(trace, program);
            }
        }
        Ok(())
    }
}

/// For `--fail-if-oom`: the allocators that were chosen run out of memory, or do not fit on a card that was named. Or nobody knows,
/// since a part of the job is missing.
fn refuse_oom(args: &ReplayArgs, all: &[TraceJson]) -> Result<()> {
    let of_row = |row: &AllocatorJson| {
        let name = &row.outcome.allocator;
        let cards = if args.card.is_empty() { &[][..] } else { &row.too_small };
        match (row.outcome.oom, cards) {
            (Some(_), _) => Some(name.clone()),
            (None, []) => None,
            (None, cards) => Some(format!("{name} on {}", cards.join(" and "))),
        }
    };
    let of = |told: &TraceJson| {
        let rows = told.allocators.iter().filter(|row| row.is_judged);
        let names: Vec<_> = rows.filter_map(of_row).collect();
        (!names.is_empty()).then(|| format!("{} with {}", told.trace, names.join(", ")))
    };
    let without: Vec<_> = all.iter().filter_map(of).collect();
    if !without.is_empty() {
        return Err(Error::OutOfMemory(without.join("; ")));
    }
    let unknown = all.iter().find_map(|told| Some((told.trace.clone(), told.lacks.clone()?)));
    unknown.map_or(Ok(()), |(trace, lacks)| Err(Error::NotWhole { trace, lacks }))
}
