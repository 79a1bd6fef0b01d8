//! How many events a second a replay through the pool does on one core.
//!
//! `cargo run --release -p millpond-replay --example rate -- [--times TIMES] TRACE…` plays each trace so many times, each on a device
//! and through a pool of its own, and prints the fastest and the median, in million events a second. `perf record -g` of it shows
//! where the time goes.

use std::error::Error;
use std::path::Path;

use millpond::Context;
use millpond_replay::read::{Limits, read};
use millpond_replay::replay::{FreeWhen, Program, UNLIMITED, on_sim};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut times, mut files) = (15, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--times" => times = args.next().ok_or("give a number")?.parse()?,
            _ => files.push(arg),
        }
    }
    println!("{:28} {:>8} {:>8} {:>8}", "trace", "events", "fastest", "median");
    let choose = |context: &Context| millpond_baselines::by_name("millpond", context);
    for file in &files {
        for trace in read(Path::new(file), Limits::default())? {
            let program = Program::new(&trace, FreeWhen::Completed);
            let mut rates = Vec::new();
            for _ in 0..times {
                let outcome = on_sim(&trace, &program, &choose, UNLIMITED)?;
                rates.push(outcome.events as f64 / outcome.replay_s / 1e6);
            }
            rates.sort_by(f64::total_cmp);
            let name = file.rsplit('/').next().unwrap_or(file);
            let (fastest, median) = (rates.last().copied(), rates.get(rates.len() / 2).copied());
            println!(
                "{name:28.28} {:8} {:8.2} {:8.2}",
                program.steps.len(),
                fastest.unwrap_or_default(),
                median.unwrap_or_default()
            );
        }
    }
    Ok(())
}
