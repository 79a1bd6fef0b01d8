//! Models of settling (`settling.rs`): loom tries every order in which two threads may count, ask and settle.
//!
//! **What is real** are asymmetric locks and tallies. **What is modelled**: the pool's lock is loom's. One block has
//! one byte. No more is granted than was there at one time, so peaks have to be exact.

use std::ptr::NonNull;

use loom::sync::{Arc, Mutex};
use loom::thread::{self, yield_now};

use super::asymmetric_lock::{AsymmetricLock, Guarded};
use super::sync::heavy_barrier;
use super::tally::{Tally, combine};

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
struct SettlingCache {
    lock: AsymmetricLock<NoMagazines>,
    tally: Tally,
}

impl SettlingCache {
    fn open(&self) {
        self.lock.open();
    }
}

/// `Escrow`, of bytes.
#[derive(Default)]
struct SettlingEscrow {
    reached: i64,
    peak: i64,
}

struct SettlingPool {
    caches: [SettlingCache; 2],
    state: Mutex<SettlingEscrow>,
}

impl SettlingPool {
    fn new() -> Arc<Self> {
        let cache = || SettlingCache { lock: AsymmetricLock::new(), tally: Tally::default() };
        let pool = Self { caches: [cache(), cache()], state: Mutex::default() };
        pool.caches.iter().for_each(SettlingCache::open);
        Arc::new(pool)
    }

    fn alloc(&self, index: usize) {
        let cache = &self.caches[index];
        if let Some(passage) = cache.lock.enter_without_entry(cache.tally.to_alloc())
            && cache.tally.rise(&passage, 1, 1)
        {
            passage.complete();
            return;
        }
        let mut state = self.state.lock().unwrap();
        if !cache.tally.count_alloc_outside(1, 1) {
            self.settle(&mut state, index);
            assert!(cache.tally.count_alloc_outside(1, 1), "what was granted is not there");
        }
    }

    fn free(&self, index: usize) {
        let cache = &self.caches[index];
        if let Some(passage) = cache.lock.enter_without_entry(cache.tally.to_free()) {
            cache.tally.count_free(passage, 1, 1);
            return;
        }
        let _state = self.state.lock().unwrap();
        cache.tally.count_free_outside(1, 1);
    }

    /// `Caches::settle`.
    fn settle(&self, escrow: &mut SettlingEscrow, asking: usize) {
        let other = &self.caches[1 - asking];
        let moved = !other.tally.is_frozen();
        if moved {
            other.lock.close();
            heavy_barrier();
            AsymmetricLock::<NoMagazines>::wait_until_left(other.tally.epochs());
        }
        escrow.peak = escrow.peak.max(self.high());
        let settled = self.caches.iter().enumerate().filter(|(at, _)| moved || *at == asking);
        settled.for_each(|(_, cache)| cache.tally.settle());
        let now = self.high();
        escrow.reached = escrow.reached.max(now + 1);
        let room = escrow.reached - now;
        self.caches[asking].tally.grant([room; 3]);
        if moved {
            other.open();
        }
    }

    fn high(&self) -> i64 {
        self.caches.iter().map(|cache| cache.tally.high()).fold([0; 3], |a, b| combine(a, b, |a, b| a + b))[0]
    }

    /// What is reported at the end.
    fn peak(&self) -> i64 {
        let state = self.state.lock().unwrap();
        let peak = state.peak.max(self.high());
        assert!(state.reached <= peak, "more was granted than was there");
        peak
    }
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

#[test]
fn peaks_of_threads_that_take_turns_are_not_added_up() {
    model(|| {
        let pool = SettlingPool::new();
        // The program's own way of handing a pointer over synchronises, as a channel does.
        let handed = Arc::new(Mutex::new(false));
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
        assert_eq!(pool.peak(), 1);
    });
}

#[test]
fn what_two_threads_have_together_is_the_peak() {
    model(|| {
        let pool = SettlingPool::new();
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
        pool.free(1);
        pool.free(1);
        let now = pool.caches.iter().map(|cache| cache.tally.now()[0]).sum::<i64>();
        assert_eq!((pool.peak(), now), (2, 0));
    });
}
