//! What one thread allocated and freed: written by that thread alone, read by all. Bytes are sums, and blocks are counted
//! by the epochs of its asymmetric lock.
//!
//! A tally knows the thread's *ceiling* for each of its figures. A thread that is about to pass one, or is further below it
//! than its slack, moves its ceilings. [totals](super::totals) says why.

use super::asymmetric_lock::Epoch;
use super::sync::{AtomicI64, AtomicU64, Ordering, fence};
use super::totals::{ALLOCATED, Figures, Totals};
use crate::figures::stats::{Level, Stats};
use crate::policy::peaks::Slack;
use crate::policy::waiting::SPINS;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// How far requested and allocated bytes are below their ceilings: so the fast path needs one subtraction and a test for
    /// its sign.
    room: [AtomicI64; 2],
    /// What the program got, and what it freed. The epochs of the cache's lock count it, so a pair makes no stores for
    /// it.
    pub(super) to_alloc: Epoch,
    pub(super) to_free: Epoch,
    /// The ceilings themselves: less than nothing, maybe, for a thread that frees what others allocate.
    ceilings: [AtomicI64; 3],
    /// Room of allocated bytes from which on the ceilings come down. That of the other figures is looked at then, too.
    slack: AtomicI64,
    /// What `to_free` was when the thread's magazines were last emptied: while it is that, they are empty.
    emptied: AtomicU64,
    /// Odd while ceilings move: a reader may then see one moved, and not the room below it.
    moves: AtomicU64,
}

impl Tally {
    /// All epochs of the owner.
    pub(super) fn epochs(&self) -> [&Epoch; 2] {
        [&self.to_alloc, &self.to_free]
    }

    /// The room once so much was added; less than nothing where it is not enough.
    #[inline(always)]
    fn room_with(&self, figure: usize, more: u64) -> i64 {
        self.room[figure].load(Ordering::Relaxed).wrapping_sub(more as i64)
    }

    #[inline(always)]
    fn set_room(&self, figure: usize, room: i64) {
        // Relaxed, and no read-modify-write: one thread writes.
        self.room[figure].store(room, Ordering::Relaxed);
    }

    /// Counts a block of `bytes` that the program is about to get, of which it asked for `requested`. The block itself
    /// is counted once the owner leaves. `false`, and nothing done, where a ceiling has to rise before. By the owner
    /// inside, who then hands the block out.
    #[inline(always)]
    pub(super) fn rise(&self, requested: u64, bytes: u64) -> bool {
        let (requested, allocated) = (self.room_with(0, requested), self.room_with(ALLOCATED, bytes));
        // Once the owner leaves, its epoch is one more.
        let blocks = self.to_alloc.value().wrapping_sub(self.to_free.value()) as i64;
        if requested < 0 || allocated < 0 || blocks >= self.ceiling(2) {
            return false;
        }
        self.set_room(0, requested);
        self.set_room(ALLOCATED, allocated);
        true
    }

    /// The room of allocated bytes once so many more are freed.
    #[inline(always)]
    pub(super) fn room_after(&self, bytes: u64) -> i64 {
        self.room_with(ALLOCATED, bytes.wrapping_neg())
    }

    /// Whether a thread with so much room is within its slack.
    #[inline(always)]
    pub(super) fn is_within_slack(&self, room: i64) -> bool {
        room <= self.slack.load(Ordering::Relaxed)
    }

    /// Counts a block that the program freed, after which so much room [is left](Self::room_after). The block itself is counted
    /// once the owner leaves.
    #[inline(always)]
    pub(super) fn fall(&self, requested: u64, room: i64) {
        self.set_room(0, self.room_with(0, requested.wrapping_neg()));
        self.set_room(ALLOCATED, room);
    }

    #[inline(always)]
    fn ceiling(&self, figure: usize) -> i64 {
        self.ceilings[figure].load(Ordering::Relaxed)
    }

    /// Requested and allocated bytes now.
    fn bytes(&self) -> [i64; 2] {
        [0, ALLOCATED].map(|figure| self.ceiling(figure).wrapping_sub(self.room_with(figure, 0)))
    }

    /// How many blocks were counted, that the owner got and that it brought back.
    pub(super) fn passages(&self) -> (u64, u64) {
        (self.to_alloc.passages(), self.to_free.passages())
    }

    /// Where the figures are, once so many blocks more are counted.
    fn figures(&self, more: i64) -> Figures {
        let ([requested, allocated], (allocs, frees)) = (self.bytes(), self.passages());
        [requested, allocated, 2 * (allocs.wrapping_sub(frees) as i64 + more)]
    }

