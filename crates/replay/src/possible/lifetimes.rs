//! When each block of a program lives, and how much lives at once.

use crate::replay::Program;

/// What every block is rounded up to, in bytes: the least that any allocator here hands out.
pub(super) const UNIT: u64 = 512;

/// One block as a plan sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// The period in which it is allocated.
    pub(super) begin: u32,
    /// The period from which on it is free.
    pub(super) end: u32,
    /// Its length in units of 512 bytes.
    pub(super) units: u64,
    /// The most units that are live at once while it lives.
    pub(super) load: u64,
    /// Its number in the program.
    pub(super) block: u32,
}

impl Lifetime {
    pub(super) fn periods(&self) -> u64 {
        u64::from(self.end - self.begin)
    }

    /// Length times lifetime.
    pub(super) fn area(&self) -> u128 {
        u128::from(self.units) * u128::from(self.periods())
    }
}

/// The lifetimes of a program. A *period* is a run of allocations and the frees behind it: all blocks that are allocated in a
/// period are live at once, so its steps need not be told apart.
#[derive(Debug)]
pub(super) struct Lifetimes {
    /// By rising begin. Blocks of no bytes are left out: they need no place.
    pub(super) all: Vec<Lifetime>,
    /// How many periods there are.
    pub(super) periods: u32,
    /// The most units that are live at once.
    pub(super) bound: u64,
}

impl Lifetimes {
    pub(super) fn of(program: &Program) -> Self {
        let mut all: Vec<Lifetime> = Vec::new();
        let mut index = vec![u32::MAX; program.blocks];
        let (mut period, mut was_free) = (0, false);
        for step in program.steps.iter().filter(|step| step.size > 0) {
            if step.alloc {
                period += u32::from(was_free);
                index[step.block as usize] = all.len() as u32;
                let units = step.size.div_ceil(UNIT);
                // What is never freed lives to the end, which is not known yet.
                all.push(Lifetime { begin: period, end: u32::MAX, units, load: 0, block: step.block });
            } else {
                all[index[step.block as usize] as usize].end = period + 1;
            }
            was_free = !step.alloc;
        }
        let periods = period + 1;
        all.iter_mut().for_each(|lifetime| lifetime.end = lifetime.end.min(periods));
        let loads = Loads::of(&all, periods);
        all.iter_mut().for_each(|lifetime| lifetime.load = loads.most(lifetime.begin, lifetime.end));
        Self { all, periods, bound: loads.most(0, periods) }
    }
}

/// Units live in each period, as a tree of maxima: the leaves are periods, and each node has the most of its two children.
#[derive(Debug)]
struct Loads {
    nodes: Vec<u64>,
    leaves: usize,
}

impl Loads {
    fn of(all: &[Lifetime], periods: u32) -> Self {
        let leaves = (periods as usize).next_power_of_two();
        let mut nodes = vec![0; 2 * leaves];
        let mut ends = vec![0; periods as usize + 1];
        for Lifetime { begin, end, units, .. } in all {
            nodes[leaves + *begin as usize] += units;
            ends[*end as usize] += units;
        }
        let mut live = 0u64;
        for (load, ended) in nodes[leaves..].iter_mut().zip(ends) {
            live = live + *load - ended;
            *load = live;
        }
        for node in (1..leaves).rev() {
            nodes[node] = nodes[2 * node].max(nodes[2 * node + 1]);
        }
        Self { nodes, leaves }
    }

    /// The most units live at once from the period `begin` to the one before `end`.
    fn most(&self, begin: u32, end: u32) -> u64 {
        let (mut left, mut right) = (self.leaves + begin as usize, self.leaves + end as usize);
        let mut most = 0;
        while left < right {
            if left % 2 == 1 {
                most = most.max(self.nodes[left]);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                most = most.max(self.nodes[right]);
            }
            (left, right) = (left / 2, right / 2);
        }
        most
    }
}
