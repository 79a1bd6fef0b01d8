//! Which free memory a request takes, and how far it is looked for.

/// Holes looked at before a search gives up: for one that is ready, and for one that lacks few pages. As many extents of a hole are
/// looked at, and free ones that may give pages. As many holes are in the longest sorted list: a longer one is cut in two.
pub(crate) const CANDIDATES: usize = 128;

/// Whether a hole is too long for a block, where a shorter one will do: more would stay over than the block takes. Best fit keeps
/// holes long; each page that comes from elsewhere takes a call. (docs/lab/fit.md, "A hole at most twice as long", has other
/// lengths.)
pub(crate) fn is_too_long(hole: u64, block: u64) -> bool {
    hole - block > block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_at_most_twice_as_long_as_its_block() {
        assert_eq!([10, 15, 20, 21].map(|hole| is_too_long(hole, 10)), [false, false, false, true]);
        assert!(!is_too_long(u64::MAX, u64::MAX));
    }
}
