//! What one thread allocated and freed: written by that thread alone, read by all. Bytes are sums, and blocks are counted
//! by the thread's passages through its gate.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::gate::{Inside, WAYS, Way};
use crate::counters::{Counted, HighWater};
use crate::stats::Level;

/// A sum that goes up and down in several threads' hands: this thread's part of it, which may be negative, as
/// the highest that it has been since it was last folded, and how far below that it is now. That form costs the
/// fast path one subtraction and a test for its sign.
#[derive(Debug, Default)]
struct Part {
    below: AtomicI64,
    high: AtomicI64,
}

impl Part {
    #[inline]
    fn add(&self, by: u64) {
        // Relaxed, and no read-modify-write: one thread writes.
        let below = self.below.load(Ordering::Relaxed).wrapping_sub(by as i64);
        self.below.store(below, Ordering::Relaxed);
        if below < 0 {
            self.raise(below);
        }
    }

    /// A new highest. Readers see the old one, or the new one with what belongs to it.
    #[inline]
    fn raise(&self, below: i64) {
        self.below.store(0, Ordering::Relaxed);
        // Release: see `read`.
        self.high.store(self.high.load(Ordering::Relaxed).wrapping_sub(below), Ordering::Release);
    }

    #[inline]
    fn sub(&self, by: u64) {
        self.below.store(self.below.load(Ordering::Relaxed).wrapping_add(by as i64), Ordering::Relaxed);
    }

    /// Where it is now, and the highest.
    fn read(&self) -> (i64, i64) {
        loop {
            // Acquire: who sees a new highest also sees how far below it is, and that it was folded before it
            // was reset.
            let high = self.high.load(Ordering::Acquire);
            let below = self.below.load(Ordering::Acquire);
            if self.high.load(Ordering::Relaxed) == high {
                // Between the two stores of `raise`.
                return (high.wrapping_sub(below.max(0)), high);
            }
        }
    }

    fn reset_high(&self) {
        let (now, _) = self.read();
        self.below.store(0, Ordering::Relaxed);
        self.high.store(now, Ordering::Release);
    }

