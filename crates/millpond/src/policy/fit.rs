//! Which free memory a request takes, and how far it is looked for.

/// Free extents looked at before a search gives up: for one that is ready, for one at a lower address, and for one end of a place that
/// has to grow. The longest of these save the most pages. (One came to 1.0176, 32 to 1.0116, 64 to 1.0104, 128 to 1.0099, all to
/// 1.0100.) As many are in the longest sorted list: a longer one is cut in two.
pub(crate) const CANDIDATES: usize = 128;

/// Whether the best fit is taken for a large block: `rest` units are left over, and a base page has so many. No page of
/// so little could serve elsewhere. Else the lowest address is taken. (docs/lab/pages.md, "The lowest address, or the best
/// fit?": one base page is as good as a half, two or four, and better than none.)
pub(crate) fn is_snug(rest: u64, base_page: u64) -> bool {
    rest <= base_page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snug_fit_leaves_at_most_a_base_page() {
        assert_eq!([0, 4096, 4097].map(|rest| is_snug(rest, 4096)), [true, true, false]);
    }
}
