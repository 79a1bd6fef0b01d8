//! How long a new page is. Short pages pin less, and cost more device calls.
//!
//! docs/lab/pages.md, "How long should a page be?", has what was measured for each constant.

use super::ledger::Balance;

/// Pages enough for a large block. (What jobs need over what they request, in the mean of 42 recordings, and device time a GiB, for a
/// 16th of the block: 1.0056, 3.4 ms. A 32nd: 1.0048, 5.0 ms. A 48th: 1.0042, 5.3 ms. A 64th: 1.0040, 6.5 ms. A 128th: 1.0040, 8.3 ms.)
const PAGES_IN_BLOCK: u64 = 64;

/// Pages that are enough for all that is held, unless the pool saves. (Of 75 recordings that nobody tuned for, a 256th, 512th and
/// 1024th come to 1.0062, 1.0055 and 1.0054, for 15.3, 16.2 and 17.7 ms a GiB; 4, 6 and 13 of them spend more than 20 ms.) And pages
/// in what the limits leave: what is free on a long page beside a live block cannot be had at a limit. (docs/lab/fit.md has what other
/// numbers come to there.)
const PAGES_IN_POOL: u64 = 512;

/// Pages in a block at least, however much is held. Where blocks that stay lie among others, each loses about a page. (1, 2 and 4 are
/// compared in docs/lab/fit.md.)
const LEAST_PAGES_IN_BLOCK: u64 = 2;

/// What a new page is for. Lengths are in base pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageNeed {
    /// What is left to back.
    pub(crate) room: u32,
    /// The longest page that there may be.
    pub(crate) longest: u32,
    /// The shortest page that is worth it, where there is room.
    pub(crate) least: u32,
    /// The block that is asked for, rounded down.
    pub(crate) block: u64,
    /// All that the pool holds.
    pub(crate) held: u64,
    /// All that the limits and the device leave.
    pub(crate) left: u64,
    /// Whether there is time for short pages.
    pub(crate) balance: Balance,
}

/// The length of a new page of the large zone, a power of two: `min(room, longest, max(least, min(enough, left / 512)))`. What is
/// `enough` is `block / 64` while the pool saves, else `max(block / 64, min(held / 512, block / 2))`.
pub(crate) fn page_length(need: PageNeed) -> u32 {
    let PageNeed { room, longest, least, block, held, left, balance } = need;
    let enough = match balance {
        Balance::Saving => block / PAGES_IN_BLOCK,
        Balance::Even | Balance::Overdrawn => {
            (block / PAGES_IN_BLOCK).max((held / PAGES_IN_POOL).min(block / LEAST_PAGES_IN_BLOCK))
        }
    };
    let enough = enough.min(left / PAGES_IN_POOL);
    let enough = u32::try_from(enough.max(u64::from(least))).unwrap_or(u32::MAX);
    1 << room.min(longest).min(enough).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: PageNeed = PageNeed {
        room: 4096,
        longest: 16,
        least: 1,
        block: 512,
        held: 0,
        left: u64::MAX,
        balance: Balance::Saving,
    };

    #[test]
    fn a_page_is_a_64th_of_its_block_within_room() {
        let of = |block, room| page_length(PageNeed { block, room, ..NEED });
        // 64ths: 8, 7.98, 8 (in a room of 7) and 0.98; and more than the longest, 16. All down to powers of two.
        assert_eq!(
            [of(512, 4096), of(511, 4096), of(512, 7), of(63, 4096), of(1 << 40, 4096)],
            [8, 4, 4, 1, 16]
        );
    }

    #[test]
    fn a_page_is_as_long_as_is_worth_it_within_room() {
        let of = |room, longest| page_length(PageNeed { room, longest, least: 4, block: 20, ..NEED });
        assert_eq!([of(20, 16), of(3, 16), of(20, 2), of(1, 16)], [4, 2, 2, 1]);
    }

    #[test]
    fn pages_get_shorter_as_a_limit_comes_near() {
        let of = |left| page_length(PageNeed { held: 1 << 20, left, balance: Balance::Even, ..NEED });
        assert_eq!([8192, 8191, 4096, 1024, 0].map(of), [16, 8, 8, 2, 1]);
    }

    #[test]
    fn pages_are_long_unless_the_pool_saves() {
        let of = |balance| page_length(PageNeed { held: 8192, balance, ..NEED });
        // 512 / 64, and 8192 / 512.
        assert_eq!([Balance::Saving, Balance::Even, Balance::Overdrawn].map(of), [8, 16, 16]);
    }

    #[test]
    fn a_page_is_half_of_its_block_at_most() {
        let of = |block| page_length(PageNeed { block, held: 8192, balance: Balance::Even, ..NEED });
        assert_eq!([32, 31, 5, 1].map(of), [16, 8, 2, 1]);
    }
}
