//! `millpond replay`: traces through allocators, on a simulated or a real device, and what they tell.

use std::sync::Arc;

use millpond::device::Device;
use millpond::device::cuda::CudaDevice;
use millpond::device::host::{HostDevice, HostOptions};
use millpond::{Context, HumanBytes};
use millpond_replay::fit::{self, CARDS_GIB};
use millpond_replay::read::{self, Limits};
use millpond_replay::replay::{Outcome, Program, UNLIMITED, Waste, at_peak, on_device, on_sim};
use millpond_replay::report::Section;
use millpond_replay::trace::Trace;
use millpond_replay::verdict::Verdict;

use crate::error::{Error, Result};
use crate::outputs::Output;
use crate::replay_args::{On, ReplayArgs};
use crate::replay_export;
use crate::screen::{remark, say, table, thousands};

/// One trace with one allocator.
struct Row {
    outcome: Outcome,
    /// The smallest capacity in bytes that fits, where it was looked for and there is one.
    smallest: Option<u64>,
    /// Where memory is wasted at the peak, where that was looked for.
    waste: Option<Waste>,
}

/// Memory of the host device where no capacity was asked for. Replays touch little of what they allocate.
const HOST_CAPACITY: u64 = 1 << 40;

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> Result<()> {
    refuse_what_does_not_go_together(args)?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let (mut outcomes, mut sections) = (Vec::new(), Vec::new());
    for path in &args.traces {
        for (index, trace) in read::read(path, Limits::default())?.iter().enumerate() {
            if outcomes.is_empty() && index == 0 {
                replay_export::write(args, trace)?;
            }
            outcomes.extend(replay(args, trace, &mut sections)?);
        }
    }
    if let Some(path) = &args.report {
        replay_export::report(path, &sections)?;
    }
    match json {
        Some(file) => write_json(file, &outcomes),
        None => Ok(()),
    }
}

fn refuse_what_does_not_go_together(args: &ReplayArgs) -> Result<()> {
    match (args.device, args.verify, args.capacity) {
        (On::Sim, true, _) => {
            Err(Error::Usage("--verify needs real memory: add --device host or --device cuda".to_owned()))
        }
        (On::Cuda(_), _, Some(_)) => {
            Err(Error::Usage("--capacity is for --device sim or host; a GPU has what it has".to_owned()))
        }
        _ => Ok(()),
    }
}

/// Replays one trace with every allocator asked for, and says what came of it.
fn replay(args: &ReplayArgs, trace: &Trace, sections: &mut Vec<Section>) -> Result<Vec<Outcome>> {
    let program = Program::new(trace, args.free());
    introduce(trace, &program);
    let names = args.allocators();
    let mut rows = Vec::new();
    for &name in &names {
        let row = match args.device {
            On::Sim => simulated(args, trace, &program, name),
            device => for_real(args, trace, &program, (name, device)),
        };
        rows.push(row?);
    }
    say(&account(&rows));
    let mut verdict = Vec::new();
    if args.device == On::Sim {
        say(&format!("\nAt the peak, reserved and not requested\n{}", wasted(&rows)));
        match args.capacity {
            Some(capacity) => say(&format!("\n{}", room(&rows, capacity))),
            None => say(&format!("\nCards that would do\n{}", cards(&rows))),
        }
        if ["millpond", "caching"].iter().all(|name| names.contains(name)) {
            say("");
            verdict = Verdict::of(trace, &program)?.lines();
            verdict.iter().for_each(|line| say(line));
        }
    }
    say("");
    if args.report.is_some() {
        sections.push(section(trace, &program, verdict, &rows)?);
    }
    Ok(rows.into_iter().map(|row| row.outcome).collect())
}

/// What the report shows of a trace. Charts are of replays on the simulated device.
fn section(trace: &Trace, program: &Program, verdict: Vec<String>, rows: &[Row]) -> Result<Section> {
    let mut section = Section::of(trace, program, verdict);
    for Row { outcome, smallest, .. } in rows {
        let choose = |context: &Context| millpond_baselines::by_name(&outcome.allocator, context);
        section.add((trace, program), &choose, outcome.clone(), *smallest)?;
    }
    Ok(section)
}

fn simulated(args: &ReplayArgs, trace: &Trace, program: &Program, name: &'static str) -> Result<Row> {
    let choose = move |context: &Context| millpond_baselines::by_name(name, context);
    let outcome = on_sim(trace, program, &choose, args.capacity.unwrap_or(UNLIMITED))?;
    let smallest = match args.capacity {
        Some(_) => None,
        None => fit::smallest_capacity(trace, program, &choose, &outcome)?,
    };
    let waste = Some(at_peak(program, &choose)?);
    Ok(Row { outcome, smallest, waste })
}

