//! High-water marks of what threads count themselves, read without a lock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};

use super::tally::{Figures, TRIES, combine};

/// High-water marks of what threads count themselves, up to when their tallies were settled. Written under the pool's lock,
/// read without it.
#[derive(Debug, Default)]
pub(super) struct Peaks {
    figures: [AtomicI64; 3],
    /// Odd while tallies are settled: a reader may then see some of them settled and some not.
    version: AtomicU64,
}

impl Peaks {
    pub(super) fn figures(&self) -> Figures {
        self.figures.each_ref().map(|figure| figure.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, to: Figures) {
        self.figures.iter().zip(to).for_each(|(figure, to)| figure.store(to, Ordering::Relaxed));
    }

    pub(super) fn raise(&self, to: Figures) {
        self.set(combine(self.figures(), to, i64::max));
    }

    /// Calls `settle`, during which readers wait.
    pub(super) fn change<R>(&self, settle: impl FnOnce() -> R) -> R {
        // A load and a store: under the lock.
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // Who sees what is written from here on sees the odd number.
        fence(Ordering::Release);
        let result = settle();
        // Release: who sees the even number sees all that was written.
        self.version.store(version + 2, Ordering::Release);
        result
    }

    /// What `read` returns while nothing is settled; after many tries, as in a forked child whose parent
    /// was settling, whatever it returns.
    pub(super) fn read<R>(&self, read: impl Fn() -> R) -> R {
        for _ in 0..TRIES {
            // Acquire: pairs with the Release at the end of `change`.
            let before = self.version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let result = read();
                // Acquire: pairs with the fence in `change`.
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == before {
                    return result;
                }
            }
            std::thread::yield_now();
        }
        read()
    }
}
