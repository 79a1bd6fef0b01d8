//! Steps of a job that repeats itself, as a training does. Its blocks are of whole pages, come in the same order each time, and
//! are used on several streams. The host runs some of the job's rounds ahead of the device. So pages move while work on them is
//! pending, come back, and move again.
//!
//! In some, the blocks that stay are of a tag, as an optimizer's state is. It is evicted while a round has the memory.

use std::collections::VecDeque;

use fastrand::Rng;

use crate::setup::{GRANULARITY, POOLS, TAGS};
use crate::step::Step;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Job {
    rng: Rng,
    left: usize,
    pool: u8,
    streams: u8,
    /// Blocks that stay from round to round. They come first in the thread's list.
    kept: u8,
    /// The tag that they are of, if they are.
    tag: Option<u8>,
    /// What a round does.
    round: Vec<Step>,
    /// Rounds until the job becomes another one.
    rounds: u32,
    next: VecDeque<Step>,
}

/// Blocks that a round has at once, and that stay, at most: a thread has room for both.
const MOST: u8 = 14;

impl Job {
    /// `left` steps.
    pub(crate) fn new(seed: u64, left: usize, streams: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let pool = rng.u8(..POOLS as u8);
        let streams = streams as u8;
        Self {
            rng,
            left,
            pool,
            streams,
            kept: 0,
            tag: None,
            round: Vec::new(),
            rounds: 0,
            next: VecDeque::new(),
        }
    }

    /// Nearly always the first.
    fn stream(&mut self) -> u8 {
        if self.rng.u8(..8) == 0 { self.rng.u8(..self.streams) } else { 0 }
    }

    fn alloc(&mut self, pages: u64) -> Step {
        Step::Alloc { pool: self.pool, stream: self.stream(), bytes: pages * GRANULARITY }
    }

    /// One that stays.
    fn alloc_to_keep(&mut self, pages: u64) -> Step {
        let pool = self.tag.map_or(self.pool, |tag| POOLS as u8 + tag);
        Step::Alloc { pool, stream: self.stream(), bytes: pages * GRANULARITY }
    }

    /// Another job: blocks that stay, with gaps between them that nothing backs, and a new round.
    fn begin(&mut self) {
        (self.pool, self.tag) = (self.rng.u8(..POOLS as u8), None);
        if self.rng.bool() {
            (self.pool, self.tag) = (0, Some(self.rng.u8(..TAGS as u8)));
        }
        for block in (0..self.kept).rev() {
            self.next.push_back(Step::Free { block, stream: 0 });
        }
        let blocks = self.rng.u8(3..MOST);
        for _ in 0..blocks {
            let pages = if self.rng.bool() { 1 } else { self.rng.u64(1..4) };
            let alloc = self.alloc_to_keep(pages);
            self.next.push_back(alloc);
        }
        let gaps = self.rng.u8(0..blocks / 2 + 1);
        for gap in 0..gaps {
            let block = self.rng.u8(..blocks - gap);
            self.next.push_back(Step::Free { block, stream: 0 });
        }
        self.kept = blocks - gaps;
        self.next.extend([Step::SyncDevice, Step::Trim { pool: self.pool, pages: 0 }]);
        self.round = self.new_round();
        self.rounds = self.rng.u32(2..24);
    }

    /// Blocks come and go, and all are gone in the end.
    fn new_round(&mut self) -> Vec<Step> {
        let (mut round, mut live, most) = (Vec::new(), 0, self.rng.u8(1..MOST));
        for left in (0..self.rng.u8(4..40)).rev() {
            let allocates = live == 0 || live < most && live < left && self.rng.u8(..5) < 3;
            if allocates {
                let pages = if self.rng.bool() { self.rng.u64(1..4) } else { self.rng.u64(1..9) };
                round.push(self.alloc(pages));
                live += 1;
                let micros = self.rng.u16(..400);
                let recorded = self.rng.bool();
                round.push(Step::Use {
                    block: self.kept + live - 1,
                    stream: self.stream(),
                    micros,
                    recorded,
                });
            } else {
                live -= 1;
                round.push(Step::Free { block: self.kept + self.rng.u8(..=live), stream: self.stream() });
            }
        }
        for block in (0..live).rev() {
            round.push(Step::Free { block: self.kept + block, stream: 0 });
        }
        round
    }

    /// The steps of a round. A tag leaves before it, comes back bit by bit, and is used behind it.
    fn go_through_round(&mut self) {
        let Some(tag) = self.tag.filter(|_| self.rng.u8(..4) > 0) else {
            return self.next.extend(self.round.iter().copied());
        };
        let stream = self.stream();
        self.next.push_back(Step::Evict { tag, stream });
        for at in 0..self.round.len() {
            self.next.push_back(self.round[at]);
            if at >= self.round.len() / 2 && self.rng.u8(..8) == 0 {
                self.next.push_back(Step::RestoreEarly { tag, is_whole: self.rng.u8(..4) == 0 });
            }
        }
        let stream = self.stream();
        self.next.push_back(Step::Restore { tag, stream });
        for block in 0..self.kept {
            let (micros, recorded) = (self.rng.u16(..400), self.rng.bool());
            self.next.push_back(Step::Use { block, stream, micros, recorded });
        }
    }

    /// A round, and what comes after it.
    fn go_on(&mut self) {
        if self.rounds == 0 {
            self.begin();
        }
        self.rounds -= 1;
        self.go_through_round();
        match self.rng.u8(..32) {
            // The device catches up, in part or wholly.
            0..4 => self.next.push_back(Step::Advance { micros: self.rng.u16(..) }),
            4..6 => self.next.push_back(Step::SyncStream { stream: 0 }),
            6 => self.next.extend([Step::SyncDevice, Step::Trim { pool: self.pool, pages: 0 }]),
            // One of the blocks that stay becomes another.
            7..12 if self.kept > 0 => {
                let (block, pages) = (self.rng.u8(..self.kept), self.rng.u64(1..4));
                let alloc = self.alloc_to_keep(pages);
                self.next.extend([Step::Free { block, stream: 0 }, alloc]);
            }
            // One length of the round changes.
            12..16 => {
                let at = self.rng.usize(..self.round.len());
                let pages = self.rng.u64(1..7);
                if let Step::Alloc { bytes, .. } = &mut self.round[at] {
                    *bytes = pages * GRANULARITY;
                }
            }
            _ => {}
        }
    }
}

impl Iterator for Job {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.left = self.left.checked_sub(1)?;
        while self.next.is_empty() {
            self.go_on();
        }
        self.next.pop_front()
    }
}
