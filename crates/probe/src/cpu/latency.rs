//! What one read takes: a chain of addresses through a working set.

use std::hint::black_box;

use crate::Result;
use crate::chain::next;
use crate::facts::Facts;
use crate::run::{Run, Scale, timed};

/// The smallest working set.
const LEAST: u64 = 4 << 10;
/// Bytes of a cache line, and of a node of the chain.
const LINE: usize = 64;
/// Steps of a sample.
const STEPS: u64 = 1 << 16;

/// A cache line that says which one comes next.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Node(u64);

const _: () = assert!(size_of::<Node>() == LINE);

pub(crate) fn measure(facts: &Facts, run: &mut Run<'_>) -> Result<()> {
    for bytes in run.sizes(LEAST) {
        let what = facts.cache_of(bytes);
        if !run.wants(&what) {
            break;
        }
        let nodes = bytes / LINE as u64;
        // Writing it brings it into the caches, as far as it fits.
        let chain: Vec<Node> = (0..nodes).map(|node| Node(next(node, nodes))).collect();
        let mut at = 0;
        run.figure(&what, Some(bytes), Scale::Each(STEPS), || {
            timed(|| {
                // From where the sample before ended: it brought its own part into the caches.
                at = follow(&chain, at);
                Ok(())
            })
        });
    }
    Ok(())
}

fn follow(chain: &[Node], from: u64) -> u64 {
    let mut at = from;
    for _ in 0..STEPS {
        at = chain[at as usize].0;
    }
    black_box(at)
}
