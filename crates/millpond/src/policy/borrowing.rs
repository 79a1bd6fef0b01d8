//! When a class that has no block borrows one of a longer class, in throughput mode.

use super::ledger::MOST_PATHS;

/// Longer classes in which a request looks for a block in throughput mode, where its own has none. There are eight
/// classes a doubling. So the block is less than half as long again as the request, or three units longer in the
/// shortest classes. It goes back to its own class when it is freed.
///
/// The number of live blocks of a class varies by about its root. In proportion, four classes together vary half as
/// much. So a program whose sizes never repeat comes to rest within its growth allowance. Without borrowing, one class
/// after the other would grow, until all is taken back and begins anew. Then 1 to 64 MiB take 250 to 500 ns a step, not
/// 22 to 35 (docs/lab/mechanisms.md).
pub(crate) const CLASSES_TO_BORROW_FROM: usize = 3;

/// Whether a class may borrow, where a thread does so for the `nth` time. Now and then a class gets a block of its own: a loop
/// would borrow for ever, since a borrowed block goes back to its own class. (Once in 64 times, each such block was a miss, and
/// sizes that never repeat came to rest only after many.)
pub(crate) fn may_borrow(nth: u64) -> bool {
    !nth.is_multiple_of(u64::from(MOST_PATHS))
}
