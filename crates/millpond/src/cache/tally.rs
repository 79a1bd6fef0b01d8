//! What one thread allocated and freed: written by that thread alone, read by all. Bytes are sums, and blocks are counted
//! by the epochs of its asymmetric lock.
//!
//! **Ceilings.** A tally knows the highest value of each of its figures since it was last settled. Its *allowance* says
//! by how much that may rise. Both together are the thread's *ceiling*. An allocation that would pass it is handed out
//! only after the thread has asked for more, under the pool's lock. [settling](super::settling) says why.

use super::asymmetric_lock::{EPOCHS, Epoch, Passage};
use super::sync::{AtomicI64, AtomicU64, Ordering, fence};
use crate::counters::Counted;
use crate::stats::Level;

/// Requested bytes, allocated bytes, and blocks; of a thread, which may have freed what others allocated, or of all.
pub(super) type Figures = [i64; 3];

/// What one more block adds, of which so many bytes were asked for.
pub(super) fn one_block(requested: u64, bytes: u64) -> Figures {
    [requested as i64, bytes as i64, 1]
}

/// Figures made of two, one by one.
pub(super) fn combine(a: Figures, b: Figures, each: impl Fn(i64, i64) -> i64) -> Figures {
    std::array::from_fn(|at| each(a[at], b[at]))
}

/// An allowance that is never used up: no device has so much memory.
const UNBOUNDED: i64 = 1 << 60;

/// What `Tally::frozen_at` is while the thread may allocate without asking.
const NOT_FROZEN: u64 = u64::MAX;

/// One thread's share of a sum that several threads raise and lower. It may be negative. It is kept as its highest
/// since it was last settled, and how far below that it is now. So the fast path needs one subtraction and a test for
/// its sign.
#[derive(Debug, Default)]
struct ThreadShare {
    below: AtomicI64,
    high: AtomicI64,
}

impl ThreadShare {
    /// How far below the highest it is once so much was added; less than nothing for a new highest.
    #[inline]
    fn below_with(&self, more: u64) -> i64 {
        self.below.load(Ordering::Relaxed).wrapping_sub(more as i64)
    }

    #[inline]
    fn set_below(&self, below: i64) {
        // Relaxed, and no read-modify-write: one thread writes.
        self.below.store(below, Ordering::Relaxed);
    }

    #[inline]
    fn sub(&self, by: u64) {
        self.set_below(self.below.load(Ordering::Relaxed).wrapping_add(by as i64));
    }

    /// Where it is now.
    fn now(&self) -> i64 {
        loop {
            let high = self.high.load(Ordering::Relaxed);
            // Acquire: who sees what follows a new highest sees that too (`Tally::raise`).
            let below = self.below.load(Ordering::Acquire);
            if self.high.load(Ordering::Relaxed) == high {
                return high.wrapping_sub(below);
            }
        }
    }
}

/// What a passage adds to an epoch.
const ONE_BLOCK: i64 = 2;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Tally {
    requested: ThreadShare,
    allocated: ThreadShare,
    /// What the program got, and what it freed. The epochs of the cache's lock count it, so a pair makes no stores for
    /// it.
    to_alloc: Epoch,
    to_free: Epoch,
    /// Twice the most live blocks since that was last settled, less [`ONE_BLOCK`]: by so much `to_alloc` may be ahead of
    /// `to_free` before the next allocation.
    most_before: AtomicI64,
    /// What `to_free` was when the thread's magazines were last emptied: while it is that, they are empty.
    emptied: AtomicU64,
    /// By how much the highest may rise. Written by the owner, and by who holds the lock while the owner is kept out.
    allowance: [AtomicI64; 3],
    /// The sum of the epochs when the tally was last settled, if nothing was granted since. While the epochs say the
    /// same, the figures are what they were then. Written under the pool's lock.
    frozen_at: AtomicU64,
    /// When the thread last asked for more, in settlements. Written under the pool's lock.
    asked_at: AtomicU64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            requested: ThreadShare::default(),
            allocated: ThreadShare::default(),
            to_alloc: Epoch::default(),
            to_free: Epoch::default(),
            most_before: AtomicI64::new(-ONE_BLOCK),
            emptied: AtomicU64::default(),
            allowance: Default::default(),
            frozen_at: AtomicU64::default(),
            asked_at: AtomicU64::default(),
        }
    }
}

impl Tally {
    /// Counts the blocks that the owner gets.
    #[inline]
    pub(super) fn to_alloc(&self) -> &Epoch {
        &self.to_alloc
    }

