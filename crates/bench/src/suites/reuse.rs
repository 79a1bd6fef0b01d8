//! `reuse`: a thousand allocations from an allocator that has nothing, against a thousand that it has seen before.

use super::pair::MIB;
use crate::opaque::Opaque;
use crate::row::Measurement;
use crate::samples::Samples;
use crate::subject::Subject;
use crate::suite::Suite;
use crate::{Bench, MIMALLOC, Result, Row};

const BLOCKS: usize = 1000;
/// Allocators that begin with nothing, at most.
const ROUNDS: usize = 20;

/// `cold` and `warm`: each allocation of 1 MiB timed, with all those before it live.
///
/// Nothing of mimalloc, which is the process's own: it is never new.
pub(super) fn run<S: Subject>(bench: &Bench, build: impl Fn() -> Result<S>) -> Result<Vec<Row>> {
    let (mut cold, mut warm) = (Samples::with_room(), Samples::with_room());
    let mut name = "";
    let began = bench.clock.now();
    for _ in 0..ROUNDS {
        let subject = build()?;
        name = subject.name();
        if name == MIMALLOC {
            return Ok(Vec::new());
        }
        let stream = subject.create_stream()?;
        bench.cores.on_one(|| -> Result<()> {
            fill(bench, &subject, &stream, &mut cold)?;
            fill(bench, &subject, &stream, &mut warm)
        })??;
        if bench.is_over(began, bench.clock.now()) {
            break;
        }
    }
    let row = |mode, samples| Measurement::new(Suite::Reuse, mode, name, MIB).row(bench, samples);
    Ok(vec![row("cold", cold), row("warm", warm)])
}

fn fill<S: Subject>(bench: &Bench, subject: &S, stream: &S::Stream, samples: &mut Samples) -> Result<()> {
    let clock = &bench.clock;
    let mut blocks = Vec::with_capacity(BLOCKS);
    for _ in 0..BLOCKS {
        let from = clock.now();
        let block = subject.allocate(MIB.opaque(), stream)?;
        samples.push(clock.work_between(from, clock.now()));
        blocks.push(block);
    }
    blocks.into_iter().try_for_each(|block| subject.free(block, stream))
}
