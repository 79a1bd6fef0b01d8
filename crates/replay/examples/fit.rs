//! What recorded jobs need, hold, and spend in device calls, with the pool or another allocator.
//!
//! `cargo run --release -p millpond-replay --example fit -- [--allocator NAME] [--slower TIMES] [--without-times] [--against FILE]
//! TRACE…` replays each trace whole and its first eighth, in so many times its time, or as if an event took 10 µs. It prints for
//! each: *needs* and *held*, as multiples of what is requested at once; the time of device calls as a share of the job's; what of
//! it is beyond 1 %, in milliseconds for each GiB of the peak; and the same with no more memory than is needed. `--against` names
//! what another run printed, whose *needs* and *held* stand beside.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use millpond::Context;
use millpond_replay::cores::in_order;
use millpond_replay::fit::Need;
use millpond_replay::read::{Limits, read};
use millpond_replay::replay::{FreeWhen, Program, ReplayError, UNLIMITED, on_sim};
use millpond_replay::trace::Trace;

/// What of a trace is replayed: one part in so many, from its start.
const PARTS: [usize; 2] = [1, 8];

const GIB: f64 = (1u64 << 30) as f64;

/// What came of a trace, or its first part.
struct Row {
    name: String,
    events: usize,
    peak: u64,
    needs: f64,
    held: f64,
    share: f64,
    per_gib: f64,
    per_gib_at_need: f64,
    events_per_s: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut allocator, mut against, mut files) = ("millpond".to_owned(), HashMap::new(), Vec::new());
    let (mut slower, mut has_times) = (1, true);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--allocator" => allocator = args.next().ok_or("give an allocator")?,
            "--against" => against = read_rows(&args.next().ok_or("give a file")?)?,
            "--slower" => slower = args.next().ok_or("give a number")?.parse()?,
            "--without-times" => has_times = false,
            _ => files.push(arg),
        }
    }
    let mut jobs = Vec::new();
    for file in &files {
        for trace in read(Path::new(file), Limits::default())? {
            let name = file.rsplit('/').take(2).collect::<Vec<_>>().join(" ").replace(".pickle", "");
            let name = name
                .trim_end_matches(" traces")
                .trim_end_matches(".zst")
                .replace(".gz", "")
                .replace(' ', "/");
            let name = name.replace(".zst", "").replace(".mprec", "");
            jobs.extend(PARTS.map(|part| (name.clone(), part, trace.clone())));
        }
    }
    println!(
        "{:28} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>8} {:>8} {:>7}",
        "trace", "needs", "other", "held", "other", "events", "GiB", "calls", "ms/GiB", "at need", "M/s"
    );
    let (mut sums, mut worst, mut count, mut above, mut others) =
        ([0.0; 5], [0.0f64; 4], 0.0, Vec::new(), 0.0);
    let mut failed = None;
    in_order(
        &jobs,
        |(name, part, trace)| row(name, (*part, slower, has_times), trace, &allocator),
        |row| {
            let row = match row {
                Ok(Some(row)) => row,
                Ok(None) => return,
                Err(error) => return failed = Some(error),
            };
            let other = against.get(&row.name).copied();
            let of = |at: usize| other.map_or("-".to_owned(), |other: [f64; 2]| format!("{:.4}", other[at]));
            println!(
                "{:28} {:8.4} {:>8} {:8.4} {:>8} {:8} {:8.2} {:6.2}% {:8.1} {:8.1} {:7.2}",
                row.name,
                row.needs,
                of(0),
                row.held,
                of(1),
                row.events,
                row.peak as f64 / GIB,
                row.share * 100.0,
                row.per_gib,
                row.per_gib_at_need,
                row.events_per_s
            );
            for (sum, value) in
                sums.iter_mut().zip([row.needs, row.held, row.share, row.per_gib, row.per_gib_at_need])
            {
                *sum += value;
            }
            for (worst, value) in
                worst.iter_mut().zip([row.needs, row.held, row.per_gib, row.per_gib_at_need])
            {
                *worst = worst.max(value);
            }
            if let Some(other) = other {
                others += other[0];
                if row.needs > other[0].max(1.004) + 0.00005 {
                    above.push(row.name);
                }
            }
            count += 1.0;
        },
    );
    if let Some(error) = failed {
        return Err(error.into());
    }
    println!(
        "{:28} {:8.4} {:8.4} {:8.4} {:>8} {:>8} {:>8} {:6.2}% {:8.1} {:8.1}",
        "mean",
        sums[0] / count,
        others / count,
        sums[1] / count,
        "",
        "",
        "",
        sums[2] / count * 100.0,
        sums[3] / count,
        sums[4] / count
    );
    println!(
        "{:28} {:8.4} {:>8} {:8.4} {:>8} {:>8} {:>8} {:>7} {:8.1} {:8.1}",
        "worst", worst[0], "", worst[1], "", "", "", "", worst[2], worst[3]
    );
    println!("{} above the other: {}", above.len(), above.join(" "));
    Ok(())
}

fn read_rows(file: &str) -> Result<HashMap<String, [f64; 2]>, Box<dyn Error>> {
    let mut rows = HashMap::new();
    for line in std::fs::read_to_string(file)?.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        if let [name, needs, _, held, ..] = fields[..]
            && let (Ok(needs), Ok(held)) = (needs.parse(), held.parse())
        {
            rows.insert(name.to_owned(), [needs, held]);
        }
    }
    Ok(rows)
}

fn row(
    name: &str,
    (part, slower, has_times): (usize, u64, bool),
    trace: &Trace,
    allocator: &str,
) -> Result<Option<Row>, ReplayError> {
    let mut program = Program::new(trace, FreeWhen::Completed);
    if !has_times {
        program = program.without_times();
    }
    program.steps.truncate(program.before + (program.steps.len() - program.before) / part);
    program.steps.iter_mut().for_each(|step| step.time_us *= slower);
    let choose = |context: &Context| millpond_baselines::by_name(allocator, context);
    let outcome = on_sim(trace, &program, &choose, UNLIMITED)?;
    let Some(need) = Need::of(&program, &choose, &outcome)? else { return Ok(None) };
    let limited = on_sim(trace, &program, &choose, need.bytes)?;
    let peak = outcome.peak_requested as f64;
    let wall_ms = program.steps.last().map_or(0.0, |step| step.time_us as f64 / 1e3);
    let ms = |outcome: &millpond_replay::replay::Outcome| outcome.device_us.unwrap_or(0.0) / 1e3;
    // What is beyond 1 % of the time, which may be spent once for what is held.
    let once = |outcome| (ms(outcome) - wall_ms / 100.0).max(0.0) / (peak / GIB);
    let suffix = if part == 1 { String::new() } else { format!("/{part}") };
    Ok(Some(Row {
        name: format!("{name}{suffix}"),
        events: outcome.events,
        peak: outcome.peak_requested,
        needs: need.bytes as f64 / peak,
        held: outcome.ratio,
        share: ms(&outcome) / wall_ms,
        per_gib: once(&outcome),
        per_gib_at_need: once(&limited),
        events_per_s: outcome.events as f64 / outcome.replay_s / 1e6,
    }))
}