    /// Counts those that it brings back.
    #[inline]
    pub(super) fn to_free(&self) -> &Epoch {
        &self.to_free
    }

    /// All epochs of the owner.
    pub(super) fn epochs(&self) -> [&Epoch; EPOCHS] {
        [&self.to_alloc, &self.to_free]
    }

    /// Counts a block of `bytes` that the program is about to get, of which it asked for `requested`. The block itself
    /// is counted once the owner leaves. `false`, and nothing done, where the thread has to ask before. By the owner
    /// inside, who then hands the block out.
    #[inline(always)]
    pub(super) fn rise(&self, passage: &Passage<'_>, requested: u64, bytes: u64) -> bool {
        self.rise_from(passage.before(), requested, bytes)
    }

    /// The same, where that is the epoch of allocations so far.
    #[inline(always)]
    fn rise_from(&self, allocs: u64, requested: u64, bytes: u64) -> bool {
        let (requested, allocated) = (self.requested.below_with(requested), self.allocated.below_with(bytes));
        // In this order: registers are few.
        let most = self.most_before.load(Ordering::Relaxed).wrapping_add(self.to_free.value() as i64);
        let blocks = most.wrapping_sub(allocs as i64);
        // One test for the signs of all.
        if requested | allocated | blocks < 0 {
            return self.raise([requested, allocated, blocks / ONE_BLOCK]);
        }
        self.requested.set_below(requested);
        self.allocated.set_below(allocated);
        true
    }