/// Replays on a device object of its own, so that nothing is left from the allocator before.
fn for_real(
    args: &ReplayArgs,
    trace: &Trace,
    program: &Program,
    (name, on): (&'static str, On),
) -> Result<Row> {
    let choose = move |context: &Context| millpond_baselines::by_name(name, context);
    let device: Arc<dyn Device> = match on {
        On::Cuda(ordinal) => CudaDevice::new(ordinal)?,
        On::Host | On::Sim => {
            let capacity = Some(args.capacity.unwrap_or(HOST_CAPACITY));
            HostDevice::with_options(HostOptions { capacity, ..HostOptions::default() })?
        }
    };
    let free_before = device.memory_info()?.free;
    let (outcome, marks) = on_device(trace, program, &choose, device, args.verify)?;
    if args.verify {
        say(&format!("{name}: {} marks found where they were written", thousands(marks)));
    }
    if matches!(on, On::Cuda(_)) {
        say(&format!("{name}: the driver had {} free before", HumanBytes(free_before)));
    }
    Ok(Row { outcome, smallest: None, waste: None })
}

fn introduce(trace: &Trace, program: &Program) {
    let count =
        |n: usize, what: &str| format!("{} {what}{}", thousands(n as u64), if n == 1 { "" } else { "s" });
    let mut line = format!(
        "{}: {}, {}, {:.1} s; requested at most {}",
        trace.name,
        count(program.blocks, "block"),
        count(program.streams, "stream"),
        trace.wall_us as f64 / 1e6,
        HumanBytes(program.peak_requested().0),
    );
    if let Some(reserved) = trace.recorded_reserved {
        line += &format!(", reserved in the recorded run {}", HumanBytes(reserved));
    }
    say(&line);
    if !trace.live_before.is_empty() {
        say(&format!("{} were live before the recording began", count(trace.live_before.len(), "block")));
    }
    if let Some(oom) = trace.recorded_ooms.first() {
        say(&format!("the recorded run found no memory for {}", HumanBytes(oom.size)));
    }
    for said in &trace.remarks {
        remark(&format!("{}: {said}", trace.name));
    }
    if trace.lost_frees > 0 {
        remark(&format!(
            "{}: {} addresses were allocated twice without a free between: the recording lost events",
            trace.name, trace.lost_frees
        ));
    }
}

fn account(rows: &[Row]) -> String {
    let titles = ["allocator", "reserved", "ratio", "device calls", "their time", "of wall", "events/s", ""];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for Row { outcome, .. } in rows {
        let share =
            outcome.device_share().map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", share * 100.0));
        let time = outcome.device_us.map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us / 1e3));
        let oom = outcome.oom.map(|oom| {
            format!(
                "out of memory at event {}, asking for {}",
                thousands(oom.event as u64),
                HumanBytes(oom.bytes)
            )
        });
        lines.push(vec![
            outcome.allocator.clone(),
            HumanBytes(outcome.peak_reserved).to_string(),
            format!("{:.3}", outcome.ratio),
            thousands(outcome.device_calls.total()),
            time,
            share,
            thousands((outcome.events as f64 / outcome.replay_s.max(1e-9)) as u64),
            oom.unwrap_or_default(),
        ]);
    }
    table(&lines)
}

/// Where the bytes are that nobody asked for.
fn wasted(rows: &[Row]) -> String {
    let titles = ["allocator", "wasted", "rounding", "holes", "caches", "other streams", "at event"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for Row { outcome, waste, .. } in rows {
        let Some(waste) = waste else { continue };
        let parts = [waste.rounding, waste.holes, waste.caches, waste.other_streams];
        let bytes = [parts.iter().sum()].into_iter().chain(parts).map(|bytes| HumanBytes(bytes).to_string());
        let mut line = vec![outcome.allocator.clone()];
        line.extend(bytes.chain([thousands(waste.event as u64)]));
        lines.push(line);
    }
    table(&lines)
}

/// Which cards would do, for each allocator.
fn cards(rows: &[Row]) -> String {
    let mut titles = vec!["allocator".to_owned(), "needs".to_owned()];
    titles.extend(CARDS_GIB.map(|gib| format!("{gib}")));
    let mut lines = vec![titles];
    for Row { outcome, smallest, .. } in rows {
        let mut line = vec![outcome.allocator.clone()];
        line.push(smallest.map_or_else(|| "-".to_owned(), |bytes| HumanBytes(bytes).to_string()));
        let mark = |gib| if smallest.is_some_and(|bytes| fit::fits(bytes, gib)) { "yes" } else { "no" };
        line.extend(CARDS_GIB.map(|gib| mark(gib).to_owned()));
        lines.push(line);
    }
    let context = HumanBytes(fit::CONTEXT_BYTES);
    format!("{}\n(cards in GiB; {context} of each are left to the driver's context)", table(&lines))
}

/// Who fits in the capacity asked for.
fn room(rows: &[Row], capacity: u64) -> String {
    let named = |fits: bool| {
        let names = rows.iter().filter(|row| row.outcome.oom.is_none() == fits);
        names.map(|row| row.outcome.allocator.as_str()).collect::<Vec<_>>().join(", ")
    };
    let or_none = |names: String| if names.is_empty() { "none".to_owned() } else { names };
    format!(
        "in {}: fits with {}; not with {}",
        HumanBytes(capacity),
        or_none(named(true)),
        or_none(named(false))
    )
}

fn write_json(file: Output, outcomes: &[Outcome]) -> Result<()> {
    let path = file.path().to_owned();
    let text = serde_json::to_string_pretty(outcomes).map_err(|error| Error::Io {
        path,
        action: "write the results to it",
        source: error.into(),
    })?;
    file.write(&(text + "\n"))
}
