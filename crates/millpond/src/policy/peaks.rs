//! How exact high-water marks are while several threads count: see `cache/totals.rs`.

use super::caching::MOST_BLOCKS;
use super::size_classes::{EXACT_FROM, most_wasted};

/// The part of a peak by which all threads together may be below their ceilings.
pub(crate) const TOLERANCE: i64 = 128;

/// What a tally goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slack {
    /// How far the allocated bytes may be below their ceiling.
    pub(crate) bytes: i64,
    /// By how much more than it needs the tally raises its ceilings: of requested bytes, of allocated bytes, and of twice the
    /// blocks. The blocks are as many as a magazine gets from the depot.
    pub(crate) ahead: [i64; 3],
}

/// The slack of each of so many threads. Those that only allocate and free a few small blocks should not meet. In throughput mode,
/// time counts for more: it is as much as a pool may grow by that has little. (With the slack of other modes, threads that allocate and free blocks of
/// 16 MiB did two thirds of their pairs. Half of this made hand-over by eight threads a sixth slower.)
pub(crate) fn slack(peak: i64, threads: i64, in_throughput_mode: bool) -> Slack {
    if threads <= 1 {
        // Its ceilings are its own peaks.
        return Slack { bytes: i64::MAX, ahead: [0; 3] };
    }
    let least = if in_throughput_mode { most_wasted() } else { EXACT_FROM };
    let bytes = (peak / (TOLERANCE * threads)).max(least as i64);
    // Less than the slack: a free after a raise must not lower the ceilings again.
    let ahead = if in_throughput_mode { [bytes / 2, bytes / 2, MOST_BLOCKS as i64] } else { [0; 3] };
    Slack { bytes, ahead }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_together_are_a_part_of_the_peak_below() {
        for threads in [2, 16] {
            assert_eq!(slack(1 << 40, threads, false).bytes * threads * TOLERANCE, 1 << 40);
            let wide = slack(1 << 30, threads, true);
            assert!(wide.bytes == 64 << 20 && wide.ahead[0] < wide.bytes);
        }
        assert_eq!(slack(1 << 20, 2, false), Slack { bytes: 1 << 20, ahead: [0; 3] });
        assert_eq!(slack(1 << 40, 1, true).ahead, [0; 3]);
    }
}
