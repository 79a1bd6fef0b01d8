//! `throughput` and `mixed`: ten thousand pairs in a row on one thread, of one size and of sizes at random.

use super::pair::{KIB, MIB, pair};
use crate::row::Measurement;
use crate::samples::{Samples, warm_up};
use crate::subject::Subject;
use crate::suite::Suite;
use crate::{Bench, Result, Row};

/// Pairs in a row.
const ROUND: usize = 10_000;
/// Pairs between two readings of the clock.
const BATCH: usize = 100;
const MIXED: std::ops::RangeInclusive<u64> = 64 * KIB..=16 * MIB;

/// Pairs of 1 MiB.
pub(super) fn run<S: Subject>(bench: &Bench, subject: &S) -> Result<Row> {
    rounds(bench, subject, Measurement::new(Suite::Throughput, "pair", subject.name(), MIB), &[MIB; ROUND])
}

/// Pairs of 64 KiB to 16 MiB, spread evenly over the logarithm.
pub(super) fn run_mixed<S: Subject>(bench: &Bench, subject: &S) -> Result<Row> {
    let mut random = fastrand::Rng::with_seed(42);
    let (least, most) = ((*MIXED.start() as f64).ln(), (*MIXED.end() as f64).ln());
    let sizes: Vec<u64> = (0..ROUND).map(|_| (least + random.f64() * (most - least)).exp() as u64).collect();
    rounds(bench, subject, Measurement::new(Suite::Mixed, "pair", subject.name(), *MIXED.end()), &sizes)
}

/// Whole rounds until the time is over.
fn rounds<S: Subject>(bench: &Bench, subject: &S, case: Measurement, sizes: &[u64]) -> Result<Row> {
    let stream = subject.create_stream()?;
    let (samples, rate) = bench.cores.on_one(|| -> Result<_> {
        let clock = &bench.clock;
        let mut first = sizes.iter().cycle();
        warm_up(bench, |count| {
            first.by_ref().take(count).try_for_each(|&bytes| pair(subject, bytes, &stream))
        })?;
        let mut samples = Samples::with_room();
        let (began, mut ended, mut pairs) = (clock.now(), clock.now(), 0);
        while !bench.is_over(began, ended) {
            for batch in sizes.chunks(BATCH) {
                let from = clock.now();
                batch.iter().try_for_each(|&bytes| pair(subject, bytes, &stream))?;
                ended = clock.now();
                samples.push(clock.work_between(from, ended) / batch.len() as f64);
            }
            pairs += sizes.len();
        }
        Ok((samples, pairs as f64 * 1e9 / clock.between(began, ended)))
    })??;
    Ok(case.row_at_rate(bench, samples, Some(rate)))
}
