//! Measures suite by suite, and writes the figures.

use indicatif::{ProgressBar, ProgressStyle};
use millpond_bench::{Bench, Drift, Machine, Row, Suite, Target, report};

use super::args::BenchArgs;
use super::tables::{of_suite, summary};
use crate::error::{Error, Result};
use crate::outputs::{Output, refuse_clashes, write_json};
use crate::terminal::{Interrupt, ProgressLines, Signal, count, is_quiet, remark, say, wrapped};

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    args.check()?;
    refuse_clashes(&[], &[args.json.as_deref(), args.report.as_deref()])?;
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let page = args.report.as_deref().map(Output::open).transpose()?;
    let (target, why_not_cuda) = Target::find(args.device)?;
    let target = target.with_memory(args.memory)?;
    if why_not_cuda.is_some() {
        remark("No usable NVIDIA GPU, so this measures on the CPU; `millpond info` says why.");
    }
    if cfg!(debug_assertions) {
        remark(
            "This is a debug build, whose checks take longer than what is measured: use `cargo run --release -- bench`.",
        );
    }
    let others = args.without_memory();
    if !others.is_empty() {
        let others = others.join(", ");
        remark(&format!(
            "This measures pools of {}. Left out, since they take device memory only: {others}.",
            args.memory
        ));
    }
    let interrupt = Interrupt::watch();
    let machine = Machine::here(&target);
    let bench = Bench::new(target, args.time());
    let mut drift = Drift::begin(&bench)?;
    introduce(&bench, &machine, drift.reference());
    say(&args.takes());
    let rows = measure(args, &bench, &mut drift, &interrupt)?;
    if !rows.is_empty() {
        say(&format!("\n{}", summary(&rows, drift.reference())));
    }
    for suite in args.suites() {
        let of: Vec<_> = rows.iter().filter(|row| row.suite == suite.name()).cloned().collect();
        if !of.is_empty() {
            say(&format!("\n{}", of_suite(suite, &of, drift.reference())));
        }
    }
    say(&format!("\n{}", wrapped(&drift.sentence(), 80)));

    if let Some(page) = page {
        write_page(&page, &machine, &rows, &drift)?;
    }
    if let Some(json) = json {
        write_figures(json, rows.clone(), &drift)?;
    }
    match interrupt.signal() {
        None => Ok(()),
        Some(signal) => Err(stopped(args, signal, rows.len())),
    }
}

fn stopped(args: &BenchArgs, signal: Signal, rows: usize) -> Error {
    let written = if args.json.is_some() || args.report.is_some() { ", and they are written" } else { "" };
    Error::Stopped { signal, kept: format!("{} were measured{written}", count(rows as u64, "figure")) }
}

/// All suites with all allocators, until a signal comes.
fn measure(args: &BenchArgs, bench: &Bench, drift: &mut Drift, interrupt: &Interrupt) -> Result<Vec<Row>> {
    let (suites, allocators, mut rows) = (args.suites(), args.allocators(), Vec::new());
    let bar = bar(suites.len() * allocators.len());
    let sign = ProgressLines::new("");
    for (at, &suite) in suites.iter().enumerate() {
        sign.set(&format!("{}, suite {} of {}", suite.name(), at + 1, suites.len()));
        let mut measured: Vec<Row> = Vec::new();
        for &allocator in &allocators {
            if interrupt.signal().is_some() {
                break;
            }
            bar.set_message(format!("{}, {allocator}", suite.name()));
            bar.tick();
            measured.extend(of_allocator(bench, suite, allocator, &bar));
            bar.inc(1);
        }
        if !measured.is_empty() {
            drift.measure(bench, &format!("after {}", suite.name()))?;
        } else if interrupt.signal().is_none() {
            let names = allocators.join(", ");
            bar.suspend(|| remark(&format!("{}: nothing measured; it is not for {names}", suite.name())));
        }
        rows.extend(measured);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// How far the run is, on a terminal.
fn bar(steps: usize) -> ProgressBar {
    if is_quiet() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:30} {wide_bar} {pos}/{len}  {eta} left");
    ProgressBar::new(steps as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// One allocator that cannot do a suite is no reason to lose the others' figures.
fn of_allocator(bench: &Bench, suite: Suite, allocator: &'static str, bar: &ProgressBar) -> Vec<Row> {
    bench.run(suite, allocator).unwrap_or_else(|why| {
        bar.suspend(|| remark(&format!("{}: {allocator} left out: {why}", suite.name())));
        Vec::new()
    })
}

fn introduce(bench: &Bench, machine: &Machine, reference: &Row) {
    say(&machine.to_string());
    say(&format!("clock: {:.0} ns a reading, taken off", bench.clock_cost_ns()));
    say(&format!("reference: a pair of malloc and free (mimalloc, 512 B) takes {:.1} ns", reference.p50_ns));
    if bench.target().is_simulated() {
        say("The device is simulated: times are of the allocators alone, without a driver.");
    }
}

fn write_page(file: &Output, machine: &Machine, rows: &[Row], drift: &Drift) -> Result<()> {
    let written = file.write_with(|out| report::write(machine, rows, drift, out));
    written.map_err(|source| Error::Io { path: file.path().to_owned(), action: "write it", source })
}

/// The figures, the reference among them, and then the reference each time that it was measured.
fn write_figures(file: Output, mut rows: Vec<Row>, drift: &Drift) -> Result<()> {
    let reference = drift.reference();
    let is_reference = |row: &Row| row.same_case(reference) && row.allocator == reference.allocator;
    if !rows.iter().any(is_reference) {
        rows.push(reference.clone());
    }
    rows.extend_from_slice(drift.rows());
    write_json(file, &rows)
}
