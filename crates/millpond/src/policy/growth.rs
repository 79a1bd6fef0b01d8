//! What changes where blocks come back longer each time, as the caches of a text that is generated.
//!
//! Where such a block was freed, the next one does not fit. Two things follow from that:
//!
//! - **Room.** If blocks that stay lie beside the free range, nothing of that length comes there any more, and the pages at both ends are
//!   lost. With some room, the next few fit where the last one was.
//! - **Pages stay.** The next block to be freed often lies beside the free range, and a longer one fits into both together. So a free
//!   range is worth more than the whole pages in it, and the pool grows a little before it takes them.

/// The part of a block that it may be given as room. (Programs whose caches grow need 1.079 of what they request without room, in the
/// mean of seven. With a 64th, a 32nd and a 16th they need 1.075, 1.069 and 1.064, and 86 recordings 1.0066, 1.0066 and 1.0068. That was
/// before pages stayed: docs/lab/fit.md.)
const ROOM: u64 = 32;

/// So many of the last 128 misses show that blocks grow. (Of the misses of 42 jobs it is a tenth at most, of a
/// short one with video a fifth; of programs whose caches grow it is a half to nine tenths. With 16, 86 recordings hold 1.0114 of what they request, with 24 and 32 1.0101. With 32, one
/// of the seven programs needs 1.029, and not 1.021.)
const MANY: u32 = 24;

/// What the pool may hold beyond the most that was ever live before it takes pages from free ranges: this part of it at most, and no
/// more than a 32nd and so many of the block. (With a 12th, one of the seven programs needs 1.077, and not 1.029. With 4 blocks,
/// it needs 1.091. By a 12th alone, whatever the block, blocks that grow beside others that stay hold 1.089 of what they request, and
/// not 1.050.)
const BEYOND: u64 = 10;
const BLOCKS: u64 = 8;

/// Whether blocks grow: a bit for each of the last misses of large blocks, whether a free range was nearly long enough.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Growth(u128);

impl Growth {
    /// Notes a miss.
    pub(crate) fn note(&mut self, was_nearly_long_enough: bool) {
        self.0 = self.0 << 1 | u128::from(was_nearly_long_enough);
    }

    /// Whether many of the last misses show that blocks grow.
    pub(crate) fn is_usual(self) -> bool {
        self.0.count_ones() >= MANY
    }
}

/// Bytes that may be held for a block, where blocks grow and so much was ever live, before pages are taken from free ranges.
pub(crate) fn may_hold(block: u64, live: u64) -> u64 {
    live + (live / ROOM + BLOCKS * block).min(live / BEYOND)
}

/// A free range of so many units or more, where `units` do not fit, says that blocks grow.
pub(crate) fn least_before(units: u64) -> u64 {
    units - units / ROOM
}

/// The length with room to grow: a 32nd more at most, so that the next blocks have the same.
pub(crate) fn with_room(units: u64) -> u64 {
    units.next_multiple_of(((1 << units.ilog2()) / ROOM).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_a_32nd_at_most_and_the_same_for_what_follows() {
        assert_eq!([1, 2, 31, 33].map(with_room), [1, 2, 31, 33]);
        assert_eq!([1024, 1025, 1056, 1057, 2047, 2048].map(with_room), [1024, 1056, 1056, 1088, 2048, 2048]);
        for units in 32..10_000 {
            assert!((units..=units + units / ROOM).contains(&with_room(units)), "{units}");
            assert!(with_room(with_room(units)) == with_room(units) && least_before(units) < units);
        }
    }

    #[test]
    fn blocks_grow_where_24_of_the_last_misses_show_it() {
        let mut growth = Growth::default();
        for shown in 0..30 {
            assert_eq!(growth.is_usual(), shown >= 24, "{shown}");
            growth.note(true);
        }
        for other in 0..130 {
            assert_eq!(growth.is_usual(), other <= 128 - 24, "{other}");
            growth.note(false);
        }
    }

    #[test]
    fn a_32nd_and_eight_blocks_are_held_beyond_and_a_10th_at_most() {
        assert_eq!([0, 100, 1000].map(|block| may_hold(block, 96_000)), [99_000, 99_800, 105_600]);
    }
}
