//! `latency`: one thread, one size: in pairs, by turns with the host's reference, and each call alone.

use super::pair::{KIB, MIB, pair};
use crate::opaque::Opaque;
use crate::row::Measurement;
use crate::samples::{Samples, batches_by_turns, warm_up};
use crate::subject::{Mimalloc, Subject};
use crate::suite::Suite;
use crate::{Bench, Result, Row};

const SIZES: [u64; 6] = [512, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB];

pub(super) fn run<S: Subject>(bench: &Bench, subject: &S) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for bytes in SIZES {
        rows.push(pairs(bench, subject, bytes)?);
        rows.extend(alone(bench, subject, bytes)?);
    }
    Ok(rows)
}

/// What every other figure is held against.
pub(super) fn reference<S: Subject>(bench: &Bench, subject: &S) -> Result<Row> {
    pairs(bench, subject, SIZES[0])
}

fn pairs<S: Subject>(bench: &Bench, subject: &S, bytes: u64) -> Result<Row> {
    let stream = subject.create_stream()?;
    let [samples, references] = bench.cores.on_one(|| {
        batches_by_turns(
            bench,
            |count| (0..count).try_for_each(|_| pair(subject, bytes, &stream)),
            |count| (0..count).try_for_each(|_| pair(&Mimalloc, SIZES[0], &())),
        )
    })??;
    let row = Measurement::new(Suite::Latency, "pair", subject.name(), bytes).row(bench, samples);
    Ok(row.beside(references))
}

/// Each call timed: `alone` are the allocations, `alone-free` the frees.
fn alone<S: Subject>(bench: &Bench, subject: &S, bytes: u64) -> Result<[Row; 2]> {
    let stream = subject.create_stream()?;
    let (allocations, frees) = bench.cores.on_one(|| each_call(bench, subject, bytes, &stream))??;
    let row =
        |mode, samples| Measurement::new(Suite::Latency, mode, subject.name(), bytes).row(bench, samples);
    Ok([row("alone", allocations), row("alone-free", frees)])
}

fn each_call<S: Subject>(
    bench: &Bench,
    subject: &S,
    bytes: u64,
    stream: &S::Stream,
) -> Result<(Samples, Samples)> {
    let clock = &bench.clock;
    warm_up(bench, |count| (0..count).try_for_each(|_| pair(subject, bytes, stream)))?;
    let (mut allocations, mut frees) = (Samples::with_room(), Samples::with_room());
    let began = clock.now();
    while !allocations.is_full() {
        let from = clock.now();
        let block = subject.allocate(bytes.opaque(), stream)?.opaque();
        let between = clock.now();
        subject.free(block, stream)?;
        let to = clock.now();
        allocations.push(clock.work_between(from, between));
        frees.push(clock.work_between(between, to));
        if bench.is_over(began, to) {
            break;
        }
    }
    Ok((allocations, frees))
}