    /// Counts a block by its epoch, and its bytes as [`count`](Self::count) does. By an owner that is not inside, or by who else
    /// counts here.
    pub(super) fn count_outside(&self, epoch: fn(&Self) -> &Epoch, bytes: [i64; 2], totals: &Totals) {
        epoch(self).add(2, Ordering::Relaxed);
        self.count(bytes, 0, totals);
    }

    /// Counts so many requested and allocated bytes more, or less. Raises the ceilings that are passed, and lowers all from which the
    /// thread has drifted away, if so many blocks more are counted soon. By the owner, or by who else counts here.
    pub(super) fn count(&self, bytes: [i64; 2], blocks: i64, totals: &Totals) {
        [0, ALLOCATED].into_iter().for_each(|at| self.set_room(at, self.room_with(at, bytes[at] as u64)));
        let (now, before) = (self.figures(blocks), [0, 1, 2].map(|figure| self.ceiling(figure)));
        let Slack { bytes: slack, ahead } = totals.slack();
        let drifts = before[ALLOCATED] - now[ALLOCATED] > slack;
        if drifts || now.iter().zip(before).any(|(now, before)| *now > before) {
            let to = std::array::from_fn(|figure| match before[figure] {
                passed if passed < now[figure] => now[figure] + ahead[figure],
                stays if !drifts => stays,
                _ => now[figure],
            });
            self.move_ceilings(now, to, totals);
        }
        self.slack.store(slack, Ordering::Relaxed);
    }

    /// Has the owner ask the totals anew how far below its ceilings it may be. From any thread.
    pub(super) fn forget_slack(&self) {
        self.slack.store(0, Ordering::Relaxed);
    }

    /// Moves the ceilings, with the figures `now` where they are. Tells the totals before.
    fn move_ceilings(&self, now: Figures, to: Figures, totals: &Totals) {
        let by: Figures = std::array::from_fn(|figure| to[figure] - self.ceiling(figure));
        (0..by.len()).filter(|figure| by[*figure] != 0).for_each(|figure| totals.add(figure, by[figure]));
        // Relaxed, and no read-modify-write: one thread writes.
        let moves = self.moves.load(Ordering::Relaxed);
        self.moves.store(moves + 1, Ordering::Relaxed);
        // Who sees what is written from here on sees the odd number.
        fence(Ordering::Release);
        self.ceilings.iter().zip(to).for_each(|(ceiling, to)| ceiling.store(to, Ordering::Relaxed));
        [0, ALLOCATED].into_iter().for_each(|figure| self.set_room(figure, to[figure] - now[figure]));
        // Release: who sees the even number sees all that was written.
        self.moves.store(moves + 2, Ordering::Release);
    }

    /// Lowers the ceilings to where the figures are. By the owner outside, or while it is kept out; under the lock.
    pub(super) fn settle(&self, totals: &Totals) {
        let now = self.figures(0);
        self.move_ceilings(now, now, totals);
        self.forget_slack();
    }

    /// Whether the thread's magazines may hold anything. A glance, from any thread.
    pub(super) fn may_hold(&self) -> bool {
        self.emptied.load(Ordering::Relaxed) != self.to_free.passages()
    }

    /// Notes that the magazines are empty. By the owner, or while its cache is closed.
    pub(super) fn note_emptied(&self) {
        self.emptied.store(self.to_free.passages(), Ordering::Relaxed);
    }

    /// Notes that the magazines were filled by other means than frees.
    pub(super) fn note_filled(&self) {
        self.emptied.store(u64::MAX, Ordering::Relaxed);
    }

    /// Allocations, frees, and the bytes then. From any thread at any time. A reader that is always overtaken takes what it
    /// has.
    fn read(&self) -> (u64, u64, [i64; 2]) {
        let mut looks = 0;
        loop {
            // Acquire: pairs with the Release at the end of `move_ceilings`.
            let before = (self.moves.load(Ordering::Acquire), self.passages());
            let bytes = self.bytes();
            // Pairs with the fence in `move_ceilings`.
            fence(Ordering::Acquire);
            let is_whole = before == (self.moves.load(Ordering::Relaxed), self.passages());
            if is_whole && before.0.is_multiple_of(2) || looks == SPINS {
                return (before.1.0, before.1.1, bytes);
            }
            looks += 1;
        }
    }
}

