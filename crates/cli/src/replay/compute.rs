//! Reads traces, replays them with every allocator, finds what is possible, and judges.
//!
//! Nothing here prints: several traces are worked on at once, and are told in their order.

use std::path::Path;

use millpond::device::MemoryKind;
use millpond::device::sim::CostTable;
use millpond::{Context, HumanBytes};
use millpond_baselines::{Caching, Driver, MILLPOND, StreamOrdered, memory_of};
use millpond_replay::choice::ran;
use millpond_replay::cores::on_all_cores;
use millpond_replay::deciding::Deciding;
use millpond_replay::evictions::{AsItRan, MovedTag};
use millpond_replay::fit::Need;
use millpond_replay::growth::Growth;
use millpond_replay::holes::Holes;
use millpond_replay::out_of_memory::OutOfMemory;
use millpond_replay::phases::{PhaseSum, sums};
use millpond_replay::possible::Possible;
use millpond_replay::read::ReadError;
use millpond_replay::replay::{
    Choose, DriverMemory, FreeWhen, Moves, Outcome, Program, UNLIMITED, in_managed_memory, on_device, on_sim,
    on_sim_memory, on_sim_timed,
};
use millpond_replay::report::Section;
use millpond_replay::sites::Live;
use millpond_replay::steps::Steps;
use millpond_replay::trace::Trace;
use millpond_replay::verdict::{Judged, Verdict};

use super::args::{ReplayArgs, is_about_cards, is_real};
use crate::error::Result;
use crate::terminal::count;
use crate::traces::{Offloaded, TraceProgress, read_file};

/// Memory of the host device where no capacity was asked for. Replays touch little of what they allocate.
const HOST_CAPACITY: u64 = 1 << 40;

/// What is to be done with each trace.
pub(crate) struct Work<'a> {
    args: &'a ReplayArgs,
    costs: Option<CostTable>,
    pub(crate) progress: TraceProgress,
}

/// What came of one trace.
pub(crate) struct Replayed {
    pub(crate) program: Program,
    pub(crate) rows: Vec<AllocatorRow>,
    /// The request that found no memory when the trace was recorded.
    pub(crate) out_of_memory: Option<OutOfMemory>,
    /// For device memory of the simulated device.
    pub(crate) possible: Option<Possible>,
    /// The verdict, or why there is none.
    pub(crate) verdict: std::result::Result<Verdict, &'static str>,
    pub(crate) section: Option<Section>,
    pub(crate) live_at_peak: Live,
    pub(crate) live_at_end: Live,
    pub(crate) growth: Growth,
    pub(crate) phases: Vec<PhaseSum>,
    /// Where a tag is to be offloaded.
    pub(crate) offloaded: Option<Offloaded>,
    /// What was evicted and restored in the recording.
    pub(crate) moved_tags: Vec<MovedTag>,
    /// What a real device has to say beside the tables.
    pub(crate) said: Vec<String>,
    pub(crate) remarked: Vec<String>,
}

/// One trace with one allocator.
pub(crate) struct AllocatorRow {
    pub(crate) outcome: Outcome,
    /// Where it was looked for, and the trace ran to its end.
    pub(crate) need: Option<Need>,
    /// What is held when what is needed is decided, where that was looked for.
    pub(crate) deciding: Option<Deciding>,
    /// The holes then.
    pub(crate) holes: Holes,
    /// In managed memory of the simulated device.
    pub(crate) moves: Option<Moves>,
}

impl AllocatorRow {
    /// Of which nothing else is known.
    pub(crate) fn of(outcome: Outcome) -> Self {
        Self { outcome, need: None, deciding: None, holes: Holes::default(), moves: None }
    }
}

/// What came of the traces of one file, where it could be read.
pub(crate) type WorkedOn = std::result::Result<Vec<(Trace, Result<Replayed>)>, ReadError>;

