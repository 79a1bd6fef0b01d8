//! How long a new page is. Short pages pin less, and cost more device calls.
//!
//! docs/lab/pages.md, "How long should a page be?", has what was measured for each constant.

use super::ledger::Balance;

/// Pages enough for a large block: about one is pinned at the ends of a hole, and several blocks share a hole. (A 20th of the
/// block comes to 1.0097 at 0.59 %, a 22nd to 1.0098 at 0.59 %. A 24th, 26th and 28th come to 1.0096, 1.0097 and 1.0099 at 0.60 %.)
const PAGES_IN_BLOCK: u64 = 24;

/// Pages that are enough for all that is held, unless the pool saves. (A 96th comes to 1.0101, a 100th,
/// 104th and 108th to 1.0096, a 112th to 1.0094, all at 0.60 %. Without it three jobs take more than 1 %.)
const PAGES_IN_POOL: u64 = 104;

/// What a new page is for. Lengths are in base pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageNeed {
    /// What is left to back.
    pub(crate) room: u32,
    /// The longest page that there may be.
    pub(crate) longest: u32,
    /// The block that is asked for, rounded down.
    pub(crate) block: u64,
    /// All that the pool holds.
    pub(crate) held: u64,
    /// Whether there is time for short pages.
    pub(crate) balance: Balance,
}

/// The length of a new page of the large zone, a power of two: `min(room, longest, block / 24)` while the pool saves, else
/// `min(room, longest, max(block / 24, held / 104))`.
pub(crate) fn page_length(need: PageNeed) -> u32 {
    let PageNeed { room, longest, block, held, balance } = need;
    let enough = match balance {
        Balance::Saving(_) => block / PAGES_IN_BLOCK,
        Balance::Even | Balance::Overdrawn => (block / PAGES_IN_BLOCK).max(held / PAGES_IN_POOL),
    };
    let enough = u32::try_from(enough.max(1)).unwrap_or(u32::MAX);
    1 << room.min(longest).min(enough).ilog2()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SAVING: Balance = Balance::Saving(Duration::ZERO);

    const NEED: PageNeed = PageNeed { room: 4096, longest: 16, block: 192, held: 0, balance: SAVING };

    #[test]
    fn a_page_is_a_24th_of_its_block_within_room() {
        let of = |block, room| page_length(PageNeed { block, room, ..NEED });
        // 24ths: 8, 7.9, 8 (in a room of 7) and 0.9; and more than the longest, 16. All down to powers of two.
        assert_eq!(
            [of(192, 4096), of(191, 4096), of(192, 7), of(23, 4096), of(1 << 40, 4096)],
            [8, 4, 4, 1, 16]
        );
    }

    #[test]
    fn pages_are_long_unless_the_pool_saves() {
        let of = |balance| page_length(PageNeed { held: 1664, balance, ..NEED });
        // 192 / 24, and 1664 / 104.
        assert_eq!([SAVING, Balance::Even, Balance::Overdrawn].map(of), [8, 16, 16]);
    }
}
