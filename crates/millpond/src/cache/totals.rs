//! The high-water marks of a pool, although each thread counts for itself.
//!
//! Each thread publishes a *ceiling* for each figure: requested bytes, allocated bytes, blocks. It is never above its own
//! ceiling. The totals know the sum of all ceilings. A thread that is about to rise above its ceiling first raises that
//! ([`Totals::add`]). One whose allocated bytes have fallen by more than its *slack* lowers its ceilings to where it is.
//! Between, it counts in memory of its own. So threads meet here only when they drift apart: one
//! allocates what another frees.
//!
//! **What is reported.** Let R be the largest sum so far, and P the true peak: the most that all threads had together.
//! - Changes of the sum have one order, that of its atomic. In this order take each allocation that raises a ceiling at
//!   the raise, which comes before the block is handed out. Take each free that lowers one at the lowering, which comes
//!   after the free. The others lie anywhere between. No thread is above its ceiling, so P is at most R.
//! - A thread is at most its slack below its ceiling. So R, of allocated bytes, is at most P and all slacks together.
//!   They are a 128th of R (`policy/peaks.rs`). The other figures follow, as far as they move with the bytes.
//! - Where one thread alone allocates and frees, its ceilings are its own peaks: R is P.
//!
//! **Strays.** A stray is the second copy of a block that two threads freed at once: it was counted as a free, too. Whichever
//! thread finds one drops it, and notes that here. See `extents/map/page_map.rs`.
//!
//! In throughput mode, slacks are wider, and a thread raises its ceilings by a little more than it needs.

use super::sync::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use crate::policy::peaks::{Slack, slack};

/// Requested bytes, allocated bytes, and twice the blocks, as epochs count; of a thread, which may have freed what others
/// allocated, or of all.
pub(super) type Figures = [i64; 3];

/// Which of them the allocated bytes are.
pub(super) const ALLOCATED: usize = 1;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Totals {
    ceilings: Ceilings,
    /// The most that each sum was since the last reset.
    peaks: [AtomicI64; 3],
    /// What was counted as freed for strays that were dropped.
    strays: [AtomicI64; 3],
    /// Threads that count for themselves. Written under the pool's lock.
    pub(super) threads: AtomicUsize,
    /// Whether memory is spent to save time. Slacks are wide then. Written under the pool's lock.
    pub(super) in_throughput_mode: AtomicBool,
}

/// The sums of all threads' ceilings. On cache lines of their own: all threads write them, often all three. What else there is
/// is seldom written, and read each time.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Ceilings([AtomicI64; 3]);

impl Totals {
    /// Raises a ceiling that a thread is about to pass, or lowers one that it is below.
    pub(super) fn add(&self, figure: usize, by: i64) {
        let (Ceilings(ceilings), peak) = (&self.ceilings, &self.peaks[figure]);
        // AcqRel: what a thread freed before it lowered its ceiling comes before what is handed out after a raise that sees
        // this.
        let now = ceilings[figure].fetch_add(by, Ordering::AcqRel) + by;
        if now > peak.load(Ordering::Relaxed) {
            // Release: who reads the mark sees what led to it.
            peak.fetch_max(now, Ordering::Release);
        }
    }

    /// What each thread's tally goes by now.
    pub(super) fn slack(&self) -> Slack {
        // Relaxed, all: settings.
        let peak = self.peaks[ALLOCATED].load(Ordering::Relaxed);
        let threads = self.threads.load(Ordering::Relaxed) as i64;
        slack(peak, threads, self.in_throughput_mode.load(Ordering::Relaxed))
    }

    /// The most that all had together since the last reset, or a little more.
    pub(super) fn peaks(&self) -> Figures {
        // Acquire: see `add`.
        self.peaks.each_ref().map(|peak| peak.load(Ordering::Acquire))
    }

    /// Notes a stray that was dropped. It is reported later: whoever comes upon it may be inside a cache.
    #[cold]
    pub(super) fn note_stray(&self, counted: Figures) {
        for (figure, more) in counted.into_iter().enumerate() {
            self.add(figure, more);
            // Relaxed, here and below: a count.
            self.strays[figure].fetch_add(more, Ordering::Relaxed);
        }
    }

    /// What was counted as freed for strays: to be added to what the threads counted.
    pub(super) fn strays(&self) -> Figures {
        self.strays.each_ref().map(|strays| strays.load(Ordering::Relaxed))
    }

    /// The marks start again from the present ceilings. Nobody raises one meanwhile.
    pub(super) fn reset(&self) {
        for (ceilings, peak) in self.ceilings.0.iter().zip(&self.peaks) {
            peak.store(ceilings.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
