//! How long it takes to find what each allocator needs for a long trace: one that is played several times, one time after the
//! other.
//!
//! `cargo run --release -p millpond-replay --example search -- TRACE [TIMES]`; four times if not given.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use millpond::{Context, HumanBytes};
use millpond_replay::cores::on_all_cores;
use millpond_replay::fit::Need;
use millpond_replay::read::{Limits, read};
use millpond_replay::replay::{FreeWhen, Program, ReplayError, Step, UNLIMITED, on_sim};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let Some(file) = args.next() else {
        println!("give a trace, such as data/traces/generate.pickle.zst");
        return Ok(());
    };
    let times: u32 = args.next().map_or(Ok(4), |text| text.parse())?;
    for trace in read(Path::new(&file), Limits::default())? {
        let program = repeated(&Program::new(&trace, FreeWhen::Completed), times);
        let start = Instant::now();
        let needs = on_all_cores(&millpond_baselines::NAMES, |&name| {
            let choose = |context: &Context| millpond_baselines::by_name(name, context);
            let unlimited = on_sim(&trace, &program, &choose, UNLIMITED)?;
            Ok((name, Need::of(&program, &choose, &unlimited)?))
        });
        let took = start.elapsed();
        for found in needs {
            let (name, need) = found.map_err(|error: ReplayError| error)?;
            let need = need.map_or("–".to_owned(), |need| HumanBytes(need.bytes).to_string());
            println!("{name:15} {need:>10}");
        }
        println!("{} blocks, {:.2} s", program.blocks, took.as_secs_f64());
    }
    Ok(())
}

/// The program so many times. What is live at its end is freed before it begins again.
fn repeated(program: &Program, times: u32) -> Program {
    let mut once = program.steps.clone();
    let end = once.last().map_or(0, |step| step.time_us);
    let mut live = vec![None; program.blocks];
    for step in &once {
        live[step.block as usize] = step.alloc.then_some(Step { alloc: false, time_us: end, ..*step });
    }
    once.extend(live.into_iter().flatten());
    let time = |time: u32| {
        let later = move |step: &Step| Step {
            block: step.block + time * program.blocks as u32,
            time_us: step.time_us + u64::from(time) * (end + 100),
            ..*step
        };
        once.iter().map(later)
    };
    let steps = (0..times).flat_map(time).collect();
    Program { steps, blocks: program.blocks * times as usize, ..program.clone() }
}
