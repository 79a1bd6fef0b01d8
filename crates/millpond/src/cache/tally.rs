//! What one thread allocated and freed: written by that thread alone, read by all.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::counters::{Counted, HighWater};
use crate::stats::Level;

/// A sum that goes up and down in several threads' hands: this thread's part of it, which may be negative, and
/// the highest that the part has been since it was last folded.
#[derive(Debug, Default)]
struct Part {
    now: AtomicU64,
    high: AtomicU64,
}

impl Part {
    #[inline]
    fn add(&self, by: u64) {
        // Relaxed, and no read-modify-write: one thread writes. Wrapping: a thread may free more than it
        // allocated; the sum over all threads is never negative.
        let now = self.now.load(Ordering::Relaxed).wrapping_add(by);
        self.now.store(now, Ordering::Relaxed);
        if now as i64 > self.high.load(Ordering::Relaxed) as i64 {
            self.high.store(now, Ordering::Relaxed);
        }
    }

    #[inline]
    fn sub(&self, by: u64) {
        self.now.store(self.now.load(Ordering::Relaxed).wrapping_sub(by), Ordering::Relaxed);
    }

    fn now(&self) -> i64 {
        self.now.load(Ordering::Relaxed) as i64
    }

    fn high(&self) -> i64 {
        // Acquire: see `reset_high`.
        self.high.load(Ordering::Acquire) as i64
    }

    fn reset_high(&self) {
        // Release: who sees the mark reset also sees that it was folded before.
        self.high.store(self.now.load(Ordering::Relaxed), Ordering::Release);
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Tally {
    requested: Part,
    allocated: Part,
    blocks: Part,
    frees: AtomicU64,
    /// What `frees` was when the thread's magazines were last emptied: while it is that, they are empty.
    emptied: AtomicU64,
}

impl Tally {
    /// The program got a block of `bytes`, of which it asked for `requested`.
    #[inline]
    pub(super) fn count_alloc(&self, requested: u64, bytes: u64) {
        self.requested.add(requested);
        self.allocated.add(bytes);
        self.blocks.add(1);
    }

    /// The program freed such a block.
    #[inline]
    pub(super) fn count_free(&self, requested: u64, bytes: u64) {
        self.requested.sub(requested);
        self.allocated.sub(bytes);
        self.blocks.sub(1);
        self.frees.store(self.frees.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
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
        let high = |part: &Part| part.high() != part.now();
        self.may_hold() || high(&self.requested) || high(&self.allocated)
    }

    fn frees(&self) -> u64 {
        self.frees.load(Ordering::Relaxed)
    }

    /// The high-water marks start again from now. By the owner, or while its gate is closed.
    pub(super) fn reset_high(&self) {
        self.requested.reset_high();
        self.allocated.reset_high();
        self.blocks.reset_high();
    }
}

/// What all tallies say together, and `folded`, which has the high-water marks up to the last
/// [fold](super::Caches::fold).
///
/// The high-water marks are exact where one thread used the pool since then. Where several did, each thread's
/// own highest is taken together with what the others have *now*; the sum may never have been there at one time.
pub(super) fn sum<'a>(tallies: impl Iterator<Item = &'a Tally> + Clone, folded: &HighWater) -> Counted {
    let level = |part: fn(&Tally) -> &Part, folded: &AtomicU64| {
        let parts = tallies.clone().map(part).map(|part| (part.now(), part.high()));
        let current: i64 = parts.clone().map(|(now, _)| now).sum();
        // Another thread's writes may be seen in part: never less than nothing.
        let current = current.max(0);
        let highest = parts.map(|(now, high)| current - now + high).max().unwrap_or(0);
        // After the parts: see `reset_high`.
        let folded = folded.load(Ordering::Relaxed);
        Level { current: current as u64, high: folded.max(highest.max(current) as u64) }
    };
    let frees: u64 = tallies.clone().map(Tally::frees).sum();
    let blocks = level(|tally| &tally.blocks, &folded.blocks);
    Counted {
        requested: level(|tally| &tally.requested, &folded.requested),
        allocated: level(|tally| &tally.allocated, &folded.allocated),
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
        a.count_alloc(100, 512);
        a.count_alloc(1000, 1024);
        a.count_free(100, 512);
        // Another thread frees what this one allocated.
        b.count_free(1000, 1024);
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
        tally.count_alloc(1000, 1024);
        tally.count_free(1000, 1024);
        folded.raise(&sum([&tally].into_iter(), &folded));
        tally.reset_high();
        assert_eq!(sum([&tally].into_iter(), &folded).requested, Level { current: 0, high: 1000 });
        assert_eq!(sum([&tally].into_iter(), &HighWater::default()).requested.high, 0);
    }
}
