//! Reading, writing and copying a working set again and again, by one core and by all.

use std::hint::black_box;

use super::workers::Cores;
use crate::Result;
use crate::run::{Run, Scale};

/// The smallest working set, of all cores together.
const LEAST: u64 = 4 << 10;
/// What a core moves in a sample at least, so that the begin of its thread is small beside it.
const LEAST_MOVED: u64 = 8 << 20;
const WORD: u64 = size_of::<u64>() as u64;

type Pass = fn(&mut [u64]);

/// Each moves as many bytes as the part has.
const PASSES: [(&str, Pass); 3] = [("read", read), ("write", write), ("copy", copy)];

pub(crate) fn measure(cores: &Cores, run: &mut Run<'_>) -> Result<()> {
    let all = cores.count();
    for bytes in run.sizes(LEAST) {
        for (threads, whose) in [(1, ""), (all, ", all cores")] {
            let words = (bytes / WORD / threads as u64) as usize;
            if threads > 1 && words < 64 || threads == 1 && !whose.is_empty() {
                continue;
            }
            let mut parts = cores.parts(threads, words)?;
            let of_one = words as u64 * WORD;
            let passes = LEAST_MOVED.div_ceil(of_one);
            let moved = of_one * threads as u64 * passes;
            for (name, pass) in PASSES {
                run.figure(&format!("{name}{whose}"), Some(bytes), Scale::Bytes(moved), || {
                    cores.at_once(&mut parts, |part| {
                        for _ in 0..passes {
                            pass(black_box(&mut *part));
                        }
                    })
                });
            }
        }
    }
    Ok(())
}

fn read(part: &mut [u64]) {
    // Several sums, so that none waits for another.
    let mut sums = [0_u64; 8];
    let (chunks, _) = part.as_chunks::<8>();
    for chunk in chunks {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    black_box(sums);
}

fn write(part: &mut [u64]) {
    part.fill(black_box(0x0123_4567_89ab_cdef));
}

/// From one half to the other: it reads and writes half of the part each.
fn copy(part: &mut [u64]) {
    let (to, from) = part.split_at_mut(part.len() / 2);
    to.copy_from_slice(&from[..to.len()]);
}
