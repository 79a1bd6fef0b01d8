//! A soak without the rest of the command, which is faster to build. `scripts/check-concurrency planted` asks it for errors that
//! are planted in the library.
//!
//! ```text
//! soak SECONDS [SEED [DEVICE]]
//! ```
//!
//! Ends with status 1 where it finds anything.

use std::process::ExitCode;
use std::time::Duration;

use millpond::device::DeviceName;
use millpond_soak::{Options, RefusingAllocator, soak};

#[global_allocator]
static ALLOCATOR: RefusingAllocator = RefusingAllocator;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).map(|arg| arg.parse().expect("a number of seconds, and a seed"));
    let (seconds, seed) = (number(0).unwrap_or(60), number(1).unwrap_or(1));
    let device = args.get(2).map_or(DeviceName::SIM, |name| name.parse().expect("the name of a device"));
    let options = Options {
        device,
        operations: u64::MAX,
        time: Some(Duration::from_secs(seconds)),
        faults: 1e-3,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        streams: 4,
        seed,
        tenant: None,
    };
    let report = soak(options, |_| true);
    println!("{} operations of {} programs", report.operations, report.programs);
    println!("{} device calls failed, the host refused {} allocations", report.faults, report.refusals);
    for found in &report.findings {
        println!("{:?} by program {}: {}", found.kind, found.number, found.what);
        if let Some(program) = &found.program {
            println!("{} times of ten by {program:?}", found.repeats);
        }
    }
    if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
