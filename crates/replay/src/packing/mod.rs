//! `packing/`: which jobs share a card.
//!
//! Uses the `Program` of `replay`, and the cards of `fit`.
//!
//! **How jobs are packed.** A job takes what it *needs* with the pool: the smallest memory in which its recording runs. Its process
//! takes a context besides. Jobs whose needs fit a card together run there whatever happens, since none holds more than it needs
//! where another asks for memory. As many jobs as possible are packed so. `curve.rs` adds up what each of the others holds over time, and what is
//! held on a card already: if that fits at nearly every moment to begin, the job goes there, and the card is only *likely* to do.

mod curve;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use curve::{Curve, Together};

use crate::fit::Card;

/// A job is put on a card beside others if their sum stays within the budget for this part of the ways to begin.
pub const LIKELY: f64 = 0.95;

/// Placements that are tried before the best so far is taken. With up to a dozen jobs that is all of them.
const MOST_TRIES: u64 = 200_000;

/// A job to be packed.
#[derive(Debug, Clone)]
pub struct Job {
    /// What it needs with the pool, in bytes.
    pub need: u64,
    /// What it holds over time.
    pub curve: Curve,
}

/// What runs on a card. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shared {
    /// The jobs, by their number.
    pub jobs: Vec<usize>,
    /// What the card has for pools: its memory without the contexts of these jobs.
    pub budget: u64,
    /// The sum of what the jobs need.
    pub needs: u64,
    /// How the jobs add up over time. `None` where their needs fit together, so that nothing can fail.
    pub likely: Option<Together>,
}

/// Which job runs where.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Packing {
    /// By the number of the card.
    pub cards: Vec<Shared>,
    /// Jobs for which there is no room.
    pub left: Vec<usize>,
}

impl Packing {
    /// Packs jobs on cards. Each job's process takes `context` bytes of its card besides.
    pub fn of(jobs: &[Job], cards: &[Card], context: u64) -> Self {
        let room: Vec<u64> = cards.iter().map(|card| card.bytes).collect();
        let mut search = Placement { sizes: Vec::new(), free: room.clone(), tries: 0, best: None };
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by_key(|job| std::cmp::Reverse(jobs[*job].need));
        search.sizes = order.iter().map(|job| jobs[*job].need.saturating_add(context)).collect();
        search.place(&mut vec![None; jobs.len()], 0);
        let placed = search.best.unwrap_or_else(|| vec![None; jobs.len()]);
        let mut on: Vec<Vec<usize>> = vec![Vec::new(); cards.len()];
        let mut others = Vec::new();
        for (job, card) in order.into_iter().zip(placed) {
            match card {
                Some(card) => on[card].push(job),
                None => others.push(job),
            }
        }
        let shared = |jobs_there: &[usize], card: usize| shared(jobs, jobs_there, (room[card], context));
        let mut left = Vec::new();
        for job in others {
            let with = |card: usize| [&on[card][..], &[job]].concat();
            let likely = (0..cards.len()).filter_map(|card| {
                let fits = shared(&with(card), card).likely?.fits;
                (fits >= LIKELY && jobs[job].need.saturating_add(context) <= room[card])
                    .then_some((card, fits))
            });
            match likely.max_by(|one, other| one.1.total_cmp(&other.1)) {
                Some((card, _)) => on[card].push(job),
                None => left.push(job),
            }
        }
        left.sort_unstable();
        let cards = on.iter().enumerate().map(|(card, there)| shared(there, card)).collect();
        Self { cards, left }
    }
}

fn shared(jobs: &[Job], there: &[usize], (room, context): (u64, u64)) -> Shared {
    let budget = room.saturating_sub(context.saturating_mul(there.len() as u64));
    let needs = there.iter().map(|job| jobs[*job].need).fold(0, u64::saturating_add);
    let curves = || there.iter().map(|job| &jobs[*job].curve).collect::<Vec<_>>();
    let likely = (needs > budget).then(|| Together::of(&curves(), budget));
    Shared { jobs: there.to_vec(), budget, needs, likely }
}

/// Looks for a placement of all jobs, or of as many as possible: the largest first, each on the fullest card that has room.
#[derive(Debug)]
struct Placement {
    /// Bytes of each job with its context, falling.
    sizes: Vec<u64>,
    /// Bytes that each card has left.
    free: Vec<u64>,
    tries: u64,
    best: Option<Vec<Option<usize>>>,
}

impl Placement {
    /// Places the jobs from this one on. Returns whether the search is over.
    fn place(&mut self, placed: &mut Vec<Option<usize>>, job: usize) -> bool {
        let count = |placed: &[Option<usize>]| placed.iter().flatten().count();
        let most = self.best.as_ref().map(|best| count(best));
        if most.is_some_and(|most| count(&placed[..job]) + self.sizes.len() - job <= most) {
            return false;
        }
        self.tries += 1;
        if job == self.sizes.len() {
            self.best = Some(placed.clone());
            return count(placed) == job;
        }
        if self.tries > MOST_TRIES && most.is_some() {
            return true;
        }
        let size = self.sizes[job];
        let mut cards: Vec<usize> = (0..self.free.len()).filter(|card| self.free[*card] >= size).collect();
        cards.sort_by_key(|card| self.free[*card]);
        // Of cards with as much room, one is as good as another.
        cards.dedup_by_key(|card| self.free[*card]);
        for card in cards {
            self.free[card] -= size;
            placed[job] = Some(card);
            let is_over = self.place(placed, job + 1);
            self.free[card] += size;
            if is_over {
                return true;
            }
        }
        placed[job] = None;
        self.place(placed, job + 1)
    }
}
