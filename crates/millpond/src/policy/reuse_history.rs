//! Reuse history: when a magazine gets room for large blocks, and when a class borrows a block of a longer one.
//!
//! Large blocks keep their exact size. A freed one coalesces with its neighbours, unless a magazine holds it. So it
//! should be held only if its size is wanted again soon. A magazine earns its room by *missed reuses*: requests that the
//! block freed last would have served.

use super::{Mechanism, without};

/// What a magazine remembers of blocks that it did not have.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ReuseHistory {
    /// Bytes of the block freed last that found no room.
    bytes: u64,
    /// Missed reuses in a row.
    missed_reuses: u32,
    /// Blocks that were borrowed from longer classes in a row.
    borrowed: u32,
    /// What the thread had allocated by the last of them.
    borrowed_at: u64,
}

/// Missed reuses in a row, from which on the magazine gets room. A block in a magazine splits free memory: with room for
/// whatever is missed twice, recorded jobs hold 0.3 % more (docs/lab/pages.md).
pub(crate) const MANY_MISSED_REUSES: u32 = 16;

/// Blocks that a class borrows in a row before it gets one of its own. A loop would borrow for ever: a borrowed block
/// goes back to its own class.
const MOST_BORROWED: u32 = 64;

/// Allocations of any size by which two are apart at most to be in a row.
const IN_A_ROW: u64 = 4;

impl ReuseHistory {
    /// A freed block of this length found no room.
    pub(crate) fn note_free(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// No block of this length was found for a request. Whether the magazine should get room.
    pub(crate) fn note_alloc(&mut self, bytes: u64) -> bool {
        let is_missed = self.bytes == bytes;
        self.missed_reuses = if is_missed { (self.missed_reuses + 1).min(MANY_MISSED_REUSES) } else { 0 };
        self.bytes = 0;
        !without(Mechanism::ReuseHistory) && self.missed_reuses == MANY_MISSED_REUSES
            || without(Mechanism::ReuseHistoryAlways)
    }

    /// The class has no block, after so many allocations by the thread. Whether it may borrow one.
    pub(crate) fn may_borrow(&mut self, allocations: u64) -> bool {
        let is_in_a_row = allocations - self.borrowed_at <= IN_A_ROW;
        self.borrowed = if is_in_a_row { self.borrowed + 1 } else { 1 };
        self.borrowed_at = allocations;
        self.borrowed <= MOST_BORROWED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_length_missed_again_and_again_earns_room() {
        let mut history = ReuseHistory::default();
        let pair = |history: &mut ReuseHistory, bytes| {
            history.note_free(bytes);
            history.note_alloc(bytes)
        };
        assert!((1..MANY_MISSED_REUSES).all(|_| !pair(&mut history, 5 << 20)));
        assert!(pair(&mut history, 5 << 20));
        assert!(!history.note_alloc(6 << 20), "another length begins anew");
        assert!(!pair(&mut history, 5 << 20));
    }

    #[test]
    fn a_class_borrows_sometimes_but_not_in_a_loop() {
        let mut history = ReuseHistory::default();
        assert!((1..1000).all(|step| history.may_borrow(step * 100)));
        let mut in_a_loop = (100_000..).map(|allocations| history.may_borrow(allocations));
        assert_eq!(in_a_loop.position(|may_borrow| !may_borrow), Some(MOST_BORROWED as usize));
    }
}
