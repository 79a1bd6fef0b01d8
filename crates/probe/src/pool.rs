//! What a pair of the pool costs, as `millpond bench` measures it.

use std::time::Duration;

use millpond::device::DeviceName;
use millpond_bench::{Bench, Suite, Target};

use crate::run::Run;
use crate::{Result, Unit};

/// The suite measures three figures for each of six sizes, and warms up before each.
const SHARE: u32 = 4;

pub(crate) fn pairs(name: DeviceName, run: &mut Run<'_>) -> Result<()> {
    if !run.wants("pair") {
        return Ok(());
    }
    let (target, _) = Target::find(name.into())?;
    let time = (run.effort.time / SHARE).max(Duration::from_millis(1));
    let rows = Bench::new(target, time).run(Suite::Latency, "millpond")?;
    for row in rows.iter().filter(|row| row.mode == "pair") {
        let figures = [row.min_ns, row.p50_ns, row.p99_ns];
        run.keep("pair", Some(row.bytes), Unit::Nanoseconds, figures);
    }
    Ok(())
}
