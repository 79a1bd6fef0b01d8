//! `scale`: one call of the pool beside very many pages, streams, threads and blocks.

use millpond::device::MemoryKind;
use millpond_baselines::MILLPOND;

use crate::row::Measurement;
use crate::samples::Samples;
use crate::scale::{Case, Figure};
use crate::suite::Suite;
use crate::{Bench, Error, Result, Row};

/// In a debug build, whose checks take most of the time, there are so many times fewer.
const FEWER: u64 = 100;

pub(super) fn run(bench: &Bench, name: &'static str) -> Result<Vec<Row>> {
    if name != MILLPOND {
        return Ok(Vec::new());
    }
    if !bench.target.is_simulated() || bench.target.memory() != MemoryKind::Device {
        return Err(Error::SimulatedOnly);
    }
    Case::ALL.iter().map(|case| measure(bench, case)).collect()
}

fn measure(bench: &Bench, case: &Case) -> Result<Row> {
    let size = if cfg!(debug_assertions) { (case.size / FEWER).max(40) } else { case.size };
    let meter = case.measure(size)?;
    let mut samples = Samples::with_room();
    match case.figure {
        Figure::Median => meter.ns().iter().for_each(|ns| samples.push(*ns)),
        Figure::Worst => samples.push(meter.ns().iter().copied().fold(0.0, f64::max)),
    }
    let mode = format!("{} (at most {:?})", case.about.replace("{n}", &size.to_string()), case.most);
    Ok(Measurement::new(Suite::Scale, mode, MILLPOND, 512).row(bench, samples))
}
