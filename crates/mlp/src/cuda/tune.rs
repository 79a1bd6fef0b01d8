//! Choosing an algorithm for a product by timing the candidates.
//!
//! The library's own first choice is often not its fastest for the small products of a training step (64 rows),
//! so the first few are run on the operands at hand when a shape is first met. That waits for the device, once
//! for each shape in the life of the process.

use super::cublaslt::{Candidate, Described, Operands, Scratch};
use super::driver::TimedEvent;
use crate::{Error, Kind, Memory, Result};

/// Suggestions of the library that are timed.
const CANDIDATES: usize = 12;
/// Parts that the sums of a suggestion are cut into, each of which is timed too. The library seldom suggests
/// it where it pays most: a product of 64 × 784 over 784 has only 50 tiles for the 132 multiprocessors of an
/// H200, and took 33 µs whole (ncu, 2026-11-21).
const PARTS: [u32; 4] = [2, 4, 6, 12];
/// Runs of a candidate between two time stamps.
const RUNS: usize = 4;
/// Times that each candidate's turn comes; the fastest counts.
const ROUNDS: usize = 2;
/// Scratch memory that an algorithm may need, in bytes: a product of 64 × 784 split over 32 parts fits.
const WORKSPACE: usize = 8 << 20;
/// A candidate must be this much faster to be preferred to one that the library ranks higher. Without it noise
/// would choose between equals, and the same program would round differently from one day to the next.
const WORTHWHILE: f32 = 0.95;

/// A product and the way to compute it.
#[derive(Debug)]
pub(super) struct Plan {
    described: Described,
    candidate: Candidate,
}

impl Plan {
    /// Bytes of scratch memory that it needs.
    pub(super) fn workspace(&self) -> usize {
        self.candidate.workspace
    }

    /// Queues the product.
    ///
    /// # Safety
    /// As for [`Described::run`].
    pub(super) unsafe fn run(&self, operands: Operands, scratch: Scratch, memory: &Memory) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.described.run(&self.candidate, operands, scratch, memory.stream().handle()) }
    }
}

/// Times the candidates on these operands and keeps the best. Overwrites the output.
///
/// # Safety
/// The operands have the product's shapes, and may be used on the stream of `memory`.
pub(super) unsafe fn choose(described: Described, operands: Operands, memory: &Memory) -> Result<Plan> {
    let mut candidates = described.candidates::<CANDIDATES>(WORKSPACE)?;
    if candidates.is_empty() {
        return Err(Error::Library {
            library: "cuBLASLt",
            what: String::from("it has no algorithm for a product of this shape"),
        });
    }
    let split: Vec<_> = candidates
        .iter()
        .flat_map(|whole| PARTS.map(|parts| described.split(whole, parts, WORKSPACE)))
        .flatten()
        .collect();
    candidates.extend(split);
    let bytes = candidates.iter().map(|candidate| candidate.workspace).max().unwrap_or(0);
    let workspace = memory.uninit_for::<u8>(Kind::Workspace, 1, bytes.max(1))?;
    let scratch = Scratch { at: workspace.ptr(), bytes };
    let mut fastest = vec![f32::INFINITY; candidates.len()];
    memory.stream().synchronize()?;
    for _ in 0..ROUNDS {
        for (candidate, fastest) in candidates.iter().zip(&mut fastest) {
            // SAFETY: the caller's promise, and scratch memory for the neediest.
            if let Some(time) = unsafe { time(&described, candidate, operands, scratch, memory) }? {
                *fastest = fastest.min(time);
            }
        }
    }
    let candidate = candidates[best(&fastest)];
    Ok(Plan { described, candidate })
}

/// Milliseconds that `RUNS` of a candidate take. None where the library refuses to run its own suggestion.
///
/// # Safety
/// As for [`choose`].
unsafe fn time(
    described: &Described,
    candidate: &Candidate,
    operands: Operands,
    scratch: Scratch,
    memory: &Memory,
) -> Result<Option<f32>> {
    let stream = memory.stream();
    // SAFETY: the caller's promise.
    let run = || unsafe { described.run(candidate, operands, scratch, stream.handle()) };
    // The first run loads the kernel.
    if run().is_err() {
        return Ok(None);
    }
    let (start, end) = (TimedEvent::new()?, TimedEvent::new()?);
    start.record(stream)?;
    for _ in 0..RUNS {
        run()?;
    }
    end.record(stream)?;
    end.since(&start).map(Some)
}

/// The place of the time to take: the first that no other beats by enough.
fn best(times: &[f32]) -> usize {
    let fastest = times.iter().copied().fold(f32::INFINITY, f32::min);
    times.iter().position(|time| *time * WORTHWHILE <= fastest).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_librarys_order_decides_between_near_equals() {
        assert_eq!(best(&[1.02, 1.0, 1.01]), 0);
        assert_eq!(best(&[2.0, 1.04, 1.0]), 1);
        assert_eq!(best(&[f32::INFINITY, 3.0]), 1);
        assert_eq!(best(&[f32::INFINITY]), 0);
    }
}
