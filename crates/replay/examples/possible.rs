//! How little a recorded job could have needed, and what a plan in each order would need: `docs/lab/possible.md`.
//!
//! `cargo run --release -p millpond-replay --example possible -- TRACE…` prints for each trace the bound, the best plan and that
//! of each order, as multiples of the bound, and the time for each. `generated` stands for 20 generated
//! jobs of each pattern.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use millpond::HumanBytes;
use millpond_replay::generate::Pattern;
use millpond_replay::possible::{Order, Plan, Possible};
use millpond_replay::read::{Limits, read};
use millpond_replay::replay::{FreeWhen, Program};

/// Stands for generated jobs.
const GENERATED: &str = "generated";

fn main() -> Result<(), Box<dyn Error>> {
    print!("{:28} {:>8} {:>10} {:>8} {:>8} {:>6}", "trace", "blocks", "bound", "possible", "plan", "s");
    Order::ALL.iter().for_each(|order| print!("  {:>14} {:>5}", order.name(), "s"));
    println!();
    let files: Vec<_> = std::env::args().skip(1).collect();
    for file in files.iter().filter(|file| *file != GENERATED) {
        for trace in read(Path::new(file), Limits::default())? {
            let name = file.rsplit('/').take(2).collect::<Vec<_>>().join(" ");
            show(&name, &Program::new(&trace, FreeWhen::Completed));
        }
    }
    if files.iter().any(|file| file == GENERATED) {
        for pattern in Pattern::ALL {
            for seed in 0..20 {
                let trace = pattern.generate(seed);
                show(&trace.name, &Program::new(&trace, FreeWhen::Completed));
            }
        }
    }
    Ok(())
}

fn show(name: &str, program: &Program) {
    let began = Instant::now();
    let possible = Possible::of(program);
    let took = began.elapsed().as_secs_f64();
    let over = |bytes: u64| bytes as f64 / possible.bound.max(1) as f64;
    let plan = possible.planned.map_or("-".to_owned(), |bytes| format!("{:.4}", over(bytes)));
    let bound = HumanBytes(possible.bound).to_string();
    print!("{name:28.28} {:8} {bound:>10} {:8.4} {plan:>8} {took:6.2}", program.blocks, possible.ratio);
    for order in Order::ALL {
        let began = Instant::now();
        let (plan, _) = Plan::in_order(program, order);
        print!("  {:14.4} {:5.2}", over(plan.bytes), began.elapsed().as_secs_f64());
    }
    println!();
}