/// What all tallies and the totals say together.
pub(super) fn sum<'a>(tallies: impl Iterator<Item = &'a Tally>, totals: &Totals) -> Stats {
    let missing = totals.strays();
    let (mut allocations, mut frees) = (0_u64, (missing[2] as u64 / 2).wrapping_neg());
    let mut bytes = [missing[0], missing[ALLOCATED]];
    for tally in tallies {
        let (its_allocs, its_frees, its) = tally.read();
        // Wrapping: what is read may be torn where the reader was overtaken.
        (allocations, frees) = (allocations.wrapping_add(its_allocs), frees.wrapping_add(its_frees));
        bytes = [bytes[0].wrapping_add(its[0]), bytes[1].wrapping_add(its[1])];
    }
    // Another thread's writes may be seen in part: never less than nothing, and no more than there ever was.
    let allocations = allocations.max(frees);
    let peaks = totals.peaks();
    let level =
        |now: i64, peak: i64| Level { current: now.clamp(0, peak.max(0)) as u64, high: peak.max(0) as u64 };
    let blocks = level((allocations - frees) as i64, peaks[2] / 2);
    let [requested, allocated] = [0, ALLOCATED].map(|figure| level(bytes[figure], peaks[figure]));
    Stats { requested, allocated, blocks, allocations, frees, ..Stats::default() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::policy::peaks::TOLERANCE;
    use crate::policy::size_classes::EXACT_FROM;

    impl Tally {
        fn alloc(&self, requested: u64, bytes: u64, totals: &Totals) {
            self.count_outside(|tally| &tally.to_alloc, [requested as i64, bytes as i64], totals);
        }

        fn free(&self, requested: u64, bytes: u64, totals: &Totals) {
            self.count_outside(|tally| &tally.to_free, [-(requested as i64), -(bytes as i64)], totals);
        }
    }

    /// The tallies of two threads.
    fn two() -> ([Tally; 2], Totals) {
        let totals = Totals::default();
        let tally = || {
            totals.threads.fetch_add(1, Ordering::Relaxed);
            Tally::default()
        };
        ([tally(), tally()], totals)
    }

    #[test]
    fn the_mark_of_one_thread_is_its_own_peak() {
        let (tally, totals) = (Tally::default(), Totals::default());
        tally.alloc(100, 512, &totals);
        tally.alloc(1000, 1024, &totals);
        tally.free(100, 512, &totals);
        let counted = sum([&tally].into_iter(), &totals);
        assert_eq!(counted.requested, Level { current: 1000, high: 1100 });
        assert_eq!(counted.allocated, Level { current: 1024, high: 1536 });
        assert_eq!(counted.blocks, Level { current: 1, high: 2 });
        assert_eq!((counted.allocations, counted.frees), (2, 1));
        tally.settle(&totals);
        totals.reset();
        assert_eq!(sum([&tally].into_iter(), &totals).requested, Level { current: 1000, high: 1000 });
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_one_thread_gives_to_another_is_counted_once() {
        let ([giver, taker], totals) = two();
        const BLOCKS: u64 = 1000;
        for _ in 0..10 {
            (0..BLOCKS).for_each(|_| giver.alloc(MIB - 1, MIB, &totals));
            (0..BLOCKS).for_each(|_| taker.free(MIB - 1, MIB, &totals));
        }
        let counted = sum([&giver, &taker].into_iter(), &totals);
        for (level, one) in [(counted.requested, MIB - 1), (counted.allocated, MIB), (counted.blocks, 1)] {
            let peak = one * BLOCKS;
            assert_eq!(level.current, 0);
            assert!((peak..=peak + peak / TOLERANCE as u64).contains(&level.high), "{level:?}");
        }
    }

    #[test]
    fn a_thread_meets_others_only_when_it_drifts() {
        let ([one, other], totals) = two();
        other.alloc(MIB, MIB, &totals);
        let ceiling = |tally: &Tally| tally.ceilings[ALLOCATED].load(Ordering::Relaxed);
        const BLOCKS: u64 = 8;
        let bytes = EXACT_FROM / BLOCKS;
        for _ in 0..3 {
            (0..BLOCKS).for_each(|_| one.alloc(bytes, bytes, &totals));
            (0..BLOCKS).for_each(|_| one.free(bytes, bytes, &totals));
            assert_eq!(ceiling(&one), EXACT_FROM as i64);
        }
        one.free(bytes, bytes, &totals);
        assert!(ceiling(&one) < 0);
        assert_eq!(totals.peaks()[ALLOCATED], 2 * MIB as i64);
    }
}
