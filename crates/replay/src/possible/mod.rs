//! `possible/`: the least memory in which a recorded job could have run. A bound that no allocator gets below, and a plan that
//! places each block, made with the whole recording known.
//!
//! Uses the `Program` of `replay`.
//!
//! **How a plan is made.** `lifetimes.rs` says when each block lives, and how much lives at once: the most is the bound. `orders.rs`
//! sorts the blocks. One after another gets the lowest address that is free for all of its lifetime, which `occupied.rs` finds. The
//! first order whose plan needs no more pages than the bound is taken. Where none does, the best is improved: blocks that
//! ended above the bound come first in the next try.
//!
//! This is *dynamic storage allocation*, which is NP-complete. The orders are those of [minimalloc] (Moffitt, ASPLOS 2023), and of
//! TensorFlow Lite and TVM; [idealloc] and [STAlloc] solve it otherwise. `docs/lab/possible.md` compares them.
//!
//! **Streams.** A block lives from its allocation to its free, in the recorded order. A stream that gets memory which another one
//! freed is taken to wait for it, as in a replay, where all work is complete at once.
//!
//! [minimalloc]: https://doi.org/10.1145/3623278.3624752
//! [idealloc]: https://arxiv.org/abs/2504.04874
//! [STAlloc]: https://arxiv.org/abs/2507.16274

mod lifetimes;
mod occupied;
mod orders;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use orders::Order;

use crate::replay::Program;
use lifetimes::{Lifetime, Lifetimes, UNIT};
use occupied::Occupied;

/// Devices give memory in pages of so many bytes.
const PAGE: u64 = 2 << 20;

/// Runs that are looked at and moved before a plan is given up, for all tries together: some seconds. A count and no time, so that
/// a recording has the same plan on every machine.
const MOST_WORK: u64 = 400_000_000;

/// How often the best plan is improved at most.
const MOST_TRIES: usize = 20;

/// The least memory for a program. Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Possible {
    /// The most that is live at once, each block rounded up to 512: no allocator holds less.
    pub bound: u64,
    /// The length of the best plan. `None` where the recording is too large to be planned.
    pub planned: Option<u64>,
    /// What a perfect allocator would have held: the plan's length in whole pages of 2 MiB, or the bound's where there is no plan.
    pub reserved: u64,
    /// That, divided by the most that is requested at once.
    pub ratio: f64,
}

impl Possible {
    /// Looks for it.
    pub fn of(program: &Program) -> Self {
        let lifetimes = Lifetimes::of(program);
        let planned = best(&lifetimes, MOST_WORK).map(|plan| plan.units * UNIT);
        let bound = lifetimes.bound * UNIT;
        let reserved = planned.unwrap_or(bound).next_multiple_of(PAGE);
        let requested = program.peak_requested().0;
        let ratio = if requested == 0 { 1.0 } else { reserved as f64 / requested as f64 };
        Self { bound, planned, reserved, ratio }
    }

    /// Whether nothing less is possible: the plan needs no more pages than the bound.
    pub fn is_least(&self) -> bool {
        self.planned.is_some() && self.reserved == self.bound.next_multiple_of(PAGE)
    }
}

/// A place for every block of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where each block begins, in bytes, by its number in the program; 0 for blocks without bytes.
    pub offsets: Vec<u64>,
    /// The end of the highest block, in bytes.
    pub bytes: u64,
}

impl Plan {
    /// The best plan found; `None` where the recording is too large.
    pub fn of(program: &Program) -> Option<Self> {
        let lifetimes = Lifetimes::of(program);
        Some(best(&lifetimes, MOST_WORK)?.plan(program, &lifetimes))
    }

    /// The plan that one order gives, and how many runs of addresses were looked at and moved for it. For comparisons.
    pub fn in_order(program: &Program, order: Order) -> (Self, u64) {
        let lifetimes = Lifetimes::of(program);
        let mut work = 0;
        let order = order.sorted(&lifetimes.all, lifetimes.bound);
        let placed = place(&lifetimes, &order, &mut work, u64::MAX).unwrap_or_default();
        (placed.plan(program, &lifetimes), work)
    }
}

/// What placing all blocks in one order gave, in units.
#[derive(Debug, Default)]
struct Placed {
    /// By index of the lifetime.
    starts: Vec<u64>,
    units: u64,
}

impl Placed {
    fn pages(&self) -> u64 {
        (self.units * UNIT).div_ceil(PAGE)
    }

    fn plan(&self, program: &Program, lifetimes: &Lifetimes) -> Plan {
        let mut offsets = vec![0; program.blocks];
        for (start, lifetime) in self.starts.iter().zip(&lifetimes.all) {
            offsets[lifetime.block as usize] = start * UNIT;
        }
        Plan { offsets, bytes: self.units * UNIT }
    }
}

/// Tries all orders, and improves the best of them. `None` where not even one could be tried with so much work.
fn best(lifetimes: &Lifetimes, most_work: u64) -> Option<Placed> {
    let least = (lifetimes.bound * UNIT).div_ceil(PAGE);
    let mut work = 0;
    let mut best: Option<(Placed, Vec<u32>)> = None;
    for order in Order::ALL {
        let order = order.sorted(&lifetimes.all, lifetimes.bound);
        let Some(placed) = place(lifetimes, &order, &mut work, most_work) else { break };
        if placed.pages() <= least {
            return Some(placed);
        }
        if best.as_ref().is_none_or(|(best, _)| placed.units < best.units) {
            best = Some((placed, order));
        }
    }
    let (mut best, mut order) = best?;
    let mut above: Vec<u64> = best.starts.clone();
    for _ in 0..MOST_TRIES {
        // A stable sort: what ended above the bound comes first, and all else stays as it was.
        let ends_above = |at: &u32| above[*at as usize] + lifetimes.all[*at as usize].units > lifetimes.bound;
        order.sort_by_key(|at| !ends_above(at));
        let Some(placed) = place(lifetimes, &order, &mut work, most_work) else { break };
        above.clone_from(&placed.starts);
        if placed.units < best.units {
            best = placed;
        }
        if best.pages() <= least {
            break;
        }
    }
    Some(best)
}

/// Places the blocks in this order. `None` once `most` runs were looked at or moved.
fn place(lifetimes: &Lifetimes, order: &[u32], work: &mut u64, most: u64) -> Option<Placed> {
    let mut occupied = Occupied::new(lifetimes.periods);
    let mut placed = Placed { starts: vec![0; order.len()], units: 0 };
    for &at in order {
        let lifetime: &Lifetime = &lifetimes.all[at as usize];
        let start = occupied.lowest(lifetime);
        occupied.take(lifetime, start);
        placed.starts[at as usize] = start;
        placed.units = placed.units.max(start + lifetime.units);
        if *work + occupied.work > most {
            *work += occupied.work;
            return None;
        }
    }
    *work += occupied.work;
    Some(placed)
}
