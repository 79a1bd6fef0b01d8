//! What is lost at the request that decides what a job needs, by cause.
//!
//! `cargo run --release -p millpond-replay --example causes -- [--slower TIMES] [--map] TRACE…`
//!
//! It replays each trace whole, and its first eighth. An event takes 10 µs, or so many times as long. The device has no more memory than
//! the job needs. Once the request that decides is served, it says where the bytes are that nobody asked for, in percent of the
//! peak: see `Causes`. *Possible* is what is live at once, in whole base pages. `--map` prints what lies on each base page that is
//! used in part.

use std::error::Error;
use std::path::Path;

use millpond::Context;
use millpond_replay::cores::in_order;
use millpond_replay::fit::Need;
use millpond_replay::possible::Possible;
use millpond_replay::read::{Limits, read};
use millpond_replay::replay::{FreeWhen, Map, Program, ReplayError, UNLIMITED, map_at_step, on_sim};
use millpond_replay::trace::Trace;

/// What of a trace is replayed: one part in so many, from its start.
const PARTS: [usize; 2] = [1, 8];

/// The granularity of device memory, and of blocks.
const PAGE: u64 = 2 << 20;
const UNIT: u64 = 512;

/// Blocks from here on lie apart from shorter ones.
const LARGE: u64 = 1 << 20;

/// Bytes that nobody asked for, and what lies beside them.
#[derive(Debug, Clone, Copy, Default)]
struct Causes {
    /// What is live.
    live: u64,
    large_blocks: usize,
    small_blocks: usize,
    /// Behind the ends of blocks, to the next multiple of 512.
    rounding: u64,
    /// Free, on base pages that only large blocks use, and on how many.
    beside_large: (u64, u64),
    /// The same, on base pages with a small block.
    beside_small: (u64, u64),
    /// On base pages without a live byte: of long pages that live blocks use elsewhere, of blocks that throughput mode made longer,
    /// and free pages.
    whole: u64,
}

impl Causes {
    fn of(map: &Map, held: u64, shown: &mut String) -> Self {
        let live = map.live.iter().map(|(_, bytes)| bytes).sum();
        let large_blocks = map.live.iter().filter(|(_, bytes)| *bytes >= LARGE).count();
        let mut causes =
            Self { live, large_blocks, small_blocks: map.live.len() - large_blocks, ..Self::default() };
        let mut pages: Vec<u64> = map.live.iter().flat_map(|block| pages_of(*block)).collect();
        pages.dedup();
        pages.iter().for_each(|at| causes.add(*at, on(map, *at), shown));
        let used = live + causes.rounding + causes.beside_large.0 + causes.beside_small.0;
        causes.whole = held.saturating_sub(used);
        causes
    }

    /// Adds a base page with blocks on it, and says of one that is used in part what lies there.
    fn add(&mut self, at: u64, here: &[(u64, u64)], shown: &mut String) {
        let (mut free, mut end) = (0, at);
        for (address, bytes) in here {
            let behind = (address + bytes).next_multiple_of(UNIT);
            free += address.saturating_sub(end);
            self.rounding += behind.min(at + PAGE).saturating_sub((address + bytes).max(at));
            end = behind;
        }
        free += (at + PAGE).saturating_sub(end);
        if free == 0 {
            return;
        }
        let has_small = here.iter().any(|(_, bytes)| *bytes < LARGE);
        let (sum, pages) = if has_small { &mut self.beside_small } else { &mut self.beside_large };
        (*sum, *pages) = (*sum + free, *pages + 1);
        *shown += &format!("  {at:#x}, {:4} KiB free, beside", free >> 10);
        for (address, bytes) in here {
            *shown += &format!(" {} KiB from {}", bytes >> 10, (*address as i64 - at as i64) >> 10);
        }
        *shown += "\n";
    }
}

/// Where the base pages begin that a block lies on.
fn pages_of((address, bytes): (u64, u64)) -> impl Iterator<Item = u64> {
    (address / PAGE * PAGE..address + bytes).step_by(PAGE as usize)
}

