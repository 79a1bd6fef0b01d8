//! What a program holds more and more of, from step to step.
//!
//! A program that leaks may free everything when it ends, so that nothing is live then. What it leaks is never freed
//! before: the least that is held in a stretch of the run, which is longer than a step, is more in each stretch.

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::event::StackId;
use crate::replay::{Program, Step};
use crate::sites::owner;
use crate::trace::Trace;

/// Stretches of a run, of as many allocations and frees each.
pub const STRETCHES: usize = 8;

/// Stretches in which no more is held than in the one before, at most. The first is left out: a program begins there.
const MOST_WITHOUT_GROWTH: usize = 2;

/// Call sites that are listed.
const MOST_SITES: usize = 20;

/// What one call site under one tag held more and more of. Where no call stacks were recorded: blocks of like sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Grown {
    /// The tags, outermost first, with `/` between; `None` outside of any.
    pub tag: Option<String>,
    /// The call site, as a [`Site`](crate::sites::Site) has it; `None` where no call stacks were recorded.
    pub site: Option<String>,
    /// The power of two that the blocks' sizes are not below, where no call stacks were recorded.
    pub size: Option<u64>,
    /// The bytes that were held at least, in each of [`STRETCHES`] stretches of the run.
    pub least: Vec<u64>,
}

impl Grown {
    /// The least that was held in the second stretch and in the last one, in bytes.
    pub fn from_to(&self) -> (u64, u64) {
        (self.least.get(1).copied().unwrap_or_default(), self.least.last().copied().unwrap_or_default())
    }

    /// How much more is held at the end, in bytes.
    pub fn bytes(&self) -> u64 {
        let (from, to) = self.from_to();
        to.saturating_sub(from)
    }
}

/// Whose blocks are counted together.
type Owner = (Option<String>, Option<String>, Option<u64>);

/// What grew, the most first.
pub fn grown(trace: &Trace, program: &Program) -> Vec<Grown> {
    // What comes behind the last allocation is how the program ends.
    let end = program.steps.iter().rposition(|step| step.alloc).map_or(0, |last| last + 1);
    let steps = &program.steps[program.before.min(end)..end];
    if steps.len() < STRETCHES {
        return Vec::new();
    }
    let (owners, of_block) = owners(trace);
    let mut live = vec![0u64; owners.len()];
    for step in &program.steps[..program.before.min(end)] {
        live[of_block[step.block as usize] as usize] += step.size;
    }
    let mut history: Vec<Vec<u64>> = Vec::with_capacity(STRETCHES);
    let mut rest = steps;
    for left in (1..=STRETCHES).rev() {
        let (stretch, after) = rest.split_at(rest.len() / left);
        history.push(least(stretch, &of_block, &mut live));
        rest = after;
    }
    let least = |owner: usize| history.iter().map(|least| least[owner]).collect::<Vec<_>>();
    let grown = owners.into_iter().enumerate().map(|(at, owner)| (owner, least(at)));
    let grown = grown.filter(|(_, least)| grows(least));
    let mut grown: Vec<_> =
        grown.map(|((tag, site, size), least)| Grown { tag, site, size, least }).collect();
    grown.sort_by(|one, other| other.bytes().cmp(&one.bytes()).then_with(|| one.site.cmp(&other.site)));
    grown.truncate(MOST_SITES);
    grown
}

/// The least that each owner holds in a stretch.
fn least(stretch: &[Step], of_block: &[u32], live: &mut [u64]) -> Vec<u64> {
    let mut least = live.to_vec();
    for step in stretch {
        let owner = of_block[step.block as usize] as usize;
        if step.alloc {
            live[owner] += step.size;
        } else {
            live[owner] -= step.size;
            least[owner] = least[owner].min(live[owner]);
        }
    }
    least
}

/// Whether what is held never falls, and mostly rises.
fn grows(least: &[u64]) -> bool {
    let later = least.get(1..).unwrap_or_default();
    let pairs = || later.windows(2).map(|pair| (pair[0], pair[1]));
    let steady = pairs().filter(|(before, after)| before == after).count();
    pairs().all(|(before, after)| before <= after) && steady <= MOST_WITHOUT_GROWTH
}

