//! Which addresses are taken when: answers quickly where a block fits for all of its lifetime.
//!
//! It is a binary tree over the periods. A block is entered at the few nodes whose periods make up its lifetime, and at those above
//! them. Each node keeps *runs* of addresses: what lies next to each other is one run, so there are few of them even among
//! many thousand blocks. A search looks at the runs of about twice as many nodes as the tree is high.

use smallvec::SmallVec;

use super::lifetimes::Lifetime;

/// From this address to that, in units.
type Run = (u64, u64);

/// Runs that do not touch, by rising address.
#[derive(Debug, Clone, Default)]
struct Runs(Vec<Run>);

impl Runs {
    /// Adds a run, and joins it with those that it touches. Returns how many runs moved.
    fn add(&mut self, (mut from, mut to): Run) -> usize {
        let runs = &mut self.0;
        let first = runs.partition_point(|run| run.1 < from);
        let met = runs[first..].iter().take_while(|run| run.0 <= to).count();
        if met == 0 {
            runs.insert(first, (from, to));
            return runs.len() - first;
        }
        from = from.min(runs[first].0);
        to = to.max(runs[first + met - 1].1);
        runs[first] = (from, to);
        if met == 1 {
            return 1;
        }
        runs.drain(first + 1..first + met);
        runs.len() - first
    }
}

/// One node of the tree.
#[derive(Debug, Clone, Default)]
struct Node {
    /// What is taken for the whole time of the node.
    throughout: Runs,
    /// What is taken at any time of the node, but for what the nodes above it have throughout.
    ever: Runs,
}

/// Addresses that are taken.
#[derive(Debug)]
pub(super) struct Occupied {
    nodes: Vec<Node>,
    leaves: usize,
    /// Runs looked at and moved so far: what the time is spent on, counted so that a limit is the same on every machine.
    pub(super) work: u64,
}

impl Occupied {
    pub(super) fn new(periods: u32) -> Self {
        let leaves = (periods as usize).next_power_of_two();
        Self { nodes: vec![Node::default(); 2 * leaves], leaves, work: 0 }
    }

    /// The lowest address at which a block fits, in units.
    pub(super) fn lowest(&mut self, lifetime: &Lifetime) -> u64 {
        let mut lists: SmallVec<[&[Run]; 80]> = SmallVec::new();
        visit(self.leaves, lifetime, |node, is_within| {
            let Node { throughout, ever } = &self.nodes[node];
            let runs = &if is_within { ever } else { throughout }.0[..];
            lists.extend((!runs.is_empty()).then_some(runs));
        });
        // A candidate rises past each run in its way, until a round through all lists finds none.
        let (mut at, mut list, mut passed) = (0, 0, 0);
        while passed < lists.len() {
            let runs = &mut lists[list];
            self.work += 1;
            if runs.first().is_some_and(|run| run.1 <= at) {
                *runs = &runs[1..];
                if runs.first().is_some_and(|run| run.1 <= at) {
                    *runs = &runs[runs.partition_point(|run| run.1 <= at)..];
                }
            }
            match runs.first() {
                Some(run) if run.0 < at + lifetime.units => (at, passed) = (run.1, 0),
                _ => {
                    passed += 1;
                    list = if list + 1 == lists.len() { 0 } else { list + 1 };
                }
            }
        }
        at
    }

    /// Takes the addresses from `at` on for a block.
    pub(super) fn take(&mut self, lifetime: &Lifetime, at: u64) {
        let run = (at, at + lifetime.units);
        visit(self.leaves, lifetime, |node, is_within| {
            let Node { throughout, ever } = &mut self.nodes[node];
            self.work += ever.add(run) as u64;
            // Only what is below a node asks what it has throughout, and nothing is below a leaf.
            if is_within && node < self.leaves {
                self.work += throughout.add(run) as u64;
            }
        });
    }
}

/// Visits the nodes that together make up a lifetime, with `true`, and all above them, with `false`.
fn visit(leaves: usize, lifetime: &Lifetime, mut each: impl FnMut(usize, bool)) {
    // At each height, `left..right` is what lies within the lifetime and under no node that was visited. `first` and
    // `last` have its first and last period.
    let (mut left, mut right) = (leaves + lifetime.begin as usize, leaves + lifetime.end as usize);
    let (mut first, mut last) = (left, right - 1);
    while first > 0 {
        if left < right && left % 2 == 1 {
            each(left, true);
            left += 1;
        }
        if left < right && right % 2 == 1 {
            right -= 1;
            each(right, true);
        }
        (left, right) = (left / 2, right / 2);
        (first, last) = (first / 2, last / 2);
        let is_above = |node: usize| node > 0 && !(left..right).contains(&node);
        if is_above(first) {
            each(first, false);
        }
        if last != first && is_above(last) {
            each(last, false);
        }
    }
}
