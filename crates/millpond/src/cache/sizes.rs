//! Sizes in units, and the magazine that blocks of a size lie in.

use super::magazine::Magazine;
use crate::extents::MOST_UNITS;
use crate::policy::size_classes::{EXACT_FROM, class_of, is_rounded_in_throughput_mode, rounded};

/// How a pool rounds sizes. See the [module](super).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    unit_shift: u32,
    /// Requests of at most so many bytes are rounded to a class.
    rounded_to: u64,
}

/// Magazines in a stream cache: one for each class of any size up to the most units that a block can have.
pub(super) const MAGAZINES: usize = class_of(MOST_UNITS) as usize + 1;

/// Names a magazine of a stream cache, by its distance in bytes from the start of the magazines: it is added as it is.
/// The first stride is taken. At most `MAGAZINES` strides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MagazineIndex(usize);

const _: () = assert!(
    MAGAZINES * size_of::<Magazine>() < 1 << u16::BITS,
    "places are looked up in tables of that width"
);

impl MagazineIndex {
    /// The magazine for blocks of this length, which is less than `MOST_UNITS`.
    #[inline]
    pub(super) fn of(units: u64) -> Self {
        assert!(units < MOST_UNITS, "an arena has no longer blocks");
        Self(usize::from(place_of(units)))
    }

    /// The magazine for blocks of a class.
    ///
    /// # Safety
    /// It is the class of a block.
    #[inline]
    pub(super) unsafe fn of_class(class: u32) -> Self {
        debug_assert!((class as usize) < MAGAZINES);
        Self((class as usize + 1) * size_of::<Magazine>())
    }

    /// Its distance from the start of the magazines, in bytes.
    #[inline]
    pub(super) fn place(self) -> usize {
        self.0
    }

    /// Magazines before it.
    pub(super) fn number(self) -> usize {
        self.0 / size_of::<Magazine>() - 1
    }
}

impl Sizes {
    /// For units of `unit_bytes`, a power of two.
    pub(crate) fn new(unit_bytes: u64) -> Self {
        debug_assert!(EXACT_FROM <= LOOKED_UP as u64 * unit_bytes, "units are longer");
        // A block of `EXACT_FROM` bytes is not rounded, nor is what becomes one in whole units.
        Self { unit_shift: unit_bytes.ilog2(), rounded_to: EXACT_FROM.saturating_sub(unit_bytes) }
    }

    /// Whether a request of this size is rounded to a class: any block of its magazine will do.
    #[inline]
    pub(super) fn is_rounded(self, bytes: u64) -> bool {
        // Zero bytes wrap around.
        bytes.wrapping_sub(1) < self.rounded_to
    }

    /// The length of a block for a request of `bytes`, at least 1, in units.
    pub(crate) fn units(self, bytes: u64) -> u64 {
        let units = self.exact_units(bytes);
        if self.is_rounded(bytes) { rounded(units) } else { units }
    }

    /// As [`units`](Self::units), where large blocks are rounded to classes too: an eighth is wasted at most. The
    /// longest are not.
    pub(crate) fn units_in_throughput_mode(self, bytes: u64) -> u64 {
        let units = self.exact_units(bytes);
        if is_rounded_in_throughput_mode(bytes) { rounded(units) } else { units }
    }

    /// As [`units`](Self::units), for a block that is not of a class.
    #[inline]
    pub(crate) fn exact_units(self, bytes: u64) -> u64 {
        ((bytes - 1) >> self.unit_shift) + 1
    }

    /// The magazine with blocks for a request that is rounded.
    ///
    /// # Safety
    /// It [is](Self::is_rounded).
    #[inline]
    pub(super) unsafe fn magazine_for_rounded(self, bytes: u64) -> MagazineIndex {
        debug_assert!(self.is_rounded(bytes));
        let units_less_one = ((bytes - 1) >> self.unit_shift) as usize;
        // SAFETY: `new` has no more rounded than the table has, and this request is.
        MagazineIndex(usize::from(unsafe { *PLACES.get_unchecked(units_less_one) }))
    }

    #[inline]
    pub(crate) fn bytes(self, units: u64) -> u64 {
        units << self.unit_shift
    }
}

/// The place of the class's magazine: see [`MagazineIndex`].
const fn place_of(units: u64) -> u16 {
    ((class_of(units) as usize + 1) * size_of::<Magazine>()) as u16
}

/// How many lengths have their magazines' places in a table.
const LOOKED_UP: usize = 4096;

/// The places of the magazines, by the length less one. To look a place up costs less than to find a leading bit, on some
/// processors.
static PLACES: [u16; LOOKED_UP] = {
    let mut all = [0; LOOKED_UP];
    let mut at = 0;
    while at < all.len() {
        all[at] = place_of(at as u64 + 1);
        at += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many sizes one is looked at: Miri takes minutes for all.
    const ONE_IN: usize = if cfg!(miri) { 199 } else { 1 };

    #[test]
    fn sizes_waste_less_than_an_eighth_or_a_unit() {
        let sizes = Sizes::new(512);
        for bytes in (1..4 << 20).step_by(61 * ONE_IN) {
            let held = sizes.bytes(sizes.units(bytes));
            assert!(held >= bytes);
            let in_units = bytes.next_multiple_of(512);
            if sizes.is_rounded(bytes) {
                assert!((held - in_units) * 8 < in_units, "{bytes} got {held}");
            } else {
                assert_eq!(held, in_units);
            }
        }
        assert!(sizes.is_rounded((1 << 20) - 512) && !sizes.is_rounded((1 << 20) - 511));
    }

    #[test]
    fn throughput_mode_rounds_all_but_the_longest() {
        let (sizes, longest) = (Sizes::new(512), 512 << 20);
        assert_eq!(sizes.bytes(sizes.units_in_throughput_mode(longest - 512)), longest);
        assert_eq!(sizes.bytes(sizes.units_in_throughput_mode(longest + 1)), longest + 512);
    }

    #[test]
    fn looking_a_class_up_finds_the_class_of_the_block() {
        for unit in [256, 512, 4096] {
            let sizes = Sizes::new(unit);
            let rounded = (1..1 << 20).step_by(113 * ONE_IN).chain((1 << 20) - 2 * unit..1 << 20);
            for bytes in rounded.filter(|bytes| sizes.is_rounded(*bytes)) {
                // SAFETY: just asked.
                let found = unsafe { sizes.magazine_for_rounded(bytes) };
                assert_eq!(found, MagazineIndex::of(sizes.units(bytes)), "{bytes} of {sizes:?}");
            }
        }
    }

    #[test]
    fn units_longer_than_small_blocks_are_never_rounded() {
        let sizes = Sizes::new(2 << 20);
        assert!(!sizes.is_rounded(1) && sizes.units(1) == 1);
    }
}
