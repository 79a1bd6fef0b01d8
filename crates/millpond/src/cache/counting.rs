//! What all threads count together.

use super::Locked;
use super::caches::Caches;
use super::tally::{Tally, sum};
use super::thread::ThreadCache;
use crate::counters::Counted;

impl Caches {
    /// Counts a block that the arena gave to the program, of which it asked for `requested` bytes.
    pub(crate) fn count_alloc(&self, lock: &mut Locked, requested: u64, bytes: u64) {
        self.tally_slow(lock).count_alloc_outside(requested, bytes);
    }

    /// Counts a block that the program freed to the arena.
    pub(crate) fn count_free(&self, lock: &mut Locked, requested: u64, bytes: u64) {
        let tally = self.tally_slow(lock);
        tally.count_free_outside(requested, bytes);
        if std::ptr::eq(tally, &self.others) {
            // Several threads count there, so nobody brings its ceilings down later.
            tally.settle();
        }
    }

    /// The tally that the calling thread may write under the lock.
    fn tally_slow(&self, lock: &mut Locked) -> &Tally {
        if let Some(cache) = self.join_slow(lock) {
            return &cache.tally;
        }
        // While all caches are closed, nobody else counts.
        if !self.is_closed() && !lock.counts_others {
            lock.counts_others = true;
            self.note_owner(lock);
        }
        &self.others
    }

    /// A thread more that counts for itself. Before it does.
    pub(super) fn note_owner(&self, lock: &mut Locked) {
        if self.totals.add_thread() == 2 {
            // Until now the other one had no need to lower its ceilings.
            self.settle(lock);
        }
        self.all().for_each(|cache| cache.tally.forget_slack());
    }

    /// A thread less, whose owner is kept out.
    pub(super) fn note_no_owner(&self, _lock: &mut Locked, cache: &ThreadCache) {
        self.totals.remove_thread();
        cache.tally.settle();
    }

    /// Brings all ceilings down to where the figures are.
    fn settle(&self, _lock: &mut Locked) {
        self.keep_out(|cache| cache.is_owned());
        self.kept_out().for_each(|cache| cache.tally.settle());
        self.let_in();
    }

    /// The high-water marks start again from now.
    pub(crate) fn reset_high_water(&self, _lock: &mut Locked) {
        self.keep_out(|cache| cache.is_owned());
        self.kept_out().for_each(|cache| cache.tally.settle());
        self.totals.reset();
        self.let_in();
    }

    /// What all threads counted.
    pub(crate) fn counted(&self) -> Counted {
        // That of the strays makes up for what strays counted as freed.
        let tallies = self.all().map(|cache| &cache.tally).chain([&self.others, self.strays.tally()]);
        let mut counted = sum(tallies, &self.totals);
        self.strays.correct(&mut counted);
        counted
    }
}
