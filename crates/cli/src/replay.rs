//! `millpond replay`: traces through allocators, on a simulated or a real device, and what they tell.
//!
//! `replay_work.rs` computes, on all cores, and `replay_told.rs` tells people and programs. This file has the order of things, and
//! refuses what does not go together.

use std::path::PathBuf;

use millpond::device::{DeviceName, MemoryKind};
use millpond::{Context, HumanBytes};
use millpond_baselines::{Caching, MILLPOND, StreamOrdered, name_of};
use millpond_probe::cost_table;
use millpond_replay::cores::in_order;
use millpond_replay::read::ReadError;
use millpond_replay::replay::UNLIMITED;
use millpond_replay::report::Section;

use crate::across::Across;
use crate::error::{Error, Result};
use crate::outputs::{Output, refuse_clashes};
use crate::replay_args::ReplayArgs;
use crate::replay_export::{self, Exports};
use crate::replay_told::{Told, ToldRow, tell};
use crate::replay_work::{Work, WorkedOn, is_real};
use crate::screen::complain;
use crate::traces::{is_stdin, write_json};

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> Result<()> {
    refuse_what_does_not_go_together(args)?;
    let read = args.traces.iter().chain(&args.cost_table).map(PathBuf::as_path);
    let read: Vec<_> = read.filter(|path| !is_stdin(path)).collect();
    refuse_clashes(&read, &args.written())?;
    let costs = args.cost_table.as_deref().map(cost_table::read).transpose()?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let page = args.report.as_deref().map(Output::open).transpose()?;
    let mut answer = Answer { exports: Some(Exports::open(args)?), ..Answer::default() };
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
    let Answer { all, sections, across, mut unread, .. } = answer;
    across.show();
    // Of several traces one that cannot be read does not cost the others.
    let last = unread.pop();
    unread.iter().for_each(|error| complain(&error.to_string()));
    if !all.is_empty() {
        if let Some(page) = page {
            replay_export::report(page, &sections)?;
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
struct Answer {
    all: Vec<Told>,
    sections: Vec<Section>,
    across: Across,
    unread: Vec<ReadError>,
    /// Until the first trace, which they are of.
    exports: Option<Exports>,
}

impl Answer {
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
            let (told, program) = work.progress.aside(|| tell(args, &trace, replayed));
            self.all.push(told);
            if others {
                self.across.add(trace, program);
            }
        }
        Ok(())
    }
}

/// For `--fail-if-oom`: the allocators that were chosen run out of memory, or do not fit on a card that was named.
fn refuse_oom(args: &ReplayArgs, all: &[Told]) -> Result<()> {
    let of_row = |row: &ToldRow| {
        let name = &row.outcome.allocator;
        let cards = if args.card.is_empty() { &[][..] } else { &row.too_small };
        match (row.outcome.oom, cards) {
            (Some(_), _) => Some(name.clone()),
            (None, []) => None,
            (None, cards) => Some(format!("{name} on {}", cards.join(" and "))),
        }
    };
    let of = |told: &Told| {
        let rows = told.allocators.iter().filter(|row| row.is_judged);
        let names: Vec<_> = rows.filter_map(of_row).collect();
        (!names.is_empty()).then(|| format!("{} with {}", told.trace, names.join(", ")))
    };
    let without: Vec<_> = all.iter().filter_map(of).collect();
    if without.is_empty() { Ok(()) } else { Err(Error::OutOfMemory(without.join("; "))) }
}

fn refuse_what_does_not_go_together(args: &ReplayArgs) -> Result<()> {
    let names = args.allocators();
    let for_nobody = |whose: &[&str]| !names.iter().any(|name| whose.contains(name));
    if args.page_sizes.is_some() && for_nobody(&[MILLPOND]) {
        return Err(Error::Usage("--page-sizes is for millpond: add --allocator millpond".to_owned()));
    }
    if args.page_sizes.is_some() {
        let context = Context::new(DeviceName::SIM.open_with_capacity(Some(UNLIMITED))?);
        let built = args.choice().build(MILLPOND, &context);
        built.map_err(|error| Error::Usage(error.to_string().replacen("page_sizes", "--page-sizes", 1)))?;
    }
    if args.alloc_conf.is_some() && for_nobody(&[Caching::NAME, Caching::EXPANDABLE]) {
        return Err(Error::Usage(
            "--alloc-conf is for PyTorch's allocator: add --allocator caching or expandable".to_owned(),
        ));
    }
    if args.context.is_some() && is_real(args.device) {
        return Err(Error::Usage("--context is for --device sim; a real device has its own".to_owned()));
    }
    if (is_real(args.device) || args.capacity.is_some()) && !args.card.is_empty() {
        return Err(Error::Usage(
            "--card is for the table of cards, which is made on --device sim without --capacity".to_owned(),
        ));
    }
    if args.fail_if_oom && !args.card.is_empty() && names == [StreamOrdered::NAME] {
        return Err(Error::Usage(
            "--fail-if-oom --card: what stream-ordered needs is not known well enough; name another allocator".to_owned(),
        ));
    }
    if let Some(capacity) = args.capacity.filter(|capacity| *capacity <= args.context_beside()) {
        return Err(Error::Usage(format!(
            "--capacity {} leaves nothing beside the context's {}: name more, or a smaller --context",
            HumanBytes(capacity),
            HumanBytes(args.context_beside())
        )));
    }
    refuse_for_memory(args, &names)?;
    if args.cost_table.is_some() && is_real(args.device) {
        return Err(Error::Usage(
            "--cost-table is for --device sim; a real device has its own costs".to_owned(),
        ));
    }
    if args.verify && !is_real(args.device) {
        return Err(Error::Usage(
            "--verify needs real memory: add --device host or --device cuda".to_owned(),
        ));
    }
    if args.capacity.is_some() && args.device.is_gpu() {
        return Err(Error::Usage("--capacity is for --device sim or host; a GPU has what it has".to_owned()));
    }
    Ok(())
}

/// Another memory than the device's own is replayed at its costs. All that speaks of cards is not for it.
fn refuse_for_memory(args: &ReplayArgs, names: &[&str]) -> Result<()> {
    if args.memory == MemoryKind::Device {
        return Ok(());
    }
    let memory = name_of(args.memory);
    if args.device.is_gpu() {
        return Err(Error::Usage(format!("--memory {memory} is for --device sim or host")));
    }
    if names.is_empty() {
        let names = args.left_out().join(", ");
        return Err(Error::Usage(format!(
            "--memory {memory} does not carry {names}: name another allocator"
        )));
    }
    let for_device_memory = [
        ("--card", !args.card.is_empty()),
        ("--context", args.context.is_some()),
        ("--report", args.report.is_some()),
        ("--export-counters", args.export_counters.is_some()),
    ];
    match for_device_memory.into_iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => {
            Err(Error::Usage(format!("{flag} is for device memory: leave --memory {memory} out")))
        }
        None => Ok(()),
    }
}
