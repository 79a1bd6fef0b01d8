//! How long a new page is. Short pages pin less, and cost more device calls.
//!
//! docs/lab/pages.md, "How long should a page be?", has what was measured for each constant.

/// Pages enough for a large block. (What jobs need over what they request, in the mean of 42 recordings, and device time a GiB, for a
/// 16th of the block: 1.0056, 3.4 ms. A 32nd: 1.0048, 5.0 ms. A 48th: 1.0042, 5.3 ms. A 64th: 1.0040, 6.5 ms. A 128th: 1.0040, 8.3 ms.)
const PAGES_IN_BLOCK: u64 = 64;

/// Pages in what the limits leave: what is free on a long page beside a live block cannot be had at a limit. (docs/lab/fit.md has what
/// other numbers come to.)
const PAGES_IN_LEFT: u64 = 512;

/// Pages in a block at least, however often they double. Where blocks that stay lie among others, each loses about a page. (1, 2, 4 and
/// 8 are compared in docs/lab/fit.md.)
const LEAST_PAGES_IN_BLOCK: u64 = 4;

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
    /// All that the limits and the device leave.
    pub(crate) left: u64,
    /// How often new pages double, to save time.
    pub(crate) doublings: u32,
}

/// The length of a new page of the large zone, a power of two: `min(room, longest, max(least, min(enough, left / 512)))`. What is
/// `enough` is `min(max(least, block / 64) * 2^doublings, block / 4)`.
pub(crate) fn page_length(need: PageNeed) -> u32 {
    let PageNeed { room, longest, least, block, left, doublings } = need;
    let least = u64::from(least);
    let doubled = (block / PAGES_IN_BLOCK).max(least).saturating_mul(1 << doublings.min(63));
    let enough = doubled.min(block / LEAST_PAGES_IN_BLOCK).min(left / PAGES_IN_LEFT).max(least);
    1 << room.min(longest).min(u32::try_from(enough).unwrap_or(u32::MAX)).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: PageNeed =
        PageNeed { room: 4096, longest: 16, least: 1, block: 512, left: u64::MAX, doublings: 0 };

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
        let of = |left| page_length(PageNeed { left, doublings: 9, ..NEED });
        assert_eq!([8192, 8191, 4096, 1024, 0].map(of), [16, 8, 8, 2, 1]);
    }

    #[test]
    fn pages_double_up_to_a_quarter_of_their_block() {
        let of = |block, doublings| page_length(PageNeed { longest: 1024, block, doublings, ..NEED });
        assert_eq!(
            [0, 1, 2, 4, 5, 63, u32::MAX].map(|doublings| of(512, doublings)),
            [8, 16, 32, 128, 128, 128, 128]
        );
        // A 64th of the block is less than a page.
        assert_eq!([0, 1, 2, 3, 4].map(|doublings| of(33, doublings)), [1, 2, 4, 8, 8]);
        assert_eq!([1, 7, 8, 1 << 40].map(|block| of(block, u32::MAX)), [1, 1, 2, 1024]);
    }
}
