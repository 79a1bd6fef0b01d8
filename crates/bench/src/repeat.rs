//! Pairs with nothing around them, for counting instructions.

use crate::error::Result;
use crate::opaque::Opaque;
use crate::subject::{Subject, Visit, with_subject};
use crate::target::Target;

/// Allocates and frees `bytes` so many times, with nothing around it: for counting instructions. The difference between
/// two counts is what the pairs between them cost.
///
/// # Errors
/// The allocator's own, and the device's.
pub fn repeat(target: &Target, allocator: &str, bytes: u64, pairs: usize) -> Result<()> {
    with_subject(allocator, target, Repeat { bytes, pairs })
}

struct Repeat {
    bytes: u64,
    pairs: usize,
}

impl Visit for Repeat {
    type Outcome = ();

    fn visit<S: Subject>(self, build: impl Fn() -> Result<S>) -> Result<()> {
        let subject = build()?;
        let stream = subject.create_stream()?;
        for _ in 0..self.pairs {
            let block = subject.allocate(self.bytes.opaque(), &stream)?;
            subject.free(block.opaque(), &stream)?;
        }
        Ok(())
    }
}
