//! What one thread allocated and freed: written by that thread alone, read by all. Bytes are sums, and blocks are counted
//! by the epochs of its asymmetric lock.
//!
//! A tally knows the thread's *ceiling* for each of its figures, and how far below that it is: its *room*. A thread that
//! uses its room up, or has more of it than its slack, changes its ceiling. [totals](super::totals) says why.

use std::sync::Arc;

use super::asymmetric_lock::{EPOCHS, Epoch, Passage};
use super::sync::{AtomicI64, AtomicU64, Ordering, fence};
use super::totals::{ALLOCATED, Figures, Totals};
use crate::counters::Counted;
use crate::policy::peaks::Slack;
use crate::stats::Level;

/// One thread's share of a sum that several threads raise and lower. It may be negative. It is kept as its ceiling, and
/// how far below that it is now. So the fast path needs one subtraction and a test for its sign.
#[derive(Debug, Default)]
struct ThreadShare {
    room: AtomicI64,
    ceiling: AtomicI64,
}

impl ThreadShare {
    /// The room once so much was added; less than nothing if it is not enough.
    #[inline]
    fn room_with(&self, more: u64) -> i64 {
        self.room.load(Ordering::Relaxed).wrapping_sub(more as i64)
    }

    #[inline]
    fn set_room(&self, room: i64) {
        // Relaxed, and no read-modify-write: one thread writes.
        self.room.store(room, Ordering::Relaxed);
    }

    /// Where it is now. A reader that does not write asks whether the ceiling moved meanwhile.
    fn now(&self) -> i64 {
        self.ceiling.load(Ordering::Relaxed).wrapping_sub(self.room.load(Ordering::Relaxed))
    }

    /// Moves the ceiling so that there is other room below it.
    fn move_ceiling(&self, from: i64, to: i64) {
        self.ceiling.store(self.ceiling.load(Ordering::Relaxed) + to - from, Ordering::Relaxed);
        self.room.store(to, Ordering::Relaxed);
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
    /// The ceiling of live blocks: what `to_alloc` may be at most while the owner is inside. It goes up with each free.
    last_alloc: AtomicI64,
    /// What `to_free` was when the thread's magazines were last emptied: while it is that, they are empty.
    emptied: AtomicU64,
    /// Room of allocated bytes from which on the ceilings come down. That of the other figures is looked at then, too.
    slack: AtomicI64,
    /// Odd while ceilings move: a reader may then see one moved, and not the room below it.
    moves: AtomicU64,
    totals: Arc<Totals>,
}

impl Tally {
    pub(super) fn new(totals: Arc<Totals>) -> Self {
        Self {
            requested: ThreadShare::default(),
            allocated: ThreadShare::default(),
            to_alloc: Epoch::default(),
            to_free: Epoch::default(),
            last_alloc: AtomicI64::new(-1),
            emptied: AtomicU64::default(),
            slack: AtomicI64::default(),
            moves: AtomicU64::default(),
            totals,
        }
    }

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
    /// is counted once the owner leaves. `false`, and nothing done, where a ceiling has to rise before. By the owner
    /// inside, who then hands the block out.
    #[inline(always)]
    pub(super) fn rise(&self, requested: u64, bytes: u64) -> bool {
        let (requested, allocated) = (self.requested.room_with(requested), self.allocated.room_with(bytes));
        let allocs = self.to_alloc.value() as i64;
        if requested < 0 || allocated < 0 || allocs > self.last_alloc.load(Ordering::Relaxed) {
            return false;
        }
        self.requested.set_room(requested);
        self.allocated.set_room(allocated);
        true
    }

    /// As [`rise`](Self::rise), and raises the ceilings if need be.
    pub(super) fn rise_slow(&self, requested: u64, bytes: u64) {
        self.requested.set_room(self.requested.room_with(requested));
        self.allocated.set_room(self.allocated.room_with(bytes));
        self.adjust(1);
    }

    /// Whether a thread that frees so many bytes stays within its slack.
    #[inline(always)]
    pub(super) fn may_fall(&self, bytes: u64) -> bool {
        let room = self.allocated.room.load(Ordering::Relaxed).wrapping_add(bytes as i64);
        room <= self.slack.load(Ordering::Relaxed)
    }

