//! The order in which a working set is visited: each step depends on the one before, and no prefetcher guesses it.

/// Of Knuth's generator for MMIX. Modulo a power of two, `node * A + C` visits every node once before it comes back: C is
/// odd, and A is 1 modulo 4 (Hull and Dobell, 1962).
pub(crate) const A: u64 = 6_364_136_223_846_793_005;
pub(crate) const C: u64 = 1_442_695_040_888_963_407;

/// The node after `node`, of `nodes`, a power of two.
#[inline]
pub(crate) fn next(node: u64, nodes: u64) -> u64 {
    node.wrapping_mul(A).wrapping_add(C) & (nodes - 1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_node_is_visited_once() {
        for nodes in [1_u64, 2, 64, 4096, 1 << 16] {
            let mut seen = vec![false; nodes as usize];
            let mut at = 0;
            for _ in 0..nodes {
                assert!(!std::mem::replace(&mut seen[at as usize], true), "{nodes}");
                at = super::next(at, nodes);
            }
            assert_eq!(at, 0);
        }
    }
}
