//! Settling: how the pool's high-water marks are right while each thread counts for itself.
//!
//! Each thread has a *ceiling* for each figure (requested bytes, allocated bytes, blocks), which it does not pass without
//! asking under the pool's lock ([`Tally`]). Frees never ask. This is the escrow method (O'Neil, *The Escrow
//! Transactional Method*, 1986): a bound on a sum, split into bounds that are each one thread's own.
//!
//! **What is reported is right within 1/1024.** Let P be the true peak since the last reset: the most that all threads
//! had together at one time. Any order of their allocations and frees will do that agrees with what the program can
//! observe. Three things hold whenever the pool's lock is free:
//!
//! 1. [`Escrow::reached`], F, is no more than P. It is raised only to a sum that was there at one time, or to that sum
//!    with the block that is being handed out. Every thread was kept out, or had done nothing since its level was noted
//!    (`take_stock`).
//! 2. The sum of all ceilings is at most F + F / 1024, since no more is granted. (But see the exceptions below.)
//! 3. What is reported, R, is the most that the sum of all threads' own highest has been. Whoever lowers
//!    one of them first notes the sum in [`Peaks`](super::peaks::Peaks).
//!
//! A thread is never above its own highest, so P is at most R. Its own highest is never above its ceiling, so R is at most
//! F + F / 1024, which is at most P + P / 1024. So P ≤ R ≤ P + P / 1024.
//!
//! **Exceptions.** A thread that *alone* has a cache need not ask at all. Then nothing else changes, R is P, and point
//! 2 does not matter. It ends before anybody else counts anything.
//!
//! And settling is bounded: keeping other threads out costs them and the one that asks. Threads that allocate and free
//! all the time would ask all the time. So keeping others out takes at most 1 % of the time that passes ([`Credit`]).
//! Where that is spent, a thread that asks gets an *overdraft* (`Escrow::overdraw`). Point 2 does not hold until all is
//! settled again. R may be higher than P, by what threads have freed since their own highest and not given up yet
//! (`Caches::drifts`). It is never lower.

use std::time::Instant;

use super::Locked;
use super::caches::Caches;
use super::tally::{Figures, Tally, combine, one_block, sum};
use super::thread::ThreadCache;
use crate::counters::Counted;
use crate::device::DevicePtr;
use crate::order::Stream;
use crate::policy::settling::{Credit, LEAST_OVERDRAFT, MOST_DOUBLINGS, OVERDRAFT_PART, RECENT, TOLERANCE};

/// What is known of all ceilings together. Under the pool's lock.
#[derive(Debug, Default)]
pub(super) struct Escrow {
    /// Figures that were there at one time, since the last reset.
    reached: Figures,
    /// The sum of all ceilings, unless a thread is alone.
    ceilings: Figures,
    /// Threads that own a cache.
    owners: usize,
    /// Whether one of them need not ask.
    is_alone: bool,
    /// Settlements so far.
    settled: u64,
    /// Overdrafts, less settlements since.
    overdrafts: u32,
    credit: Credit,
}

impl Escrow {
    /// What the ceilings may be raised by.
    fn room(&self) -> Figures {
        let most = self.reached.map(|reached| reached + reached / TOLERANCE);
        combine(most, self.ceilings, |most, ceilings| most - ceilings)
    }

    fn raise_reached(&mut self, to: Figures) {
        self.reached = combine(self.reached, to, i64::max);
    }

    fn grant(&mut self, tally: &Tally, more: Figures) {
        if more == [0; 3] {
            // It stays frozen.
            return;
        }
        tally.grant(more);
        self.ceilings = combine(self.ceilings, more, |ceilings, more| ceilings + more);
    }

    /// A thread's first overdraft.
    fn least_overdraft(&self) -> Figures {
        combine(self.reached, LEAST_OVERDRAFT, |reached, least| (reached / OVERDRAFT_PART).max(least))
    }

    /// Grants what is missing as an overdraft, and twice as much beyond it as the last time.
    fn overdraw(&mut self, tally: &Tally, missing: Figures) {
        let beyond = self.least_overdraft().map(|least| least << self.overdrafts);
        self.overdrafts = (self.overdrafts + 1).min(MOST_DOUBLINGS);
        let some = |missing, beyond| if missing > 0 { missing + beyond } else { 0 };
        self.grant(tally, combine(missing, beyond, some));
    }
}

impl Caches {
    /// Counts a block that the arena gave to the program, of which it asked for `requested` bytes.
    pub(crate) fn count_alloc(&self, lock: &mut Locked, requested: u64, bytes: u64) {
        let tally = self.tally_slow(lock);
        if tally.count_alloc_outside(requested, bytes) {
            return;
        }
        self.allow(lock, tally, one_block(requested, bytes), true);
        let is_counted = tally.count_alloc_outside(requested, bytes);
        debug_assert!(is_counted, "{bytes} bytes were granted: {tally:?}");
    }

