//! `streams`: allocated on one stream, freed on another, while kernels are pending on both.
//!
//! What is timed is the allocation and the free; giving work to the streams and ordering them is not. Every allocator
//! is measured as it is built by default, and the pool also with each of its reuse policies alone, and with none. Calls
//! go through the trait of the baselines, which costs one or two nanoseconds where a pair costs hundreds.

use millpond::{Context, Pool, ReusePolicies, Stream};
use millpond_baselines::{Allocator, MILLPOND, by_name};

use super::pair::MIB;
use crate::row::Measurement;
use crate::samples::Samples;
use crate::suite::Suite;
use crate::work::Work;
use crate::{Bench, MIMALLOC, Result, Row};

/// Pairs after which the host waits for the streams, as a program does that reads a result.
const PAIRS_TO_A_WAIT: usize = 64;

const POLICIES: [(&str, ReusePolicies); 4] = [
    ("no-policy", ReusePolicies::NONE),
    ("event-dependencies", ReusePolicies { follow_event_dependencies: true, ..ReusePolicies::NONE }),
    ("opportunistic", ReusePolicies { opportunistic: true, ..ReusePolicies::NONE }),
    ("internal-dependencies", ReusePolicies { internal_dependencies: true, ..ReusePolicies::NONE }),
];

pub(super) fn run(bench: &Bench, name: &'static str) -> Result<Vec<Row>> {
    if name == MIMALLOC {
        // It knows no streams.
        return Ok(Vec::new());
    }
    let default = |context: &Context| Ok(by_name(name, context)?);
    let mut rows = vec![measure(bench, (name, "default"), default)?];
    if name == MILLPOND {
        for (mode, policies) in POLICIES {
            rows.push(measure(bench, (name, mode), |context| {
                Ok(Box::new(Pool::builder(context).name(mode).reuse(policies).build()?))
            })?);
        }
    }
    Ok(rows)
}

fn measure(
    bench: &Bench,
    (name, mode): (&'static str, &str),
    build: impl FnOnce(&Context) -> Result<Box<dyn Allocator>>,
) -> Result<Row> {
    let opened = bench.target.open()?;
    let allocator = build(&opened.context)?;
    let streams = [opened.context.create_stream()?, opened.context.create_stream()?];
    let work = [Work::new(&opened)?, Work::new(&opened)?];
    let samples = bench.cores.on_one(|| pairs(bench, allocator.as_ref(), &streams, &work))??;
    Ok(Measurement::new(Suite::Streams, mode, name, MIB).row(bench, samples))
}

fn pairs(
    bench: &Bench,
    allocator: &dyn Allocator,
    [first, second]: &[Stream; 2],
    [first_work, second_work]: &[Work; 2],
) -> Result<Samples> {
    let clock = &bench.clock;
    let mut samples = Samples::with_room();
    // One round for the device's first time.
    let mut began = None;
    loop {
        for _ in 0..PAIRS_TO_A_WAIT {
            let from = clock.now();
            let block = allocator.allocate(MIB, first)?;
            let allocation = clock.work_between(from, clock.now());
            first_work.launch(first)?;
            second.wait_for(first)?;
            second_work.launch(second)?;
            let from = clock.now();
            // SAFETY: nobody else has the block, and its last work was given to this stream.
            unsafe { allocator.free(block, second) }?;
            let free = clock.work_between(from, clock.now());
            if began.is_some() {
                samples.push(allocation + free);
            }
        }
        first.synchronize()?;
        second.synchronize()?;
        let now = clock.now();
        if bench.is_over(*began.get_or_insert(now), now) && !samples.is_empty() {
            return Ok(samples);
        }
    }
}
