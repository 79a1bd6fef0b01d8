//! Models of high-water marks (`totals.rs`): loom tries every order in which two threads may count.
//!
//! **What is real** are asymmetric locks, tallies and totals. **What is modelled**: the pool's lock is loom's. One block
//! is longer than any slack: marks have to be exact.

use std::ptr::NonNull;

use loom::sync::Mutex;
use loom::sync::atomic::Ordering;
use loom::thread::{self, yield_now};

use super::asymmetric_lock::{AsymmetricLock, Epoch, Guarded};
use super::sync::heavy_barrier;
use super::tally::{Tally, sum};
use super::totals::Totals;
use crate::figures::stats::Level;
use crate::policy::size_classes::EXACT_FROM;

/// Bytes of a block.
const BLOCK: u64 = 2 * EXACT_FROM;

/// Nobody comes in by an entry.
struct NoMagazines;

static CLOSED: u64 = 0;

impl Guarded for NoMagazines {
    unsafe fn serial(_: NonNull<Self>) -> u64 {
        CLOSED
    }

    fn closed() -> NonNull<Self> {
        NonNull::from(&CLOSED).cast()
    }
}

/// One thread's cache.
struct CountingCache {
    lock: AsymmetricLock<NoMagazines>,
    tally: Tally,
}

struct CountingPool {
    caches: [CountingCache; 2],
    totals: Totals,
    /// The pool's lock.
    lock: Mutex<()>,
}

impl CountingPool {
    fn new() -> loom::sync::Arc<Self> {
        let totals = Totals::default();
        let cache = || {
            totals.threads.fetch_add(1, Ordering::Relaxed);
            CountingCache { lock: AsymmetricLock::new(), tally: Tally::default() }
        };
        let caches = [cache(), cache()];
        caches.iter().for_each(|cache| cache.lock.open());
        loom::sync::Arc::new(Self { caches, totals, lock: Mutex::default() })
    }

    fn alloc(&self, index: usize) {
        let CountingCache { lock, tally } = &self.caches[index];
        if let Some(passage) = lock.enter_without_entry(&tally.to_alloc) {
            if !tally.rise(1, BLOCK) {
                tally.count([1, BLOCK as i64], 1, &self.totals);
            }
            passage.complete();
            return;
        }
        let _lock = self.lock.lock().unwrap();
        tally.count_outside(|tally| &tally.to_alloc, [1, BLOCK as i64], &self.totals);
    }

    fn free(&self, index: usize) {
        let CountingCache { lock, tally } = &self.caches[index];
        if let Some(passage) = lock.enter_without_entry(&tally.to_free) {
            let room = tally.room_after(BLOCK);
            if tally.is_within_slack(room) {
                tally.fall(1, room);
            } else {
                tally.count([-1, -(BLOCK as i64)], -1, &self.totals);
            }
            passage.complete();
            return;
        }
        let _lock = self.lock.lock().unwrap();
        tally.count_outside(|tally| &tally.to_free, [-1, -(BLOCK as i64)], &self.totals);
    }

    /// `Caches::reset_high_water`.
    fn reset(&self) {
        let _lock = self.lock.lock().unwrap();
        self.caches.iter().for_each(|cache| _ = cache.lock.close());
        heavy_barrier();
        for CountingCache { tally, .. } in &self.caches {
            tally.epochs().into_iter().for_each(Epoch::wait_until_left);
            tally.settle(&self.totals);
        }
        self.totals.reset();
        self.caches.iter().for_each(|cache| cache.lock.open());
    }

    /// Allocated bytes: now, and the mark.
    fn level(&self) -> (u64, u64) {
        let Level { current, high } =
            sum(self.caches.iter().map(|cache| &cache.tally), &self.totals).allocated;
        (current / BLOCK, high / BLOCK)
    }
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

#[test]
fn peaks_of_threads_that_take_turns_are_not_added_up() {
    model(|| {
        let pool = CountingPool::new();
        // The program's own way of handing a pointer over synchronises, as a channel does.
        let handed = loom::sync::Arc::new(Mutex::new(false));
        let giver = thread::spawn({
            let (pool, handed) = (pool.clone(), handed.clone());
            move || {
                pool.alloc(0);
                *handed.lock().unwrap() = true;
            }
        });
        while !*handed.lock().unwrap() {
            yield_now();
        }
        pool.free(1);
        pool.alloc(1);
        giver.join().unwrap();
        assert_eq!(pool.level(), (1, 1));
    });
}

#[test]
fn what_two_threads_have_together_is_the_peak() {
    model(|| {
        let pool = CountingPool::new();
        let other = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.alloc(0);
                pool.free(0);
                pool.alloc(0);
            }
        });
        pool.alloc(1);
        other.join().unwrap();
        // Both have one now, whatever the order was.
        assert_eq!(pool.level(), (2, 2));
        pool.free(1);
        pool.free(1);
        assert_eq!(pool.level(), (0, 2));
    });
}

#[test]
fn marks_start_again_from_what_was_there_at_one_time() {
    model(|| {
        let pool = CountingPool::new();
        pool.alloc(1);
        let other = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.alloc(0);
                pool.free(0);
            }
        });
        pool.reset();
        other.join().unwrap();
        let (now, high) = pool.level();
        assert!(now == 1 && (1..=2).contains(&high));
        pool.reset();
        assert_eq!(pool.level(), (1, 1));
    });
}
