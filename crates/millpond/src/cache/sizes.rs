//! Sizes in units, and the magazine that blocks of a size lie in.

use crate::arena::MOST_UNITS;

/// How a pool rounds sizes. See the [module](super).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    unit_shift: u32,
    /// Bytes from which on sizes are exact.
    exact_from: u64,
}

/// Bits of a size that its class keeps, besides the leading one: eight classes a doubling.
const CLASS_BITS: u32 = 3;

/// Magazines in a lane: one for each class of any size up to the most units that a block can have.
pub(super) const MAGAZINES: usize = class_of(MOST_UNITS) + 1;

/// Names a magazine of a lane. Always less than `MAGAZINES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MagazineIndex(usize);

impl MagazineIndex {
    /// The magazine for blocks of this length, which is less than `MOST_UNITS`.
    #[inline]
    pub(super) fn of(units: u64) -> Self {
        debug_assert!(units < MOST_UNITS);
        // The mask changes nothing for such a length; it makes the bound hold for any.
        Self(class_of(units & (MOST_UNITS - 1)))
    }

    #[inline]
    pub(super) fn get(self) -> usize {
        self.0
    }
}

impl Sizes {
    /// For units of `unit_bytes` (a power of two); blocks of `exact_from` bytes and more are not rounded.
    pub(crate) fn new(unit_bytes: u64, exact_from: u64) -> Self {
        Self { unit_shift: unit_bytes.ilog2(), exact_from: exact_from.max(unit_bytes) }
    }

    /// Whether a request of this size is rounded to a class: any block of its magazine will do.
    #[inline]
    pub(super) fn is_rounded(self, bytes: u64) -> bool {
        bytes <= self.exact_from - (1 << self.unit_shift)
    }

    /// The length of a block for a request of `bytes`, at least 1, in units.
    pub(crate) fn units(self, bytes: u64) -> u64 {
        let units = self.exact_units(bytes);
        if !self.is_rounded(bytes) {
            return units;
        }
        let step = (1 << class_shift(units)) - 1;
        (units + step) & !step
    }

    /// As [`units`](Self::units), for a block that is not of a class.
    #[inline]
    pub(crate) fn exact_units(self, bytes: u64) -> u64 {
        ((bytes - 1) >> self.unit_shift) + 1
    }

    /// The magazine with blocks for a request that is rounded: the one after that for the longest block that is
    /// too short.
    #[inline]
    pub(super) fn magazine_for_rounded(self, bytes: u64) -> MagazineIndex {
        debug_assert!(self.is_rounded(bytes));
        // Rounded lengths are far from the last magazine, whatever the unit: at most 2^32 units (`new`).
        MagazineIndex(class_of(((bytes - 1) >> self.unit_shift) & u64::from(u32::MAX)) + 1)
    }

    #[inline]
    pub(crate) fn bytes(self, units: u64) -> u64 {
        units << self.unit_shift
    }
}

#[inline(always)]
const fn class_shift(units: u64) -> u32 {
    (units | 1 << CLASS_BITS).ilog2() - CLASS_BITS
}

#[inline(always)]
const fn class_of(units: u64) -> usize {
    let shift = class_shift(units);
    ((shift as usize) << CLASS_BITS) + (units >> shift) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sizes_waste_at_most_an_eighth_and_large_ones_less_than_a_unit() {
        let sizes = Sizes::new(512, 1 << 20);
        for bytes in (1..4 << 20).step_by(61) {
            let held = sizes.bytes(sizes.units(bytes));
            assert!(held >= bytes);
            let rounded_to_units = bytes.next_multiple_of(512);
            if bytes <= (1 << 20) - 512 {
                assert!((held - rounded_to_units) * 8 < rounded_to_units.max(8), "{bytes} got {held}");
            } else {
                assert_eq!(held, rounded_to_units);
            }
        }
    }

    #[test]
    fn a_class_is_its_own_class_and_magazines_are_in_the_order_of_sizes() {
        let sizes = Sizes::new(512, 1 << 20);
        let mut before = 0;
        for bytes in (512..64 << 20).step_by(512) {
            let units = sizes.units(bytes);
            assert_eq!(sizes.units(sizes.bytes(units)), units);
            let magazine = MagazineIndex::of(units).get();
            assert!(magazine >= before && magazine <= before + 1, "{bytes}: {before} to {magazine}");
            before = magazine;
        }
    }

    #[test]
    fn blocks_of_one_small_class_have_one_length() {
        let sizes = Sizes::new(512, 1 << 20);
        let mut lengths = std::collections::HashMap::new();
        for bytes in (1..=(1 << 20) - 512).step_by(113) {
            let units = sizes.units(bytes);
            assert!(sizes.is_rounded(bytes));
            assert_eq!(sizes.magazine_for_rounded(bytes), MagazineIndex::of(units));
            assert_eq!(*lengths.entry(MagazineIndex::of(units)).or_insert(units), units);
        }
    }
}
