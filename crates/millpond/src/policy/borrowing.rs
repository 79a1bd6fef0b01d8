//! When a class that has no block borrows one of a longer class, in throughput mode.

use super::caching::MOST_BLOCKS;

/// Longer classes in which a request looks for a block in throughput mode, where its own has none. There are eight
/// classes a doubling. So the block is less than half as long again as the request, or three units longer in the
/// shortest classes. It goes back to its own class when it is freed.
///
/// The number of live blocks of a class varies by about its root. In proportion, four classes together vary half as
/// much. So a program whose sizes never repeat comes to rest within its growth allowance. Without borrowing, one class
/// after the other would grow, until all is taken back and begins anew. Then 1 to 64 MiB take 250 to 500 ns a step, not
/// 22 to 35 (docs/lab/mechanisms.md).
pub(crate) const CLASSES_TO_BORROW_FROM: usize = 3;

/// Allocations of any size by which two are apart at most to be in a row.
const IN_A_ROW: u64 = 4;

/// What a magazine remembers of blocks that were borrowed for it.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Borrowing {
    /// Blocks borrowed in a row.
    in_a_row: u64,
    /// What the thread had allocated by the last of them.
    last: u64,
}

impl Borrowing {
    /// The class has no block, after so many allocations by the thread. Whether it may borrow one. After a magazine full in a
    /// row it gets one of its own: a loop would borrow for ever, since a borrowed block goes back to its own class.
    pub(crate) fn may_borrow(&mut self, allocations: u64) -> bool {
        let follows = allocations - self.last <= IN_A_ROW;
        self.in_a_row = if follows { self.in_a_row + 1 } else { 1 };
        self.last = allocations;
        self.in_a_row <= MOST_BLOCKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_borrows_sometimes_but_not_in_a_loop() {
        let mut borrowing = Borrowing::default();
        assert!((1..1000).all(|step| borrowing.may_borrow(step * 100)));
        let mut in_a_loop = (100_000..).map(|allocations| borrowing.may_borrow(allocations));
        assert_eq!(in_a_loop.position(|may_borrow| !may_borrow), Some(MOST_BLOCKS as usize));
    }
}
