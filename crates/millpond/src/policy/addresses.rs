//! How many addresses a pool reserves, of the device and of the host, and how long a segment is.
//!
//! Addresses are free: memory is taken only where something lies.

/// Bytes of the longest region, unless a block is longer. That is several times what a device has, so that blocks which grow find
/// room beside what is free.
pub(crate) const LONGEST_REGION: u64 = 1 << 40;

/// Blocks and free ranges that one arena may have, where the process has addresses for so many: 4 GiB for what describes them.
pub(crate) const MOST_ALLOCATED: usize = if cfg!(all(unix, not(miri))) { 1 << 24 } else { 1 << 16 };

/// Chains of the page map for each block, at least: so many that few blocks come second in theirs. (With half as many, four threads
/// with mixed sizes took 28 ns a pair, not 23: docs/lab/mechanisms.md, "chains of four bytes".)
pub(crate) const CHAINS: usize = 16;

/// Chains whose blocks move when a block is allocated while there come to be twice as many: those of 4,096 blocks, which takes 0.3 ms.
/// So few blocks are found by the longer way, and only while a pool of more than these grows. (With 32 a pool whose blocks no longer
/// became more kept half of them there: hand-over and mixed sizes took up to 1.4 times as long.)
pub(crate) const SPLIT_AT_ONCE: u32 = 1 << 16;

/// The length of a segment for a large request of `least` base pages. Short requests share a segment as long as the longest page.
/// What more than half of it would lie in has a segment of its own: the rest would serve only shorter requests.
pub(crate) fn segment_length(least: u64, longest_page: u64) -> u64 {
    if least > longest_page / 2 { least } else { longest_page }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_more_than_half_a_page_have_their_own_segment() {
        assert_eq!([1, 8, 9, 10, 40].map(|least| segment_length(least, 16)), [16, 16, 9, 10, 40]);
    }
}