/// What is worked on by itself.
enum Task {
    Allocator(&'static str),
    Possible,
}

enum TaskResult {
    Allocator(Box<AllocatorRow>),
    Possible(Possible),
}

impl<'a> Work<'a> {
    pub(crate) fn new(args: &'a ReplayArgs, costs: Option<CostTable>) -> Self {
        let first = args.traces.first().map(|path| path.to_string_lossy()).unwrap_or_default();
        let progress = TraceProgress::new(&first, "reading");
        progress.expect(args.traces.len());
        Self { args, costs, progress }
    }

    /// The traces of a file, and what came of each.
    pub(crate) fn file(&self, path: &Path) -> WorkedOn {
        self.progress.set(&path.to_string_lossy(), "reading");
        let traces = read_file(path);
        self.progress.done();
        let traces = traces?;
        let replayed: Vec<_> = match is_real(self.args.device) {
            true => traces.iter().map(|trace| self.trace(trace)).collect(),
            false => on_all_cores(&traces, |trace| self.trace(trace)),
        };
        Ok(traces.into_iter().zip(replayed).collect())
    }

    /// Replays one trace with every allocator asked for.
    fn trace(&self, trace: &Trace) -> Result<Replayed> {
        let args = self.args;
        let mut program = Program::new(trace, args.free());
        if let Some(costs) = &self.costs {
            program = program.at_costs(costs.clone());
        }
        let as_it_ran = AsItRan::of(trace).filter(|_| is_about_cards(args)).map(|AsItRan { trace, tags }| {
            let program = Program::new(&trace, args.free()).at_costs(program.costs.clone());
            ((trace, program), tags)
        });
        let (as_it_ran, moved_tags) = as_it_ran.unzip();
        // What no other allocator can do.
        let with_millpond = as_it_ran.as_ref().map_or((trace, &program), |(trace, program)| (trace, program));
        let jobs = |name: &str| if name == MILLPOND { with_millpond } else { (trace, &program) };
        let names = args.allocators_for(trace);
        let lacking = lacking_for_a_verdict(args, &names);
        let all = count(names.len() as u64, "allocator");
        self.progress.set(&trace.name, &format!("replaying with {all}"));
        let (mut said, mut remarked) = (Vec::new(), Vec::new());
        let (rows, possible) = if is_real(args.device) {
            let mut rows = Vec::new();
            for (at, name) in names.iter().enumerate() {
                self.progress.set(&trace.name, &format!("{name}, {} of {}", at + 1, names.len()));
                rows.push(for_real(args, (trace, &program), name, (&mut said, &mut remarked))?);
            }
            (rows, None)
        } else {
            self.all_simulated(jobs, (&names, lacking.is_none()))?
        };
        let verdict = match (lacking, possible) {
            (None, Some(possible)) => {
                verdict(args, with_millpond, &rows, possible)?.ok_or("a replay ended early")
            }
            (lacking, _) => Err(lacking.unwrap_or("leave --memory out")),
        };
        let out_of_memory = out_of_memory(args, trace, &rows);
        let mut section = match args.report {
            Some(_) => {
                let lines = verdict.as_ref().map(Verdict::lines).unwrap_or_default();
                Some(section(args, jobs, lines, (&rows, possible))?)
            }
            None => None,
        };
        if let Some((section, found)) = section.as_mut().zip(out_of_memory.clone()) {
            section.set_out_of_memory(found);
        }
        // What the program has freed grows nowhere, though it waits for a stream.
        let holds = Program::new(trace, FreeWhen::Requested);
        Ok(Replayed {
            live_at_peak: Live::at_peak(with_millpond.0, with_millpond.1),
            live_at_end: Live::at_end(trace, &program),
            growth: Growth::of(trace, &holds, Steps::found(trace, &holds)),
            phases: sums(trace, &program),
            offloaded: args
                .offload
                .as_ref()
                .map(|tag| Offloaded::of((trace, &program), tag, args.bandwidth))
                .transpose()?,
            moved_tags: moved_tags.unwrap_or_default(),
            program,
            rows,
            out_of_memory,
            possible,
            verdict,
            section,
            said,
            remarked,
        })
    }

