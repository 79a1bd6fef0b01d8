//! `millpond replay`: traces through allocators, on a simulated or a real device, and what they tell.

use std::path::PathBuf;

use millpond::device::sim::CostTable;
use millpond::device::{DeviceName, MemoryKind};
use millpond::{Context, HumanBytes};
use millpond_baselines::{Caching, MILLPOND, memory_of, name_of};
use millpond_probe::cost_table;
use millpond_replay::cores::on_all_cores;
use millpond_replay::fit::Need;
use millpond_replay::growth::Growth;
use millpond_replay::phases::{PhaseSum, sums};
use millpond_replay::replay::{
    Choose, DriverMemory, Moves, Outcome, Program, UNLIMITED, Waste, at_peak, in_managed_memory, on_device,
    on_sim, on_sim_memory, on_sim_timed,
};
use millpond_replay::report::Section;
use millpond_replay::sites::Live;
use millpond_replay::steps::Steps;
use millpond_replay::trace::Trace;
use millpond_replay::verdict::{Judged, Verdict};
use serde::Serialize;

use crate::across::Across;
use crate::error::{Error, Result};
use crate::outputs::{Output, refuse_clashes};
use crate::replay_args::ReplayArgs;
use crate::replay_export::{self, Exports};
use crate::replay_progress::Progress;
use crate::replay_tables::{Row, account, calls, grew, held, moved, room, wasted, which_cards, wrapped};
use crate::screen::{complain, count, remark, say};
use crate::traces::{is_stdin, read_traces, write_json};

/// What is told of one trace, in the shape that `--json` writes.
#[derive(Serialize)]
struct Told {
    trace: String,
    blocks: usize,
    streams: usize,
    wall_us: u64,
    /// Bytes that the recorded run itself reserved, where that is known.
    recorded_reserved: Option<u64>,
    remarks: Vec<String>,
    /// `None` where there is no verdict.
    verdict: Option<ToldVerdict>,
    live_at_peak: Live,
    live_at_end: Live,
    /// What was held more and more of, from step to step.
    growth: Growth,
    phases: Vec<PhaseSum>,
    allocators: Vec<ToldRow>,
}

#[derive(Serialize)]
struct ToldVerdict {
    lines: Vec<String>,
    #[serde(flatten)]
    figures: Verdict,
}

#[derive(Serialize)]
struct ToldRow {
    #[serde(flatten)]
    outcome: Outcome,
    /// Which memory of the device.
    memory: &'static str,
    /// Of managed memory, on the simulated device.
    #[serde(skip_serializing_if = "Option::is_none")]
    moves: Option<Moves>,
    /// Bytes.
    needs: Option<u64>,
    retries: Option<u64>,
    /// Names of the cards that would do; `None` where that was not asked.
    cards: Option<Vec<String>>,
    at_peak: Option<Waste>,
}

/// Memory of the host device where no capacity was asked for. Replays touch little of what they allocate.
const HOST_CAPACITY: u64 = 1 << 40;

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> Result<()> {
    refuse_what_does_not_go_together(args)?;
    let read = args.traces.iter().chain(&args.cost_table).map(PathBuf::as_path);
    let read: Vec<_> = read.filter(|path| !is_stdin(path)).collect();
    refuse_clashes(&read, &args.written())?;
    let costs = args.cost_table.as_deref().map(cost_table::read).transpose()?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let page = args.report.as_deref().map(Output::open).transpose()?;
    let mut exports = Some(Exports::open(args)?);
    let (mut all, mut sections, mut unread) = (Vec::new(), Vec::new(), Vec::new());
    let mut across = Across::default();
    for path in &args.traces {
        let traces = match read_traces(path) {
            Ok(traces) => traces,
            Err(error) => {
                unread.push(error);
                continue;
            }
        };
        let others = args.traces.len() > 1 || traces.len() > 1;
        for trace in traces {
            if let Some(exports) = exports.take() {
                exports.write(args, &trace, others)?;
            }
            all.push(replay(args, &trace, costs.as_ref(), &mut sections)?);
            if others {
                let program = Program::new(&trace, args.free());
                across.add(trace, program);
            }
        }
    }
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
    if args.fail_if_oom { refuse_oom(&all) } else { Ok(()) }
}

