//! How much of the free pages one miss looks at, and how many old mappings stay.

use super::Policy;
use super::fit::CANDIDATES;

/// Old mappings that one miss asks about, whose work may be under way. A miss goes on while most are complete, and the next one
/// begins where it ended. So a miss costs the same behind any number of them.
pub(crate) const MOST_PENDING_LOOKED_AT: usize = 32;

/// Whether so many donors are enough for a miss that still lacks so many base pages: as many as holes are looked at. There must be
/// enough for all of them, or the pool would grow with free pages left. (With 32, the two halves of 86 recordings hold 1.0132 and 1.0068
/// of what they request, with 64, 128 and any number 1.0132 and 1.0062.)
pub(crate) fn are_enough(donors: usize, lacking: u64) -> bool {
    donors >= CANDIDATES && lacking == 0
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
    fn a_miss_considers_as_many_donors_as_it_needs() {
        assert_eq!(
            [(1, 0), (127, 0), (128, 0), (128, 1)].map(|(donors, lacking)| are_enough(donors, lacking)),
            [false, false, true, false]
        );
    }
}
