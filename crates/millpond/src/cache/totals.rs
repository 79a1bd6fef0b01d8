//! The high-water marks of a pool, although each thread counts for itself.
//!
//! Each thread publishes a *ceiling* for each figure: requested bytes, allocated bytes, blocks. It is never above its own
//! ceiling. The totals know the sum of all ceilings. A thread that is about to rise above its ceiling first raises that
//! ([`Totals::raise`]). One that has fallen by more than its *slack* lowers it ([`Totals::lower`]). Between, it counts
//! in memory of its own. So threads meet here only when they drift apart: one allocates what another frees.
//!
//! **What is reported.** Let R be the largest sum so far, and P the true peak: the most that all threads had together.
//! - Changes of the sum have one order, that of its atomic. In this order take each allocation that raises a ceiling at
//!   the raise, which comes before the block is handed out. Take each free that lowers one at the lowering, which comes
//!   after the free. The others lie anywhere between. No thread is above its ceiling, so P is at most R.
//! - A thread is at most its slack below its ceiling. So R is at most P and all slacks together: P / [`TOLERANCE`].
//! - Where one thread alone allocates and frees, its ceiling is its own peak: R is P.
//!
//! **Threads that collide.** Threads that pass blocks on as fast as they can would meet here each time. A thread that
//! sees another one change the sum at the same moment doubles its slack, and puts off what can wait. Each change
//! without a collision takes back a part of that. So a mark may be more than P / [`TOLERANCE`] too high where many
//! threads pass on a large part of all memory at once. It is never too low.

use super::sync::{AtomicI64, AtomicUsize, Ordering};
use crate::policy::peaks::{TOLERANCE, widened};

/// Requested bytes, allocated bytes, and blocks; of a thread, which may have freed what others allocated, or of all.
pub(super) type Figures = [i64; 3];

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Totals {
    figures: [Total; 3],
    /// Threads that count for themselves. Written under the pool's lock.
    threads: AtomicUsize,
}

/// On cache lines of its own: it is written by several threads, and what lies beside it is not.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Total {
    /// The sum of all threads' ceilings.
    ceilings: AtomicI64,
    /// The most that it was since the last reset.
    peak: AtomicI64,
}

impl Totals {
    /// Raises a ceiling that a thread is about to reach. Returns whether no other thread came to the same sum at the same
    /// moment.
    pub(super) fn raise(&self, figure: usize, by: i64) -> bool {
        let Total { ceilings, peak } = &self.figures[figure];
        let before = ceilings.load(Ordering::Relaxed);
        // AcqRel, here and below: what a thread freed before it lowered its ceiling comes before what is handed out after a
        // raise that sees this.
        let tried = ceilings.compare_exchange(before, before + by, Ordering::AcqRel, Ordering::Relaxed);
        let now = match tried {
            Ok(_) => before + by,
            Err(_) => ceilings.fetch_add(by, Ordering::AcqRel) + by,
        };
        if now > peak.load(Ordering::Relaxed) {
            // Release: who reads the mark sees what led to it.
            peak.fetch_max(now, Ordering::Release);
        }
        tried.is_ok()
    }

    /// Lowers a ceiling that a thread is below. `false`, and nothing done, where another thread came to the same sum at
    /// the same moment.
    pub(super) fn try_lower(&self, figure: usize, by: i64) -> bool {
        let ceilings = &self.figures[figure].ceilings;
        let before = ceilings.load(Ordering::Relaxed);
        ceilings.compare_exchange(before, before - by, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The same, in any case.
    pub(super) fn lower(&self, figure: usize, by: i64) {
        self.figures[figure].ceilings.fetch_sub(by, Ordering::AcqRel);
    }

    /// How far below its ceilings a thread may be that collided with others so often lately. `None` for any far: a thread's
    /// ceilings are its own peaks, and there is no other one.
    pub(super) fn slack(&self, collisions: u32) -> Option<Figures> {
        // Relaxed: a setting.
        let threads = self.threads.load(Ordering::Relaxed) as i64;
        let slack = |peak| widened(peak / (TOLERANCE * threads), collisions);
        (threads > 1).then(|| self.peaks().map(slack))
    }

    /// The most that all had together since the last reset, or a little more.
    pub(super) fn peaks(&self) -> Figures {
        // Acquire: see `raise`.
        self.figures.each_ref().map(|total| total.peak.load(Ordering::Acquire))
    }

    /// The marks start again from the present ceilings. Nobody raises one meanwhile.
    pub(super) fn reset(&self) {
        for Total { ceilings, peak } in &self.figures {
            peak.store(ceilings.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// A thread more that counts for itself. Returns how many there are. Under the pool's lock.
    pub(super) fn add_thread(&self) -> usize {
        self.threads.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A thread less. Under the pool's lock.
    pub(super) fn remove_thread(&self) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }
}
