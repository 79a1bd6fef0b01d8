//! `hand-over`: one thread allocates, another frees; and several such pairs of threads at once.
//!
//! Blocks go through a ring without locks (`rtrb`), which holds so few that what is in it stays in the processor's
//! caches. The second thread frees on the stream of the allocation (`same-stream`), as where one thread only cleans
//! up; or on a stream of its own (`own-stream`), where an allocator has to see to the order of the two.

use std::sync::Barrier;
use std::time::Duration;

use rtrb::{Consumer, Producer, RingBuffer};

use super::pair::MIB;
use crate::clock::Moment;
use crate::opaque::Opaque;
use crate::row::Measurement;
use crate::samples::{Samples, WARM_UP};
use crate::subject::Subject;
use crate::suite::Suite;
use crate::{Bench, Error, Result, Row};

/// Pairs of threads.
const PAIRS: [usize; 4] = [1, 2, 4, 8];
/// Blocks on their way from one thread to the other, at most.
const ON_THE_WAY: usize = 256;
/// Allocations between two readings of the clock.
const BATCH: usize = 64;
/// Looks at the ring before another thread gets the core.
const LOOKS: usize = 200;

/// What a thread that allocates did.
struct Allocated {
    samples: Samples,
    began: Moment,
}

/// What a thread that frees did.
struct Freed {
    blocks: u64,
    ended: Moment,
}

pub(super) fn run<S: Subject>(bench: &Bench, subject: &S) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for pairs in PAIRS {
        for (mode, same_stream) in [("same-stream", true), ("own-stream", false)] {
            let case = Measurement {
                threads: 2 * pairs,
                ..Measurement::new(Suite::HandOver, mode, subject.name(), MIB)
            };
            let streams = (0..2 * pairs).map(|_| subject.create_stream()).collect::<Result<Vec<_>>>()?;
            let streams: Vec<_> =
                streams.chunks(2).map(|of| (&of[0], &of[usize::from(!same_stream)])).collect();
            let warm_up = bench.time.min(WARM_UP);
            hand_over(bench, subject, (case.clone(), warm_up), &streams)?;
            rows.push(hand_over(bench, subject, (case, bench.time), &streams)?);
        }
    }
    Ok(rows)
}

fn hand_over<S: Subject>(
    bench: &Bench,
    subject: &S,
    (case, time): (Measurement, Duration),
    streams: &[(&S::Stream, &S::Stream)],
) -> Result<Row> {
    let start = Barrier::new(case.threads);
    let (allocated, freed) = std::thread::scope(|scope| {
        let start = &start;
        let threads = streams.iter().enumerate().map(|(number, &(allocating, freeing))| {
            let (giver, taker) = RingBuffer::new(ON_THE_WAY);
            let first = scope.spawn(move || {
                bench.cores.pin(2 * number);
                start.wait();
                allocate(bench, subject, (allocating, time), giver)
            });
            let second = scope.spawn(move || {
                bench.cores.pin(2 * number + 1);
                start.wait();
                free(bench, subject, freeing, taker)
            });
            (first, second)
        });
        // All are spawned before the first is waited for.
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|(first, second)| {
            let allocated = first.join().map_err(|_| Error::Thread)?;
            let freed = second.join().map_err(|_| Error::Thread)?;
            Ok((allocated?, freed?))
        });
        joined.collect::<Result<(Vec<_>, Vec<_>)>>()
    })?;
    let rate = rate(bench, &allocated, &freed);
    let samples = Samples::all(allocated.into_iter().map(|of| of.samples));
    Ok(case.row_at_rate(bench, samples, Some(rate)))
}

/// Allocates and gives away, until the time is over or nobody takes any more. Waiting for room is in the samples.
fn allocate<S: Subject>(
    bench: &Bench,
    subject: &S,
    (stream, time): (&S::Stream, Duration),
    mut to: Producer<S::Block>,
) -> Result<Allocated> {
    let clock = &bench.clock;
    let mut samples = Samples::with_room();
    let began = clock.now();
    let mut ended = began;
    while clock.between(began, ended) < time.as_nanos() as f64 && !to.is_abandoned() {
        let from = clock.now();
        for _ in 0..BATCH {
            let block = subject.allocate(MIB.opaque(), stream)?;
            wait_until(|| !to.is_full() || to.is_abandoned());
            if let Err(rtrb::PushError::Full(block)) = to.push(block) {
                // The other thread failed; its error is told.
                subject.free(block, stream)?;
            }
        }
        ended = clock.now();
        samples.push(clock.work_between(from, ended) / BATCH as f64);
    }
    Ok(Allocated { samples, began })
}

/// Frees what comes, until no more can come.
fn free<S: Subject>(
    bench: &Bench,
    subject: &S,
    stream: &S::Stream,
    mut from: Consumer<S::Block>,
) -> Result<Freed> {
    let mut blocks = 0;
    loop {
        wait_until(|| !from.is_empty() || from.is_abandoned());
        match from.pop() {
            Ok(block) => {
                subject.free(block, stream)?;
                blocks += 1;
            }
            // What was pushed before it was abandoned has been seen to be gone.
            Err(_) if from.is_abandoned() && from.is_empty() => break,
            Err(_) => {}
        }
    }
    Ok(Freed { blocks, ended: bench.clock.now() })
}

fn wait_until(mut ready: impl FnMut() -> bool) {
    let mut looks = 0;
    while !ready() {
        looks += 1;
        if looks % LOOKS == 0 {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// Blocks a second that were allocated and freed.
fn rate(bench: &Bench, allocated: &[Allocated], freed: &[Freed]) -> f64 {
    let blocks: u64 = freed.iter().map(|of| of.blocks).sum();
    let first = allocated.iter().map(|of| of.began).min();
    let last = freed.iter().map(|of| of.ended).max();
    match (first, last) {
        (Some(first), Some(last)) => blocks as f64 * 1e9 / bench.clock.between(first, last).max(1.0),
        _ => 0.0,
    }
}