    /// All allocators on the simulated device and what is possible there, on all cores.
    fn all_simulated<'t>(
        &self,
        jobs: impl Fn(&str) -> (&'t Trace, &'t Program) + Sync,
        (names, has_verdict): (&[&'static str], bool),
    ) -> Result<(Vec<AllocatorRow>, Option<Possible>)> {
        let choice = self.args.choice();
        let mut units: Vec<_> = names.iter().copied().map(Task::Allocator).collect();
        units.extend(is_about_cards(self.args).then_some(Task::Possible));
        // Those at the end of the list take the longest, so they begin.
        units.reverse();
        self.progress.expect(units.len());
        let done = on_all_cores(&units, |unit| {
            let done = match *unit {
                Task::Possible => Ok(TaskResult::Possible(Possible::of(jobs(MILLPOND).1))),
                Task::Allocator(name) => {
                    let choose = |context: &Context| choice.build(name, context);
                    let job = jobs(name);
                    let is_judged = has_verdict && [MILLPOND, Caching::NAME].contains(&name)
                        || !job.0.recorded_ooms.is_empty();
                    let row = simulated(self.args, job, &choose, is_judged);
                    row.map(|row| TaskResult::Allocator(Box::new(row)))
                }
            };
            self.progress.done();
            done
        });
        let (mut rows, mut possible) = (Vec::new(), None);
        for done in done.into_iter().rev() {
            match done? {
                TaskResult::Allocator(row) => rows.push(*row),
                TaskResult::Possible(found) => possible = Some(found),
            }
        }
        Ok((rows, possible))
    }
}

/// Whether a replay comes close enough to an allocator to say what a job needs with it. Of the driver's own pool it does not: on an
/// H200 that held from a tenth of what a replay says to twice as much.
pub(crate) fn is_promised(allocator: &str) -> bool {
    allocator != StreamOrdered::NAME
}

/// The verdict, by the figures of the rows.
fn verdict(
    args: &ReplayArgs,
    (trace, program): (&Trace, &Program),
    rows: &[AllocatorRow],
    possible: Possible,
) -> Result<Option<Verdict>> {
    let judged = |name: &str| {
        let row = rows.iter().find(|row| row.outcome.allocator == name)?;
        Some(Judged { need: row.need, waste: row.deciding.as_ref()?.waste, holes: row.holes.clone() })
    };
    let Some((pytorch, millpond)) = judged(Caching::NAME).zip(judged(MILLPOND)) else { return Ok(None) };
    // With other settings as well, the row says nothing of this one alone.
    let expandable = judged(Caching::EXPANDABLE).filter(|_| args.alloc_conf.is_none());
    let expandable = expandable.and_then(|judged| judged.need);
    Ok(Some(Verdict::of(trace, program, [pytorch, millpond], expandable, possible)?))
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

/// The request that found no memory when the trace was recorded, and who would have had it.
fn out_of_memory(args: &ReplayArgs, trace: &Trace, rows: &[AllocatorRow]) -> Option<OutOfMemory> {
    let mut found = OutOfMemory::of(trace)?;
    // Nobody runs a job without a pool.
    let is_choice =
        |row: &&AllocatorRow| ![StreamOrdered::NAME, Driver::NAME].contains(&row.outcome.allocator.as_str());
    // With other settings, it is not the one that ran.
    let ran = if args.alloc_conf.is_none() { ran(trace) } else { "" };
    if is_about_cards(args) {
        let needs: Vec<_> =
            rows.iter().filter(is_choice).map(|row| (row.outcome.allocator.as_str(), row.need)).collect();
        found.judge(&needs, ran, args.capacity);
    }
    Some(found)
}

/// What the report shows of a trace. Charts are of replays on the simulated device.
fn section<'t>(
    args: &ReplayArgs,
    jobs: impl Fn(&str) -> (&'t Trace, &'t Program),
    verdict: Vec<String>,
    (rows, possible): (&[AllocatorRow], Option<Possible>),
) -> Result<Section> {
    let (trace, program) = jobs(MILLPOND);
    let mut section = Section::of(trace, program, verdict, (args.cards(), args.context()));
    if let Some(possible) = possible {
        section.set_possible(possible);
    }
    let choice = args.choice();
    for AllocatorRow { outcome, need, .. } in rows {
        let choose = |context: &Context| choice.build(&outcome.allocator, context);
        section.add(jobs(&outcome.allocator), &choose, outcome.clone(), *need)?;
    }
    Ok(section)
}

/// On the simulated device. What is needed is looked for where no capacity was asked about, or the verdict says it.
fn simulated(
    args: &ReplayArgs,
    (trace, program): (&Trace, &Program),
    choose: &Choose<'_>,
    is_judged: bool,
) -> Result<AllocatorRow> {
    let capacity = args.capacity.unwrap_or(UNLIMITED);
    if args.memory != MemoryKind::Device {
        let (outcome, moves) = if args.memory == MemoryKind::Managed {
            let (outcome, moves) = in_managed_memory(trace, program, choose, capacity)?;
            (outcome, Some(moves))
        } else {
            (on_sim_memory(trace, program, choose, args.memory, capacity)?, None)
        };
        return Ok(AllocatorRow { moves, ..AllocatorRow::of(outcome) });
    }
    // What the process's context takes, the allocator does not get.
    let capacity = args.capacity.map_or(UNLIMITED, |capacity| capacity.saturating_sub(args.context_beside()));
    let outcome = on_sim_timed(trace, program, choose, capacity)?;
    let unlimited = match args.capacity {
        None => Some(outcome.clone()),
        Some(_) if is_judged => Some(on_sim(trace, program, choose, UNLIMITED)?),
        Some(_) => None,
    };
    let promised = unlimited.as_ref().filter(|outcome| is_promised(&outcome.allocator));
    let need = promised.map(|unlimited| Need::of(program, choose, unlimited)).transpose()?.flatten();
    let most = unlimited.map_or(u64::MAX, |unlimited| unlimited.peak_reserved);
    let deciding = Deciding::of(program, choose, need, most)?;
    Ok(AllocatorRow {
        need,
        holes: Holes::of(trace, &deciding.map),
        deciding: Some(deciding),
        ..AllocatorRow::of(outcome)
    })
}

/// Replays on a device object of its own, so that nothing is left from the allocator before.
fn for_real(
    args: &ReplayArgs,
    (trace, program): (&Trace, &Program),
    name: &'static str,
    (said, remarked): (&mut Vec<String>, &mut Vec<String>),
) -> Result<AllocatorRow> {
    let choice = args.choice();
    let choose = move |context: &Context| choice.build(name, context);
    let capacity = (!args.device.is_gpu()).then(|| args.capacity.unwrap_or(HOST_CAPACITY));
    let device = memory_of(args.device.open_with_capacity(capacity)?, args.memory)?;
    let (outcome, marks) = on_device(trace, program, &choose, device, args.verify)?;
    if args.verify {
        said.push(format!("{name}: {} found as written", count(marks, "mark")));
    }
    if let Some(driver) = outcome.driver {
        said.push(beside_the_driver(&outcome, driver));
        let off = driver.disagreement(outcome.peak_reserved) * 100.0;
        if off.abs() > 1.0 {
            remarked.push(format!(
                "{name} and the driver disagree by {off:+.1} %: the driver rounds what {name} asks for, or another \
                 program uses the device"
            ));
        }
    }
    Ok(AllocatorRow::of(outcome))
}

/// Holds what the allocator counts against what the device's driver counts.
fn beside_the_driver(outcome: &Outcome, driver: DriverMemory) -> String {
    let Outcome { allocator, peak_reserved, .. } = outcome;
    format!(
        "{allocator}: reserved {} at most; the driver, of {} free before: {} in use ({:+.2} %), {} in the end",
        HumanBytes(*peak_reserved),
        HumanBytes(driver.free_before),
        HumanBytes(driver.used_peak),
        driver.disagreement(*peak_reserved) * 100.0,
        HumanBytes(driver.used_after),
    )
}
