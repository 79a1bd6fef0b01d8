//! Looks for what an allocator is worst at: generated jobs of every pattern, over many seeds.
//!
//! `cargo run --release -p millpond-replay --example worst_ratio -- [SEEDS] [ALLOCATOR]`

use std::error::Error;

use millpond_replay::generate::Pattern;
use millpond_replay::replay::{FreeWhen, Outcome, Program, UNLIMITED, on_sim};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let seeds: u64 = args.next().map_or(Ok(20), |text| text.parse())?;
    let allocator = args.next().unwrap_or_else(|| "millpond".to_owned());
    println!("{allocator}, {seeds} seeds of each pattern");
    println!(
        "{:26} {:>8} {:>8} {:>6} {:>12} {:>12}",
        "pattern", "median", "worst", "seed", "requested", "calls' share"
    );
    let mut ratios = Vec::new();
    for pattern in Pattern::ALL {
        let mut outcomes =
            (0..seeds).map(|seed| replay(pattern, seed, &allocator)).collect::<Result<Vec<_>, _>>()?;
        ratios.extend(outcomes.iter().map(|(_, outcome)| outcome.ratio));
        outcomes.sort_by(|(_, a), (_, b)| a.ratio.total_cmp(&b.ratio));
        let Some((seed, worst)) = outcomes.last() else { return Ok(()) };
        let median = outcomes[outcomes.len() / 2].1.ratio;
        let share = outcomes.iter().filter_map(|(_, outcome)| outcome.device_share()).fold(0.0, f64::max);
        println!(
            "{:26} {median:8.4} {:8.4} {seed:6} {:>12} {:>11.2}%",
            pattern.name(),
            worst.ratio,
            millpond::HumanBytes(worst.peak_requested).to_string(),
            share * 100.0
        );
    }
    let above = ratios.iter().filter(|ratio| **ratio > 1.02).count();
    println!("mean {:.4}, above 1.02: {above}", ratios.iter().sum::<f64>() / ratios.len() as f64);
    Ok(())
}

fn replay(pattern: Pattern, seed: u64, allocator: &str) -> Result<(u64, Outcome), Box<dyn Error>> {
    let trace = pattern.generate(seed);
    let program = Program::new(&trace, FreeWhen::Completed);
    let choose = |context: &millpond::Context| millpond_baselines::by_name(allocator, context);
    Ok((seed, on_sim(&trace, &program, &choose, UNLIMITED)?))
}