    /// The program freed such a block, and the thread [may fall](Self::may_fall) so far; the owner leaves.
    #[inline(always)]
    pub(super) fn count_free(&self, passage: Passage<'_>, requested: u64, bytes: u64) {
        self.fall(requested, bytes);
        passage.complete();
    }

    /// The same, and lowers the ceilings if need be.
    pub(super) fn count_free_slow(&self, passage: Passage<'_>, requested: u64, bytes: u64) {
        self.fall(requested, bytes);
        self.adjust(0);
        passage.complete();
    }

    #[inline(always)]
    fn fall(&self, requested: u64, bytes: u64) {
        self.requested.set_room(self.requested.room_with(requested.wrapping_neg()));
        self.allocated.set_room(self.allocated.room_with(bytes.wrapping_neg()));
        // Relaxed, and no read-modify-write: one thread writes.
        self.last_alloc.store(self.last_alloc.load(Ordering::Relaxed) + ONE_BLOCK, Ordering::Relaxed);
    }

    /// As [`rise_slow`](Self::rise_slow), by an owner that is not inside, or by who else counts here; counts the block
    /// too.
    pub(super) fn count_alloc_outside(&self, requested: u64, bytes: u64) {
        self.rise_slow(requested, bytes);
        self.to_alloc.count();
    }

    /// As [`count_free`](Self::count_free), by an owner that is not inside, or by who else counts here. Lowers the
    /// ceilings if need be.
    pub(super) fn count_free_outside(&self, requested: u64, bytes: u64) {
        self.fall(requested, bytes);
        self.to_free.count();
        self.adjust(0);
    }

    /// How far the figures are below their ceilings, once so many blocks more are counted.
    fn room(&self, more: i64) -> Figures {
        let last_alloc = self.last_alloc.load(Ordering::Relaxed);
        let blocks = (last_alloc - (self.to_alloc.passages() as i64) * ONE_BLOCK).div_euclid(ONE_BLOCK);
        [self.requested.room_with(0), self.allocated.room_with(0), blocks + 1 - more]
    }

    /// Raises the ceilings that are passed, and lowers all from which the thread has drifted away, if so many blocks more
    /// are counted soon. By the owner, or by who else counts here.
    fn adjust(&self, more: i64) {
        let room = self.room(more);
        let Slack { bytes: slack, ahead } = self.totals.slack();
        let drifts = room[ALLOCATED] > slack;
        let left = std::array::from_fn(|figure| match room[figure] {
            short @ ..0 => {
                self.totals.raise(figure, ahead[figure] - short);
                ahead[figure]
            }
            much if drifts => {
                self.totals.lower(figure, much);
                0
            }
            enough => enough,
        });
        self.move_ceilings(room, left);
        self.slack.store(slack, Ordering::Relaxed);
    }

    /// Has the owner ask the totals anew how far below its ceilings it may be. From any thread.
    pub(super) fn forget_slack(&self) {
        self.slack.store(0, Ordering::Relaxed);
    }

    /// The ceilings move so that there is other room below them. They are the thread's own: the totals were told.
    fn move_ceilings(&self, from: Figures, to: Figures) {
        // Relaxed, and no read-modify-write: one thread writes.
        let moves = self.moves.load(Ordering::Relaxed);
        self.moves.store(moves + 1, Ordering::Relaxed);
        // Who sees what is written from here on sees the odd number.
        fence(Ordering::Release);
        self.requested.move_ceiling(from[0], to[0]);
        self.allocated.move_ceiling(from[ALLOCATED], to[ALLOCATED]);
        let last_alloc = self.last_alloc.load(Ordering::Relaxed) + ONE_BLOCK * (to[2] - from[2]);
        self.last_alloc.store(last_alloc, Ordering::Relaxed);
        // Release: who sees the even number sees all that was written.
        self.moves.store(moves + 2, Ordering::Release);
    }