    /// Counts a block that the program freed to the arena.
    pub(crate) fn count_free(&self, lock: &mut Locked, requested: u64, bytes: u64) {
        self.tally_slow(lock).count_free_outside(requested, bytes);
    }

    /// The tally that the calling thread may write under the lock.
    fn tally_slow(&self, lock: &mut Locked) -> &Tally {
        match self.join_slow(lock) {
            Some(cache) => &cache.tally,
            None => {
                self.end_alone(lock);
                &self.others
            }
        }
    }

    /// Whether the calling thread has to ask before it gets a block for such a request from its magazines.
    pub(crate) fn must_ask(&self, bytes: u64) -> bool {
        let mine = self.mine();
        if !mine.is_owned() || mine.tally.may_do_anything() || !self.sizes.is_cached(bytes) {
            return false;
        }
        mine.tally.missing(self.block_for(bytes)).iter().any(|missing| *missing > 0)
    }

    fn block_for(&self, bytes: u64) -> Figures {
        let units = if self.in_throughput_mode() {
            self.sizes.units_in_throughput_mode(bytes)
        } else {
            self.sizes.units(bytes)
        };
        one_block(bytes, self.sizes.bytes(units))
    }

    /// As [`alloc`](Self::alloc), by a thread that asks. Where it finds nothing, the depot may have something: the thread
    /// need not ask again then.
    #[cold]
    pub(crate) fn alloc_asking(&self, lock: &mut Locked, bytes: u64, stream: &Stream) -> Option<DevicePtr> {
        let cache = self.join_slow(lock)?;
        // SAFETY: the calling thread owns the cache, is not inside, and holds the lock.
        let stream_caches = unsafe { cache.stream_caches_under_lock() };
        let popped = stream_caches.of(stream.key()).and_then(|magazines| self.pop(magazines, bytes));
        let Some(item) = popped else {
            self.allow(lock, &cache.tally, self.block_for(bytes), false);
            return None;
        };
        self.count_alloc(lock, bytes, item.bytes());
        item.descriptor().make_live(item.ptr, bytes);
        Some(item.ptr)
    }

    /// A thread with a cache more. Under the lock, before it counts anything.
    pub(super) fn note_owner(&self, lock: &mut Locked) {
        self.end_alone(lock);
        lock.escrow.owners += 1;
    }

    /// A thread with a cache less, whose owner is kept out.
    pub(super) fn note_no_owner(&self, lock: &mut Locked, cache: &ThreadCache) {
        lock.escrow.owners -= 1;
        if lock.escrow.is_alone {
            self.take_stock(lock);
        } else {
            self.give_up_room(lock, std::iter::once(cache));
        }
    }