/// The live blocks on a base page.
fn on(map: &Map, at: u64) -> &[(u64, u64)] {
    let first = map.live.partition_point(|(address, bytes)| (address + bytes).next_multiple_of(UNIT) <= at);
    let last = map.live.partition_point(|(address, _)| *address < at + PAGE);
    &map.live[first..last.max(first)]
}

struct Row {
    name: String,
    peak: u64,
    possible: u64,
    need: u64,
    asked: u64,
    step: usize,
    causes: Causes,
    /// What lies on each base page that is used in part.
    shown: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut slower, mut show, mut files) = (1, false, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--slower" => slower = args.next().ok_or("give a number")?.parse()?,
            "--map" => show = true,
            _ => files.push(arg),
        }
    }
    let mut jobs = Vec::new();
    for file in &files {
        for trace in read(Path::new(file), Limits::default())? {
            let name = file.rsplit('/').next().unwrap_or(file).split('.').next().unwrap_or(file).to_owned();
            jobs.extend(PARTS.map(|part| (name.clone(), part, trace.clone())));
        }
    }
    print!("{:26} {:>9}", "trace", "peak, MiB");
    COLUMNS.iter().for_each(|column| print!(" {column:>8}"));
    println!("  decides");
    let (mut sums, mut count) = ([0.0; COLUMNS.len()], 0.0);
    let mut failed = None;
    in_order(
        &jobs,
        |(name, part, trace)| row(name, (*part, slower), trace),
        |row| match row {
            Ok(Some(row)) => {
                let of = print_row(&row);
                if show {
                    print!("{}", row.shown);
                }
                sums.iter_mut().zip(of).for_each(|(sum, value)| *sum += value);
                count += 1.0;
            }
            Ok(None) => {}
            Err(error) => failed = Some(error),
        },
    );
    if let Some(error) = failed {
        return Err(error.into());
    }
    print!("{:26} {:>9}", "mean", "");
    sums.iter().for_each(|sum| print!(" {:8.4}", sum / count));
    println!();
    Ok(())
}

/// What is printed of each row, and in the mean. The second half is in percent of the peak.
const COLUMNS: [&str; 7] = ["needs", "possible", "not live", "rounding", "large", "small", "whole"];

fn print_row(row: &Row) -> [f64; COLUMNS.len()] {
    let causes = row.causes;
    let of = |bytes: u64| bytes as f64 / row.peak as f64;
    let percent = |bytes: u64| of(bytes) * 100.0;
    let all = [
        of(row.need),
        of(row.possible),
        percent(row.peak.saturating_sub(causes.live)),
        percent(causes.rounding),
        percent(causes.beside_large.0),
        percent(causes.beside_small.0),
        percent(causes.whole),
    ];
    print!("{:26} {:9.1}", row.name, mib(row.peak));
    all.iter().for_each(|value| print!(" {value:8.4}"));
    println!(
        "  step {}: {:.1} MiB; {} large blocks, {} pages; {} small, {} pages",
        row.step,
        mib(row.asked),
        causes.large_blocks,
        causes.beside_large.1,
        causes.small_blocks,
        causes.beside_small.1
    );
    all
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn row(name: &str, (part, slower): (usize, u64), trace: &Trace) -> Result<Option<Row>, ReplayError> {
    let mut program = Program::new(trace, FreeWhen::Completed).without_times();
    program.steps.truncate(program.before + (program.steps.len() - program.before) / part);
    program.steps.iter_mut().for_each(|step| step.time_us *= slower);
    let choose = |context: &Context| millpond_baselines::by_name("millpond", context);
    let outcome = on_sim(trace, &program, &choose, UNLIMITED)?;
    let Some(need) = Need::of(&program, &choose, &outcome)? else { return Ok(None) };
    let Some((waste, map)) = map_at_step(&program, &choose, (need.bytes, need.decided_at))? else {
        return Ok(None);
    };
    let mut shown = String::new();
    let causes = Causes::of(&map, need.bytes, &mut shown);
    let suffix = if part == 1 { String::new() } else { format!("/{part}") };
    Ok(Some(Row {
        name: format!("{name}{suffix}"),
        peak: outcome.peak_requested,
        possible: Possible::of(&program).bound.next_multiple_of(PAGE),
        need: need.bytes,
        asked: waste.asked,
        step: need.decided_at,
        causes,
        shown,
    }))
}
