//! `churn`: many live blocks, of which one chosen at random is freed and another allocated in its place.

use super::pair::{KIB, MIB};
use crate::row::Measurement;
use crate::samples::{Samples, batches};
use crate::subject::Subject;
use crate::suite::Suite;
use crate::{Bench, Result, Row};

/// Steps that were drawn before measuring; then they begin again.
const STEPS: usize = 1 << 16;

/// Live blocks, the least bytes and the most, and what it is called.
const CASES: [(usize, u64, u64, &str); 3] = [
    (1000, 512, 64 * KIB, "512B-64KiB"),
    (1000, 512, 4 * MIB, "512B-4MiB"),
    (300, MIB, 64 * MIB, "1MiB-64MiB"),
];

/// Free the block of this number, and allocate so many bytes in its place.
#[derive(Debug, Clone, Copy)]
struct Step {
    number: u32,
    bytes: u32,
}

pub(super) fn run<S: Subject>(bench: &Bench, subject: &S) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (live, least, most, mode) in CASES {
        let steps = steps(live, least, most);
        let stream = subject.create_stream()?;
        let samples = bench.cores.on_one(|| replace(bench, subject, (live, &steps), &stream))??;
        rows.push(Measurement::new(Suite::Churn, mode, subject.name(), most).row(bench, samples));
    }
    Ok(rows)
}

/// Sizes are spread evenly over the logarithm, as requests of real programs about are.
fn steps(live: usize, least: u64, most: u64) -> Vec<Step> {
    let mut random = fastrand::Rng::with_seed(42);
    let (from, to) = ((least as f64).ln(), (most as f64).ln());
    let mut step = || Step {
        number: random.u32(..live as u32),
        bytes: (from + random.f64() * (to - from)).exp() as u32,
    };
    (0..STEPS).map(|_| step()).collect()
}

fn replace<S: Subject>(
    bench: &Bench,
    subject: &S,
    (live, steps): (usize, &[Step]),
    stream: &S::Stream,
) -> Result<Samples> {
    let first = steps.iter().take(live);
    let mut blocks: Vec<Option<S::Block>> =
        first.map(|step| subject.allocate(step.bytes.into(), stream).map(Some)).collect::<Result<_>>()?;
    let mut replace = |step: Step| {
        let place = &mut blocks[step.number as usize];
        if let Some(block) = place.take() {
            subject.free(block, stream)?;
        }
        *place = Some(subject.allocate(step.bytes.into(), stream)?);
        Ok(())
    };
    // Once through all of them, so that the allocator has met its sizes.
    let mut at = 0;
    let began = bench.clock.now();
    while at < steps.len() && !bench.is_over(began, bench.clock.now()) {
        steps[at..(at + 64).min(steps.len())].iter().try_for_each(|&step| replace(step))?;
        at += 64;
    }
    let mut upcoming = steps.iter().cycle();
    let samples = batches(bench, |count| upcoming.by_ref().take(count).try_for_each(|&step| replace(step)));
    for block in blocks.into_iter().flatten() {
        subject.free(block, stream)?;
    }
    samples
}
