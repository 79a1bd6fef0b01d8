//! Which free memory a request takes, and how far it is looked for.

/// Holes looked at before a search gives up: for one that is ready, and for one that lacks few pages. As many extents of a hole are
/// looked at, and free ones that may give pages. As many holes are in the longest sorted list: a longer one is cut in two.
pub(crate) const CANDIDATES: usize = 128;

/// Base pages of a hole that may stay over, for one that need not be mapped. Best fit keeps holes long; each page that comes
/// from elsewhere takes a call. (Of what is needed, 4, 8 and 16 come to 1.0038 in the mean of 42 recordings, for 7.8, 7.7 and
/// 7.6 ms a GiB. Without regard to pages: 1.0043, for 7.8 and, in one, twice what there is. Of 75 that nobody tuned for, 2, 4, 6
/// and 8 come to 1.0051, 1.0053, 1.0054 and 1.0055. Blocks that grow a little each time then hold 1.065, 1.110, 1.055 and 1.053 of
/// what is requested. docs/lab/pages.md, "Where should a block go?")
const WORTH_OF_A_PAGE: u64 = 8;

/// Extents of a hole that are asked for pages before it is passed over.
pub(crate) const MOST_EXTENTS: usize = 16;

/// How badly a hole suits a request: that leaves so many base pages over, and lacks so many.
pub(crate) fn misfit(over: u64, missing: u64) -> u64 {
    over.saturating_add(WORTH_OF_A_PAGE.saturating_mul(missing))
}

/// The most base pages that may be missing where so many stay over, for a misfit below `least`.
pub(crate) fn most_missing(over: u64, least: u64) -> Option<u64> {
    Some(least.checked_sub(over + 1)? / WORTH_OF_A_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_page_weighs_as_much_as_eight_that_stay_over() {
        assert_eq!([misfit(0, 1), misfit(8, 0), misfit(3, 2)], [8, 8, 19]);
        assert_eq!(misfit(1 << 40, u64::MAX), u64::MAX);
    }

    #[test]
    fn the_most_that_may_be_missing_stays_below_the_least() {
        for (over, least) in [(0, 8), (0, 9), (3, 100), (99, 100), (100, 100), (7, 0)] {
            let found = most_missing(over, least);
            let expected = (0..100).filter(|missing| misfit(over, *missing) < least).max();
            assert_eq!(found, expected, "{over} over, less than {least}");
        }
    }
}
