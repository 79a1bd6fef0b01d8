//! How exact high-water marks are, and what that may cost: see `cache/settling.rs`.

use std::time::{Duration, Instant};

/// The part of a peak by which the sum of the threads' ceilings may be above it.
pub(crate) const TOLERANCE: i64 = 1024;

/// Settlements for which a thread that asked counts as still allocating: it gets some of the room that others ask for.
pub(crate) const RECENT: u64 = 8;

/// The part of a peak that a thread may have beyond what can be granted, where nobody is to be kept out. What it does
/// not use changes no report.
pub(crate) const OVERDRAFT_PART: i64 = 2;

/// An overdraft in any pool: requested bytes, allocated bytes, and blocks.
pub(crate) const LEAST_OVERDRAFT: [i64; 3] = [64 << 20, 64 << 20, 128 << 10];

/// Times that an overdraft doubles at most: threads that pass many blocks on should seldom meet at the lock.
pub(crate) const MOST_DOUBLINGS: u32 = 12;

/// The part of the time that may go to keeping others out.
const SHARE: u32 = 100;

/// What may be saved up for that: thousands of settlements, as many as a job makes while it grows.
const MOST_CREDIT: Duration = Duration::from_millis(20);

/// About what keeping out one thread costs at least: a barrier, and its next request may have to wait for the lock. Each
/// of many threads also waits for all others there, so the cost goes with their square. (With a cost in proportion,
/// 16 threads did a thirtieth of their pairs in a pool's first 200 ms, on an H200's Xeon.)
const LEAST_COST: Duration = Duration::from_micros(10);

/// Time that keeping others out may take, in nanoseconds; negative where the last time took more than was left.
#[derive(Debug)]
pub(crate) struct Credit {
    left: i64,
    since: Option<Instant>,
}

impl Default for Credit {
    fn default() -> Self {
        Self { left: nanoseconds(MOST_CREDIT), since: None }
    }
}

impl Credit {
    pub(crate) fn is_left(&mut self, now: Instant) -> bool {
        let passed = self.since.replace(now).map_or(Duration::ZERO, |since| now - since);
        self.left = self.left.saturating_add(nanoseconds(passed / SHARE)).min(nanoseconds(MOST_CREDIT));
        self.left > 0
    }

    /// Notes that so many threads were kept out, and how long that took, where it is known.
    pub(crate) fn spend(&mut self, threads: usize, took: Option<Duration>) {
        let least = LEAST_COST * u32::try_from(threads * threads).unwrap_or(u32::MAX);
        self.left = self.left.saturating_sub(nanoseconds(took.unwrap_or_default().max(least)));
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_beyond_the_credit_is_owed() {
        let mut credit = Credit::default();
        let now = Instant::now();
        assert!(credit.is_left(now));
        // A hundred times as long has to pass now.
        credit.spend(1, Some(MOST_CREDIT * 1000));
        for _ in 0..100 {
            assert!(!credit.is_left(now));
        }
    }
}
