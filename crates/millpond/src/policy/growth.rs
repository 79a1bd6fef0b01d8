//! Which blocks are made a little longer than they were asked for: those that come back longer each time, as the caches of a text
//! that is generated.
//!
//! Where such a block was freed, the next one does not fit. If others stay beside it, nothing of that length comes there any more, and
//! the pages at both ends are lost. With some room, the next few fit where the last one was.

/// The part of a block that it may be given as room. (Programs whose caches grow need 1.079 of what they request without room, in the
/// mean of seven. With a 64th, a 32nd and a 16th they need 1.075, 1.069 and 1.064, and 86 recordings 1.0066, 1.0066 and 1.0068:
/// docs/lab/fit.md.)
const ROOM: u64 = 32;

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
}