    /// Figures are to be so far below their highest: where that is less than nothing, the highest rises, if the
    /// allowance has that. `false`, and nothing done, if it has not.
    #[cold]
    #[inline(never)]
    fn raise(&self, below: Figures) -> bool {
        let by = below.map(|below| (-below).max(0));
        let left = combine(self.allowance(), by, |allowance, by| allowance - by);
        if left.iter().any(|left| *left < 0) {
            return false;
        }
        self.set_allowance(left);
        // Relaxed, and no read-modify-write: one thread writes.
        let raise = |high: &AtomicI64, by| high.store(high.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        raise(&self.requested.high, by[0]);
        raise(&self.allocated.high, by[1]);
        raise(&self.most_before, ONE_BLOCK * by[2]);
        // So that whoever sees what the owner stores after this sees the new highest: `ThreadShare::now`, `read`.
        fence(Ordering::Release);
        self.requested.set_below(below[0].max(0));
        self.allocated.set_below(below[1].max(0));
        true
    }

    /// The program freed such a block; the owner leaves.
    #[inline]
    pub(super) fn count_free(&self, passage: Passage<'_>, requested: u64, bytes: u64) {
        self.requested.sub(requested);
        self.allocated.sub(bytes);
        passage.complete();
    }

    /// As [`rise`](Self::rise), by an owner that is not inside, or by who else counts here; counts the block too.
    #[must_use]
    pub(super) fn count_alloc_outside(&self, requested: u64, bytes: u64) -> bool {
        let may_rise = self.rise_from(self.to_alloc.value(), requested, bytes);
        if may_rise {
            self.to_alloc.count();
        }
        may_rise
    }

    /// As [`count_free`](Self::count_free), by an owner that is not inside, or by who else counts here.
    pub(super) fn count_free_outside(&self, requested: u64, bytes: u64) {
        self.requested.sub(requested);
        self.allocated.sub(bytes);
        self.to_free.count();
    }

    /// The highest since it was last settled.
    pub(super) fn high(&self) -> Figures {
        let blocks = (self.most_before.load(Ordering::Relaxed) + ONE_BLOCK) / ONE_BLOCK;
        [self.requested.high.load(Ordering::Relaxed), self.allocated.high.load(Ordering::Relaxed), blocks]
    }

    /// Where the figures are. Exact for the owner, and for others while it is kept out.
    pub(super) fn now(&self) -> Figures {
        let blocks = self.to_alloc.passages().wrapping_sub(self.to_free.passages()) as i64;
        [self.requested.now(), self.allocated.now(), blocks]
    }

    fn allowance(&self) -> Figures {
        self.allowance.each_ref().map(|allowance| allowance.load(Ordering::Relaxed))
    }

    fn set_allowance(&self, figures: Figures) {
        // Relaxed, all: the owner reads what others wrote after its cache was opened.
        let each = self.allowance.iter().zip(figures);
        each.for_each(|(allowance, figure)| allowance.store(figure, Ordering::Relaxed));
    }

    /// What may not be passed.
    pub(super) fn ceiling(&self) -> Figures {
        combine(self.high(), self.allowance(), |high, allowance| high + allowance)
    }

    /// By how much the allowances are too small for so much more. By the owner.
    pub(super) fn missing(&self, more: Figures) -> Figures {
        let room = combine(self.ceiling(), self.now(), |ceiling, now| ceiling - now);
        combine(more, room, |more, room| (more - room).max(0))
    }

    /// Allows so much more. By the owner, or while it is kept out; under the lock.
    pub(super) fn grant(&self, more: Figures) {
        self.set_allowance(combine(self.allowance(), more, |allowance, more| allowance + more));
        self.frozen_at.store(NOT_FROZEN, Ordering::Relaxed);
    }

    /// Whether it never has to ask.
    pub(super) fn may_do_anything(&self) -> bool {
        self.allowance[1].load(Ordering::Relaxed) > UNBOUNDED / 2
    }

    /// Allows anything.
    pub(super) fn grant_all(&self) {
        self.grant([UNBOUNDED; 3]);
    }

    /// The highest start again from now, with no allowance. By the owner, or while it is kept out; under the lock.
    pub(super) fn settle(&self) {
        let now = self.now();
        self.requested.set_below(0);
        self.allocated.set_below(0);
        self.requested.high.store(now[0], Ordering::Relaxed);
        self.allocated.high.store(now[1], Ordering::Relaxed);
        self.most_before.store(ONE_BLOCK * (now[2] - 1), Ordering::Relaxed);
        self.set_allowance([0; 3]);
        self.frozen_at.store(self.epoch_sum(), Ordering::Relaxed);
    }

    /// Whether the figures are as they were settled, as far as can be seen, and cannot rise. From any thread that holds
    /// the lock.
    pub(super) fn is_frozen(&self) -> bool {
        // Epochs only go up, but for a passage that counts nothing: so the same sum means the same epochs.
        self.frozen_at.load(Ordering::Relaxed) == self.epoch_sum()
    }

    /// Whether the owner is inside. A glance, from any thread.
    pub(super) fn is_inside(&self) -> bool {
        self.epochs().iter().any(|epoch| epoch.value() % 2 == 1)
    }

    fn epoch_sum(&self) -> u64 {
        self.to_alloc.value().wrapping_add(self.to_free.value())
    }

    /// Notes that the thread asked for more at this settlement.
    pub(super) fn note_asked(&self, at: u64) {
        self.asked_at.store(at, Ordering::Relaxed);
    }

    /// The settlement at which it last asked.
    pub(super) fn asked_at(&self) -> u64 {
        self.asked_at.load(Ordering::Relaxed)
    }

    /// Whether the thread's magazines may hold anything. A glance, from any thread.
    pub(super) fn may_hold(&self) -> bool {
        self.emptied.load(Ordering::Relaxed) != self.frees()
    }

    /// Notes that the magazines are empty. By the owner, or while its cache is closed.
    pub(super) fn note_emptied(&self) {
        self.emptied.store(self.frees(), Ordering::Relaxed);
    }

    /// Notes that the magazines were filled by other means than frees.
    pub(super) fn note_filled(&self) {
        self.emptied.store(u64::MAX, Ordering::Relaxed);
    }

    pub(super) fn frees(&self) -> u64 {
        self.to_free.passages()
    }

    /// Bytes that this thread freed since its own highest, which it could allocate again without asking. Nothing where it
    /// never has to ask.
    pub(super) fn drift(&self) -> u64 {
        if self.may_do_anything() {
            return 0;
        }
        self.allocated.below.load(Ordering::Relaxed).max(0) as u64
    }

    /// Allocations, frees, and the figures, from any thread at any time: the figures are no higher than the highest that
    /// is read after them.
    fn read(&self) -> (u64, u64, Figures) {
        // One thread's own counts belong together; a reader that is always overtaken takes what it has.
        let (mut allocs, mut frees) = (self.to_alloc.passages(), self.to_free.passages());
        for _ in 0..TRIES {
            let again = (self.to_alloc.passages(), self.to_free.passages());
            if again == (allocs, frees) {
                break;
            }
            (allocs, frees) = again;
        }
        let (requested, allocated) = (self.requested.now(), self.allocated.now());
        // Acquire: with the fence in `raise`. Who sees what follows a new highest sees that too.
        fence(Ordering::Acquire);
        (allocs, frees, [requested, allocated, allocs.wrapping_sub(frees) as i64])
    }
}

/// Readings of what is written meanwhile.
pub(super) const TRIES: usize = 64;

/// What all tallies say together, and `peaks`, which has the high-water marks up to when each of them was settled.
///
/// No figure was higher than all highest together: each thread's was below its own. Whoever settles a tally notes that
/// sum first.
pub(super) fn sum<'a>(tallies: impl Iterator<Item = &'a Tally>, peaks: impl Fn() -> Figures) -> Counted {
    let (mut allocations, mut frees) = (0_u64, 0_u64);
    let (mut now, mut high) = ([0; 3], [0; 3]);
    for tally in tallies {
        let (its_allocs, its_frees, its) = tally.read();
        // Wrapping: what is read may be torn where the reader was overtaken.
        (allocations, frees) = (allocations.wrapping_add(its_allocs), frees.wrapping_add(its_frees));
        now = combine(now, its, i64::wrapping_add);
        high = combine(high, tally.high(), i64::wrapping_add);
    }
    // Another thread's writes may be seen in part: never less than nothing.
    let allocations = allocations.max(frees);
    now[2] = (allocations - frees) as i64;
    let now = now.map(|now| now.max(0));
    // After the tallies: who sees that one was settled sees what was noted before.
    let high = combine(combine(high, peaks(), i64::max), now, i64::max);
    let level = |at: usize| Level { current: now[at] as u64, high: high[at] as u64 };
    Counted { requested: level(0), allocated: level(1), blocks: level(2), allocations, frees }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A tally that need not ask.
    fn tally() -> Tally {
        let tally = Tally::default();
        tally.grant_all();
        tally
    }

    fn sum_of(tallies: &[&Tally], peaks: Figures) -> Counted {
        sum(tallies.iter().copied(), || peaks)
    }

    #[test]
    fn marks_are_exact_for_one_thread_sums_for_all() {
        let (a, b) = (tally(), tally());
        assert!(a.count_alloc_outside(100, 512));
        assert!(a.count_alloc_outside(1000, 1024));
        a.count_free_outside(100, 512);
        // Another thread frees what this one allocated.
        b.count_free_outside(1000, 1024);
        let counted = sum_of(&[&a, &b], [0; 3]);
        assert_eq!((counted.requested.current, counted.allocated.current), (0, 0));
        assert_eq!((counted.blocks.current, counted.allocations, counted.frees), (0, 2, 2));
        let alone = sum_of(&[&a], [0; 3]);
        assert_eq!(alone.requested, Level { current: 1000, high: 1100 });
        assert_eq!(alone.allocated, Level { current: 1024, high: 1536 });
        assert_eq!(alone.blocks, Level { current: 1, high: 2 });
    }

    #[test]
    fn a_noted_mark_stays_and_the_next_starts_from_now() {
        let tally = tally();
        assert!(tally.count_alloc_outside(1000, 1024));
        tally.count_free_outside(1000, 1024);
        let peaks = tally.high();
        tally.settle();
        assert_eq!(sum_of(&[&tally], peaks).requested, Level { current: 0, high: 1000 });
        assert_eq!(sum_of(&[&tally], [0; 3]).requested.high, 0);
    }

    #[test]
    fn no_figure_rises_beyond_what_was_granted() {
        let tally = Tally::default();
        assert!(!tally.count_alloc_outside(100, 512));
        for scarce in 0..3 {
            let mut granted = [100, 512, 1];
            granted[scarce] -= 1;
            tally.grant(granted);
            assert!(!tally.count_alloc_outside(100, 512), "{granted:?}");
            assert_eq!((tally.now(), tally.high()), ([0; 3], [0; 3]));
            tally.settle();
        }
        tally.grant(one_block(100, 512));
        assert!(tally.count_alloc_outside(100, 512));
        assert!(!tally.count_alloc_outside(0, 0), "blocks are counted too");
        // What was freed may be had again without asking, until it is settled.
        tally.count_free_outside(100, 512);
        assert_eq!(tally.missing(one_block(101, 512)), [1, 0, 0]);
        assert!(tally.count_alloc_outside(100, 512));
        tally.count_free_outside(100, 512);
        tally.settle();
        assert_eq!(tally.missing(one_block(100, 512)), [100, 512, 1]);
    }

    #[test]
    fn a_tally_is_frozen_until_it_counts_or_is_granted() {
        let tally = Tally::default();
        assert!(tally.is_frozen());
        tally.count_free_outside(1, 512);
        assert!(!tally.is_frozen());
        tally.settle();
        assert!(tally.is_frozen());
        tally.grant([0, 0, 1]);
        assert!(!tally.is_frozen());
    }
}
