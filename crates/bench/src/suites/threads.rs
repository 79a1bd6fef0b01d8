//! `threads`: pairs at once on many threads, each with a stream of its own.

use std::sync::Barrier;

use super::pair::{KIB, MIB, pair};
use crate::clock::Moment;
use crate::row::Measurement;
use crate::samples::{Samples, warm_up};
use crate::subject::Subject;
use crate::suite::Suite;
use crate::{Bench, Error, Result, Row};

/// Counts of threads that are measured on any machine; beyond, they double up to its cores.
const COUNTS: [usize; 5] = [1, 2, 4, 8, 16];
const MIXED: [u64; 5] = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB];
/// Sizes drawn before measuring, for each thread; then they begin again.
const DRAWN: usize = 1 << 10;

/// What one thread did.
struct Run {
    samples: Samples,
    pairs: u64,
    began: Moment,
    ended: Moment,
}

pub(super) fn run<S: Subject>(bench: &Bench, subject: &S) -> Result<Vec<Row>> {
    let more =
        std::iter::successors(Some(32), |count| Some(count * 2)).take_while(|&n| n <= bench.cores.count());
    let mut rows = Vec::new();
    for threads in COUNTS.into_iter().chain(more) {
        rows.push(race(bench, subject, threads, ("1MiB", &[MIB]))?);
        rows.push(race(bench, subject, threads, ("mixed", &MIXED))?);
    }
    Ok(rows)
}

fn race<S: Subject>(
    bench: &Bench,
    subject: &S,
    threads: usize,
    (mode, sizes): (&str, &[u64]),
) -> Result<Row> {
    let streams = (0..threads).map(|_| subject.create_stream()).collect::<Result<Vec<_>>>()?;
    let start = Barrier::new(threads);
    let runs = std::thread::scope(|scope| {
        let start = &start;
        let racing: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(number, stream)| {
                scope.spawn(move || {
                    bench.cores.pin(number);
                    one_thread(bench, subject, stream, (&drawn(sizes, number), start))
                })
            })
            .collect();
        racing.into_iter().map(|thread| thread.join().map_err(|_| Error::Thread)?).collect::<Result<Vec<_>>>()
    })?;
    let most = sizes.iter().copied().max().unwrap_or(0);
    let case = Measurement { threads, ..Measurement::new(Suite::Threads, mode, subject.name(), most) };
    let rate = rate(bench, &runs);
    let samples = Samples::all(runs.into_iter().map(|run| run.samples));
    Ok(case.row_at_rate(bench, samples, Some(rate)))
}

fn drawn(sizes: &[u64], thread: usize) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(thread as u64);
    (0..DRAWN).map(|_| sizes[random.usize(..sizes.len())]).collect()
}

fn one_thread<S: Subject>(
    bench: &Bench,
    subject: &S,
    stream: &S::Stream,
    (sizes, start): (&[u64], &Barrier),
) -> Result<Run> {
    let clock = &bench.clock;
    let mut upcoming = sizes.iter().cycle();
    let mut pairs = |count| upcoming.by_ref().take(count).try_for_each(|&bytes| pair(subject, bytes, stream));
    let batch = warm_up(bench, &mut pairs);
    let mut samples = Samples::with_room();
    // Who failed comes here too: the others wait for it.
    start.wait();
    let batch = batch?;
    let began = clock.now();
    let (mut done, mut ended) = (0, began);
    while !bench.is_over(began, ended) {
        let from = clock.now();
        pairs(batch)?;
        ended = clock.now();
        done += batch as u64;
        samples.push(clock.work_between(from, ended) / batch as f64);
    }
    Ok(Run { samples, pairs: done, began, ended })
}

/// Pairs a second of all threads, from when the first began to when the last ended.
fn rate(bench: &Bench, runs: &[Run]) -> f64 {
    let pairs: u64 = runs.iter().map(|run| run.pairs).sum();
    let first = runs.iter().map(|run| run.began).min();
    let last = runs.iter().map(|run| run.ended).max();
    match (first, last) {
        (Some(first), Some(last)) => pairs as f64 * 1e9 / bench.clock.between(first, last).max(1.0),
        _ => 0.0,
    }
}
