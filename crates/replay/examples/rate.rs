//! How many events a second a replay through the pool does on one core.
//!
//! `cargo run --release -p millpond-replay --example rate -- [--times TIMES] TRACE…` plays each trace so many times, each on a device
//! and through a pool of its own, and prints the fastest and the median, in million events a second. *Loop* is what is around the
//! allocator: the fastest replay through one that does nothing, in nanoseconds an event. `perf record -g` shows where the time goes.

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond::device::DevicePtr;
use millpond::{Context, Stream};
use millpond_baselines::{Allocator, Usage};
use millpond_replay::read::{Limits, read};
use millpond_replay::replay::{FreeWhen, Program, Stage, UNLIMITED, on_sim};

/// Gives every block an address of its own, and does nothing else.
#[derive(Debug, Default)]
struct Nothing(AtomicU64);

impl Allocator for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }
    fn allocate(&self, _: u64, _: &Stream) -> millpond::Result<DevicePtr> {
        let next = self.0.fetch_add(512, Ordering::Relaxed);
        Ok(DevicePtr::NULL.offset(next + 512))
    }
    unsafe fn free(&self, _: DevicePtr, _: &Stream) -> millpond::Result<()> {
        Ok(())
    }
    fn record_use(&self, _: DevicePtr, _: &Stream) -> millpond::Result<()> {
        Ok(())
    }
    fn trim(&self) -> millpond::Result<()> {
        Ok(())
    }
    fn usage(&self) -> Usage {
        Usage::default()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut times, mut files) = (15, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--times" => times = args.next().ok_or("give a number")?.parse()?,
            _ => files.push(arg),
        }
    }
    println!("{:28} {:>8} {:>8} {:>8} {:>8}", "trace", "events", "fastest", "median", "loop");
    let choose = |context: &Context| millpond_baselines::by_name("millpond", context);
    for file in &files {
        for trace in read(Path::new(file), Limits::default())? {
            let program = Program::new(&trace, FreeWhen::Completed);
            let stage = Stage::sim(&program, UNLIMITED)?;
            let (mut rates, mut of_loop) = (Vec::new(), f64::INFINITY);
            for _ in 0..times {
                let outcome = on_sim(&trace, &program, &choose, UNLIMITED)?;
                rates.push(outcome.events as f64 / outcome.replay_s / 1e6);
                let mut blocks = vec![DevicePtr::NULL; program.blocks];
                let played = stage.play(&Nothing::default(), &program.steps, &mut blocks)?;
                of_loop = of_loop.min(played.took.as_nanos() as f64 / played.events as f64);
            }
            rates.sort_by(f64::total_cmp);
            let name = file.rsplit('/').next().unwrap_or(file);
            let (fastest, median) = (rates.last().copied(), rates.get(rates.len() / 2).copied());
            println!(
                "{name:28.28} {:8} {:8.2} {:8.2} {of_loop:8.1}",
                program.steps.len(),
                fastest.unwrap_or_default(),
                median.unwrap_or_default()
            );
        }
    }
    Ok(())
}
