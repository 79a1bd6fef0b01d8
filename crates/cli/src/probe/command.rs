//! Measures section by section, and writes the figures.

use indicatif::{ProgressBar, ProgressStyle};
use millpond::device::DeviceName;
use millpond_bench::{Machine, Target};
use millpond_probe::{Facts, Measured, Probe, cost_table, report};
use serde::Serialize;

use super::args::ProbeArgs;
use super::tables::{of_facts, of_section};
use crate::error::{Error, Result};
use crate::outputs::{Output, refuse_clashes, write_json};
use crate::terminal::{Interrupt, ProgressLines, Signal, count, is_quiet, remark, say};

/// All of a probe, in the shape that `--json` writes.
#[derive(Serialize)]
struct ProbeJson<'a> {
    machine: &'a Machine,
    facts: &'a Facts,
    rows: &'a [millpond_probe::Row],
    left_out: &'a [String],
}

/// Runs the command.
pub(crate) fn run(args: &ProbeArgs) -> Result<()> {
    if args.device == DeviceName::SIM.into() {
        let why = "it keeps no bytes; name auto, cuda, cuda:N or host";
        return Err(Error::Usage(format!("--device sim: {why}")));
    }
    refuse_clashes(&[], &args.written())?;
    let [json, page, costs] = args.written().map(|path| path.map(Output::open).transpose());
    let (json, page, costs) = (json?, page?, costs?);
    let (target, why_not_cuda) = Target::find(args.device)?;
    if why_not_cuda.is_some() {
        remark("No usable NVIDIA GPU, so this measures the CPU's memory; `millpond info` says why.");
    }
    if cfg!(debug_assertions) {
        remark(
            "This is a debug build, whose loops are slower than memory: use `cargo run --release -- probe`.",
        );
    }
    let interrupt = Interrupt::watch();
    let machine = Machine::here(&target);
    let mut probe = Probe::open(target.name(), args.effort())?;
    say(&machine.to_string());
    say(&of_facts(probe.facts()));
    say(if args.is_quick() { "time: some seconds" } else { "time: up to half a minute" });
    let Measured { rows, left_out } = measure(&mut probe, &interrupt);

    if let Some(page) = page {
        let written = page.write_with(|out| report::write(&machine, probe.facts(), &rows, &left_out, out));
        written.map_err(|source| cannot_write(&page, source))?;
    }
    if let Some(costs) = costs {
        costs.write(&cost_table::written(&machine, &rows))?;
    }
    if let Some(json) = json {
        let told = ProbeJson { machine: &machine, facts: probe.facts(), rows: &rows, left_out: &left_out };
        write_json(json, &told)?;
    }
    match interrupt.signal() {
        None => Ok(()),
        Some(signal) => Err(stopped(args, signal, rows.len())),
    }
}

fn cannot_write(file: &Output, source: std::io::Error) -> Error {
    Error::Io { path: file.path().to_owned(), action: "write it", source }
}

fn stopped(args: &ProbeArgs, signal: Signal, rows: usize) -> Error {
    let written = if args.written().iter().any(Option::is_some) { ", and they are written" } else { "" };
    Error::Stopped { signal, kept: format!("{} were measured{written}", count(rows as u64, "figure")) }
}

/// All sections, until a signal comes.
fn measure(probe: &mut Probe, interrupt: &Interrupt) -> Measured {
    let sections = probe.sections();
    let bar = bar(sections.len());
    let sign = ProgressLines::new("");
    let mut all = Measured::default();
    for (at, &section) in sections.iter().enumerate() {
        sign.set(&format!("{}, section {} of {}", section.name(), at + 1, sections.len()));
        let measured = probe.measure(section, &mut |what| {
            bar.set_message(format!("{}, {what}", section.name()));
            bar.tick();
            interrupt.signal().is_none()
        });
        bar.suspend(|| {
            if !measured.rows.is_empty() {
                say(&format!("\n{}", of_section(section, &measured.rows)));
            }
            measured.left_out.iter().for_each(|what| remark(what));
        });
        bar.inc(1);
        all.rows.extend(measured.rows);
        all.left_out.extend(measured.left_out);
        if interrupt.signal().is_some() {
            break;
        }
    }
    bar.finish_and_clear();
    all
}

/// How far the probe is, on a terminal.
fn bar(sections: usize) -> ProgressBar {
    if is_quiet() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:40!} {wide_bar} {pos}/{len}  {elapsed}");
    ProgressBar::new(sections as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
