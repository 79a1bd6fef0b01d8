//! What the pool would have held for traces whose sizes were a little different: one replay says little, since a small
//! change of a size changes every later placement.
//!
//! `cargo run --release -p millpond-replay --example scaled -- TRACE…` replays each trace with all sizes multiplied by
//! 0.96, 0.98, 1, 1.02 and 1.04, on a simulated device of 141 GiB, and prints the mean and the worst ratio, and the device calls'
//! share of the job's time.

use std::error::Error;
use std::path::Path;

use millpond_replay::read::{Limits, read};
use millpond_replay::replay::{FreeWhen, Program, on_sim};
use millpond_replay::trace::Trace;

const FACTORS: [u64; 5] = [96, 98, 100, 102, 104];

/// What sizes are rounded to, as PyTorch does.
const UNIT: u64 = 512;

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:28} {:>8} {:>8} {:>8} {:>8}", "trace", "ratio", "worst", "share", "worst");
    let mut means = [0.0; 2];
    let mut count = 0.0;
    let mut over = [0; 2];
    for file in std::env::args().skip(1) {
        let path = Path::new(&file);
        for trace in read(path, Limits::default())? {
            let [ratios, shares] = replay_scaled(&trace)?;
            let both = [&ratios, &shares].map(|of| of.iter().sum::<f64>() / of.len() as f64);
            let worst = [&ratios, &shares].map(|of| of.iter().copied().fold(0.0, f64::max));
            let name = file.rsplit('/').take(2).collect::<Vec<_>>().join(" ");
            println!(
                "{name:28.28} {:8.4} {:8.4} {:7.2}% {:7.2}%",
                both[0],
                worst[0],
                both[1] * 100.0,
                worst[1] * 100.0
            );
            means = [means[0] + both[0], means[1] + both[1]];
            over[0] += usize::from(both[0] > 1.02);
            over[1] += usize::from(both[1] > 0.01);
            count += 1.0;
        }
    }
    println!(
        "{:28} {:8.4} {:>8} {:7.2}% {:>8}",
        "mean, and how many above",
        means[0] / count,
        over[0],
        means[1] / count * 100.0,
        over[1]
    );
    Ok(())
}

fn replay_scaled(trace: &Trace) -> Result<[Vec<f64>; 2], Box<dyn Error>> {
    let program = Program::new(trace, FreeWhen::Completed);
    let choose = |context: &millpond::Context| millpond_baselines::by_name("millpond", context);
    let mut all = [Vec::new(), Vec::new()];
    for factor in FACTORS {
        let mut scaled = program.clone();
        for step in &mut scaled.steps {
            step.size = (step.size * factor / 100).next_multiple_of(UNIT).max(UNIT.min(step.size));
        }
        let outcome = on_sim(trace, &scaled, &choose, 141 << 30)?;
        all[0].push(outcome.ratio);
        all[1].push(outcome.device_share().unwrap_or(0.0));
    }
    Ok(all)
}