/// All owners, and the number of each block's.
fn owners(trace: &Trace) -> (Vec<Owner>, Vec<u32>) {
    let before: FxHashSet<u32> = trace.live_before.iter().copied().collect();
    let mut owners: Vec<Owner> = Vec::new();
    let mut numbers: FxHashMap<Owner, u32> = FxHashMap::default();
    let mut number = |owner: Owner| {
        *numbers.entry(owner).or_insert_with_key(|owner| {
            owners.push(owner.clone());
            owners.len() as u32 - 1
        })
    };
    let mut of_stack: FxHashMap<(StackId, bool), u32> = FxHashMap::default();
    let blocks = (0u32..).zip(&trace.blocks).map(|(at, block)| {
        if trace.stacks.is_empty() {
            return number((None, None, block.size.checked_ilog2().map(|power| 1 << power)));
        }
        let whose = (block.stack, before.contains(&at));
        *of_stack.entry(whose).or_insert_with(|| {
            let (tag, site) = owner(trace, whose);
            number((tag, Some(site), None))
        })
    });
    let of_block = blocks.collect();
    (owners, of_block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind, Frame};
    use crate::replay::FreeWhen;
    use crate::trace::TraceBuilder;

    /// A hundred steps of a program, each of which allocates and frees, and one site of which keeps what it allocated; at
    /// the end everything is freed.
    fn leaking(with_stacks: bool) -> Trace {
        let mut builder = TraceBuilder::default();
        let sites = ["weights", "step", "leak"].map(|name| {
            let frame = Frame { name: name.into(), file: "a.py".into(), line: 1 };
            let frame = builder.stacks.add_frame(frame);
            if with_stacks { builder.stacks.add_stack(&[frame]) } else { StackId::NONE }
        });
        let mut time_us = 0;
        let mut push = |kind, address, size, stack| {
            time_us += 1;
            builder.push(Event { kind, device: 0, stream: 0, time_us, address, size, stack }).unwrap();
        };
        let [weights, step, leak] = sites;
        push(EventKind::Alloc, 1, 5000, weights);
        for turn in 0..100 {
            push(EventKind::Alloc, 2, 300 + turn, step);
            push(EventKind::Alloc, 1000 + turn, 64, leak);
            push(EventKind::FreeCompleted, 2, 300 + turn, step);
        }
        for turn in 0..100 {
            push(EventKind::FreeCompleted, 1000 + turn, 64, leak);
        }
        push(EventKind::FreeCompleted, 1, 5000, weights);
        builder.finish("t").remove(0)
    }

    #[test]
    fn what_leaks_grows_although_all_is_freed_at_the_end() {
        let trace = leaking(true);
        let grown = grown(&trace, &Program::new(&trace, FreeWhen::Completed));
        let [leak] = &grown[..] else { panic!("{grown:?}") };
        assert_eq!(leak.site.as_deref(), Some("leak (a.py:1)"));
        assert!(leak.least.is_sorted() && leak.bytes() > 64 * 60, "{leak:?}");
    }

    #[test]
    fn without_call_stacks_it_is_told_by_size() {
        let trace = leaking(false);
        let grown = grown(&trace, &Program::new(&trace, FreeWhen::Completed));
        let [leak] = &grown[..] else { panic!("{grown:?}") };
        assert_eq!((leak.site.as_deref(), leak.size), (None, Some(64)));
    }

    #[test]
    fn what_comes_and_goes_does_not_grow() {
        assert!(grows(&[0, 1, 2, 3, 4, 5, 6, 7]));
        assert!(grows(&[9, 1, 2, 3, 3, 3, 6, 7]), "a program begins, and a stretch may add nothing");
        assert!(!grows(&[0, 5, 5, 5, 5, 5, 5, 5]));
        assert!(!grows(&[0, 1, 2, 3, 4, 5, 6, 5]));
    }
}