/// For `--fail-if-oom`.
fn refuse_oom(all: &[Told]) -> Result<()> {
    let of = |told: &Told| {
        let rows = told.allocators.iter().filter(|row| row.outcome.oom.is_some());
        let names: Vec<_> = rows.map(|row| row.outcome.allocator.as_str()).collect();
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
    let for_cards = [("--context", args.context.is_some()), ("--card", !args.card.is_empty())];
    if (is_real(args.device) || args.capacity.is_some())
        && let Some((flag, _)) = for_cards.into_iter().find(|(_, is_given)| *is_given)
    {
        return Err(Error::Usage(format!(
            "{flag} is for the table of cards, which is made on --device sim without --capacity"
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

/// Whether what is needed is looked for, and which cards have it.
fn is_about_cards(args: &ReplayArgs) -> bool {
    !is_real(args.device) && args.memory == MemoryKind::Device
}

/// Whether the device keeps bytes.
fn is_real(device: DeviceName) -> bool {
    device != DeviceName::SIM
}

/// Replays one trace with every allocator asked for, and says what came of it.
fn replay(
    args: &ReplayArgs,
    trace: &Trace,
    costs: Option<&CostTable>,
    sections: &mut Vec<Section>,
) -> Result<Told> {
    let mut program = Program::new(trace, args.free());
    if let Some(costs) = costs {
        program = program.at_costs(costs.clone());
    }
    let mut remarks = introduce(trace, &program);
    if args.memory != MemoryKind::Device {
        say(&format!("replayed in {}, at its costs\n", args.memory));
    }
    let left_out = args.left_out();
    if !left_out.is_empty() {
        let said = format!("left out, since {} does not carry it: {}", args.memory, left_out.join(", "));
        remark(&said);
        remarks.push(said);
    }
    let names = args.allocators();
    let lacking = lacking_for_a_verdict(args, &names);
    let all = count(names.len() as u64, "allocator");
    let progress = Progress::new(&trace.name, &format!("replaying with {all}"));
    let rows: Vec<Row> = if is_real(args.device) {
        let real = |(at, &name): (usize, &&'static str)| {
            progress.set(&trace.name, &format!("{name}, {} of {}", at + 1, names.len()));
            for_real(args, trace, &program, name, &progress)
        };
        names.iter().enumerate().map(real).collect::<Result<_>>()?
    } else {
        all_simulated(args, trace, &program, (&names, lacking.is_none()))?
    };
    progress.set(&trace.name, "verdict");
    let verdict = if lacking.is_none() { verdict(args, trace, &program, &rows)? } else { None };
    if args.report.is_some() {
        progress.set(&trace.name, "charts");
        let lines = verdict.as_ref().map(|verdict| verdict.lines.clone()).unwrap_or_default();
        sections.push(section(args, (trace, &program), lines, &rows)?);
    }
    drop(progress);
    let (live_at_peak, live_at_end) = (Live::at_peak(trace, &program), Live::at_end(trace, &program));
    let cards = args.cards();
    let growth = Growth::of(trace, &program, Steps::found(trace, &program));
    let verdict_said = match &verdict {
        Some(verdict) => {
            let lines = verdict.lines.iter().map(|line| wrapped(line)).collect::<Vec<_>>().join("\n");
            format!("{}{lines}", if args.capacity.is_some() { "Without a limit:\n" } else { "" })
        }
        None => {
            let lacking = lacking.unwrap_or("a replay ended early");
            wrapped(&format!(
                "(no verdict: it compares millpond with caching on the simulated device; {lacking})"
            ))
        }
    };
    let fits = args.capacity.filter(|_| args.memory != MemoryKind::Managed && !is_real(args.device));
    if let Some(capacity) = fits {
        say(&format!("{}\n", wrapped(&room(&rows, capacity))));
    }
    say(&format!("{}\n\n{}\n", held("Held at the peak", &live_at_peak), grew(&growth)));
    say(&format!("{verdict_said}\n"));
    say(&account(&rows));
    if args.capacity.is_none() && is_about_cards(args) {
        say(&format!("\nCards that would do\n{}", which_cards(&rows, &cards, args.context())));
    }
    if is_about_cards(args) {
        // Whatever the capacity: where memory is short, allocators give back what they cache.
        let limit = if args.capacity.is_some() { " without a limit" } else { "" };
        say(&format!("\nAt the peak{limit}, reserved and not requested\n{}", wasted(&rows)));
    }
    if rows.iter().any(|row| row.moves.is_some()) {
        let card = args
            .capacity
            .map_or("a card that has room".to_owned(), |card| format!("a card of {}", HumanBytes(card)));
        say(&format!("\nMoves between the host and {card}\n{}", moved(&rows)));
    }
    say(&format!("\nDevice calls by kind\n{}", calls(&rows)));
    say(&format!("\n{}", held("Live at the end", &live_at_end)));
    say("");
    let told = |Row { outcome, need, waste, moves }| {
        let judged = need.filter(|_| args.capacity.is_none()).map(|need: Need| {
            let fit = cards.iter().filter(|card| card.fits(need.bytes, args.context()));
            fit.map(|card| card.name.clone()).collect()
        });
        let (needs, retries) = (need.map(|need| need.bytes), need.map(|need| need.retries));
        let memory = name_of(args.memory);
        ToldRow { outcome, memory, moves, needs, retries, cards: judged, at_peak: waste }
    };
    Ok(Told {
        trace: trace.name.clone(),
        blocks: program.blocks,
        streams: program.streams,
        wall_us: trace.wall_us,
        recorded_reserved: trace.recorded_reserved,
        remarks,
        verdict,
        live_at_peak,
        live_at_end,
        growth,
        phases: sums(trace, &program),
        allocators: rows.into_iter().map(told).collect(),
    })
}

/// The verdict, by the figures of the rows.
fn verdict(args: &ReplayArgs, trace: &Trace, program: &Program, rows: &[Row]) -> Result<Option<ToldVerdict>> {
    let judged = |name: &str| {
        let row = rows.iter().find(|row| row.outcome.allocator == name)?;
        Some(Judged { need: row.need, waste: row.waste? })
    };
    let Some((pytorch, millpond)) = judged(Caching::NAME).zip(judged(MILLPOND)) else { return Ok(None) };
    // With other settings as well, the row says nothing of this one alone.
    let expandable = judged(Caching::EXPANDABLE).filter(|_| args.alloc_conf.is_none());
    let expandable = expandable.and_then(|judged| judged.need);
    let figures = Verdict::of(trace, program, [pytorch, millpond], expandable)?;
    Ok(Some(ToldVerdict { lines: figures.lines(), figures }))
}

/// What would have to be asked for differently for a verdict to be given.
fn lacking_for_a_verdict(args: &ReplayArgs, names: &[&str]) -> Option<&'static str> {
    if is_real(args.device) {
        return Some("leave --device out");
    }
    if args.memory != MemoryKind::Device {
        return Some("leave --memory out");
    }
    match [MILLPOND, Caching::NAME].map(|name| names.contains(&name)) {
        [true, true] => None,
        [true, false] => Some("add --allocator caching"),
        [false, true] => Some("add --allocator millpond"),
        [false, false] => Some("add --allocator millpond,caching"),
    }
}

/// What the report shows of a trace. Charts are of replays on the simulated device.
fn section(
    args: &ReplayArgs,
    (trace, program): (&Trace, &Program),
    verdict: Vec<String>,
    rows: &[Row],
) -> Result<Section> {
    let mut section = Section::of(trace, program, verdict, (args.cards(), args.context()));
    let choice = args.choice();
    for Row { outcome, need, .. } in rows {
        let choose = |context: &Context| choice.build(&outcome.allocator, context);
        section.add((trace, program), &choose, outcome.clone(), *need)?;
    }
    Ok(section)
}

/// All allocators on the simulated device, on all cores.
fn all_simulated(
    args: &ReplayArgs,
    trace: &Trace,
    program: &Program,
    (names, has_verdict): (&[&'static str], bool),
) -> Result<Vec<Row>> {
    let choice = args.choice();
    // Those at the end of the list take the longest, so they begin.
    let names: Vec<_> = names.iter().rev().copied().collect();
    let rows = on_all_cores(&names, |&name| {
        let choose = |context: &Context| choice.build(name, context);
        let is_judged = has_verdict && [MILLPOND, Caching::NAME].contains(&name);
        simulated(args, (trace, program), &choose, is_judged)
    });
    rows.into_iter().rev().collect()
}

/// On the simulated device. What is needed is looked for where no capacity was asked about, or the verdict says it.
fn simulated(
    args: &ReplayArgs,
    (trace, program): (&Trace, &Program),
    choose: &Choose<'_>,
    is_judged: bool,
) -> Result<Row> {
    let capacity = args.capacity.unwrap_or(UNLIMITED);
    if args.memory != MemoryKind::Device {
        let (outcome, moves) = if args.memory == MemoryKind::Managed {
            let (outcome, moves) = in_managed_memory(trace, program, choose, capacity)?;
            (outcome, Some(moves))
        } else {
            (on_sim_memory(trace, program, choose, args.memory, capacity)?, None)
        };
        return Ok(Row { outcome, need: None, waste: None, moves });
    }
    let outcome = on_sim_timed(trace, program, choose, capacity)?;
    let unlimited = match args.capacity {
        None => Some(outcome.clone()),
        Some(_) if is_judged => Some(on_sim(trace, program, choose, UNLIMITED)?),
        Some(_) => None,
    };
    let need =
        unlimited.as_ref().map(|unlimited| Need::of(program, choose, unlimited)).transpose()?.flatten();
    let most = unlimited.map_or(u64::MAX, |unlimited| unlimited.peak_reserved);
    let waste = Some(at_peak(program, choose, most)?);
    Ok(Row { outcome, need, waste, moves: None })
}

/// Replays on a device object of its own, so that nothing is left from the allocator before.
fn for_real(
    args: &ReplayArgs,
    trace: &Trace,
    program: &Program,
    name: &'static str,
    progress: &Progress,
) -> Result<Row> {
    let choice = args.choice();
    let choose = move |context: &Context| choice.build(name, context);
    let capacity = (!args.device.is_gpu()).then(|| args.capacity.unwrap_or(HOST_CAPACITY));
    let device = memory_of(args.device.open_with_capacity(capacity)?, args.memory)?;
    let (outcome, marks) = on_device(trace, program, &choose, device, args.verify)?;
    if args.verify {
        progress.say(&format!("{name}: {} found as written", count(marks, "mark")));
    }
    if let Some(driver) = outcome.driver {
        compare_with_driver(&outcome, driver, progress);
    }
    Ok(Row { outcome, need: None, waste: None, moves: None })
}

/// Holds what the allocator counts against what the device's driver counts.
fn compare_with_driver(outcome: &Outcome, driver: DriverMemory, progress: &Progress) {
    let Outcome { allocator, peak_reserved, .. } = outcome;
    let off = driver.disagreement(*peak_reserved) * 100.0;
    progress.say(&wrapped(&format!(
        "{allocator}: reserved {} at most; the driver, of {} free before: {} in use ({off:+.2} %), {} in the end",
        HumanBytes(*peak_reserved),
        HumanBytes(driver.free_before),
        HumanBytes(driver.used_peak),
        HumanBytes(driver.used_after),
    )));
    if off.abs() > 1.0 {
        remark(&format!(
            "{allocator} and the driver disagree by {off:+.1} %: the driver rounds what {allocator} asks for, or another program uses the device"
        ));
    }
}

/// Says what was recorded. Returns what is to be remarked about the file.
pub(crate) fn introduce(trace: &Trace, program: &Program) -> Vec<String> {
    let mut line = format!(
        "{}: {}, {}, {:.1} s; requested at most {}",
        trace.name,
        count(program.blocks as u64, "block"),
        count(program.streams as u64, "stream"),
        trace.wall_us as f64 / 1e6,
        HumanBytes(program.peak_requested().0),
    );
    if let Some(reserved) = trace.recorded_reserved {
        line += &format!(", reserved in the recorded run {}", HumanBytes(reserved));
    }
    say(&wrapped(&line));
    if !trace.live_before.is_empty() {
        let (before, were) =
            (trace.live_before.len(), if trace.live_before.len() == 1 { "was" } else { "were" });
        say(&format!("{} {were} live before the recording began", count(before as u64, "block")));
    }
    if !trace.settings.is_empty() {
        say(&wrapped(&format!("recorded with PYTORCH_CUDA_ALLOC_CONF={}", trace.settings)));
    }
    if let Some(oom) = trace.recorded_ooms.first() {
        say(&format!("the recorded run found no memory for {}", HumanBytes(oom.size)));
    }
    let mut remarks = trace.remarks.clone();
    if trace.lost_frees > 0 {
        remarks.push(format!(
            "an address was allocated twice without a free between, {}: the recording lost events",
            count(trace.lost_frees, "time")
        ));
    }
    remarks.iter().for_each(|said| remark(&format!("{}: {said}", trace.name)));
    say("");
    remarks
}