    /// Takes their allowances from threads that are kept out, or the calling one: somebody else will ask for them.
    pub(super) fn give_up_room<'a>(&self, lock: &mut Locked, caches: impl Iterator<Item = &'a ThreadCache>) {
        if lock.escrow.is_alone {
            return;
        }
        let highest = self.high();
        self.peaks.change(|| {
            self.peaks.raise(highest);
            for cache in caches {
                let ceiling = cache.tally.ceiling();
                cache.tally.settle();
                let given_up = combine(ceiling, cache.tally.ceiling(), |was, is| was - is);
                lock.escrow.ceilings =
                    combine(lock.escrow.ceilings, given_up, |all, given_up| all - given_up);
            }
        });
    }

    /// The high-water marks start again from now.
    pub(crate) fn reset_high_water(&self, lock: &mut Locked) {
        self.keep_out_moved(lock);
        self.take_stock(lock);
        let now = lock.escrow.ceilings;
        lock.escrow.reached = now;
        self.peaks.change(|| self.peaks.set(now));
        self.let_in();
    }

    /// What all threads counted.
    pub(crate) fn counted(&self) -> Counted {
        let mut counted = self.peaks.read(|| sum(self.tallies(), || self.peaks.figures()));
        self.strays.correct(&mut counted);
        counted
    }

    /// All of them. That of the strays makes up for what strays counted as freed.
    fn tallies(&self) -> impl Iterator<Item = &Tally> {
        self.all().map(|cache| &cache.tally).chain([&self.others, self.strays.tally()])
    }

    /// All threads' own highest together.
    fn high(&self) -> Figures {
        self.tallies().map(Tally::high).fold([0; 3], |a, b| combine(a, b, |a, b| a + b))
    }

    /// Gives the tally, the calling thread's or that of the others, room for so much more. If it `is_sure` that this is
    /// counted before the lock is given back, also where nobody had so much yet. The thread is outside.
    fn allow(&self, lock: &mut Locked, tally: &Tally, more: Figures, is_sure: bool) {
        let missing = tally.missing(more);
        let escrow = &mut lock.escrow;
        if escrow.is_alone {
            // Only the one that need not ask is left: nothing is missing.
            return;
        }
        if escrow.owners == 1 && !std::ptr::eq(tally, &self.others) {
            return self.begin_alone(lock, tally);
        }
        let beyond = combine(escrow.room(), missing, |room, missing| room - missing);
        if beyond.iter().all(|beyond| *beyond >= 0) {
            // Half of much, and all of little: so threads seldom ask.
            let some = combine(beyond, escrow.least_overdraft(), |beyond, little| {
                (beyond / 2).max(beyond.min(little))
            });
            return escrow.grant(tally, combine(missing, some, |missing, some| missing + some));
        }
        self.settle(lock, tally, more, is_sure);
    }

    /// Lets a thread that alone has a cache allocate without asking: all other tallies stay as they are.
    fn begin_alone(&self, lock: &mut Locked, tally: &Tally) {
        // Nobody is there to be kept out.
        self.take_stock(lock);
        tally.grant_all();
        lock.escrow.is_alone = true;
    }

    /// Somebody else is about to count something.
    fn end_alone(&self, lock: &mut Locked) {
        if lock.escrow.is_alone {
            self.keep_out_moved(lock);
            self.take_stock(lock);
            self.let_in();
        }
    }

    /// Finds out what is live, takes all room back, and grants it anew, most of it to who asks.
    fn settle(&self, lock: &mut Locked, tally: &Tally, more: Figures, is_sure: bool) {
        // While all caches are closed, everybody is kept out already.
        let must_wait = !self.is_closed() && self.all().any(|cache| self.has_moved(cache));
        if must_wait && !lock.escrow.credit.is_left(Instant::now()) {
            return lock.escrow.overdraw(tally, tally.missing(more));
        }
        // Who is inside may be suspended. Where nobody is, the clock would count what other programs do.
        let is_inside = |cache: &ThreadCache| self.has_moved(cache) && cache.tally.is_inside();
        let began = self.all().any(is_inside).then(Instant::now);
        self.keep_out_moved(lock);
        self.take_stock(lock);
        let escrow = &mut lock.escrow;
        if is_sure {
            escrow.raise_reached(combine(escrow.ceilings, more, |now, more| now + more));
        }
        // Those who asked lately will ask again: what is beyond this request is shared with them.
        let settled = escrow.settled;
        let busy = || self.kept_out().filter(|cache| settled - cache.tally.asked_at() < RECENT);
        let (others, kept_out) = (busy().count(), self.kept_out().count());
        let beyond = combine(escrow.room(), more, |room, more| (room - more).max(0));
        for cache in busy() {
            escrow.grant(&cache.tally, beyond.map(|beyond| beyond / (2 * others as i64)));
        }
        escrow.grant(tally, escrow.room());
        escrow.settled += 1;
        escrow.overdrafts = escrow.overdrafts.saturating_sub(1);
        tally.note_asked(escrow.settled);
        self.let_in();
        lock.escrow.credit.spend(kept_out, began.map(|began| began.elapsed()));
    }

    /// Whether this is another thread's, whose figures may be others than when they were settled, or may rise.
    fn has_moved(&self, cache: &ThreadCache) -> bool {
        cache.is_owned() && !cache.tally.is_frozen() && !self.is_mine(cache)
    }

    /// Keeps out all others whose figures have changed since they were settled, or may rise. The rest did nothing until
    /// the last of these had left: so at one moment all tallies were right together.
    fn keep_out_moved(&self, _lock: &mut Locked) {
        let is_new = |cache: &ThreadCache| !cache.is_kept_out() && self.has_moved(cache);
        while self.all().any(is_new) {
            self.keep_out(is_new);
        }
    }

    /// Notes the peaks and the present figures, and takes all room back: ceilings come down to the figures. Only the
    /// calling thread and those that are kept out have room.
    fn take_stock(&self, lock: &mut Locked) {
        let highest = self.high();
        self.peaks.change(|| {
            self.peaks.raise(highest);
            let settled = self.kept_out().chain([self.mine()]).map(|cache| &cache.tally);
            settled.chain([&self.others]).for_each(Tally::settle);
        });
        let now = self.high();
        let escrow = &mut lock.escrow;
        escrow.raise_reached(now);
        if escrow.is_alone {
            // Only one thread moved: all were at their highest at one time.
            escrow.raise_reached(highest);
        }
        (escrow.ceilings, escrow.is_alone) = (now, false);
    }
}
