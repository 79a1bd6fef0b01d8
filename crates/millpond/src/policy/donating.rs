//! How many pages of free extents one miss looks at, and how many old mappings stay.

use super::{Mechanism, without};

/// Pages considered in one miss, unless it lacks more. Bounds a miss where very much is free in pieces: 8 GiB in pages of
/// 2 MiB.
const MOST_DONOR_PAGES: u64 = 4096;

/// Donor pages that are enough for a miss that lacks so many base pages. There must be enough of the shortest pages too,
/// or the pool would grow with free pages left.
pub(crate) fn enough_pages(missing: u64) -> u64 {
    MOST_DONOR_PAGES.max(missing)
}

/// How many old mappings stay, for pages that may come back, in a pool that has so many pages. Twice and four times as many
/// were no better (docs/lab/pages.md).
pub(crate) fn most_dormant(pages: usize) -> usize {
    if without(Mechanism::Dormant) { 0 } else { pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_considers_as_many_pages_as_it_may_take() {
        assert_eq!([1, 4096, 10_000].map(enough_pages), [4096, 4096, 10_000]);
    }
}
