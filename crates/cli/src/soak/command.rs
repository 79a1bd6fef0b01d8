//! Runs random programs, or one of them again.

use std::path::Path;
use std::time::{Duration, Instant};

use millpond::bindings::read_short;
use millpond_soak::{Options, Program, Report, Tenant, repeat, repeat_number, soak, tenant};

use super::args::SoakArgs;
use crate::error::{Error, Result};
use crate::outputs::Output;
use crate::terminal::{Interrupt, ProgressLines, answer, count, remark, say};

/// Operations, where nothing is asked for.
const DEFAULT: u64 = 10_000_000;

/// How often it is said how far a soak is.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Runs the command.
pub(crate) fn run(args: &SoakArgs) -> Result<()> {
    if let Some([budget, seed]) = args.tenant.as_deref() {
        return Ok(tenant(budget, seed.parse().unwrap_or(0))?);
    }
    if let Some(path) = &args.program {
        return run_again(args, path);
    }
    // Whether it is there, before anything is said.
    args.device.open()?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let options = options(args);
    say(&format!("device: {}, seed: {}", options.device, options.seed));
    let interrupt = Interrupt::watch();
    let (sign, mut said) = (ProgressLines::new("random programs"), Instant::now());
    let report = soak(options, |operations| {
        if said.elapsed() >= SAID_EVERY {
            said = Instant::now();
            sign.set(&count(operations, "operation"));
        }
        interrupt.signal().is_none()
    });
    drop(sign);
    match &json {
        Some(json) => json.write(&(in_json(&report) + "\n"))?,
        None => answer(&in_words(&report)),
    }
    let stopped = interrupt.signal();
    let first = report.findings.first().map(|first| first.what.lines().next().unwrap_or_default().to_owned());
    match (first, stopped) {
        (Some(first), _) => {
            Err(Error::Soak { findings: count(report.findings.len() as u64, "finding"), first })
        }
        (None, Some(signal)) => {
            let done = count(report.operations, "operation");
            Err(Error::Stopped { signal, kept: format!("{done} without a finding") })
        }
        (None, None) => Ok(()),
    }
}

fn options(args: &SoakArgs) -> Options {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Programs that have the command in them, such as Python, cannot be started as it.
    let program =
        std::env::current_exe().ok().filter(|path| path.file_stem().is_some_and(|stem| stem == "millpond"));
    let tenant = program.map(|program| Tenant {
        budget: format!("soak-{}", std::process::id()),
        program,
        arguments: ["soak", "--tenant"].map(str::to_owned).to_vec(),
    });
    if tenant.is_none() {
        remark(
            "This is not the program `millpond`, so no processes share a budget, and the host refuses no memory.",
        );
    }
    Options {
        device: args.device,
        operations: args.operations.unwrap_or(if args.minutes.is_some() { u64::MAX } else { DEFAULT }),
        time: args.minutes,
        faults: args.faults,
        threads: args.threads.map_or(cores, usize::from),
        streams: args.streams.into(),
        seed: args.seed.unwrap_or_else(new_seed),
        tenant,
    }
}

/// Short enough to be typed.
fn new_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos() ^ since.as_secs() as u32)
}

fn in_json(report: &Report) -> String {
    serde_json::to_string_pretty(report).expect("it has strings for keys")
}

fn in_words(report: &Report) -> String {
    let Report { operations, operations_per_s, programs, faults, refusals, killed, .. } = report;
    let Report { unordered, overlapping, lost_bytes, hangs, wrong, .. } = report;
    let mut text = format!(
        "{operations} operations in {programs} programs, {operations_per_s} a second\n\
         {faults} device calls failed, the host refused {refusals} allocations, {killed} processes were killed\n\
         unordered {unordered}, overlapping {overlapping}, lost bytes {lost_bytes}, hangs {hangs}, wrong {wrong}"
    );
    for found in &report.findings {
        text += &format!(
            "\n\nprogram {}, found again {} times of 10: {}",
            found.number, found.repeats, found.what
        );
        if let Some(program) = &found.program {
            text += &serde_json::to_string(program).expect("it has strings for keys");
        }
    }
    text
}

/// More than the longest program has.
const MOST_MIB: u64 = 256;

fn run_again(args: &SoakArgs, path: &Path) -> Result<()> {
    let failed =
        |source| Error::Io { path: path.to_owned(), action: "read the program of a finding", source };
    let found = if let Some(number) = path.to_str().and_then(|text| text.parse().ok()) {
        let Some(_) = args.seed else {
            return Err(Error::Usage(format!("--program {number}: name the --seed, too")));
        };
        repeat_number(&options(args), number)
    } else {
        let text = read_short(path, MOST_MIB).map_err(failed)?;
        let program: Program = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        repeat(&program)
    };
    found.map_err(|found| Error::Soak { findings: count(1, "finding"), first: found.what })?;
    answer("nothing found");
    Ok(())
}
