//! A soak without the rest of the command, which is faster to build. `scripts/check-concurrency planted` asks it for errors that
//! are planted in the library.
//!
//! ```text
//! soak SECONDS [SEED]
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
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number of seconds, and a seed"));
    let (seconds, seed) = (args.next().unwrap_or(60), args.next().unwrap_or(1));
    let options = Options {
        device: DeviceName::SIM,
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
    for found in &report.findings {
        println!("{:?} by program {}: {}", found.kind, found.number, found.what);
    }
    if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