    fn is_below_high(&self) -> bool {
        self.below.load(Ordering::Relaxed) != 0
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Tally {
    requested: Part,
    allocated: Part,
    /// What the program got, and what it freed: counted by the marks at the thread's gate, so that a pair of both has
    /// no stores for it.
    to_alloc: Way,
    to_free: Way,
    /// Twice the most live blocks since that was last folded.
    most_blocks: AtomicI64,
    /// What `to_free` was when the thread's magazines were last emptied: while it is that, they are empty.
    emptied: AtomicU64,
}

impl Tally {
    /// By which the owner goes to get a block.
    #[inline]
    pub(super) fn to_alloc(&self) -> &Way {
        &self.to_alloc
    }

    /// By which it goes to bring one back.
    #[inline]
    pub(super) fn to_free(&self) -> &Way {
        &self.to_free
    }

    /// All ways of the owner.
    pub(super) fn ways(&self) -> [&Way; WAYS] {
        [&self.to_alloc, &self.to_free]
    }

    /// The program got a block of `bytes`, of which it asked for `requested`; the owner leaves.
    #[inline]
    pub(super) fn count_alloc(&self, inside: Inside<'_>, requested: u64, bytes: u64) {
        self.requested.add(requested);
        self.allocated.add(bytes);
        self.note_blocks(inside.next_mark());
        inside.pass();
    }

    /// The program freed such a block; the owner leaves.
    #[inline]
    pub(super) fn count_free(&self, inside: Inside<'_>, requested: u64, bytes: u64) {
        self.requested.sub(requested);
        self.allocated.sub(bytes);
        inside.pass();
    }

    /// As [`count_alloc`](Self::count_alloc), by an owner that is not inside, or by who else counts here.
    pub(super) fn count_alloc_outside(&self, requested: u64, bytes: u64) {
        self.requested.add(requested);
        self.allocated.add(bytes);
        self.to_alloc.count();
        self.note_blocks(self.to_alloc.mark());
    }

    /// As [`count_free`](Self::count_free), by an owner that is not inside, or by who else counts here.
    pub(super) fn count_free_outside(&self, requested: u64, bytes: u64) {
        self.requested.sub(requested);
        self.allocated.sub(bytes);
        self.to_free.count();
    }

    /// What the thread allocated less what it freed: fewer than none where it frees what others allocated.
    fn blocks(&self) -> i64 {
        self.to_alloc.passed().wrapping_sub(self.to_free.passed()) as i64
    }

    /// Where [`blocks`](Self::blocks) is now, and the highest.
    fn read_blocks(&self) -> (i64, i64) {
        let blocks = self.blocks();
        // Relaxed: the mark may be raised already for a block that is not counted yet, which is as good.
        (blocks, blocks.max(self.most_blocks.load(Ordering::Relaxed) / 2))
    }

    fn blocks_are_below_high(&self) -> bool {
        let (blocks, most) = self.read_blocks();
        blocks != most
    }

    /// There are more blocks now, with this mark of the allocations.
    #[inline]
    fn note_blocks(&self, allocs: u64) {
        let twice = allocs.wrapping_sub(self.to_free.mark()) as i64;
        if twice > self.most_blocks.load(Ordering::Relaxed) {
            self.most_blocks.store(twice, Ordering::Relaxed);
        }
    }

    /// Whether the thread's magazines may hold anything. A glance, from any thread.
    pub(super) fn may_hold(&self) -> bool {
        self.emptied.load(Ordering::Relaxed) != self.frees()
    }

    /// Notes that the magazines are empty. By the owner, or while its gate is closed.
    pub(super) fn note_emptied(&self) {
        self.emptied.store(self.frees(), Ordering::Relaxed);
    }

    /// Notes that the magazines were filled by other means than frees.
    pub(super) fn note_filled(&self) {
        self.emptied.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether there is anything cached, or a high-water mark that is not folded yet. A glance from outside.
    pub(super) fn is_of_note(&self) -> bool {
        self.may_hold() || self.requested.is_below_high() || self.blocks_are_below_high()
    }

    pub(super) fn frees(&self) -> u64 {
        self.to_free.passed()
    }

    /// What this thread freed since its own highest, in bytes: by so much its part of a high-water mark may be off.
    pub(super) fn drift(&self) -> u64 {
        self.allocated.below.load(Ordering::Relaxed).max(0) as u64
    }

    /// The high-water marks start again from now. By the owner, or while its gate is closed.
    pub(super) fn reset_high(&self) {
        self.requested.reset_high();
        self.allocated.reset_high();
        self.most_blocks.store(2 * self.blocks(), Ordering::Relaxed);
    }
}

/// What all tallies say together, and `folded`, which has the high-water marks up to the last
/// [fold](super::Caches::fold).
///
/// The high-water marks are exact where one thread used the pool since then. Where several did, each thread's
/// own highest is taken together with what the others have *now*. That sum is too high by what the others allocated
/// since that highest, at most what the thread freed since; and too low by what the others freed since, where threads
/// peaked together. So a thread that frees much folds now and then ([`Tally::drift`]), which bounds both.
pub(super) fn sum<'a>(tallies: impl Iterator<Item = &'a Tally> + Clone, folded: &HighWater) -> Counted {
    let level = |read: fn(&Tally) -> (i64, i64), folded: &AtomicU64| {
        let parts = tallies.clone().map(read);
        let (current, above) =
            parts.fold((0_i64, 0), |(sum, most), (now, high)| (sum + now, most.max(high - now)));
        // Another thread's writes may be seen in part: never less than nothing.
        let current = current.max(0);
        let highest = current + above;
        // After the parts: see `reset_high`.
        let folded = folded.load(Ordering::Relaxed);
        Level { current: current as u64, high: folded.max(highest.max(current) as u64) }
    };
    let frees: u64 = tallies.clone().map(Tally::frees).sum();
    let blocks = level(Tally::read_blocks, &folded.blocks);
    Counted {
        requested: level(|tally| tally.requested.read(), &folded.requested),
        allocated: level(|tally| tally.allocated.read(), &folded.allocated),
        blocks,
        allocations: frees + blocks.current,
        frees,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_exact_for_one_thread_and_sums_are_for_all() {
        let (a, b) = (Tally::default(), Tally::default());
        a.count_alloc_outside(100, 512);
        a.count_alloc_outside(1000, 1024);
        a.count_free_outside(100, 512);
        // Another thread frees what this one allocated.
        b.count_free_outside(1000, 1024);
        let counted = sum([&a, &b].into_iter(), &HighWater::default());
        assert_eq!((counted.requested.current, counted.allocated.current), (0, 0));
        assert_eq!((counted.blocks.current, counted.allocations, counted.frees), (0, 2, 2));
        let alone = sum([&a].into_iter(), &HighWater::default());
        assert_eq!(alone.requested, Level { current: 1000, high: 1100 });
        assert_eq!(alone.allocated, Level { current: 1024, high: 1536 });
        assert_eq!(alone.blocks, Level { current: 1, high: 2 });
    }

    #[test]
    fn a_mark_that_was_folded_stays_and_a_new_one_starts_from_now() {
        let (tally, folded) = (Tally::default(), HighWater::default());
        tally.count_alloc_outside(1000, 1024);
        tally.count_free_outside(1000, 1024);
        folded.raise(&sum([&tally].into_iter(), &folded));
        tally.reset_high();
        assert_eq!(sum([&tally].into_iter(), &folded).requested, Level { current: 0, high: 1000 });
        assert_eq!(sum([&tally].into_iter(), &HighWater::default()).requested.high, 0);
    }
}
