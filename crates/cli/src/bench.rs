//! `millpond bench`: what a pair of allocate and free costs, beside other allocators and the host's own.

use millpond_bench::{Bench, MIMALLOC, Machine, Row, Suite, Target, report};

use crate::bench_args::BenchArgs;
use crate::bench_tables::of_suite;
use crate::error::{Error, Result};
use crate::outputs::{Output, refuse_clashes};
use crate::screen::{remark, say};

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    refuse_clashes(&[], &[args.json.as_deref(), args.report.as_deref()])?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let page = args.report.as_deref().map(Output::open).transpose()?;
    let (target, why_not_cuda) = Target::find(args.device)?;
    if let Some(why) = why_not_cuda {
        remark(&format!("measuring on the CPU: {why}"));
    }
    let machine = Machine::here(&target);
    let bench = Bench::new(target, args.time());
    let mark = bench.mark()?;
    introduce(&bench, &machine, &mark);
    if cfg!(debug_assertions) {
        remark(
            "built with debug assertions, which take longer than what is measured: cargo run --release -- bench",
        );
    }

    let (allocators, mut rows) = (args.allocators(), Vec::new());
    for suite in args.suites() {
        let measured: Vec<Row> =
            allocators.iter().flat_map(|&allocator| measure(&bench, suite, allocator)).collect();
        if measured.is_empty() {
            remark(&format!("{}: nothing measured; it is not for {}", suite.name(), allocators.join(", ")));
            continue;
        }
        say(&format!("\n{}", of_suite(suite, &measured, &mark)));
        rows.extend(measured);
    }
    if let Some(page) = page {
        write_page(page, &machine, &rows, &mark)?;
    }
    let has_mark = |row: &Row| {
        (row.suite, row.mode.as_str(), row.allocator, row.bytes)
            == (mark.suite, mark.mode.as_str(), mark.allocator, mark.bytes)
    };
    if !rows.iter().any(has_mark) {
        rows.push(mark);
    }
    match json {
        Some(file) => write_json(file, &rows),
        None => Ok(()),
    }
}

/// One allocator that cannot do a suite is no reason to lose the others' figures.
fn measure(bench: &Bench, suite: Suite, allocator: &'static str) -> Vec<Row> {
    bench.run(suite, allocator).unwrap_or_else(|why| {
        remark(&format!("{}: {allocator} left out: {why}", suite.name()));
        Vec::new()
    })
}

fn introduce(bench: &Bench, machine: &Machine, mark: &Row) {
    say(&machine.to_string());
    if bench.target().is_simulated() {
        say(
            "figures are of the allocators' own work: the simulated device counts what a driver would cost apart",
        );
    }
    say(&format!("clock: {:.0} ns a reading, taken off", bench.clock_cost_ns()));
    say(&format!("mark: {MIMALLOC}, 512 B, a pair in {:.1} ns", mark.p50_ns));
}

fn write_page(file: Output, machine: &Machine, rows: &[Row], mark: &Row) -> Result<()> {
    let mut page = Vec::new();
    report::write(machine, rows, mark, &mut page).map_err(|source| Error::Io {
        path: file.path().to_owned(),
        action: "draw the report",
        source,
    })?;
    file.write(&String::from_utf8_lossy(&page))
}

fn write_json(file: Output, rows: &[Row]) -> Result<()> {
    let path = file.path().to_owned();
    let text = serde_json::to_string_pretty(rows).map_err(|error| Error::Io {
        path,
        action: "write the figures to it",
        source: error.into(),
    })?;
    file.write(&(text + "\n"))
}
