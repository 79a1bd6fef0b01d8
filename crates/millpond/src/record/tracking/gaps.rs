//! Which allocations are sampled: by bytes, so that estimates are right in the mean.
//!
//! Take the bytes that a thread allocates, one behind the other, as a line. Points lie on it at random. The gaps between
//! them are exponential, with a mean of the sampling interval. An allocation is sampled if a point lies in it. That is
//! so for `n` bytes with the probability `p = 1 - exp(-n / mean)`. So a sample stands for `1 / p` blocks of its size, and
//! the sum over samples has no bias. tcmalloc, jemalloc and Go's profiler sample so, too.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

/// Where a thread stands on its line.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// To the next point, in mean gaps: pools with other intervals share the line.
    left: f64,
    /// State of the random numbers; 0 before the first.
    random: u64,
}

thread_local! {
    static POSITION: Cell<Position> = const { Cell::new(Position { left: 0.0, random: 0 }) };
}

/// Passes so many mean gaps on the calling thread's line; returns whether a point lies there.
#[inline]
pub(super) fn pass(gaps: f64) -> bool {
    let passed = POSITION.try_with(|position| {
        let now = position.get();
        let left = now.left - gaps;
        if left > 0.0 {
            position.set(Position { left, ..now });
            return false;
        }
        let (next, is_sampled) = now.pass_slow(gaps);
        position.set(next);
        is_sampled
    });
    // The thread is ending: it samples no more.
    passed.unwrap_or(false)
}

impl Position {
    #[cold]
    fn pass_slow(self, gaps: f64) -> (Self, bool) {
        if self.random > 0 {
            return (self.draw(), true);
        }
        let random = RandomState::new().hash_one(0) | 1;
        let first = Self { left: 0.0, random }.draw();
        if first.left > gaps {
            (Self { left: first.left - gaps, ..first }, false)
        } else {
            (first.draw(), true)
        }
    }

    /// With a new gap to the next point. Marsaglia's xorshift64*, and the logarithm of a number in (0, 1].
    fn draw(self) -> Self {
        let mut random = self.random;
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        let uniform = ((random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        Self { left: -uniform.ln(), random }
    }
}

/// How many blocks of its size a sampled block of so many mean gaps stands for; 1 for one longer than many gaps.
pub(super) fn blocks_for(gaps: f64) -> f64 {
    1.0 / -(-gaps).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples a million allocations of this size; returns how many there were by the samples' account.
    fn estimated(gaps: f64, seed: u64) -> f64 {
        let mut position = Position { left: 0.0, random: seed }.draw();
        let mut sampled = 0;
        for _ in 0..1_000_000 {
            position.left -= gaps;
            if position.left <= 0.0 {
                position = position.draw();
                sampled += 1;
            }
        }
        f64::from(sampled) * blocks_for(gaps)
    }

    #[test]
    fn samples_stand_for_all_blocks_at_any_size() {
        for (gaps, most_off) in [(0.001, 0.1), (0.1, 0.01), (1.0, 0.01), (3.0, 0.01), (50.0, 1e-9)] {
            let off = estimated(gaps, 0x9E37_79B9_7F4A_7C15) / 1e6 - 1.0;
            assert!(off.abs() <= most_off, "{gaps} gaps: {off}");
        }
    }

    #[test]
    fn the_first_allocation_of_a_thread_is_no_sample_by_rule() {
        let sampled = (0..200).filter(|_| std::thread::spawn(|| pass(1e-6)).join().unwrap()).count();
        assert!(sampled < 5, "{sampled} of 200");
    }

    #[test]
    fn a_thread_samples_as_often_as_its_bytes_say() {
        let sampled = std::thread::spawn(|| (0..100_000).filter(|_| pass(0.1)).count()).join().unwrap();
        // 9,516 are expected; ten standard deviations are 928.
        assert!(sampled.abs_diff(9_516) < 928, "{sampled}");
    }
}