    /// Lowers the ceilings to where the figures are. By the owner outside, or while it is kept out; under the lock.
    pub(super) fn settle(&self) {
        let room = self.room(0);
        (0..room.len()).for_each(|figure| self.totals.lower(figure, room[figure]));
        self.move_ceilings(room, [0; 3]);
        self.forget_slack();
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

    fn frees(&self) -> u64 {
        self.to_free.passages()
    }

    /// Where the figures are: allocations, frees, requested and allocated bytes. From any thread at any time. A reader that
    /// is always overtaken takes what it has.
    fn read(&self) -> (u64, u64, [i64; 2]) {
        let read = || {
            let (allocs, frees) = (self.to_alloc.passages(), self.to_free.passages());
            (allocs, frees, [self.requested.now(), self.allocated.now()])
        };
        for _ in 0..TRIES {
            // Acquire: pairs with the Release at the end of `move_ceilings`.
            let moves = self.moves.load(Ordering::Acquire);
            let found = read();
            // Acquire: pairs with the fence in `move_ceilings`.
            fence(Ordering::Acquire);
            let is_whole = moves.is_multiple_of(2) && self.moves.load(Ordering::Relaxed) == moves;
            if is_whole && (found.0, found.1) == (self.to_alloc.passages(), self.to_free.passages()) {
                return found;
            }
        }
        read()
    }
}

/// Readings of what is written meanwhile.
const TRIES: usize = 64;

/// What all tallies say together, with the high-water marks of the totals.
pub(super) fn sum<'a>(tallies: impl Iterator<Item = &'a Tally>, totals: &Totals) -> Counted {
    let (mut allocations, mut frees, mut bytes) = (0_u64, 0_u64, [0_i64; 2]);
    for tally in tallies {
        let (its_allocs, its_frees, its) = tally.read();
        // Wrapping: what is read may be torn where the reader was overtaken.
        (allocations, frees) = (allocations.wrapping_add(its_allocs), frees.wrapping_add(its_frees));
        bytes = [bytes[0].wrapping_add(its[0]), bytes[1].wrapping_add(its[1])];
    }
    // Another thread's writes may be seen in part: never less than nothing, and no more than there ever was.
    let allocations = allocations.max(frees);
    let now = [bytes[0], bytes[1], (allocations - frees) as i64];
    let peaks = totals.peaks();
    let level = |at: usize| Level {
        current: now[at].clamp(0, peaks[at].max(0)) as u64,
        high: peaks[at].max(0) as u64,
    };
    Counted { requested: level(0), allocated: level(1), blocks: level(2), allocations, frees }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::policy::peaks::{LEAST_SLACK, TOLERANCE};

    /// The tallies of two threads.
    fn two() -> ([Tally; 2], Arc<Totals>) {
        let totals = Arc::<Totals>::default();
        let tally = || {
            totals.add_thread();
            Tally::new(totals.clone())
        };
        ([tally(), tally()], totals)
    }

    #[test]
    fn the_mark_of_one_thread_is_its_own_peak() {
        let totals = Arc::<Totals>::default();
        let tally = Tally::new(totals.clone());
        tally.count_alloc_outside(100, 512);
        tally.count_alloc_outside(1000, 1024);
        tally.count_free_outside(100, 512);
        let counted = sum([&tally].into_iter(), &totals);
        assert_eq!(counted.requested, Level { current: 1000, high: 1100 });
        assert_eq!(counted.allocated, Level { current: 1024, high: 1536 });
        assert_eq!(counted.blocks, Level { current: 1, high: 2 });
        assert_eq!((counted.allocations, counted.frees), (2, 1));
        tally.settle();
        totals.reset();
        assert_eq!(sum([&tally].into_iter(), &totals).requested, Level { current: 1000, high: 1000 });
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_one_thread_gives_to_another_is_counted_once() {
        let ([giver, taker], totals) = two();
        const BLOCKS: u64 = 1000;
        for _ in 0..10 {
            (0..BLOCKS).for_each(|_| giver.count_alloc_outside(MIB - 1, MIB));
            (0..BLOCKS).for_each(|_| taker.count_free_outside(MIB - 1, MIB));
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
        other.count_alloc_outside(MIB, MIB);
        let ceiling = |tally: &Tally| tally.allocated.ceiling.load(Ordering::Relaxed);
        const BLOCKS: u64 = 8;
        let bytes = LEAST_SLACK as u64 / BLOCKS;
        for _ in 0..3 {
            (0..BLOCKS).for_each(|_| one.count_alloc_outside(bytes, bytes));
            (0..BLOCKS).for_each(|_| one.count_free_outside(bytes, bytes));
            assert_eq!(ceiling(&one), LEAST_SLACK);
        }
        one.count_free_outside(bytes, bytes);
        assert!(ceiling(&one) < 0);
        assert_eq!(totals.peaks()[ALLOCATED], 2 * MIB as i64);
    }
}
