//! How much of the free pages one miss looks at, and how many old mappings stay.

use super::Policy;

/// Base pages considered in one miss, unless it lacks more. Bounds a miss where very much is free in pieces: 2 GiB in pages of
/// 2 MiB. (A quarter of it came to 1.0106, a sixteenth to 1.0111, four times as many as this to 1.0102 as this does.)
const MOST_DONATED: u64 = 1024;

/// Old mappings that one miss asks about, whose work may be under way. A miss goes on while most are complete, and the next one
/// begins where it ended. So a miss costs the same behind any number of them.
pub(crate) const MOST_PENDING_LOOKED_AT: usize = 32;

/// Base pages of donors that are enough for a miss that lacks so many. There must be enough for all of them, or the pool would
/// grow with free pages left.
pub(crate) fn enough_base_pages(missing: u64) -> u64 {
    MOST_DONATED.max(missing)
}

/// How many old mappings stay, for pages that may come back, in a pool that has so many pages. Twice and four times as many
/// were no better (docs/lab/pages.md).
pub(crate) fn most_dormant(policy: Policy, pages: usize) -> usize {
    if policy.dormant { pages } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_considers_as_many_pages_as_it_may_take() {
        assert_eq!([1, 1024, 10_000].map(enough_base_pages), [1024, 1024, 10_000]);
    }
}
